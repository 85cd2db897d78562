"""Texts of documents that are never decoded: taken out of their rows as JSON, and changed as JSON.

A text is lifted where it is written the way we write it: UTF-8 with nothing escaped that need not be, and ``\\b \\f \\n
\\r \\t`` for those characters. Each character is then itself, or a backslash and one more byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.jsonl.spanlists import Chosen, Int64s


class Lifted(NamedTuple):
    """Rows without their texts.

    Attributes:
        rows: one JSON array of all rows, with an empty string for each text that was lifted. A row is a value of its
            own if this is JSON at all.
        texts: (begin, end) of each row's text with its quotes, among the bytes of the rows; (-1, -1) where it is in
            its row still.
    """

    rows: bytes
    texts: list[list[int]]


def lift(lines: bytes) -> Lifted | None:
    """Return the rows of whole lines without their texts; None if a line looks like no document.

    >>> lift(b'{"text":"a\\\\n","id":1}\\n{"text":"\\\\u0041"}\\n')
    Lifted(rows=b'[{"text":"","id":1},{"text":"\\\\u0041"}]', texts=[[8, 13], [-1, -1]])
    """
    from feedmill.kernels.jsonl.rawtexts_compiled import lift_texts

    texts, made = np.empty((len(lines) // len('{"text":""}') + 1, 2), np.int64), np.zeros(1, np.int64)
    out = np.empty(len(lines) + 3, np.uint8)
    rows = lift_texts(np.frombuffer(lines, np.uint8), out, texts, made)
    return Lifted(out[: made[0]].tobytes(), texts[:rows].tolist()) if rows else None


class Cut(NamedTuple):
    """Texts whose spans are replaced.

    Attributes:
        data, bounds: the texts as JSON, one behind the other, and int64[n + 1]: where each begins.
        passed: int64[n]: spans that were passed over. See `feedmill.curation.mix.spans.replace`.
        odd: bool[n]: whether some of these were empty, inverted or began behind the text.
        sound: bool[n]: whether there are enough visible characters of ASCII.
    """

    data: memoryview
    bounds: list[int]
    passed: Int64s
    odd: npt.NDArray[np.bool_]
    sound: npt.NDArray[np.bool_]


def cut(texts: Sequence[bytes], spans: Chosen, new: Sequence[bytes], enough: int) -> Cut:
    """Replace spans of characters.

    Args:
        texts: lifted ones.
        new: what the spans of each choice become, JSON without quotes.
        enough: see `Cut.sound`.
    """
    from feedmill.kernels.jsonl.rawtexts_compiled import cut_texts

    bounds, new_bounds = _bounds(texts), _bounds(new)
    widest = max(map(len, new), default=0)
    out = np.empty(bounds[-1] + widest * len(spans.starts), np.uint8)
    made = np.zeros(len(bounds), np.int64)
    passed, odd, sound = np.zeros(len(texts), np.int64), *np.zeros((2, len(texts)), np.bool_)
    data, news = (np.frombuffer(b"".join(some), np.uint8) for some in (texts, new))
    cut_texts(data, bounds, *spans, news, new_bounds, enough, out, made, passed, odd, sound)
    return Cut(out.data, made.tolist(), passed, odd, sound)


def _bounds(pieces: Sequence[bytes]) -> Int64s:
    bounds = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=bounds[1:])
    return bounds
