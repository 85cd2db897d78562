"""Kernels that load several bytes at once read nothing behind their data: here that is a page that nobody may read.

A kernel that does so ends the process with a segmentation fault, not this test alone.
"""

from __future__ import annotations

import ctypes
import mmap
import random

import numpy as np
import pytest

from feedmill.kernels.hashing import ahash
from feedmill.kernels.jsonl.jsonlines import plain_lines
from feedmill.kernels.jsonl.jsontexts import TextTaker
from feedmill.kernels.jsonl.plainrows import plain_rows
from feedmill.kernels.jsonl.rawtexts import lift
from feedmill.kernels.text import paragraphs, wordbreak
from oracles import ahash as plain_ahash
from oracles import paragraphs as plain

SIZES = [*range(20), *range(60, 70), *range(124, 134), 192]
PIECES = ["a", " ", '"', "\\", "\n", "-0", "é", "日", "😀", "\\u00e9", "b" * 8, "c" * 63, '{"text":"', '"}\n']


class Edge:
    """Memory that ends where a page begins that may not be touched."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self._page = (ctypes.c_char * mmap.PAGESIZE).from_buffer(self._map, mmap.PAGESIZE)
        self._protect(0)

    def put(self, data: bytes) -> np.ndarray:
        """These bytes, uint8, at its end."""
        begin = mmap.PAGESIZE - len(data)
        self._map[begin : mmap.PAGESIZE] = data
        return np.frombuffer(self._map, np.uint8, len(data), begin)

    def close(self) -> None:
        """Whoever frees the memory may touch it."""
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)

    def _protect(self, how: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(ctypes.addressof(self._page)), mmap.PAGESIZE, how) == 0


@pytest.fixture
def edge():
    found = Edge()
    yield found
    found.close()


def texts() -> list[bytes]:
    """Texts of sizes around those of words and vectors, cut anywhere between characters."""
    draw = random.Random(1)
    found = []
    for size in SIZES:
        for _ in range(6):
            text = "".join(draw.choices(PIECES, k=size + 1)).encode()[:size]
            found += [text.decode(errors="ignore").encode(), (b'{"text":"' + b"x" * size + b'"}')[-size - 11 :]]
    return found


def test_json(edge: Edge) -> None:
    for data in texts():
        whole = edge.put(data)
        assert TextTaker("text").take(whole.data) == TextTaker("text").take(data)
        assert plain_rows(whole.data) == plain_rows(data)  # type: ignore[arg-type]
        assert lift(whole.data) == lift(data)  # type: ignore[arg-type]
        for one, other in zip(plain_lines(whole), plain_lines(np.frombuffer(data, np.uint8)), strict=True):
            assert one.tolist() == other.tolist()


def test_texts(edge: Edge) -> None:
    index, pages = wordbreak.tables()
    for data in texts():
        whole, text = edge.put(data), data.decode()
        found = np.empty((6, len(data) + 1), np.int64)
        bounds, separator = np.array([0, len(data)]), np.frombuffer(b"\n", np.uint8)
        count = paragraphs.pieces(whole, bounds, separator, paragraphs.CHARACTERS, *found)
        assert count == len(plain.pieces(text, "\n", paragraphs.CHARACTERS))
        lows, highs = np.empty((2, len(data) + 1), np.int64)
        count = wordbreak.words(whole, 0, len(data), index, pages, lows, highs, 0)
        assert [data[low:high].decode() for low, high in zip(lows[:count], highs[:count], strict=True)] == plain.words(
            text
        )


def test_hashes(edge: Edge) -> None:
    seeds = np.arange(20, dtype=np.uint64).reshape(5, 4)
    keys = np.ascontiguousarray((seeds ^ np.array(ahash.CONSTANTS, np.uint64)).T)
    out, first = np.empty((1, 5), np.uint64), np.empty(1, np.uint64)
    for data in texts():
        zero, one, size = np.zeros(1, np.int64), np.ones(1, np.int64), np.array([len(data)])
        ahash.positions(edge.put(data), zero, size, zero, one, keys, np.uint64(1000), out, first)
        assert out.tolist() == plain_ahash.positions([[data]], seeds, 1000).tolist()
