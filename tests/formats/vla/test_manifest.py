"""Reading, writing, opening and indexing manifests of tars."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.vla.manifest import Row, each_row, manifest_text, read_rows, shard_path
from feedmill.indexing.manifests import write_manifest
from feedmill.storage import open_store
from helpers.durations import examples
from helpers.vla_golden import ROOT, expected, facts

FOLDERS = ["text", "text_b", "text_doc", "text_untokenized", "image_caption", "image_caption_doc", "robotics"]
FOLDERS.append("robotics_doc")


def write_tar(path: Path, samples: dict[str, dict[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, parts in samples.items():
            for name, data in parts.items():
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def make(folder: Path, counts: list[int], *, form: str = "documented") -> Path:
    rows = []
    for shard, count in enumerate(counts):
        write_tar(folder / "shards" / f"s-{shard}.tar", {f"{shard}-{i}": {"txt": b"%d" % i} for i in range(count)})
        rows.append(Row(f"shards/s-{shard}.tar", count))
    (folder / "manifest.jsonl").write_bytes(manifest_text(rows, form))
    return folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_golden_folders_give_every_sample_in_order(folder: str) -> None:
    wanted = expected(folder)
    data = fm.open(ROOT / folder)
    again = fm.open(ROOT / folder / "manifest.jsonl")
    samples = [(shard, one) for shard, rows in wanted["shards"].items() for one in rows]
    assert len(data) == len(again) == len(samples) == sum(row["num_sequences"] for row in wanted["manifest"])
    assert data.format == "vla"
    for number, (shard, one) in enumerate(samples):
        found = data[number]
        assert (found.key, found.source.file) == (one["key"], shard)
        assert set(found) == set(one["fields"])
        for name, field in one["fields"].items():
            assert len(found.raw(name)) == field["nbytes"]
            if name.endswith(".pth"):
                decoded = found[name]
                got = facts(decoded)
                assert got == field["decoded"]
    assert data.find(samples[-1][1]["key"]) == len(samples) - 1


@pytest.mark.parametrize("form", ["documented", "code"])
def test_both_forms_are_read_and_written(tmp_path: Path, form: str) -> None:
    make(tmp_path, [3, 2], form=form)
    text = (tmp_path / "manifest.jsonl").read_text()
    assert (".tar" in text) == (form == "documented")
    assert len(fm.open(tmp_path)) == 5
    before = (tmp_path / "manifest.jsonl").read_bytes()
    report = write_manifest(str(tmp_path), form=form, progress=False)
    assert (tmp_path / "manifest.jsonl").read_bytes() == before and report.samples == 5


def test_another_manifest_is_replaced_only_when_told(tmp_path: Path) -> None:
    make(tmp_path, [3])
    (tmp_path / "manifest.jsonl").write_text('{"shard": "shards/s-0.tar", "num_sequences": 2}\n')
    with pytest.raises(ConfigError, match="a manifest with different content"):
        write_manifest(str(tmp_path), progress=False)
    write_manifest(str(tmp_path), overwrite=True, progress=False)
    assert len(fm.open(tmp_path)) == 3
    (tmp_path / "none").mkdir()
    with pytest.raises(NotFound, match=r"no \.tar files"):
        write_manifest(str(tmp_path / "none"), progress=False)


rows = st.lists(st.tuples(st.text("abc/-_.é", min_size=1, max_size=8), st.integers(0, 10**12)), min_size=1, max_size=6)


@given(rows, st.sampled_from(["documented", "code"]))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_written_is_read(tmp_path_factory, found, form) -> None:
    given = []
    for name, count in found:
        try:
            given.append(Row(shard_path(name, ""), count))
        except ConfigError:
            continue
    if not given:
        return
    folder = tmp_path_factory.mktemp("m")
    try:
        (folder / "m.jsonl").write_bytes(manifest_text(given, form))
    except ConfigError as error:
        assert "that of another shard" in str(error) and form == "code"
        return
    again = read_rows(open_store(folder), "m.jsonl")
    assert [(shard_path(row.shard, ""), row.samples) for row in again] == [tuple(row) for row in given]


@pytest.mark.parametrize(
    "line, word",
    [
        ('{"shard": "/etc/x.tar", "num_sequences": 1}', "not in the manifest's folder"),
        ('{"shard": "../x.tar", "num_sequences": 1}', "not in the manifest's folder"),
        ('{"shard": "a/../../x", "num_sequences": 1}', "not in the manifest's folder"),
        ('{"shard": "s3://b/x.tar", "num_sequences": 1}', "not in the manifest's folder"),
        ('{"shard": "pipe:cat x", "num_sequences": 1}', "would run a command"),
        ('{"shard": "x::pipe:touch ran", "num_sequences": 1}', "would run a command"),
        ('{"shard": "gone", "num_sequences": 1}', "file is missing"),
        ('{"shard": "shards/s-0", "num_sequences": 512}', "num_sequences is 512, but the shard .* has 3 samples"),
        ('{"shard": "shards/s-0", "num_sequences": -1}', "not a line of a manifest"),
        ('{"shard": "shards/s-0", "num_sequences": 1.5}', "not a line of a manifest"),
        ('{"shard": "shards/s-0", "num_sequences": true}', "not a line of a manifest"),
        ('{"shard": "", "num_sequences": 1}', "not a line of a manifest"),
        ('{"shard": "shards/s-0"}', "not a line of a manifest"),
        ("", "not a line of a manifest"),
        ("[1]", "not a line of a manifest"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, word: str) -> None:
    make(tmp_path, [3])
    text = (tmp_path / "manifest.jsonl").read_text()
    (tmp_path / "manifest.jsonl").write_text(text + line + "\n" + text)
    with pytest.raises(FeedmillError, match=word) as info:
        fm.open(tmp_path)
    assert str(info.value).startswith(f"{tmp_path}/manifest.jsonl:2")
    report = fm.check(str(tmp_path), progress=False)
    assert len(report.findings) == 1 and report.findings[0].what == info.value.what


def test_carriage_returns_and_further_keys_pass(tmp_path: Path) -> None:
    make(tmp_path, [3])
    (tmp_path / "manifest.jsonl").write_bytes(b'{"shard": "shards/s-0", "num_sequences": 3, "x": [1]}\r\n')
    assert len(fm.open(tmp_path)) == 3
    (tmp_path / "manifest.jsonl").write_bytes(b"")
    assert next(str(one) for one in each_row(open_store(tmp_path), "manifest.jsonl")).count("the manifest is empty")


def test_a_cut_tar_is_an_error_that_names_it(tmp_path: Path) -> None:
    make(tmp_path, [3, 4])
    shard = tmp_path / "shards" / "s-1.tar"
    for length, word in ((2600, "truncated"), (2048, "num_sequences is 4")):
        data = shard.read_bytes()
        shard.write_bytes(data[:length])
        with pytest.raises(DataError, match=word) as info:
            fm.open(tmp_path)
        assert "s-1.tar" in str(info.value)
        report = fm.check(str(tmp_path), progress=False)
        assert any(word in str(one) for one in report.findings) and report.samples < 7
        shard.write_bytes(data)
    assert not fm.check(str(tmp_path), progress=False).findings


def test_check_finds_the_sample_without_its_caption() -> None:
    report = fm.check(str(ROOT / "image_caption"), progress=False)
    (finding,) = report.findings
    assert finding.kind == "missing-field" and finding.record == "000010007" and "txt" in finding.what


def test_check_notes_what_is_odd(tmp_path: Path) -> None:
    make(tmp_path, [3, 4])
    text = (tmp_path / "manifest.jsonl").read_text().splitlines()[0] + "\n"
    (tmp_path / "manifest.jsonl").write_text(text * 2)
    report = fm.check(str(tmp_path), progress=False)
    assert not report.findings and len(fm.open(tmp_path)) == 6
    assert any("2 times" in note for note in report.notes) and any("1 tars are not listed" in n for n in report.notes)


def test_the_index_gives_the_same_and_a_shard_twice_is_read_twice(tmp_path: Path, monkeypatch) -> None:
    data = make(tmp_path, [5, 0, 7, 1])
    with open(data / "manifest.jsonl", "ab") as f:
        f.write((data / "manifest.jsonl").read_bytes().splitlines(True)[0])
    plain = fm.open(data)
    monkeypatch.setattr("feedmill.formats.tar.index.INDEX_FROM", 0)
    indexed = fm.open(data)
    assert (data / ".feedmill").is_dir() and len(indexed) == len(plain) == 18
    for number in range(18):
        assert indexed[number].key == plain[number].key and indexed[number].raw("txt") == plain[number].raw("txt")
        assert indexed.find(plain[number].key) == number % 13
        assert indexed.locate(number).offset == plain.locate(number).offset
    with pytest.raises(NotFound):
        indexed.find("none")


def test_a_changed_shard_is_read_anew_and_counted_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("feedmill.formats.tar.index.INDEX_FROM", 0)
    data, other = make(tmp_path / "data", [5, 7]), make(tmp_path / "other", [5, 6])
    assert len(fm.open(data)) == 12
    shutil.copy2(other / "shards" / "s-0.tar", data / "shards" / "s-0.tar")
    assert len(fm.open(data)) == 12
    shutil.copy2(other / "shards" / "s-1.tar", data / "shards" / "s-1.tar")
    with pytest.raises(DataError, match="num_sequences is 7"):
        fm.open(data)


def test_other_files_of_lines_are_still_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"shard": "x"}) + "\n")
    assert fm.open(tmp_path / "a.jsonl").format == "jsonl"
    make(tmp_path, [1])
    shutil.copy(tmp_path / "manifest.jsonl", tmp_path / "other.jsonl")
    assert fm.open(tmp_path / "other.jsonl").format == "vla"
    assert len(fm.open(tmp_path, dataset_config="other.jsonl")) == 1


def test_many_processes_open_it_anew(tmp_path: Path) -> None:
    import pickle

    data = fm.open(make(tmp_path, [2, 3]))
    again = pickle.loads(pickle.dumps(data))
    assert [one.key for one in again] == [one.key for one in data]
