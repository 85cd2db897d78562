"""The lines of JSONL files: indices beside them, lines kept in the cache folder, and files that change or are odd."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import DataError
from feedmill.formats.jsonl import index as jsonl
from feedmill.formats.tokens.raw_index import write_raw_index
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from feedmill.storage import Entry, LocalStore, Store
from helpers import warm

ROWS = [b'{"n": %d, "t": "%s"}' % (n, b"x" * (n % 7)) for n in range(2000)]


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of kept lines; files of any size have some, and all offsets are read as those of large files."""
    monkeypatch.setattr(jsonl, "KEPT_FROM", 0)
    monkeypatch.setattr(jsonl, "_LARGE", 0)
    monkeypatch.setattr(jsonl, "_MAPPED", 0)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/lines"


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the files that are read for their lines."""
    seen: list[int] = []
    scan = jsonl.scan_lines

    def noted(store: Store, entry: Entry, *others: Any) -> Iterator[Any]:
        seen.append(entry.size)
        return scan(store, entry, *others)

    monkeypatch.setattr(jsonl, "scan_lines", noted)
    return seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(ROWS) + b"\n")
    return path


def rows(path: Path) -> list[bytes]:
    dataset = open_dataset(path)
    single = [dataset[n].raw("json") for n in (0, len(dataset) - 1)]
    found = [sample.raw("json") for sample in dataset.read_raw(range(len(dataset)))]
    assert single == [found[0], found[-1]]
    return found


def test_lines_are_found_once(file: Path, kept: Path, scans: list[int]) -> None:
    first = open_dataset(file)
    assert len(scans) == 1 and len(list(kept.iterdir())) == 1
    assert rows(file) == ROWS and len(scans) == 1
    again = open_dataset(file)
    assert again.fingerprint() == first.fingerprint() and not again.describe()["indexed"]
    assert again.fingerprint_of_first(777) == first.fingerprint_of_first(777)
    prepare(str(file), progress=False)
    prepared = open_dataset(file)
    assert prepared.fingerprint() == first.fingerprint() and prepared.describe()["indexed"]
    assert prepared.fingerprint_of_first(777) == first.fingerprint_of_first(777)
    assert prepared.stored_rows([5, 7])[1].tolist() == again.stored_rows([5, 7])[1].tolist() == [5, 7]


def test_a_changed_file_has_other_lines(file: Path, kept: Path) -> None:
    open_dataset(file)
    with file.open("ab") as out:
        out.write(b'{"n": -1}\n')
    assert rows(file) == [*ROWS, b'{"n": -1}'] and len(list(kept.iterdir())) == 2
    data, times = file.read_bytes(), file.stat()
    file.write_bytes(data[:8] + b"\n{" + data[10:])  # of the same size and time, but of another content
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(DataError, match="not a JSON object"):
        open_dataset(file)


def test_lines_that_turned_out_to_be_old_are_not_kept(tmp_path: Path, kept: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(ROWS * 20) + b"\n")
    data, times = path.read_bytes(), path.stat()
    open_dataset(path)
    at = data.index(b"}\n{", 50_000)  # not in a block that identifies the content
    path.write_bytes(data[:at] + b" , " + data[at + 3 :])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(DataError, match="open it again"):
        open_dataset(path)[data[:at].count(b"\n")]
    assert len(rows(path)) == 20 * len(ROWS) - 1


@pytest.mark.parametrize("place", [0, 30, 1100, 5000, 12_000, -100, -1])
def test_a_corrupt_file_is_made_again(
    file: Path, kept: Path, place: int, scans: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    open_dataset(file)
    (made,) = kept.iterdir()
    good = made.read_bytes()
    made.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 or len(good) :])
    dataset = open_dataset(file)
    assert [sample.raw("json") for sample in dataset.read_raw(range(len(ROWS)))] == ROWS
    padding = place < 0 and len(scans) == 1  # its length depends on that of the path
    assert padding or (caplog.text.count("are corrupt") == 1 and made.read_bytes() == good)


@pytest.mark.parametrize("length", [0, 7, 900, 9000])
def test_a_truncated_file_is_made_again(file: Path, kept: Path, length: int) -> None:
    open_dataset(file)
    (made,) = kept.iterdir()
    good = made.read_bytes()
    made.write_bytes(good[:length])
    assert rows(file) == ROWS and made.read_bytes() == good


def test_a_damaged_page_is_found_when_it_is_used(file: Path, kept: Path) -> None:
    open_dataset(file)
    (made,) = kept.iterdir()
    good = made.read_bytes()
    fingerprint = open_dataset(file).fingerprint_of_first(1300)
    for use in (lambda ds: ds[1200].raw("json") == ROWS[1200], lambda ds: ds.fingerprint_of_first(1300) == fingerprint):
        at = jsonl.STREAMED_AT + 8 * 1200
        made.write_bytes(good[:at] + b"\x07" + good[at + 1 :])
        assert use(open_dataset(file))
        assert made.read_bytes() == good


def test_the_cache_may_go_meanwhile(file: Path, kept: Path) -> None:
    fingerprint = open_dataset(file).fingerprint()
    dataset = open_dataset(file)
    next(kept.iterdir()).unlink()
    assert dataset.fingerprint() == fingerprint and dataset[7].raw("json") == ROWS[7]


def test_without_a_cache_the_lines_are_found_each_time(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocked").write_text("a file")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "blocked"))
    assert rows(file) == ROWS and "cannot be cached" in caplog.text


def test_a_full_disk_is_no_failure(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "stream_arrays", full)
        assert rows(file) == ROWS and "the disk is full" in caplog.text and not list(kept.iterdir())
    assert rows(file) == ROWS and len(list(kept.iterdir())) == 1


def test_errors_of_the_file_are_not_those_of_the_cache(tmp_path: Path, kept: Path) -> None:
    for data, match in ((b"", "is empty"), (b" \n\n", "blank lines"), (b'{"a": 1}\n[2]\n', "not a JSON object")):
        path = tmp_path / "bad.jsonl"
        path.write_bytes(data)
        with pytest.raises(DataError, match=match):
            open_dataset(path)
    assert not kept.exists() or not list(kept.iterdir())


SCRIPT = """
import sys
from feedmill.formats.jsonl import index
index.KEPT_FROM = 0
from feedmill.samples.open import open
dataset = open(sys.argv[1])
print(len(dataset), dataset.fingerprint(), dataset[1234].raw("json").decode())
"""


def test_threads_open_it_at_the_same_time(file: Path, kept: Path, scans: list[int]) -> None:
    with ThreadPoolExecutor(4) as pool:  # they exclude each other by the locks of processes
        found = list(pool.map(open_dataset, [file] * 4))
    assert {dataset.fingerprint() for dataset in found} == {found[0].fingerprint()}
    assert len(scans) == 1 and len(list(kept.iterdir())) == 1


@pytest.mark.slow
def test_processes_open_it_at_the_same_time(file: Path, kept: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(file)]
    running = [warm.Popen(command, stdout=subprocess.PIPE, env=os.environ) for _ in range(4)]
    found = {process.communicate()[0] for process in running}
    assert len(found) == 1 and ROWS[1234] in found.pop() and len(list(kept.iterdir())) == 1


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n \n"])
@pytest.mark.parametrize("blank", [False, True])
def test_modalities_index_gives_the_same_samples(
    tmp_path: Path, newline: bytes, end: bytes, blank: bool, scans: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    lines = [b"", *ROWS[:3], b"  ", *ROWS[3:]] if blank else ROWS
    path = tmp_path / "x.jsonl"
    path.write_bytes(newline.join(lines) + end.replace(b"\n", newline))
    without = open_dataset(path)
    write_raw_index(LocalStore(tmp_path), "x.jsonl", drop=True)
    del scans[:]
    dataset = open_dataset(path)
    assert not scans and not caplog.text and dataset.describe()["indexed"]
    assert rows(path) == ROWS and dataset.fingerprint() == without.fingerprint()
    assert dataset.stored_rows([0, 5])[1].tolist() == without.stored_rows([0, 5])[1].tolist()
    assert dataset.stored_rows([0, 5])[1].tolist() == ([1, 7] if blank else [0, 5])


def unfit(path: Path) -> Iterator[tuple[bytes, str]]:
    """Yield indices of Modalities that are not those of the file, and what is wrong with them."""
    data = path.read_bytes()
    store, idx = LocalStore(path.parent), path.with_suffix(".idx")
    write_raw_index(store, path.name)
    yield idx.read_bytes()[:-30], "truncated"
    for other, why in (
        (data[:-20], "its entry 19 is bytes|ends at byte"),
        (data + b"{}\n", "its entry 20 is bytes"),
        (data.replace(b"0", b"00"), "which is not the next line"),
    ):
        path.write_bytes(other)
        write_raw_index(store, path.name, drop=True)
        yield idx.read_bytes(), why
    path.write_bytes(data.replace(ROWS[3], b"!" + ROWS[3][1:]))
    write_raw_index(store, path.name, drop=True)  # without a line
    yield idx.read_bytes(), "its entry 3 is bytes .* which is not the next line"
    yield b"\x80\x04]\x94.", "ends at byte 0"
    yield b"0 100 a.json\n", "not an index of lines"
    path.write_bytes(data)


def test_an_index_that_does_not_match_is_named_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(ROWS[:20]) + b"\n")
    indices = list(unfit(path))
    path.write_bytes(b"\n".join(ROWS[:20]) + b"\n")
    for content, why in indices:
        path.with_suffix(".idx").write_bytes(content)
        for _ in range(2):  # the second time by what was kept
            caplog.clear()
            assert rows(path) == ROWS[:20]
            assert caplog.messages[0].startswith(f"{path.with_suffix('.idx')}: not used")
            remark = open_dataset(path).describe()["remarks"][0]
            assert re.search(why, remark), remark


def test_the_index_of_megatrons_tokens_is_none_of_lines(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + bytes(40))
    assert rows(file) == ROWS and not caplog.text


def test_energons_index_of_an_older_file(file: Path, scans: list[int]) -> None:
    prepare(str(file), progress=False)
    del scans[:]
    assert rows(file) == ROWS and not scans
    idx = Path(f"{file}.idx")
    status = idx.stat()
    os.utime(idx, ns=(status.st_atime_ns, file.stat().st_mtime_ns - 10**9))  # as if it was copied before the file
    assert rows(file) == ROWS and len(scans) == 1, "compared once"
    data = file.read_bytes().split(b"\n")
    data[40], data[44] = data[44], data[40]
    file.write_bytes(b"\n".join(data))  # of the same size
    with pytest.raises(DataError, match=r"entry 41 is .*, and a line begins at byte .* which is newer"):
        open_dataset(file)
    prepare(str(file), progress=False)
    assert rows(file)[40] == ROWS[44]


def test_energons_index_whose_entries_are_no_lines(file: Path) -> None:
    prepare(str(file), progress=False)
    idx = Path(f"{file}.idx")
    offsets = np.fromfile(idx, "<i8")
    offsets[-2] += 1
    offsets.tofile(idx)
    with pytest.raises(DataError, match="where no line begins"):
        open_dataset(file)


def test_a_file_that_grows_while_it_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    by_piece = jsonl._by_piece
    more = [b'{"more": 1}\n{"cut": "sho', b'rt"}\n']

    def grown(*given: Any) -> Iterator[Any]:
        found = list(by_piece(*given))
        with file.open("ab") as out:
            out.write(more.pop(0))
        yield from found

    monkeypatch.setattr(jsonl, "_by_piece", grown)
    assert len(open_dataset(file)) == len(ROWS) and "the last 24 bytes are not read" in caplog.text
    with pytest.raises(DataError, match="changed while the dataset was open"):
        open_dataset(file)
    monkeypatch.undo()
    assert len(open_dataset(file)) == len(ROWS) + 2


def test_a_large_record_is_not_copied(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.formats.jsonl.dataset._LARGE", 0)
    monkeypatch.setattr("feedmill.formats.jsonl.dataset._END", 2)
    file.write_bytes(b'  {"a": 1}  \n\n\n{"b": 2}\r\n{"c": 3}')
    assert rows(file) == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']


def test_check_names_an_index_of_lines_that_does_not_match(file: Path) -> None:
    file.with_suffix(".idx").write_bytes(b"\x80\x04]\x94.")
    assert "ends at byte 0" in "".join(check(str(file)).notes)


PEAK = """
import resource, sys
from feedmill.samples.open import open
print(len(open(sys.argv[1])), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file_or_its_lines(tmp_path: Path) -> None:
    """Peak memory of a process that finds the lines: 10^6 short rows, or one of 300 MB, beside ten rows."""
    sizes = {}
    for name, data, count in (
        ("few", b'{"a": 1}\n', 10),
        ("many", b'{"id": 1234567, "text": "abcdefgh abcdefgh abcdefgh abcd"}\n', 1_000_000),
        ("long", b'{"text": "' + b"x" * 300_000_000 + b'"}\n', 1),
    ):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(data * count)
        done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, check=True, env=os.environ)
        length, peak = map(int, done.stdout.split())
        assert length == count
        sizes[name] = peak / 1024
    assert sizes["many"] < sizes["few"] + 20 and sizes["long"] < sizes["few"] + 20
