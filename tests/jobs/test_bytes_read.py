"""Bars move while one large item is worked on."""

from __future__ import annotations

import errno
import glob
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from feedmill.documents.find import find_documents
from feedmill.documents.lines import read_blocks
from feedmill.errors import FeedmillError
from feedmill.jobs.progress import Progress, ReadCounts, bytes_read, count_read
from feedmill.jobs.run import run


def halves(gate: str, size: int) -> int:
    """Read half of an item, wait for a file, and read the rest."""
    count_read(size // 2)
    limit = time.monotonic() + 240
    while not os.path.exists(gate) and time.monotonic() < limit:
        time.sleep(0.01)
    count_read(size - size // 2)
    return size


def fails(size: int) -> int:
    count_read(size)
    raise FeedmillError("no", kind="bad")


def shown_bar(sizes: list[int]) -> Progress:
    bar = Progress.of_files("reading", sizes)
    bar._style = "plain"  # shown, without a terminal
    return bar


@pytest.fixture
def left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The files of progress that are there; in a folder of this test, as others run at the same time."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "mkstemp", partial(tempfile.mkstemp, dir=str(folder)))
    return lambda: glob.glob(f"{folder}/feedmill-progress-*")


@pytest.mark.parametrize("workers", [1, 2])
def test_half_a_file_is_shown_while_it_is_read(
    workers: int, tmp_path: Path, left_over: Callable[[], list[str]]
) -> None:
    sizes, gate = [1000, 600, 20], str(tmp_path / "gate")
    bar, seen = shown_bar(sizes), []

    def watch() -> None:
        expected, limit = (800 if workers == 2 else 500), time.monotonic() + 120
        while bar.shown < expected and time.monotonic() < limit:
            time.sleep(0.01)
        seen.append((bar.shown, bar.done, bool(left_over())))
        Path(gate).touch()

    watcher = threading.Thread(target=watch)
    results = run(partial(halves, gate), sizes, workers=workers, progress=bar)
    watcher.start()
    found = []
    for size in results:
        found.append(size)
        assert sum(found[:-1]) <= bar.shown <= sum(sizes)
    watcher.join()
    assert found == sizes
    assert seen == [(800 if workers == 2 else 500, 0, workers == 2)]
    assert bar.shown == bar.done == sum(sizes)
    assert not left_over()


def test_what_is_shown_never_goes_back_and_never_passes_the_total() -> None:
    bar, counted = Progress.of_files("reading", [100, 50]), [0]
    with bar.watching(lambda: counted[0]):
        counted[0] = 70
        assert bar.shown == 70
        bar.settle(100)  # counted has not come yet: 100 are finished
        assert bar.shown == 70
        bar.advance()
        assert bar.shown == 100
        counted[0] = 1000
        assert bar.shown == 150
    assert bar.shown == 150 and bar.done == 100


def test_a_failure_leaves_no_file(left_over: Callable[[], list[str]]) -> None:
    with pytest.raises(FeedmillError, match="no"):
        list(run(fails, [10, 20, 30], workers=2, progress=shown_bar([10, 20, 30])))
    assert not left_over()


def test_the_file_has_no_hole_that_a_full_disk_could_not_fill(left_over: Callable[[], list[str]]) -> None:
    """The process that wrote to one would die of SIGBUS."""
    counts = ReadCounts()
    with open(counts.path, "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == os.path.getsize(counts.path) > 0
    counts.close()


def test_a_full_disk_leaves_a_bar_that_moves_by_whole_items(
    left_over: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mmap, "mmap", full)
    bar = shown_bar([10, 20, 30])
    assert list(run(partial(halves, os.devnull), [10, 20, 30], workers=2, progress=bar)) == [10, 20, 30]
    assert bar.done == 60 and not left_over()


def test_other_units_than_bytes_are_not_mixed_with_bytes() -> None:
    bar = Progress("checking", 3, "files")
    for _ in run(partial(halves, os.devnull), [10, 20, 30], workers=1, progress=bar):
        assert bar.shown == bar.done


def test_documents_tell_the_bytes_of_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"id": "a", "text": "x"}\n' * 1000)
    (file,) = find_documents([str(folder)]).files
    before = bytes_read()
    assert sum(map(len, read_blocks(file))) == 25_000
    assert bytes_read() - before == 25_000
