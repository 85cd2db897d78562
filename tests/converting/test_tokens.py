"""Token files in every format: the same documents, masks where both have them, and never any text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.converting.tokens import read_corpus
from feedmill.errors import ConfigError, DataError
from feedmill.formats.pth import dump
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, read_manifest, write_manifest
from feedmill.storage import open_store
from feedmill.tokens.corpus import open_corpus
from helpers.conversion_sources import files, tokens
from helpers.durations import examples
from helpers.tars import write_tar

FORMATS = ("pbin", "ds", "megatron", "dolma")


def convert(source: Path, destination: Path, to: str, **options: Any) -> Any:
    return fm.convert(source, destination, to, **{"workers": 1, "progress": False, **options})


def documents(path: Path) -> list[list[int]]:
    out: list[list[int]] = []
    for ids, lengths, _ in read_corpus(open_corpus([str(path)]), loss=False):
        out += [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    return out


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_a_round_trip_through_every_pair_gives_the_same_documents(tmp_path: Path, first: str, second: str) -> None:
    source = tokens(tmp_path / "source")
    one = convert(source, tmp_path / "a", first)
    two = convert(tmp_path / "a", tmp_path / "b", second)
    convert(tmp_path / "b", tmp_path / "back", "ds")
    assert documents(tmp_path / "back") == documents(source) and one.digest == two.digest
    assert len(list((tmp_path / "b").rglob("*.feedmill.json"))) == 3


@pytest.mark.parametrize("to", FORMATS)
def test_sequences_of_vla_foundry(tmp_path: Path, to: str) -> None:
    source = tokens(tmp_path / "source")
    with pytest.raises(ConfigError, match="document boundaries"):
        convert(source, tmp_path / "v", "vla-text", seq_len=15)
    report = convert(source, tmp_path / "v", "vla-text", seq_len=15, allow_loss=True)
    every = np.concatenate(documents(source))
    wanted = every[: len(every) // 16 * 16].reshape(-1, 16).tolist()
    assert report.notes == [f"{len(every) % 16:,} tokens after the last sequence are dropped"]
    convert(tmp_path / "v", tmp_path / "d", to)
    assert documents(tmp_path / "d") == wanted
    with pytest.raises(ConfigError, match="already"):
        convert(tmp_path / "v", tmp_path / "e", "vla-text", seq_len=15)


def test_sequences_in_tensors(tmp_path: Path) -> None:
    golden = Path(__file__).parent.parent / "golden/vla"
    with pytest.raises(ConfigError, match=r"cannot store the parts 'attention_mask.pth', 'labels.pth' beside the ids"):
        convert(golden / "text_doc", tmp_path / "d", "pbin")
    convert(golden / "text_doc", tmp_path / "d", "pbin", allow_loss=True)
    wanted = [sample["input_ids.pth"].tolist() for sample in fm.open(golden / "text_doc")]
    assert documents(tmp_path / "d") == wanted
    with pytest.raises(DataError, match="not a list of token ids"):
        convert(golden / "image_caption", tmp_path / "e", "pbin")


def tensors(folder: Path, *samples: dict[str, Any]) -> Path:
    """A dataset of VLA Foundry whose samples have these values as tensors."""
    parts = [(f"s{n}.{name}.pth", dump(value)) for n, sample in enumerate(samples) for name, value in sample.items()]
    write_tar(folder / "shard-000000.tar", parts)
    row = f'{{"shard": "shard-000000", "num_sequences": {len(samples)}}}\n'
    (folder / "manifest.jsonl").write_text(row)
    return folder


def test_tensors_of_ids_alone_lose_nothing_and_others_are_refused(tmp_path: Path) -> None:
    ids = np.arange(5, dtype=np.int32)
    alone = tensors(tmp_path / "a", {"input_ids": ids}, {"input_ids": ids[:2].astype(np.int64)})
    assert convert(alone, tmp_path / "d", "ds").plan.losses == []
    assert documents(tmp_path / "d") == [[0, 1, 2, 3, 4], [0, 1]]
    more = tensors(tmp_path / "b", {"input_ids": ids}, {"input_ids": ids, "labels": ids})
    with pytest.raises(DataError, match=r"parts that the first sample does not have \(labels.pth\)"):
        convert(more, tmp_path / "e", "ds")
    bad = (ids.reshape(1, 5), ids.astype(np.float32), np.array([-1]), np.array([2**32]), [1, 2], b"x")
    for number, value in enumerate(bad):
        with pytest.raises(DataError, match=r"input_ids.pth (is|has)") as error:
            convert(tensors(tmp_path / f"c{number}", {"input_ids": value}), tmp_path / f"f{number}", "ds")
        assert error.value.kind == "no-tokens" and error.value.record == "s0"


def test_masks_go_where_there_is_a_place(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source", loss=True)
    with pytest.raises(ConfigError, match="loss masks of tokens"):
        convert(source, tmp_path / "v", "vla-text", seq_len=15)
    convert(source, tmp_path / "p", "pbin")
    convert(source, tmp_path / "d", "ds", token_size=4)
    a, *others = (
        list(read_corpus(open_corpus([str(path)]), loss=True)) for path in (source, tmp_path / "d", tmp_path / "p")
    )
    for b in others:
        assert np.array_equal(np.concatenate([x[2] for x in a]), np.concatenate([x[2] for x in b]))


def test_token_sizes(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source", files=1)
    convert(source, tmp_path / "four", "pbin", token_size=4)
    convert(tmp_path / "four", tmp_path / "two", "pbin", token_size=2)
    assert documents(tmp_path / "two") == documents(source)
    assert (tmp_path / "two/0.pbin").stat().st_size < (tmp_path / "four/0.pbin").stat().st_size
    with pytest.raises(DataError, match="does not fit"):
        convert(source, tmp_path / "one", "pbin", token_size=1)
    with pytest.raises(ConfigError, match="cannot store tokens of 1 bytes"):
        convert(source, tmp_path / "x", "ds", token_size=1)


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source", files=1)
    facts = TokenizerFacts("words", "ab" * 16, 60_000)
    write_manifest(open_store(str(source)), "0.ds", TokenManifest("ds", 60, 1, tokenizer=facts, eos=2))
    convert(source, tmp_path / "d", "megatron")
    found = read_manifest(open_store(str(tmp_path / "d")), "0.idx")
    assert found is not None and found.tokenizer == facts and found.eos == 2


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.lists(st.integers(0, 65_535), max_size=9), min_size=1, max_size=9), st.sampled_from(FORMATS))
def test_any_documents_come_back(tmp_path_factory: pytest.TempPathFactory, made: list[list[int]], to: str) -> None:
    root = tmp_path_factory.mktemp("any")
    ids = np.asarray([token for document in made for token in document], np.int64)
    with write_ds(open_store(str(root)), "s.ds", 2, tokenizer_name=None) as writer:
        writer.add(ids, np.asarray([len(document) for document in made], np.int64))
    convert(root / "s.ds", root / "d", to)
    convert(root / "d", root / "e", "ds")
    assert documents(root / "e") == made


def test_the_bytes_do_not_depend_on_the_processes(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source")
    for to in FORMATS:
        convert(source, tmp_path / "one" / to, to)
        convert(source, tmp_path / "two" / to, to, workers=3)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_nothing_is_detokenized(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source", files=1)
    for to in ("jsonl", "wds", "parquet"):
        with pytest.raises(ConfigError, match="cannot be converted to text"):
            convert(source, tmp_path / "d", to)
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match="feedmill tokenize"):
        convert(tmp_path / "t.jsonl", tmp_path / "d", "pbin")
    for options in ({"split": "train"}, {"fields": ["x"]}, {"seq_len": 4}):
        with pytest.raises(ConfigError):
            convert(source, tmp_path / "d", "pbin", **options)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("to", ["pbin", "ds", "megatron", "dolma"])
def test_manifests_say_the_sizes(tmp_path: Path, to: str) -> None:
    tokens(tmp_path / "source")
    fm.convert(tmp_path / "source", tmp_path / "d", to, progress=False)
    store = open_store(str(tmp_path / "d"))
    manifests = [path for path in (tmp_path / "d").iterdir() if path.name.endswith(".feedmill.json")]
    assert len(manifests) == 3
    said: dict[str, int] = {}
    for path in manifests:
        manifest = read_manifest(store, path.name.removesuffix(".feedmill.json"))
        assert manifest is not None and manifest.sizes
        said |= manifest.sizes
    beside = (".feedmill.json", ".feedmill.lineage")
    there = {entry.path: entry.size for entry in store.files() if not entry.path.endswith(beside)}
    assert said == there
