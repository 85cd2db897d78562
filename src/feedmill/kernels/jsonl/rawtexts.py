"""Extract texts from rows as JSON without decoding them, and replace spans in them.

A text is extracted if it has Feedmill's own form: UTF-8 without unnecessary escapes, and ``\\b \\f \\n \\r \\t`` for
these characters. Then each character is itself, or a backslash and one more byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.jsonl.spanlists import Chosen, Int64s


class Lifted(NamedTuple):
    """Rows without their texts.

    Attributes:
        rows: JSON array of all rows, with an empty string for each extracted text. If it is valid JSON, each row is one
            of its values.
        texts: (begin, end) of each row's text with its quotes, in the bytes of the lines; (-1, -1) if the text was not
            extracted.
    """

    rows: bytes
    texts: list[list[int]]


def lift(lines: bytes) -> Lifted | None:
    """Return the rows of whole lines without their texts; None if a line does not look like a document.

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
        data, bounds: the concatenated texts as JSON, and the start of each, int64[n + 1].
        passed: int64[n], number of skipped spans. See `feedmill.curation.mix.spans.replace`.
        odd: bool[n], whether any of these was empty, inverted or began beyond the text.
        sound: bool[n], whether the text has enough visible ASCII characters.
    """

    data: memoryview
    bounds: list[int]
    passed: Int64s
    odd: npt.NDArray[np.bool_]
    sound: npt.NDArray[np.bool_]


def cut(texts: Sequence[bytes], spans: Chosen, new: Sequence[bytes], enough: int) -> Cut:
    """Replace spans of characters.

    Args:
        texts: extracted texts.
        new: replacement for the spans of each choice, JSON without quotes.
        enough: required number of characters, see `Cut.sound`.
    """
    from feedmill.kernels.jsonl.rawtexts_compiled import cut_texts

    bounds, new_bounds = _bounds(texts), _bounds(new)
    widest = max(map(len, new), default=0)
    out = np.empty(bounds[-1] + widest * len(spans.starts), np.uint8)
    made = np.zeros(len(bounds), np.int64)
    passed, odd, sound = np.zeros(len(texts), np.int64), *np.zeros((2, len(texts)), np.bool_)
    data, news = (np.frombuffer(b"".join(strings), np.uint8) for strings in (texts, new))
    cut_texts(data, bounds, *spans, news, new_bounds, enough, out, made, passed, odd, sound)
    return Cut(out.data, made.tolist(), passed, odd, sound)


def _bounds(pieces: Sequence[bytes]) -> Int64s:
    bounds = bounds_of([len(piece) for piece in pieces])
    return bounds
