"""Gopher quality signals. The taggers write the values; thresholds are applied when documents are filtered."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.text.gopher import SIGNALS, line_signals, ready, signals

COMPILED_FROM = 500_000
"""Number of characters from which compiling pays off; the compiled form is built once per installation."""
_seen = 0


@register("gopher_v1")
def gopher_v1(batch: Batch) -> Spans:
    """Score each document by Gopher's signals, splitting lines at every newline."""
    return _signals(batch, joined=False)


@register("gopher_v2")
def gopher_v2(batch: Batch) -> Spans:
    """Score each document by Gopher's signals, splitting lines at runs of newlines."""
    return _signals(batch, joined=True)


def _signals(batch: Batch, *, joined: bool) -> Spans:
    columns = _compiled(batch, joined) if _worth_compiling(int(batch.offsets[-1])) else _uncompiled(batch, joined)
    return Spans.of_documents(batch.lengths, **dict(zip(SIGNALS, columns, strict=True)))


def _compiled(batch: Batch, joined: bool) -> list[npt.NDArray[np.float64]]:
    sizes = bounds_of(batch.words[0][1] - batch.words[0][0])
    inside = np.diff(sizes[batch.words[1]])
    by_line = line_signals(batch.codes, batch.offsets, inside, joined)
    return [*batch.gopher.T, *by_line.T]


def _uncompiled(batch: Batch, joined: bool) -> list[npt.NDArray[np.float64]]:
    rows = [signals(text, joined) for text in batch.texts]
    return [np.array([row.get(name, np.nan) for row in rows]) for name in SIGNALS]


def _worth_compiling(characters: int) -> bool:
    """Return whether to use the compiled form: it is already built, or this process has seen enough characters."""
    global _seen
    _seen += characters
    return _seen > COMPILED_FROM or _ready()


@cache
def _ready() -> bool:
    return ready()
