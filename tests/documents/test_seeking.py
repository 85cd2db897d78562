"""Rows of files of lines at random: from members and frames, from what is kept, and equal to reading all."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from feedmill.documents import seeking
from feedmill.documents.find import find_documents
from feedmill.documents.lineage.chain import read_raw
from feedmill.documents.seeking import SeekRows
from feedmill.errors import DataError, NotFound

ROWS = [b'{"id": %d, "text": "%s"}' % (n, b"ab" * (n * 37 % 300)) for n in range(3000)]
ROWS[700] = b""
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstd.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(seeking, "APART", 1 << 12)
    monkeypatch.setattr(seeking, "BLOCK", 1 << 12)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/lines"


def written(folder: Path, end: str, cuts: int, data: bytes = b"\n".join(ROWS) + b"\n") -> Path:
    """Write lines as members that end at random places, inside lines too."""
    places = sorted(random.Random(cuts).sample(range(1, len(data)), cuts))
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    path = folder / f"x.jsonl{end}"
    path.write_bytes(b"".join(map(PACK[end], pieces)))
    return path


def opened(path: Path) -> SeekRows:
    (file,) = find_documents([str(path)]).files
    return SeekRows(file)


@pytest.mark.parametrize("end", PACK)
@pytest.mark.parametrize("cuts", [0, 60])
def test_rows_are_those_of_the_whole_file(tmp_path: Path, end: str, cuts: int) -> None:
    path, draw = written(tmp_path, end, cuts), random.Random(7)
    for rows in ([2999], [0], [700, 701], [5, 2500], range(3000), *([draw.randrange(3000)] for _ in range(20))):
        assert read_raw(str(path), rows) == {row: ROWS[row] for row in rows}
    with pytest.raises(NotFound, match="it has 3,000 lines"):
        read_raw(str(path), [12, 3000])


@pytest.mark.parametrize("end", PACK)
def test_a_far_row_is_read_from_the_point_before_it(
    tmp_path: Path, end: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, end, 60)
    read_raw(str(path), [2990])
    assert len(list(kept.iterdir())) == 1
    counted: list[int] = []
    blocks = SeekRows._blocks

    def noted(self: SeekRows, start: seeking.Point):  # type: ignore[no-untyped-def]
        for first, lines in blocks(self, start):
            counted.append(len(lines))
            yield first, lines

    monkeypatch.setattr(SeekRows, "_blocks", noted)
    assert read_raw(str(path), [2990, 1500]) == {2990: ROWS[2990], 1500: ROWS[1500]}
    assert sum(counted) < 900


def test_kept_points_of_another_state_or_corrupt_ones_are_not_used(
    tmp_path: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, ".gz", 60)
    read_raw(str(path), [2990])
    (points,) = kept.iterdir()
    good = points.read_bytes()
    points.write_bytes(good[:1000] + b"\x01" + good[1001:])
    assert len(opened(path)._points) == 1 and "corrupt" in caplog.text
    read_raw(str(path), [2990])
    assert points.read_bytes() == good
    written(tmp_path, ".gz", 40)
    assert len(opened(path)._points) == 1 and read_raw(str(path), [2990]) == {2990: ROWS[2990]}


def test_a_mark_of_byte_order_is_one_only_at_the_beginning(tmp_path: Path) -> None:
    mark = "\ufeff".encode()
    rows = [mark + b'{"a": %d}' % n + b" " * 500 for n in range(100)]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(rows))
    for _ in range(2):
        assert read_raw(str(path), [0, 57, 99]) == {0: rows[0].removeprefix(mark), 57: rows[57], 99: rows[99]}


def test_without_a_cache_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blocked").write_text("a file")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "blocked"))
    assert read_raw(str(written(tmp_path, ".zst", 30)), [2000]) == {2000: ROWS[2000]}


@pytest.mark.parametrize("end", [".gz", ".zst", ".bz2", ".xz"])
def test_corrupt_members_are_named(tmp_path: Path, end: str) -> None:
    path = written(tmp_path, end, 10)
    data = path.read_bytes()
    for other in (data[:-9], data + b"garbage", b"PAR1" + data[4:], b""):
        path.write_bytes(other)
        with pytest.raises(DataError) as caught:
            read_raw(str(path), [5000])
        assert str(path) in str(caught.value)


def test_padding_between_members_and_skippable_frames(tmp_path: Path) -> None:
    half = b"\n".join(ROWS[:1500]) + b"\n", b"\n".join(ROWS[1500:]) + b"\n"
    for end, between in ((".gz", bytes(7)), (".xz", bytes(8)), (".zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd")):
        path = tmp_path / f"x.jsonl{end}"
        path.write_bytes(PACK[end](half[0]) + between + PACK[end](half[1]) + between)
        for _ in range(2):
            assert read_raw(str(path), [10, 2500]) == {10: ROWS[10], 2500: ROWS[2500]}
