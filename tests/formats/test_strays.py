"""Files of systems and archivers in tars, and samples whose parts are not adjacent: never read in silence."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.sniff import open_raw
from feedmill.formats.tar import index
from feedmill.formats.tar.strays import is_stray
from feedmill.storage import open_store
from helpers.tars import tar_bytes, write_tar

NAMES = [(number, part) for number in range(4) for part in ("cls", "txt")]
STRAYS = {
    "mac": [f"d/{dot}{n}.{part}" for n, part in NAMES for dot in ("._", "")],
    "mac at the top of ./": [f"./{dot}{n}.{part}" for n, part in NAMES for dot in ("._", "")],
    "zip": [f"{front}{n}.{part}" for n, part in NAMES for front in ("__MACOSX/d/._", "d/")],
    "pax": [f"{front}{n}.{part}" for n, part in NAMES for front in ("PaxHeaders.12/", "")],
    "windows": ["d/.DS_Store", *(f"d/{n}.{part}" for n, part in NAMES), "d/Thumbs.db", "desktop.ini"],
}
KINDS = {
    "types": [f"{n}.{part}" for part in ("cls", "txt") for n in range(4)],
    "one": ["0.cls", "1.cls", "1.txt", "2.cls", "2.txt", "3.cls", "3.txt", "0.txt"],
    "three": [f"d/{n}.{part}" for part in ("cls", "json", "txt") for n in range(4)],
}


def put(path: Path, names: list[str]) -> Path:
    return write_tar(path, [(name, b"1") for name in names])


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("kind", STRAYS)
def test_strays_are_left_out_counted_and_named(
    kind: str, indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index, "INDEX_FROM", 0 if indexed else 1 << 40)
    shard = put(tmp_path / "s/0.tar", STRAYS[kind])
    count = sum(map(is_stray, STRAYS[kind]))
    for source in (tmp_path / "s", shard):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "feedmill"):
            dataset = fm.open(source)
        assert len(dataset) == 4 and all(set(sample) == {"cls", "txt"} for sample in dataset)
        (remark,) = dataset.remarks
        assert f"not data are skipped: {count}" in remark and remark in caplog.text
        assert fm.info(source).facts["remarks"] == [remark]
    assert ("AppleDouble" in remark) == ("mac" in kind or kind == "zip")
    (found,) = fm.check(tmp_path / "s", progress=False).findings
    assert found.kind == "stray-members" and "feedmill convert" in str(found)
    with pytest.raises(DataError, match="are not data") as caught:
        fm.prepare(tmp_path / "s", progress=False)
    assert caught.value.kind == "stray-members"
    fm.convert(tmp_path / "s", tmp_path / "clean", "wds", progress=False)
    assert fm.prepare(tmp_path / "clean", progress=False).samples == 4
    assert not fm.check(tmp_path / "clean", progress=False).findings


def test_strays_at_the_top_are_counted_though_all_readers_skip_them(tmp_path: Path) -> None:
    put(tmp_path / "0.tar", [f"{dot}{n}.{part}" for n, part in NAMES for dot in ("._", "")])
    assert "not data are skipped: 8 (AppleDouble" in fm.open(tmp_path).remarks[0]
    assert "not data are skipped: 8" in fm.prepare(tmp_path, progress=False).warnings[0]
    assert "not data are skipped: 8" in fm.check(tmp_path, progress=False).notes[0]
    assert len(fm.open(tmp_path)) == 4


def test_an_index_for_energon_keeps_what_energon_reads(tmp_path: Path) -> None:
    from feedmill.indexing.prepare import prepare

    put(tmp_path / "0.tar", ["0.cls", "0.txt", "d/._1.cls", "d/1.cls"])
    report = prepare(str(tmp_path), energon_exact=True, split_ratio="1,0,0", progress=False)
    assert report.samples == 3 and "Energon and WebDataset read them as samples" in report.warnings[0]
    dataset = fm.open(tmp_path, raw=True)
    assert [dict.fromkeys(sample) for sample in dataset] == [
        {"cls": None, "txt": None},
        {"_1.cls": None},
        {"cls": None},
    ]
    assert [found.kind for found in fm.check(tmp_path, progress=False).findings] == ["stray-members"]


def test_an_index_of_an_older_energon_may_have_samples_in_pieces(tmp_path: Path) -> None:
    """Releases 7.0 to 7.2 did not ask for unique keys."""
    put(tmp_path / "0.tar", ["0.cls", "1.cls", "2.cls"])
    fm.prepare(tmp_path, split_ratio="1,0,0", progress=False)
    assert not fm.open(tmp_path).remarks
    with closing(sqlite3.connect(tmp_path / ".nv-meta/index.sqlite")) as index:
        (table,) = index.execute("SELECT sql FROM sqlite_master WHERE name = 'samples'").fetchone()
        index.execute("ALTER TABLE samples RENAME TO old")
        index.execute(table.replace(" UNIQUE", ""))
        index.execute("INSERT INTO samples SELECT * FROM old")
        index.execute("DROP TABLE old")
        index.execute("UPDATE samples SET sample_key = '0' WHERE sample_key = '2'")
        index.commit()
    (tmp_path / ".nv-meta/feedmill.shards.json").unlink()
    (remark,) = fm.open(tmp_path).remarks
    assert remark.startswith("keys that occur several times, as those of samples in pieces: 1 (such as '0').")


def test_names_that_only_look_like_strays_are_data() -> None:
    data = ["0.txt", "0001/.jpg", "d/.hidden.txt", "thumbs.jpg", "MACOSX/a.txt", "PaxHeader.txt", "a._b.txt"]
    assert not any(map(is_stray, data))


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_in_pieces_are_counted_and_regrouped(
    kind: str, indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "INDEX_FROM", 0 if indexed else 1 << 40)
    put(tmp_path / "s/0.tar", KINDS[kind])
    keys = 1 if kind == "one" else 4
    for _ in range(2):  # scanned, and from the index
        dataset = fm.open(tmp_path / "s")
        assert len(dataset) == {"types": 8, "one": 5, "three": 12}[kind]
        assert f"not adjacent are read in pieces: {keys}" in dataset.remarks[0] and "--regroup" in dataset.remarks[0]
    (found,) = fm.check(tmp_path / "s", progress=False).findings
    assert found.kind == "split-samples"
    with pytest.raises(DataError, match="--regroup"):
        fm.prepare(tmp_path / "s", progress=False)
    report = fm.convert(tmp_path / "s", tmp_path / "whole", "wds", regroup=True, progress=False)
    assert report.samples == 4 and not report.plan.losses
    assert fm.prepare(tmp_path / "whole", progress=False).samples == 4
    parts = {"cls", "txt", *(["json"] if kind == "three" else [])}
    assert all(set(sample) == parts for sample in fm.open(tmp_path / "whole"))


@pytest.mark.parametrize("indexed", [False, True])
def test_kinds_in_shards_of_their_own(indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "INDEX_FROM", 0 if indexed else 1 << 40)
    for part in ("cls", "txt"):
        put(tmp_path / f"s/{part}.tar", [f"{n}.{part}" for n in range(4)])
    assert "several shards with different parts are read in pieces: 4" in fm.open(tmp_path / "s").remarks[0]
    assert "--regroup" in str(fm.check(tmp_path / "s", progress=False).findings[0])
    with pytest.raises(DataError, match="--regroup"):
        fm.prepare(tmp_path / "s", progress=False)
    assert fm.convert(tmp_path / "s", tmp_path / "whole", "wds", regroup=True, progress=False).samples == 4


def test_keys_that_begin_again_in_each_shard_are_other_samples(tmp_path: Path) -> None:
    for shard in range(2):
        put(tmp_path / f"s/{shard}.tar", KINDS["types"])
    out = tmp_path / "out.parquet"
    assert fm.convert(tmp_path / "s", out, "parquet", regroup=True, progress=False).samples == 8


def test_regrouping_refuses_two_samples_of_one_key_and_other_datasets(tmp_path: Path) -> None:
    put(tmp_path / "s/0.tar", ["0.cls", "0.txt", "1.cls", "0.cls"])
    assert not fm.open(tmp_path / "s").remarks  # two whole samples of one key: no pieces
    with pytest.raises(DataError, match="two samples with this key have the part 'cls'"):
        fm.convert(tmp_path / "s", tmp_path / "out", "wds", regroup=True, progress=False)
    put(tmp_path / "p/0.tar", ["0.cls"])
    fm.prepare(tmp_path / "p", progress=False)
    with pytest.raises(ConfigError, match="--regroup is for tars without an index"):
        fm.convert(tmp_path / "p", tmp_path / "out", "wds", regroup=True, progress=False)


def test_one_key_is_found_among_pieces(tmp_path: Path) -> None:
    from feedmill.formats.tar.regrouped import regrouped

    put(tmp_path / "0.tar", KINDS["one"])
    dataset = regrouped(open_raw(str(tmp_path))[0])
    assert dataset.find("3") == 3 and dataset.locate(3).key == "3" and dataset.get("0.txt") == b"1"


def test_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    open_store("memory://strays").write_bytes("0.tar", tar_bytes([(name, b"1") for name in STRAYS["mac"]]))
    dataset = fm.open("memory://strays")
    assert len(dataset) == 4 and set(dataset[3]) == {"cls", "txt"} and "AppleDouble" in dataset.remarks[0]


def test_a_sample_that_is_stored_twice_in_a_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members of one name are one part: of two samples with one key that are neighbors, the first is not read."""
    put(tmp_path / "s/0.tar", ["a.cls", "a.txt", "a.cls", "a.txt", "b.cls", "b.txt", "c.txt"])
    put(tmp_path / "s/1.tar", ["d.txt", "e.txt"])
    for limit in (1 << 20, 0, 0):  # scanned, indexed, from the index
        monkeypatch.setattr("feedmill.formats.tar.index.INDEX_FROM", limit)
        (remark,) = fm.open(tmp_path / "s").remarks
        assert "0.tar" in remark and "a sample has twice, only the last is read: 2 are not" in remark
    report = fm.check(tmp_path / "s", progress=False)
    assert [found.kind for found in report.findings] == ["duplicate-part"] * 2 and not report.notes
    (warning,) = fm.prepare(tmp_path / "s", progress=False).warnings
    assert "only the last is read: 2 are not" in warning
