"""The quality signals of Gopher; thresholds are for the mixer to apply."""

from __future__ import annotations

import numpy as np

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.text.gopher import SIGNALS


@register("gopher_v1")
def gopher_v1(batch: Batch) -> Spans:
    """Lines are divided by each newline."""
    return _signals(batch, joined=False)


@register("gopher_v2")
def gopher_v2(batch: Batch) -> Spans:
    """Lines are divided by runs of newlines."""
    return _signals(batch, joined=True)


def _signals(batch: Batch, *, joined: bool) -> Spans:
    from feedmill.kernels.text.gopher_compiled import line_signals

    sizes = np.concatenate(([0], np.cumsum(batch.words[0][1] - batch.words[0][0])))
    inside = np.diff(sizes[batch.words[1]])
    by_line = line_signals(batch.codes, batch.offsets, inside, joined)
    columns = [*batch.gopher.T, *by_line.T]
    return Spans.of_documents(batch.lengths, **dict(zip(SIGNALS, columns, strict=True)))
