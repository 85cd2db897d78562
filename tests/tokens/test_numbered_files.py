"""`tokenize` with a size of files: numbered files that together are the one file."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, EmptyResult
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.indexing.check import check
from feedmill.storage import LocalStore
from feedmill.tokens import job, outputs
from feedmill.tokens.encode import Encodings
from feedmill.tokens.job import TokenizeReport
from feedmill.tokens.outputs import FORMATS
from feedmill.tokens.spill import PieceFacts, find_piece, write_piece
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.durations import examples
from helpers.kills import finish, moments, run_until_killed
from helpers.tokenizer_data import EOS, loaded, tokenizer_file, write_lines

TOKENS = ("pbin", "ds", "megatron", "dolma")
TEXTS = [f"Document {i}: " + "some words, and more. " * (i * 7 % 23) for i in range(200)]


def run(inputs: Any, out: Path, **options: Any) -> TokenizeReport:
    return tokenize([inputs], out, **{"tokenizer": loaded(), "workers": 1, "eos": EOS, "formats": TOKENS, **options})


def documents(path: str | Path) -> list[list[int]]:
    dataset = fm.open(str(path))
    return [sample["input_ids"].tolist() for sample in dataset.read(range(len(dataset)))]


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"}


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(1, 3000),
    st.integers(1, 5000),
    st.sampled_from(TOKENS),
)
def test_numbered_files_are_the_documents_of_one_file_wherever_units_end(
    tmp_path_factory: pytest.TempPathFactory, words: list[int], size: int, unit: int, format: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    source = write_lines(folder / "a.jsonl", [f"{i} " + "word " * n for i, n in enumerate(words)])
    one = run(source, folder / "one", formats=[format])
    many = run(source, folder / "many" / "web", formats=[format], max_file_size=size, unit_bytes=unit)
    wanted = documents(one.outputs[format])
    assert documents(many.outputs[format]) == wanted
    assert (many.documents, many.tokens) == (one.documents, one.tokens)
    run(source, folder / "again" / "web", formats=[format], max_file_size=size, unit_bytes=1 << 20)
    assert written(folder / "many") == written(folder / "again")  # units do not decide where files end
    suffixes = FORMATS[format]
    names = [f"web_{n:05d}{suffixes[0]}" for n in range(many.numbered_files[format])]
    assert {name for name in os.listdir(folder / "many") if name.endswith(suffixes[0])} == set(names)
    for name in names:
        found = documents(folder / "many" / name)
        stem = name.removesuffix(suffixes[0])
        sizes = [
            os.path.getsize(p)
            for p in (folder / "many").glob(f"{stem}*")
            if not p.name.endswith((".json", ".lineage", "z"))
        ]
        assert found
        metadata = 80  # of .ds, which has the name of the tokenizer
        assert len(found) == 1 or max(s for s in sizes if s > metadata or s <= size) <= size


def test_files_end_at_the_last_document_that_fits(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    report = run(source, tmp_path / "out/web", formats=["ds"], max_file_size=1000)
    lengths = [2 * len(d) for d in documents(report.outputs["ds"])]
    ends, size = [], 0
    for number, length in enumerate(lengths):
        if size and size + length > 1000:
            ends.append(number)
            size = 0
        size += length
    files = [len(documents(tmp_path / f"out/web_{n:05d}.ds")) for n in range(report.numbered_files["ds"])]
    assert np.cumsum(files).tolist() == [*ends, len(lengths)] and len(files) > 5


def test_the_files_of_a_format_do_not_depend_on_other_formats_or_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_FEW", 0)
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    run(source, tmp_path / "all/web", max_file_size="2kB", workers=2, unit_bytes=700)
    found: dict[str, bytes] = {}
    for format in TOKENS:
        run(source, tmp_path / format / "web", formats=[format], max_file_size=2000)
        found |= written(tmp_path / format)
    rows = [name for name in found if name.endswith(".csv.gz")]
    assert rows and written(tmp_path / "all") == found


@pytest.mark.parametrize("format", TOKENS)
def test_a_folder_is_one_dataset(format: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    one = run(source, tmp_path / "one", formats=[format])
    many = run(source, tmp_path / "tokens/web", formats=[format], max_file_size="2kB")
    folder, wanted = str(tmp_path / "tokens"), documents(one.outputs[format])
    assert many.numbered_files[format] > 3
    assert documents(folder) == wanted
    assert fm.open(folder).describe()["shards"] == many.numbered_files[format]
    report = check(folder)
    assert (report.findings, report.samples) == ([], len(wanted))
    info = json.loads(finish(["show", folder, "--json"], tmp_path))
    assert (info["format"], info["samples"], info["tokens"]) == (format, len(wanted), one.tokens)
    plan = {}
    for name, path in (("one", one.outputs[format]), ("many", folder)):
        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(json.dumps({"source": str(path), "shuffle": "none", "epochs": 1}))
        plan[name] = fm.Recipe.load(str(recipe)).plan()
    assert len(plan["one"]) == len(plan["many"])
    damaged = next(p for p in sorted(Path(folder).glob("web_00001.*")) if p.suffix in (".pbin", ".ds", ".bin", ".npy"))
    data = bytearray(damaged.read_bytes())
    data[40] ^= 1
    damaged.write_bytes(data)
    assert [finding.kind for finding in check(folder).findings]


def test_names_and_options(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    report = run(source, tmp_path / "out/{part:3}_web.pbin", formats=["pbin"], max_file_size=3000)
    assert sorted(p.name for p in (tmp_path / "out").glob("*.pbin"))[0] == "000_web.pbin"
    assert report.outputs["pbin"].endswith(f"out/{{000..{report.numbered_files['pbin'] - 1:03d}}}_web.pbin")
    whole = run(source, tmp_path / "large/web", formats=["pbin"], max_file_size="1GB")
    assert whole.outputs["pbin"].endswith("large/web_00000.pbin")
    run(source, tmp_path / "one", formats=["pbin"])
    assert (tmp_path / "large/web_00000.pbin").read_bytes() == (tmp_path / "one.pbin").read_bytes()
    for options, out, said in (
        ({"max_file_size": 0}, "x", "is invalid"),
        ({"max_file_size": 9, "formats": ["ds", "pbin"]}, "../one", r"one\.pbin.*read together"),
        ({"max_file_size": "many"}, "x", "'many' is not a size"),
        ({"max_file_size": 9, "formats": ["pbin", "vla-text"], "seq_len": 9}, "x", "unsupported for vla-text"),
        ({"max_file_size": 9}, "{part}/x", "can only be once"),
        ({"max_file_size": 9}, "{part}_{part}", "can only be once"),
        ({}, "x_{part}", "Add --max-file-size"),
        ({"max_file_size": 200, "formats": ["ds"]}, "{part:1}", "more than their names have digits for"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(source, tmp_path / "bad" / out, **options)
    assert [path.name for path in (tmp_path / "bad").iterdir()] == [".{part:1}.feedmill-work"]


def test_the_manifest_of_each_file(tmp_path: Path) -> None:
    for name in "ab":
        write_lines(tmp_path / f"in/{name}.jsonl", TEXTS if name == "a" else [*TEXTS, b'{"text": ""}'])
    report = run(tmp_path / "in", tmp_path / "out/web", formats=["pbin"], max_file_size=4000, on_error="skip")
    store, count = LocalStore(tmp_path / "out"), report.numbered_files["pbin"]
    found = [read_manifest(store, f"web_{n:05d}.pbin") for n in range(count)]
    manifests = [manifest for manifest in found if manifest is not None]
    assert len(manifests) == count
    assert sum(m.documents for m in manifests) == report.documents == 2 * len(TEXTS)
    assert [m.options["file"] for m in manifests] == list(range(count))
    assert {(m.options["files"], m.options["max_file_size"], m.skipped) for m in manifests} == {(count, 4000, 1)}
    assert all(set(m.sizes) >= {f"web_{n:05d}.pbin"} and m.hashes for n, m in enumerate(manifests))


def test_nothing_is_replaced_without_overwrite_and_higher_numbers_are_removed(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    small = run(source, tmp_path / "out/web", max_file_size=2000)
    again = run(source, tmp_path / "out/web", max_file_size=2000)
    assert again.complete and not small.complete
    assert (again.documents, again.tokens, again.outputs, again.numbered_files) == (
        small.documents,
        small.tokens,
        small.outputs,
        small.numbered_files,
    )
    (tmp_path / "out/web_00002.ds").unlink()
    with pytest.raises(ConfigError, match="already exists"):  # it is incomplete
        run(source, tmp_path / "out/web", max_file_size=2000)
    with pytest.raises(ConfigError, match="already exists"):
        run(source, tmp_path / "out/web", max_file_size=5000)
    run(source, tmp_path / "out/web", max_file_size=5000, overwrite=True)
    run(source, tmp_path / "calm/web", max_file_size=5000)
    assert written(tmp_path / "out") == written(tmp_path / "calm")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "calm"))
    one = tmp_path / "gap"
    one.mkdir()
    (one / "web_00001.ds").write_bytes(b"mine")  # there is no number 0
    with pytest.raises(ConfigError, match=r"web_00001\.ds.*already exists"):
        run(source, one / "web", formats=["ds"], max_file_size=2000)
    assert (one / "web_00001.ds").read_bytes() == b"mine"
    with pytest.raises(ConfigError, match=r"web_00001\.ds.*already exists"):  # resumed
        run(source, one / "web", formats=["ds"], max_file_size=2000)
    run(source, one / "web", formats=["ds"], max_file_size=2000, overwrite=True)
    assert documents(one) == documents(small.outputs["ds"].replace("/out/", "/gap/"))


def test_an_empty_result(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [b'{"text": ""}'])
    with pytest.raises(EmptyResult):
        run(source, tmp_path / "out/web", max_file_size=100, on_error="skip")
    assert not list(tmp_path.glob("out/*"))
    report = run(source, tmp_path / "out/web", max_file_size=100, on_error="skip", allow_empty=True)
    assert report.numbered_files == dict.fromkeys(TOKENS, 1) and documents(tmp_path / "out/web_00000.pbin") == []


def test_finished_files_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    run(source, tmp_path / "calm/web", formats=["ds"], max_file_size=2000)
    write, count = outputs.write_documents, 0

    def stops(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(outputs, "write_documents", stops)
    with pytest.raises(KeyboardInterrupt):
        run(source, tmp_path / "out/web", formats=["ds"], max_file_size=2000)
    assert sorted(p.name for p in (tmp_path / "out").glob("*.ds")) == [f"web_{n:05d}.ds" for n in range(3)]
    before = (tmp_path / "out/web_00001.ds").stat().st_mtime_ns
    (tmp_path / "out/web_00002.ds").write_bytes(b"short")
    report = run(source, tmp_path / "out/web", formats=["ds"], max_file_size=2000)
    assert report.reused and (tmp_path / "out/web_00001.ds").stat().st_mtime_ns == before
    assert written(tmp_path / "out") == written(tmp_path / "calm")
    assert count == 4 + report.numbered_files["ds"] - 2


def test_a_piece_that_was_synced_is_not_read_again(tmp_path: Path) -> None:
    for synced in (True, False):
        path = tmp_path / f"{synced}.piece"
        with write_piece(str(path), PieceFacts(synced=synced)) as piece:
            piece.add((Encodings(b"12345678", np.array([2, 2]), None, None), None))
        assert find_piece(str(path)) is not None
        data = path.read_bytes()
        path.write_bytes(b"9" + data[1:])
        assert (find_piece(str(path)) is not None) == synced
        for other in (data[:-3], data[:-1] + bytes([data[-1] ^ 1]), b"", data[-9:]):
            path.write_bytes(other)
            assert find_piece(str(path)) is None


def corpus(folder: Path) -> None:
    rng = random.Random(3)
    write_lines(folder / "a.jsonl", (f"{i} " + "alpha beta " * rng.randint(1, 90) for i in range(120)))


@moments(11, range(2, 60, 9), least=2)
def test_killed_before_each_file(tmp_path: Path, moments: Sequence[int], least: int) -> None:
    words = ["tokenize", "a.jsonl", "-o", "out/web", "-t", str(tokenizer_file("tok1k")), "--to", "pbin,ds"]
    words += ["--max-file-size", "6kB", "--workers", "1"]
    calm = tmp_path / "calm"
    corpus(calm)
    finish(words, calm)
    wanted = written(calm / "out")
    assert len([name for name in wanted if name.endswith(".ds")]) > 3
    killed = 0
    for moment in moments:
        place = tmp_path / f"at{moment}"
        corpus(place)
        if not run_until_killed(moment, words, place):
            break
        killed += 1
        finish(words, place)
        assert written(place / "out") == wanted, f"killed before file {moment}"
        assert not [path for path in place.rglob("*") if "feedmill-work" in path.name]
    assert killed >= least


@pytest.mark.parametrize("format", ["pbin", "ds", "megatron"])
def test_merge_cuts_files_where_tokenize_does(format: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*TEXTS, "long " * 2000, *TEXTS])
    report = run(source, tmp_path / "many/web", formats=[format], max_file_size=2000)
    assert report.notes == [
        f"1 of {report.numbered_files[format]} files ({format}) are larger than 2,000 bytes:"
        " documents and chunks stay whole"
    ]
    one = run(source, tmp_path / "one", formats=[format])
    suffix = FORMATS[format][0]
    merged = fm.tokens.merge([one.outputs[format]], f"{tmp_path}/merged/web{suffix}", max_file_size=2000)
    assert merged.notes[:1] == report.notes
    assert [done.documents for done in merged.outputs] == [
        len(documents(tmp_path / f"many/web_{n:05d}{suffix}")) for n in range(report.numbered_files[format])
    ]
    again = run(source, tmp_path / "many/web", formats=[format], max_file_size=2000)
    assert again.complete and again.notes == report.notes


@pytest.mark.parametrize("format", ["pbin", "ds", "megatron", "dolma"])
def test_a_single_file_beside_numbered_ones_is_an_error(tmp_path: Path, format: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": f"document {number}"} for number in range(20)])
    run(source, tmp_path / "out/x", formats=(format,), max_file_size=150)
    before = written(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"\d numbered files of an earlier run exist") as error:
        run(source, tmp_path / "out/x", formats=(format,))
    assert error.value.kind == "exists" and written(tmp_path / "out") == before
    run(source, tmp_path / "out/x", formats=(format,), overwrite=True)
    run(source, tmp_path / "calm/x", formats=(format,))
    assert written(tmp_path / "out") == written(tmp_path / "calm")
