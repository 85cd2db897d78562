"""Find questions in texts: n-grams say which questions may be there, and these are compared word by word.

An n-gram of a text that some questions have suggests them at the places where the n-gram would lie in them. What lies
close together is a candidate: a window of the text. There, the words that it shares with the question in the same order
(their longest common subsequence) must be a share of `threshold` of the question's. So line breaks, punctuation, list
markers, markup and single changed words do not hide a question, and the same words scattered over a text are none.
A question of fewer than two n-grams' words must be there word for word.

N-grams of very many questions suggest none of them, but support them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.formats.arrays import Arrays
from feedmill.kernels.text import questions as kernels

Ints = npt.NDArray[np.int64]
MOST_QUESTIONS = 64
"""An n-gram of more pieces of questions suggests none of them."""
AROUND = 64
"""Words before and after a question among which its answer is looked for."""


class Match(NamedTuple):
    """A piece of a question in a text.

    Attributes:
        text: Number of the text.
        piece: Number of the piece.
        share: Share of its words that the text has in order.
        begin, end: Bytes of the text.
        answered: Whether an answer is near.
        grams: Numbers of the piece's n-grams that the text has here.
    """

    text: int
    piece: int
    share: float
    begin: int
    end: int
    answered: bool
    grams: Ints


@dataclass(slots=True)
class Matcher:
    """Finds the questions of an index.

    Attributes:
        index: See `feedmill.curation.decontaminate.benchmarks`.
        width: Words of an n-gram.
        threshold: Minimum share of words in order.
    """

    index: Arrays
    width: int
    threshold: float

    def find(self, texts: Sequence[bytes]) -> tuple[list[Match], Ints]:
        """Return the pieces in these texts, and the n-grams of each text that the index has: numbers, with repetitions.

        Each n-gram is counted once for each text.
        """
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        room = int(offsets[-1]) + 1
        data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
        hashes, places = np.empty(room, np.uint64), np.empty((4, room), np.int32)
        counts, values = np.empty(len(texts) + 1, np.int64), np.empty(room, np.uint64)
        found = kernels.scan(
            data, offsets, *kernels.folded(), self.width, self.index["bits"], hashes, places[0], places[1], counts,
            places[2], places[3], values,
        )  # fmt: skip
        owners, firsts = places[2, :found].astype(np.int64), places[3, :found].astype(np.int64)
        values = values[:found]
        grams = self.index["grams"]
        at = np.searchsorted(grams, values)
        real = np.flatnonzero(grams[np.minimum(at, len(grams) - 1)] == values) if len(grams) else np.empty(0, np.int64)
        owners, firsts, at = owners[real], firsts[real], at[real]
        once = np.unique(owners * len(grams) + at) % max(1, len(grams))
        words = _Words(hashes, places[0], places[1], counts)
        return self._matches(owners, firsts, at, words), once

    def _matches(self, owners: Ints, firsts: Ints, grams: Ints, words: _Words) -> list[Match]:
        starts = self.index["starts"]
        sizes = starts[grams + 1] - starts[grams]
        few = np.flatnonzero(sizes <= MOST_QUESTIONS)
        owners, firsts, grams, sizes = owners[few], firsts[few], grams[few], sizes[few]
        total = int(sizes.sum())
        if not total:
            return []
        at = np.repeat(starts[grams], sizes) + np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        hits = np.stack(
            [
                np.repeat(owners, sizes),
                self.index["pieces"][at].astype(np.int64),
                np.repeat(firsts, sizes),
                self.index["places"][at].astype(np.int64),
                np.repeat(grams, sizes),
            ]
        )
        hits = hits[:, np.lexsort((hits[2], hits[1], hits[0]))]
        ends = self.index["ends"]
        lengths = np.diff(ends, prepend=0)[hits[1]]
        new = np.ones(total, np.bool_)
        new[1:] = (hits[:2, 1:] != hits[:2, :-1]).any(axis=0) | (np.diff(hits[2]) > lengths[1:] + 8)
        cuts = np.append(np.flatnonzero(new), total)
        needed = np.where(lengths[cuts[:-1]] < 16, 1, np.where(lengths[cuts[:-1]] < 40, 2, 3))
        found = list[Match]()
        for number in np.flatnonzero(np.diff(cuts) >= needed).tolist():
            found += self._compared(hits[:, cuts[number] : cuts[number + 1]], words)
        return found

    def _compared(self, hits: Ints, words: _Words) -> list[Match]:
        """Return the matches of a piece among its hits in one text, which are sorted by place."""
        text, piece = int(hits[0, 0]), int(hits[1, 0])
        own = self.index["words"][int(self.index["ends"][piece - 1]) if piece else 0 : int(self.index["ends"][piece])]
        low, high = words.counts[text], words.counts[text + 1]
        length, found, at = len(own), list[Match](), 0
        while at < hits.shape[1]:
            place, inside = int(hits[2, at]), int(hits[3, at])
            reach = place - inside + length + length // 2 + 8
            last = int(np.searchsorted(hits[2], reach, side="left"))
            end_place, end_inside = int(hits[2, last - 1]), int(hits[3, last - 1])
            begin = max(int(low), int(low) + place - inside - inside // 2 - 4)
            end = min(int(high), int(low) + end_place + (length - end_inside) + (length - end_inside) // 2 + 4)
            if length < 2 * self.width:
                begin, end = int(low) + place - inside, int(low) + place - inside + length
                same = begin >= low and end <= high and bool((words.hashes[begin:end] == own).all())
                share = float(same)
            else:
                share = kernels.in_order(own, words.hashes[begin:end], np.empty(end - begin + 1, np.int32)) / length
            if share < self.threshold:
                at += 1
                continue
            first, final = _tight(own, words.hashes[begin:end])
            first, final = begin + first, begin + final
            answered = self._answered(piece, words.hashes[max(low, begin - AROUND) : min(high, end + AROUND)])
            grams = np.unique(hits[4, at:last])
            found.append(Match(text, piece, share, int(words.begins[first]), int(words.ends[final]), answered, grams))
            at = max(last, at + 1)
        return found

    def _answered(self, piece: int, window: npt.NDArray[np.uint64]) -> bool:
        """Return whether one of the answers of the question is among these words."""
        owners, ends = self.index["answer_owners"], self.index["answer_ends"]
        question = self.index["owners"][piece]
        low, high = np.searchsorted(owners, [question, question + 1]).tolist()
        for number in range(low, high):
            answer = self.index["answers"][int(ends[number - 1]) if number else 0 : int(ends[number])]
            for at in np.flatnonzero(window[: len(window) - len(answer) + 1] == answer[0]).tolist():
                if (window[at : at + len(answer)] == answer).all():
                    return True
        return False


def _tight(own: npt.NDArray[np.uint64], window: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Return the first and last word of the shortest end, and then beginning, of a window that has as much in order."""
    row = np.empty(len(window) + 1, np.int32)
    most = kernels.in_order(own, window, row)
    last = int(np.searchsorted(row, most))
    back = np.empty(last + 1, np.int32)
    kernels.in_order(own[::-1].copy(), window[:last][::-1].copy(), back)
    return last - int(np.searchsorted(back, most)), last - 1


class _Words(NamedTuple):
    """The words of texts: see `feedmill.kernels.text.questions.scan`."""

    hashes: npt.NDArray[np.uint64]
    begins: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    counts: Ints
