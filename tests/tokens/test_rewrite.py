"""The writer behind the verbs: contents against a plain model, masks, limits, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, read_manifest, write_manifest
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.jobs.engine import StageUnfinished
from feedmill.jobs.parts import PartEngine
from feedmill.storage import LocalStore
from feedmill.tokens import corpus, outputs, rewrite
from feedmill.tokens.corpus import Chunks, open_corpus
from feedmill.tokens.outputs import sizes_of
from feedmill.tokens.verbs.filter import filter
from feedmill.tokens.verbs.merge import merge
from feedmill.tokens.verbs.shuffle import shuffle, shuffle_chunk, shuffled
from feedmill.tokens.verbs.split import split
from helpers.durations import examples

Documents = list[list[int]]
anything = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60), deadline=None
)
files = st.lists(st.lists(st.lists(st.integers(0, 255), max_size=9), max_size=8), min_size=1, max_size=4)


def write(folder: Path, name: str, documents: Documents, size: int = 2, **options: bool) -> str:
    store = LocalStore(folder)
    tokens = np.asarray([token for document in documents for token in document], np.int64)
    lengths = np.asarray([len(document) for document in documents], np.int64)
    if name.endswith(".ds"):
        with write_ds(store, name, size, tokenizer_name="tok", **options) as ds:
            mask = (tokens % 3 > 0) if options.get("loss") else None
            ds.add(tokens, lengths, mask)
    else:
        with write_pbin(store, name, size) as pbin:
            pbin.add(tokens, lengths)
    return f"{folder}/{name}"


def read(path: str) -> Documents:
    (store, shard), *more = open_corpus([path]).shards
    assert not more
    tokens = np.frombuffer(store.read(shard.path)[shard.offset :], shard.dtype, shard.tokens)
    return [tokens[a:b].tolist() for a, b in zip(shard.bounds[:-1], shard.bounds[1:], strict=True)]


@anything
@given(data=files, seed=st.integers(0, 99), batch=st.sampled_from([2, 16, 1 << 20]), large=st.booleans())
def test_verbs_do_what_a_list_would(data: list[Documents], seed: int, batch: int, large: bool, tmp_path: Path) -> None:
    inputs = [write(tmp_path, f"{number}.pbin", documents) for number, documents in enumerate(data)]
    row = [document for documents in data for document in documents]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "BATCH", batch)
        patch.setattr(corpus, "_AT_ONCE", 5)
        if large:
            patch.setattr(corpus, "LARGE", -1)
            patch.setattr(corpus, "FORGET", 4)
        merge(inputs, f"{tmp_path}/m.pbin", overwrite=True, allow_empty=True)
        assert read(f"{tmp_path}/m.pbin") == row
        shuffle(inputs, f"{tmp_path}/s.ds", seed=seed, overwrite=True, allow_empty=True)
        assert read(f"{tmp_path}/s.ds") == [row[i] for i in shuffled(len(row), seed)]
        filter(inputs, f"{tmp_path}/f.bin", min_length=2, max_length=5, overwrite=True, allow_empty=True)
        assert read(f"{tmp_path}/f.bin") == [document for document in row if 2 <= len(document) <= 5]
        split(inputs, f"{tmp_path}/p{{part}}.pbin", chunks=3, overwrite=True, allow_empty=True)
        assert [d for n in range(3) for d in read(f"{tmp_path}/p0000{n}.pbin")] == row


@anything
@given(data=files, size=st.integers(1, 12), seed=st.integers(0, 9), whole=st.booleans())
def test_chunks_hold_every_token_once(data: list[Documents], size: int, seed: int, whole: bool, tmp_path: Path) -> None:
    inputs = [write(tmp_path, f"{number}.pbin", documents) for number, documents in enumerate(data)]
    corpus = open_corpus(inputs)
    order = shuffled(len(corpus), seed) if whole else None
    chunks = Chunks(corpus, size, order)
    rows = data
    if order is not None:
        documents = [document for part in data for document in part]
        rows = [[documents[i] for i in order]]
    texts = [[token for document in part for token in document] for part in rows]
    wanted = [text[at : at + size] for text in texts for at in range(0, len(text), size)]
    assert chunks.lengths(np.arange(len(chunks))).tolist() == [len(chunk) for chunk in wanted]
    with corpus.mapped() as mapped:
        for number, chunk in enumerate(wanted):
            spans = chunks.spans(np.asarray([number]))
            pieces = [mapped.tokens(f)[s : s + n].tolist() for f, s, n in zip(*spans, strict=True)]
            assert [token for piece in pieces for token in piece] == chunk
            assert all(pieces)


def test_masks_go_along(tmp_path: Path) -> None:
    one = write(tmp_path, "1.ds", [[1, 2, 3], [3, 4]], loss=True)
    two = write(tmp_path, "2.ds", [[6, 9]])
    shuffle([one, two], f"{tmp_path}/s.ds", seed=3)
    documents = read(f"{tmp_path}/s.ds")
    mask = np.fromfile(tmp_path / "s.ds.loss", np.uint8).tolist()
    row = [token for document in documents for token in document]
    expected = {(1, 2, 3): [1, 1, 0], (3, 4): [0, 1], (6, 9): [1, 1]}  # a file without a mask will be learned
    assert mask == [bit for document in documents for bit in expected[tuple(document)]]
    assert sorted(row) == [1, 2, 3, 3, 4, 6, 9]
    merge([one], f"{tmp_path}/m.pbin")
    assert np.fromfile(tmp_path / "m.pbin.feedmill.loss", np.uint8).tolist() == [1, 1, 0, 0, 1]
    merge([one], f"{tmp_path}/m.pbin", drop_loss=True, overwrite=True)
    assert not (tmp_path / "m.pbin.feedmill.loss").exists()


def test_masks_from_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "BATCH", 8)
    source = write(tmp_path, "a.pbin", [[1, 5, 2, 9], [9, 9], [1, 7, 7]])
    merge([source], f"{tmp_path}/m.ds", learn_between=(1, 2))
    assert np.fromfile(tmp_path / "m.ds.loss", np.uint8).tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 1]
    bad = write(tmp_path, "b.pbin", [[1, 5, 2, 9], [9, 9], [2, 1]])
    with pytest.raises(DataError, match="document 2"):
        merge([bad], f"{tmp_path}/n.ds", learn_between=(1, 2))
    assert not (tmp_path / "n.ds").exists()
    with pytest.raises(ConfigError, match="only be made for token files of whole documents"):
        merge([source], f"{tmp_path}/n.pbin", learn_between=(1, 2), chunk=4, order="datatrove")


def test_limits_per_file(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[1] * 4, [2] * 4, [3] * 9, [4], [5] * 4])
    report = merge([source], f"{tmp_path}/m_{{part:2}}.pbin", max_tokens_per_file=8)
    assert [done.path[-7:-5] for done in report.outputs] == ["00", "01", "02"]
    assert [done.tokens for done in report.outputs] == [8, 9, 5]
    report = merge([source], f"{tmp_path}/n.pbin", max_tokens=9)
    assert (report.tokens, report.left_out) == (17, {"documents beyond the limit of tokens": 2})
    with pytest.raises(ConfigError, match="part"):
        merge([source], f"{tmp_path}/o.pbin", max_tokens_per_file=8)


def test_sizes_and_tokenizers_have_to_be_the_same(tmp_path: Path) -> None:
    one, two = write(tmp_path, "1.pbin", [[1, 2]]), write(tmp_path, "2.pbin", [[70_000]], size=4)
    with pytest.raises(ConfigError, match="bytes per token"):
        merge([one, two], f"{tmp_path}/m.pbin")
    merge([one, two], f"{tmp_path}/m.pbin", token_size=4)
    assert read(f"{tmp_path}/m.pbin") == [[1, 2], [70_000]]
    with pytest.raises(DataError, match="does not fit"):
        merge([two], f"{tmp_path}/n.pbin", token_size=2)
    assert not (tmp_path / "n.pbin").exists()
    store = LocalStore(tmp_path)
    for name, hash in (("1.pbin", "a" * 32), ("2.pbin", "b" * 32)):
        write_manifest(store, name, TokenManifest("pbin", 1, 1, tokenizer=TokenizerFacts("t", hash, 300), eos=0))
    with pytest.raises(ConfigError, match="made with the tokenizer"):
        merge([one, two], f"{tmp_path}/o.pbin", token_size=4)
    merge([one, two], f"{tmp_path}/o.pbin", token_size=4, mixed_tokenizers=True)
    assert read_manifest(store, "o.pbin").tokenizer is None  # type: ignore[union-attr]
    merge([one, one], f"{tmp_path}/p.ds")
    manifest = read_manifest(store, "p.ds")
    assert manifest is not None and manifest.tokenizer is not None
    assert (manifest.tokenizer.hash, manifest.eos, manifest.documents) == ("a" * 32, 0, 2)
    assert (tmp_path / "p.ds.metadata").read_text().startswith("t|2\n4\n")


def test_manifests_say_the_sizes(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[1, 2], [3], [4, 5]])
    out = tmp_path / "out"
    merge([source], f"{out}/m.ds")
    shuffle([source], f"{out}/s.bin", seed=1)
    split([source], f"{out}/{{part}}.pbin", plan={"x": [0, 1], "y": [2]})
    filter([source], f"{out}/f.pbin", drop=[1])
    ours = (".feedmill.json", ".feedmill.lineage")
    there = {path.name: path.stat().st_size for path in out.iterdir() if not path.name.endswith(ours)}
    said: dict[str, int] = {}
    for name in ("m.ds", "s.idx", "x.pbin", "y.pbin", "f.pbin"):
        manifest = read_manifest(LocalStore(out), name)
        assert manifest is not None and name in manifest.sizes
        said |= manifest.sizes
    assert said == there
    for name in ("m.ds.index", "m.ds.metadata", "s.bin"):
        assert name in there
    assert not check(f"{out}/f.pbin").findings
    (out / "m.ds.index").unlink()
    assert [Path(error.file or "").name for error in check(f"{out}/m.ds").findings] == ["m.ds.index"]


def test_a_kill_before_the_sizes_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, "a.pbin", [[i] for i in range(4)])
    merge([source], f"{tmp_path}/m.pbin")

    class Stop(Exception):
        pass

    def stop(*_: object) -> dict[str, int]:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "sizes_of", stop)
        with pytest.raises(Stop):
            merge([source, source], f"{tmp_path}/m.pbin", overwrite=True)
        with pytest.raises(Stop):
            shuffle([source], f"{tmp_path}/s_{{part}}.pbin", max_tokens_per_file=1)
    assert len(read(f"{tmp_path}/m.pbin")) == 8
    assert not check(f"{tmp_path}/m.pbin").findings  # the older file's sizes are gone
    shuffle([source], f"{tmp_path}/s_{{part}}.pbin", max_tokens_per_file=1)
    manifest = read_manifest(LocalStore(tmp_path), "s_00000.pbin")
    assert manifest is not None and manifest.sizes["s_00000.pbin"] == (tmp_path / "s_00000.pbin").stat().st_size


def test_lines_keep_their_bytes_and_get_the_newline_they_lack(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1}\r\n\n{"b": "\xff"}')
    (tmp_path / "b.jsonl").write_bytes(b'{"c":1}\n')
    (tmp_path / "c.jsonl").write_bytes(b"")
    inputs = [f"{tmp_path}/{name}.jsonl" for name in "abc"]
    report = merge(inputs, f"{tmp_path}/m.jsonl")
    assert (tmp_path / "m.jsonl").read_bytes() == b'{"a":1}\r\n\n{"b": "\xff"}\n{"c":1}\n'
    assert report.documents == 4
    shuffle(inputs, f"{tmp_path}/s.jsonl", seed=1)
    assert sorted((tmp_path / "s.jsonl").read_bytes().split(b"\n")) == sorted(
        (tmp_path / "m.jsonl").read_bytes().split(b"\n")
    )
    with pytest.raises(ConfigError, match="cannot be combined"):
        merge([inputs[0], write(tmp_path, "t.pbin", [[1]])], f"{tmp_path}/x.jsonl")
    with pytest.raises(ConfigError, match="cannot be cut into chunks"):
        shuffle(inputs, f"{tmp_path}/x.jsonl", chunk=3)


def test_splits_of_lines_are_not_lost_without_a_word(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n' * 10)
    prepare(f"{tmp_path}/a.jsonl", split_ratio="8,1,1")
    inputs = [f"{tmp_path}/{name}.jsonl" for name in "ab"]
    for report in (
        merge(inputs, f"{tmp_path}/m.jsonl"),
        shuffle(inputs, f"{tmp_path}/s.jsonl", seed=1),
        split(inputs, f"{tmp_path}/{{part}}.jsonl", plan={"x": [1]}),
        filter(inputs, f"{tmp_path}/f.jsonl", keep=[1]),
    ):
        assert [note.partition(";")[0] for note in report.as_dict()["notes"]] == [
            f"{tmp_path}/a.jsonl: its splits are not copied"
        ]


def test_chunks_without_an_index(tmp_path: Path) -> None:
    source = write(tmp_path, "a.ds", [[1, 2, 3, 4, 5], [6, 7]], index=False)
    with pytest.raises(ConfigError, match="index of documents is missing"):
        shuffle([source], f"{tmp_path}/s.ds", seed=1)
    shuffle([source], f"{tmp_path}/s.ds", seed=1, chunk=3)
    assert sorted(read(f"{tmp_path}/s.ds")) == [[1, 2, 3], [4, 5, 6], [7]]


def test_what_chunks_lose_is_counted(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[1, 2], [], [3, 4, 5], []])
    report = shuffle([source], f"{tmp_path}/s.pbin", seed=1, chunk=2, order="datatrove")
    assert report.left_out == {"tokens in tails shorter than a chunk": 1, "documents without tokens": 2}
    assert report.tokens == 4


def test_plans(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[i] for i in range(10)])
    report = split([source], f"{tmp_path}/{{part}}.pbin", plan={"x": [3, [0, 2], 3], "y": []})
    assert read(f"{tmp_path}/x.pbin") == [[3], [0], [1], [3]]
    assert read(f"{tmp_path}/y.pbin") == []
    assert report.left_out == {"documents in no part": 7}
    for plan in ({"x": [10]}, {"x": [[3, 2]]}, {"../x": [1]}, {"": [1]}, {"x": [[1, 2, 3]]}):
        with pytest.raises(ConfigError):
            split([source], f"{tmp_path}/q{{part}}.pbin", plan=plan)  # type: ignore[arg-type]
    for ways in ({}, {"chunks": 2, "ratio": {"a": 1}}, {"chunks": 0}):
        with pytest.raises(ConfigError):
            split([source], f"{tmp_path}/q{{part}}.pbin", **ways)  # type: ignore[arg-type]


def test_targets_that_are_there(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[1], [2]])
    merge([source], f"{tmp_path}/m.pbin")
    with pytest.raises(ConfigError, match="already exists"):
        merge([source], f"{tmp_path}/m.pbin")
    merge([source, source], f"{tmp_path}/m.pbin", overwrite=True)
    assert read(f"{tmp_path}/m.pbin") == [[1], [2], [1], [2]]
    with pytest.raises(ConfigError, match="one of the inputs"):
        merge([source], source, overwrite=True)
    with pytest.raises(ConfigError, match="no format has files"):
        merge([source], f"{tmp_path}/m.zip")
    with pytest.raises(FeedmillError):
        merge([f"{tmp_path}/nothing.pbin"], f"{tmp_path}/o.pbin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FeedmillError, match="no token files"):
        merge([f"{tmp_path}/empty"], f"{tmp_path}/o.pbin")
    with pytest.raises(ConfigError, match="no file has a document"):
        shuffle_chunk([source], f"{tmp_path}/o.pbin", chunk=4, chunks=5)
    with pytest.raises(ConfigError, match="contains document 9"):
        filter([source], f"{tmp_path}/o.pbin", keep=[9])


def test_folders_are_all_their_files(tmp_path: Path) -> None:
    (tmp_path / "in/below").mkdir(parents=True)
    write(tmp_path / "in", "b.pbin", [[2]])
    write(tmp_path / "in", "a.pbin", [[1]])
    write(tmp_path / "in/below", "c.pbin", [[3]])
    merge([f"{tmp_path}/in"], f"{tmp_path}/m.pbin")
    assert read(f"{tmp_path}/m.pbin") == [[1], [2], [3]]
    write(tmp_path / "in", "d.ds", [[4]])
    with pytest.raises(ConfigError, match="several formats"):
        merge([f"{tmp_path}/in"], f"{tmp_path}/n.pbin")


@pytest.mark.parametrize("beside", ["b.jsonl.gz", "below/c.ndjson", "d.json", "e.parquet", "f.txt"])
def test_documents_of_a_folder_that_cannot_be_read_are_an_error(tmp_path: Path, beside: str) -> None:
    for path in (tmp_path / "in/a.jsonl", tmp_path / "in" / beside, tmp_path / "in/README.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match=f"besides files of jsonl, the folder has 1 file .{beside}.") as error:
        merge([f"{tmp_path}/in"], f"{tmp_path}/out.jsonl")
    assert error.value.kind == "mixed-formats"
    (tmp_path / "in" / beside).unlink()
    assert merge([f"{tmp_path}/in"], f"{tmp_path}/out.jsonl").documents == 1


def test_another_job_is_not_finished(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[i] for i in range(6)])

    class Stop(Exception):
        pass

    with pytest.MonkeyPatch.context() as patch:
        calls = []

        def stop(*_: object) -> dict[str, int]:
            calls.append(1)
            if len(calls) == 2:
                raise Stop
            return sizes_of(*_)  # type: ignore[arg-type]

        patch.setattr(outputs, "sizes_of", stop)
        with pytest.raises(Stop):
            shuffle([source], f"{tmp_path}/s_{{part}}.pbin", max_tokens_per_file=1)
    with pytest.raises(ConfigError, match="another job"):
        shuffle([source], f"{tmp_path}/s_{{part}}.pbin", max_tokens_per_file=2)
    report = shuffle([source], f"{tmp_path}/s_{{part}}.pbin", max_tokens_per_file=1)
    assert len(report.outputs) == 3 and report.resumed == 1
    assert sorted(d for done in report.outputs for d in read(done.path)) == [[i] for i in range(6)]
    assert not [path for path in tmp_path.iterdir() if "feedmill-work" in path.name]


def test_object_stores(s3_bucket: str, tmp_path: Path) -> None:
    one = write(tmp_path, "a.pbin", [[1, 2], [3]])
    merge([one], f"{s3_bucket}/in/a.pbin")
    merge([one], f"{s3_bucket}/in/b.pbin")
    report = shuffle([f"{s3_bucket}/in"], f"{s3_bucket}/out/s_{{part}}.ds", seed=1, max_tokens_per_file=2)
    assert report.documents == 4
    merge([f"{s3_bucket}/out"], f"{tmp_path}/back.pbin")
    assert sorted(read(f"{tmp_path}/back.pbin")) == [[1, 2], [1, 2], [3], [3]]
    with pytest.raises(ConfigError, match="already exists"):
        merge([one], f"{s3_bucket}/in/a.pbin")


def test_no_input_is_written_to_by_whatever_name(tmp_path: Path) -> None:
    one = write(tmp_path / "in", "a.pbin", [[1], [2, 3]])
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "other.pbin").symlink_to(one)
    merge([one], f"{tmp_path}/in/m.idx")
    for source, target in (
        (one, f"{tmp_path}/link/a.pbin"),
        (f"{tmp_path}/other.pbin", one),
        (f"{tmp_path}/other.pbin", f"{tmp_path}/other.pbin"),
        (one, f"file://{one}"),
        (f"{tmp_path}/in/m.idx", f"{tmp_path}/in/m.idx"),
        (f"{tmp_path}/in/m.idx", f"{tmp_path}/link/m.bin"),
    ):
        with pytest.raises(ConfigError, match="one of the inputs"):
            merge([source], target, overwrite=True)
    (tmp_path / "in" / "m.idx").unlink()
    (tmp_path / "in" / "m.bin").unlink()
    split([str(tmp_path / "in")], f"{tmp_path}/in/part_{{part}}.pbin", chunks=2)
    with pytest.raises(ConfigError, match=r"part_00000.pbin: the output is one of the inputs"):
        split([str(tmp_path / "in")], f"{tmp_path}/in/part_{{part}}.pbin", chunks=2, overwrite=True)
    assert (read(one), read(f"{tmp_path}/in/part_00000.pbin")) == ([[1], [2, 3]], [[1]])


def test_the_bytes_of_lines_count_added_newlines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}')
    (tmp_path / "b.jsonl").write_text('{"text": "three"}\n')
    report = merge([f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"], f"{tmp_path}/m.jsonl")
    assert report.tokens == (tmp_path / "m.jsonl").stat().st_size


def test_lines_are_not_merged_in_chunks(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one and two"}\n')
    with pytest.raises(ConfigError, match="cannot be cut into chunks"):
        merge([f"{tmp_path}/a.jsonl"], f"{tmp_path}/b.jsonl", order="datatrove", seed=1, chunk=10)


@pytest.mark.parametrize("entry", [1.5, None, {0: 1, 1: 2}, 1 << 70, [0, None]])
def test_a_plan_of_no_numbers_is_one_message(tmp_path: Path, entry: object) -> None:
    plan = {"a": [entry]}
    with pytest.raises(ConfigError, match="the part 'a'"):
        split([write(tmp_path, "a.pbin", [[1]])], f"{tmp_path}/{{part}}.pbin", plan=plan)  # type: ignore[arg-type]


def test_a_seed_that_no_journal_holds_and_an_order_that_is_none(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[1]])
    with pytest.raises(ConfigError, match="64-bit"):
        shuffle([source], f"{tmp_path}/b.pbin", seed=1 << 80)
    with pytest.raises(ConfigError, match="unknown order 'nope'"):
        merge([source], f"{tmp_path}/b.pbin", order="nope")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["pbin", "ds", "bin", "jsonl"])
def test_overwriting_removes_the_higher_parts_of_an_earlier_run(tmp_path: Path, suffix: str) -> None:
    if suffix == "jsonl":
        source = str(tmp_path / "a.jsonl")
        Path(source).write_bytes(b"".join(b"%d\n" % i for i in range(6)))
    else:
        source = write(tmp_path, "a.pbin", [[i, i] for i in range(6)])
    out = f"{tmp_path}/out/m_{{part}}.{suffix}"

    def files() -> list[str]:
        return sorted(path.name for path in (tmp_path / "out").iterdir())

    merge([source], out, max_tokens_per_file=4)
    few = files()
    assert any("00002" in name for name in few) and not any("00003" in name for name in few)
    merge([source], out, max_tokens_per_file=1, overwrite=True)
    assert any("00005" in name for name in files())
    merge([source], out, max_tokens_per_file=4, overwrite=True)
    assert files() == few  # companions and manifests of the others are gone, too
    shuffle([source], out, seed=1, max_tokens_per_file=100, overwrite=True)
    assert not any("00001" in name for name in files())
    split([source], out, chunks=3, overwrite=True)
    split([source], out, chunks=2, overwrite=True)
    assert any("00001" in name for name in files()) and not any("00002" in name for name in files())


def test_higher_parts_are_refused_without_overwriting_and_never_removed_while_they_are_inputs(tmp_path: Path) -> None:
    sources = [write(tmp_path, f"m_{i:05d}.pbin", [[i], [i]]) for i in (1, 2)]
    out = f"{tmp_path}/m_{{part}}.pbin"
    with pytest.raises(ConfigError, match=r"m_00001.pbin: the output is one of the inputs"):
        merge(sources, out, overwrite=True)
    other = write(tmp_path, "other.pbin", [[7]])
    with pytest.raises(ConfigError, match=r"m_00001.pbin: the file already exists"):
        merge([other], out)
    assert [read(source) for source in sources] == [[[1], [1]], [[2], [2]]]


def test_a_killed_overwriting_run_is_finished_without_the_higher_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, "a.pbin", [[i] for i in range(6)])
    out = f"{tmp_path}/m_{{part}}.pbin"
    merge([source], out, max_tokens_per_file=1)

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(rewrite, "remove_part", stop)
        merge([source], out, max_tokens_per_file=2, overwrite=True)
    assert (tmp_path / "m_00005.pbin").exists()
    merge([source], out, max_tokens_per_file=2)  # the same job: it continues
    assert sorted(tmp_path.glob("m_*.pbin")) == [tmp_path / f"m_{i:05d}.pbin" for i in range(3)]


def test_a_filter_that_nothing_can_pass_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[1] * 60])
    with pytest.raises(ConfigError, match="at least 100 and at most 50"):
        filter([source], f"{tmp_path}/f.pbin", min_length=100, max_length=50)
    with pytest.raises(ConfigError, match="at least 0 and at most -1"):
        filter([source], f"{tmp_path}/f.pbin", max_length=-1)
    assert not (tmp_path / "f.pbin").exists()
    filter([source], f"{tmp_path}/f.pbin", min_length=60, max_length=60)
    assert read(f"{tmp_path}/f.pbin") == [[1] * 60]


@pytest.mark.parametrize("suffix", ["pbin", "ds", "bin", "jsonl"])
def test_limits_by_size(suffix: str, tmp_path: Path) -> None:
    """No file is larger, unless it is one longer document; the folder opens as one dataset."""
    if suffix == "jsonl":
        lines = [b'{"n": "%s"}\n' % (b"x" * (i % 80)) for i in range(60)]
        lines[20] = b'{"n": "%s"}\n' % (b"x" * 500)
        lines[-1] = lines[-1].rstrip()
        sources = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
        Path(sources[0]).write_bytes(b"".join(lines[:31])[:-1])
        Path(sources[1]).write_bytes(b"".join(lines[31:]))
    else:
        documents = [[i % 7] * (i % 40) for i in range(60)]
        documents[20] = [5] * 500
        sources = [write(tmp_path, "a.pbin", documents[:31]), write(tmp_path, "b.pbin", documents[31:])]
    report = merge(sources, f"{tmp_path}/out/m.{suffix}", max_file_size="300B")
    assert len(report.outputs) > 8
    assert [done.path for done in report.outputs[:2]] == [f"{tmp_path}/out/m_0000{i}.{suffix}" for i in range(2)]
    for done in report.outputs:
        files = [path for path in (tmp_path / "out").glob(Path(done.path).stem + ".*") if "feedmill" not in path.name]
        assert max(path.stat().st_size for path in files) <= 300 or done.documents == 1
    used = [done.tokens for done in report.outputs if done.documents > 1]
    assert sum(used) / len(used) > (40 if suffix != "jsonl" else 180)  # files are not cut too early
    merge([str(tmp_path / "out")], f"{tmp_path}/back.{suffix}")
    merge(sources, f"{tmp_path}/whole.{suffix}")
    names = [f"back.{suffix}", *(["back.idx"] if suffix == "bin" else [])]
    for name in names:
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("back", "whole")).read_bytes()
    if suffix != "jsonl":
        opened = fm.open(f"{tmp_path}/out")
        assert [sample["input_ids"].tolist() for sample in opened.read(range(60))] == documents
    report = shuffle(sources, f"{tmp_path}/shuffled/s_{{part:2}}.{suffix}", seed=1, max_file_size=1)
    assert {done.documents for done in report.outputs} == {1} and len(report.outputs) == 60
    with pytest.raises(ConfigError, match="limit of 0 bytes"):
        shuffle(sources, f"{tmp_path}/x.{suffix}", seed=1, max_file_size=0)
    with pytest.raises(ConfigError, match="not a size"):
        merge(sources, f"{tmp_path}/x.{suffix}", max_file_size="much")
    with pytest.raises(ConfigError, match="by tokens and by size"):
        merge(sources, f"{tmp_path}/x_{{part}}.{suffix}", max_file_size=9, max_tokens_per_file=9)


def test_chunks_by_size(tmp_path: Path) -> None:
    """A chunk has parts of several documents, which the index of a file lists."""
    source = write(tmp_path, "a.pbin", [[1], [2], [3], [], [4, 5]] * 40)
    shuffle([source], f"{tmp_path}/out/s.pbin", seed=1, chunk=4, max_file_size=400)
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.pbin")]
    assert max(sizes) <= 400 and len(sizes) > 5


def test_several_processes_write_the_same(tmp_path: Path) -> None:
    masked = write(tmp_path, "a.ds", [[i, i + 1, 3] * (i % 5) for i in range(200)], loss=True)
    plain = write(tmp_path, "b.pbin", [[1, i + 3, 2, 9] for i in range(150)])
    for workers in (1, 2):
        out, more = f"{tmp_path}/{workers}", {"max_file_size": 200, "workers": workers}
        shuffle([masked, plain], f"{out}/s.ds", seed=1, **more)
        shuffle([masked, plain], f"{out}/c.ds", seed=1, chunk=7, documents_too=True, drop_loss=True, **more)
        merge([plain], f"{out}/m.ds", learn_between=(1, 2), **more)
    found, wanted = ({p.name: p.read_bytes() for p in (tmp_path / str(w)).iterdir()} for w in (2, 1))
    assert found == wanted and len(found) > 30


def test_parts_draw_one_seed(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[i] for i in range(90)])
    words: Any = {"max_file_size": 200}
    for part in (2, 1):
        with PartEngine(part, 3), pytest.raises(StageUnfinished):
            shuffle([source], f"{tmp_path}/out/s.pbin", **words)
    with PartEngine(finish=True):
        report = shuffle([source], f"{tmp_path}/out/s.pbin", **words)
    count = len(report.outputs)
    assert report.resumed == sum(number % 3 != 2 for number in range(count)) and count > 5
    again = shuffle([source], f"{tmp_path}/again/s.pbin", seed=report.seed, **words)
    for done, other in zip(report.outputs, again.outputs, strict=True):
        assert Path(done.path).read_bytes() == Path(other.path).read_bytes()


def test_parts_do_not_replace_files_of_others(tmp_path: Path) -> None:
    source = write(tmp_path, "a.pbin", [[i] for i in range(90)])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/s_00004.pbin").write_bytes(b"mine")
    for part in (2, 1, 2):
        with PartEngine(part, 2), pytest.raises(ConfigError, match="already exists"):
            shuffle([source], f"{tmp_path}/out/s.pbin", max_file_size=200)
    assert [path.name for path in (tmp_path / "out").glob("*.pbin")] == ["s_00004.pbin"]


def test_marks_of_a_finished_run_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while its work folder was removed; then the output was replaced, and the same job begins as parts."""
    source = write(tmp_path, "a.pbin", [[i] for i in range(9)])
    out = f"{tmp_path}/out/s.pbin"
    with monkeypatch.context() as patch:
        patch.setattr("feedmill.jobs.work.Work._remove", lambda *_: None)
        patch.setattr("feedmill.storage.LocalStore.remove_folder", lambda *_: None)
        shuffle([source], out, seed=1)
    assert list((tmp_path / "out").rglob("written-*"))
    wanted = Path(out).read_bytes()
    Path(out).write_bytes(b"replaced")
    with PartEngine(1, 1), pytest.raises(StageUnfinished):
        shuffle([source], out, seed=1, overwrite=True)
    assert Path(out).read_bytes() == wanted
