"""What every format's fingerprint covers: the content of its files, also where their sizes stay; and what it costs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.content import BLOCK, BLOCKS, MOST, content_hash, content_of_files
from feedmill.storage import LocalStore
from helpers.dataset_kinds import FORMATS, OPTIONS, SOURCES, TOKENS, TOTAL, make, opened

KINDS = [*FORMATS, *TOKENS, *SOURCES]


def change_in_place(url: str, kind: str) -> Path:
    """Change one byte of the content of a sample in the middle: the same size, the same file."""
    where = opened(url, kind).locate(TOTAL // 2 if kind not in OPTIONS else 2)
    path = Path(where.where)
    with path.open("r+b") as f:
        f.seek(where.offset)
        record = f.read(where.length)
        place = record.find(b"part") + 1 or max(where.length - 2, 0)
        f.seek(where.offset + place)
        f.write(bytes([record[place] ^ 4]))
    return path


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "prepared"])
def test_a_fingerprint_notices_another_content_of_the_same_size(kind: str, tmp_path: Path) -> None:
    url = make(tmp_path, kind)
    before = opened(url, kind).fingerprint()
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and ".feedmill" not in path.parts)
    change_in_place(url, kind)
    after = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and ".feedmill" not in path.parts)
    assert after == size
    if kind in ("zarr", "rlds", "documents-packed"):  # opening reads what was changed: JSON, and checksums
        with pytest.raises(DataError):
            opened(url, kind)
    else:
        assert opened(url, kind).fingerprint() != before


def test_a_prepared_dataset_says_that_it_changed_instead(tmp_path: Path) -> None:
    url = make(tmp_path, "prepared")
    path = change_in_place(url, "prepared")
    with pytest.raises(FeedmillError, match="not the shard that was indexed") as caught:
        opened(url, "prepared").read(range(TOTAL))
    assert caught.value.file == str(path) and "feedmill prepare" in (caught.value.fix or "")


def test_a_state_of_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "aaaa"}\n' * 20)
    loader = fm.Loader(fm.Plan.over(fm.open(path), epochs=1), 2, rank=0, world_size=1)
    next(iter(loader))
    state = loader.state_dict()
    path.write_text('{"text": "bbbb"}\n' * 20)
    with pytest.raises(FeedmillError, match="data of"):
        fm.Loader(fm.Plan.over(fm.open(path), epochs=1), 2, rank=0, world_size=1).load_state_dict(state)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_of_lines_has_the_content_of_its_own_lines(split: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"n": {n:03d}}}\n' for n in range(100)).replace(": 0", ": 1").replace(": 10", ": 11"))
    fm.prepare(str(path), split_ratio="8,2,0", progress=False)
    dataset = fm.open(path, split=split)
    before, offset = dataset.fingerprint(), dataset.locate(0).offset
    with path.open("r+b") as f:
        f.seek(offset + 7)
        f.write(b"9")
    assert fm.open(path, split=split).fingerprint() != before


def test_a_grown_file_is_told_from_one_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "aaaa"}\n' * 20)
    before = fm.open(path).fingerprint()
    with path.open("a") as f:
        f.write('{"text": "more"}\n')
    assert fm.open(path).fingerprint_of_first(20) == before != fm.open(path).fingerprint()
    path.write_text('{"text": "bbbb"}\n' * 20 + '{"text": "more"}\n')
    assert fm.open(path).fingerprint_of_first(20) != before


class Counting(LocalStore):
    """Notes what is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.seen: list[tuple[str, int]] = []

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        assert length is not None
        self.seen.append((path, length))
        return super().read(path, offset, length)

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        self.seen.append((path, sum(lengths)))
        return super().read_ranges(path, offsets, lengths)


def test_a_word_costs_the_same_for_any_file(tmp_path: Path) -> None:
    for size in (0, 1, BLOCK * BLOCKS, BLOCK * BLOCKS + 1, 40 << 30):
        with (tmp_path / "x").open("wb") as f:
            f.truncate(size)
        store = Counting(tmp_path)
        word = content_hash(store, "x", size)
        assert sum(length for _, length in store.seen) == min(size, BLOCK * BLOCKS)
        for place in {0, size // 9 * 4, size - 1} if size else ():
            with (tmp_path / "x").open("r+b") as f:
                f.seek(place)
                f.write(b"1")
            assert content_hash(store, "x", size) != word, place
            with (tmp_path / "x").open("r+b") as f:
                f.seek(place)
                f.write(b"\0")


def test_a_word_is_that_of_the_bytes_alone(tmp_path: Path) -> None:
    data = os.urandom(BLOCK * 12)
    (tmp_path / "x").write_bytes(data)
    (tmp_path / "y").write_bytes(b"before" + data + b"after")
    store = LocalStore(tmp_path)
    assert content_hash(store, "x", len(data)) == content_hash(store, "y", len(data), 6)


def test_of_many_files_some_are_read(tmp_path: Path) -> None:
    names = [f"{n}" for n in range(MOST + 500)]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    store = Counting(tmp_path)
    assert len(content_of_files(store, names)) == 32
    seen = [int(path) for path, _ in store.seen]
    assert len(seen) == MOST and {0, len(names) - 1} <= set(seen)


def test_a_line_that_moved_under_its_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "aa"}\n{"text": "bbbb"}\n')
    fm.prepare(str(path), progress=False)
    path.write_text('{"text": "aaaa"}\n{"text": "bb"}\n')
    with pytest.raises(FeedmillError, match=r"its entry 1 is 15, and a line begins at byte 17") as caught:
        fm.open(path)
    assert caught.value.kind == "stale-index"
    os.utime(path, (0, 0))  # not newer than its index: a few entries are compared
    with pytest.raises(FeedmillError, match=r"its entry 1 is 15, where no line begins") as caught:
        fm.open(path)
    assert caught.value.kind == "stale-index"
