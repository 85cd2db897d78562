"""Gopher quality signals. The taggers write the values; thresholds are applied when documents are filtered."""

from __future__ import annotations

import numpy as np

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.text.gopher import SIGNALS, line_signals


@register("gopher_v1")
def gopher_v1(batch: Batch) -> Spans:
    """Score each document by Gopher's signals, splitting lines at every newline."""
    return _signals(batch, joined=False)


@register("gopher_v2")
def gopher_v2(batch: Batch) -> Spans:
    """Score each document by Gopher's signals, splitting lines at runs of newlines."""
    return _signals(batch, joined=True)


def _signals(batch: Batch, *, joined: bool) -> Spans:
    sizes = bounds_of(batch.words[0][1] - batch.words[0][0])
    inside = np.diff(sizes[batch.words[1]])
    columns = (*batch.gopher.T, *line_signals(batch.codes, batch.offsets, inside, joined).T)
    return Spans.of_documents(batch.lengths, **dict(zip(SIGNALS, columns, strict=True)))
