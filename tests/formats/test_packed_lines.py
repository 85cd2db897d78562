"""Compressed JSON lines as datasets."""

import gzip
import itertools
import json
import pickle
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.jsonl import PACKED
from feedmill.formats.unpacked import unpacked_name
from feedmill.storage.codec import compression, packed
from feedmill.storage.folders import cache_folder


def write(path: Path, numbers: range, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as raw, packed(raw, compression(path.name)) as out:
        for number in numbers:
            out.write(json.dumps({"n": number, "text": text}).encode() + b"\n")
    return path


def numbers(dataset: fm.Dataset) -> list[int]:
    return [sample["json"]["n"] for sample in dataset]


@pytest.mark.parametrize("end", PACKED)
def test_a_compressed_file_is_a_dataset_like_the_plain_one(tmp_path: Path, end: str) -> None:
    path, plain = write(tmp_path / f"rows{end}", range(700)), write(tmp_path / "plain.jsonl", range(700))
    found, same = fm.open(path), fm.open(plain)
    assert numbers(found) == list(range(700)) and found[499].raw("json") == same[499].raw("json")
    where = found.locate(499)
    assert (where.file, where.offset, where.length) == (path.name, 0, path.stat().st_size)
    assert found.row_files == [str(path)] and found.describe()["unpacked"].startswith(str(cache_folder()))
    again = pickle.loads(pickle.dumps(found))
    assert again[3].raw("json") == found[3].raw("json") and again.fingerprint() == found.fingerprint()
    assert fm.open(path).fingerprint() == found.fingerprint()


def test_several_in_folders_lists_and_patterns(tmp_path: Path) -> None:
    for number, end in enumerate((".jsonl.gz", ".jsonl", ".json.gz", ".ndjson.zst")):
        write(tmp_path / f"deep/{number}{end}", range(10 * number, 10 * number + 10))
    assert numbers(fm.open(tmp_path)) == list(range(40))
    assert numbers(fm.open(str(tmp_path / "deep/*.gz"))) == [*range(10), *range(20, 30)]
    write(tmp_path / "deep/4.jsonl.gz", range(3))
    assert numbers(fm.open([tmp_path / "deep/4.jsonl.gz", tmp_path / "deep/0.jsonl.gz"])) == [0, 1, 2, *range(10)]


def test_names_that_are_long_or_odd(tmp_path: Path) -> None:
    """Quoted, a path of folders or of letters beyond ASCII is longer than a name may be."""
    for number, name in enumerate([f"{'ü' * 90}.jsonl.gz", f"{'deep/' * 60}a.jsonl.gz", "a b%20%2F.jsonl.gz"]):
        found = fm.open(write(tmp_path / f"{number}" / name, range(5)))
        assert numbers(found) == [0, 1, 2, 3, 4] and numbers(fm.open(tmp_path / f"{number}")) == [0, 1, 2, 3, 4]
    assert numbers(fm.open(tmp_path)) == [0, 1, 2, 3, 4] * 3


def test_a_cache_folder_that_is_too_small_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.jsonl.gz", range(20_000), text="some words")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "small"))
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", "100kB")
    found = fm.open(path)  # files in use stay, and the excess is logged
    assert found[19_999]["json"]["n"] == 19_999 and "more than the limit" in caplog.text
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(FeedmillError) as caught:
        fm.open(path)
    assert "FEEDMILL_CACHE_DIR" in str(caught.value.fix)


def test_the_loader_reads_and_resumes_them(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", range(64))
    write(tmp_path / "b.jsonl.zst", range(64, 100))

    def loader() -> fm.Loader:
        return fm.Loader(fm.open(tmp_path), batch_size=10, seed=3)

    whole = [list(batch["__key__"]) for batch in itertools.islice(loader(), 10)]
    assert sorted(itertools.chain(*whole), key=int) == list(map(str, range(100)))
    first = loader()
    assert [list(batch["__key__"]) for batch in itertools.islice(first, 4)] == whole[:4]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [list(batch["__key__"]) for batch in itertools.islice(second, 6)] == whole[4:]


def test_a_changed_file_is_unpacked_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", range(5))
    before = fm.open(path).fingerprint()
    write(tmp_path / "new.jsonl.gz", range(10, 20)).replace(path)
    after = fm.open(path)
    assert numbers(after) == list(range(10, 20)) and after.fingerprint() != before


def test_one_name_with_two_compressions_is_not_read_twice(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", range(5))
    write(tmp_path / "a.jsonl", range(5))
    with pytest.raises(ConfigError, match=r"a\.jsonl, but for the compression") as caught:
        fm.open(tmp_path)
    assert caught.value.kind == "mixed-formats"
    (tmp_path / "a.jsonl").unlink()
    write(tmp_path / "a.jsonl.zst", range(100, 103))
    with pytest.raises(ConfigError, match="would be read twice"):
        fm.open(tmp_path)
    one, other = fm.open(tmp_path / "a.jsonl.gz"), fm.open(tmp_path / "a.jsonl.zst")
    assert (numbers(one), numbers(other)) == ([0, 1, 2, 3, 4], [100, 101, 102])


BAD = {
    "cut": (gzip.compress(b'{"n": 1}\n' * 5000)[:-9], "bad-compression"),
    "another checksum": (gzip.compress(b'{"n": 1}\n')[:-8] + bytes(8), "bad-compression"),
    "plain": (b'{"n": 1}\n', "other-compression"),
    "no bytes": (b"", "bad-compression"),
    "no lines": (gzip.compress(b""), "empty-file"),
    "a list": (gzip.compress(b'{"n": 1}\n[2]\n'), "bad-line"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_named(tmp_path: Path, what: str) -> None:
    data, kind = BAD[what]
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    for place in (tmp_path / "a.jsonl.gz", tmp_path):
        with pytest.raises(DataError) as caught:
            fm.open(place)
        assert (caught.value.kind, caught.value.file) == (kind, str(tmp_path / "a.jsonl.gz"))


def test_what_is_no_set_of_lines_stays_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        fm.open(tmp_path / "none.jsonl.gz")
    write(tmp_path / "documents/a.jsonl.gz", range(5))
    write(tmp_path / "attributes/x/a.jsonl.gz", range(5))
    with pytest.raises(NotFound, match="These are documents"):
        fm.open(tmp_path)
    assert len(fm.open(tmp_path / "documents")) == 5


def test_the_bound_of_what_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl.gz", range(100), text="word " * 100)
    monkeypatch.setenv("FEEDMILL_MAX_UNPACKED", "10kB")
    with pytest.raises(FeedmillError, match="more than the limit of 10,000 bytes") as caught:
        fm.open(path)
    assert caught.value.kind == "too-large"
    monkeypatch.setenv("FEEDMILL_MAX_UNPACKED", "1MB")
    assert len(fm.open(path)) == 100


def test_names_without_the_compression() -> None:
    names = ["0.jsonl.gz", "0.jsonl.gzip", "0.tar.zst", "0.txz", "0.tar", "a.b/0.jsonl"]
    assert list(map(unpacked_name, names)) == ["0.jsonl", "0.jsonl", "0.tar", "0.tar", "0.tar", "a.b/0.jsonl"]
