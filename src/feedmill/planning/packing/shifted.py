"""Make inputs and targets of packed rows in the pass that reads their tokens.

It needs files that are mapped: a kernel copies each span of a document from its file to its place in the batch. Without
it a batch of rows is laid out, filled, and read again for its targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedmill.formats.base import Dataset
from feedmill.formats.batches import INPUTS, TARGETS, Columns, Shifted
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.shifted import FlatSpans
from feedmill.jobs.buffers import empty
from feedmill.kernels.rows import lay_out_shifted, shift_spans
from feedmill.planning.packing.spans import LocatedSpans


def shifted_rows(
    sources: Sequence[Dataset], rows_at: LocatedSpans, width: int, pad: int, want: Shifted
) -> Columns | None:
    """Return inputs and targets of rows, with the fields of `PackedPlan.read` for the inputs.

    Args:
        sources: the datasets of the plan.
        rows_at: the spans of the rows.
        width: tokens in a row.
        pad: the padding token.
        want: how targets are made.

    Returns:
        None if a dataset has no mapped tokens, or a span is not in its document: the caller reports which one.

    Raises:
        DataError: a file has become shorter since it was opened.
    """
    spans, located = rows_at.spans, rows_at.located
    if width < 2:
        return None
    files = _files(sources, rows_at)
    if files is None:
        return None
    shape = (len(spans), width - 1)
    inputs, targets, positions = empty(shape, np.int64), empty(shape, np.int64), empty(shape, np.int32)
    layout = lay_out_shifted(spans.row_offsets, spans.length, pad, want.ignore, inputs, targets, positions)
    columns = (located.index, spans.start, spans.length, layout.rows, layout.columns)
    for file in files:
        document, start, length, row, column = (
            columns if file.rows is None else [values[file.rows] for values in columns]
        )
        document = document if file.documents is None else file.documents
        asked, places = (document, start, length), (row, column)
        if (
            shift_spans(file.tokens, file.loss, file.bounds, asked, places, want.ignore, want.borders, inputs, targets)
            >= 0
        ):
            return None
    about = {"positions": positions, "cu_seqlens": layout.ends, "tokens": layout.real}
    return {INPUTS: inputs, TARGETS: targets, **about}


def _files(sources: Sequence[Dataset], rows_at: LocatedSpans) -> list[FlatSpans] | None:
    """Return the files of the spans, with the spans of each; None if one of them cannot be read so."""
    source, index = rows_at.located.source, rows_at.located.index
    numbers = [0] if len(sources) == 1 else np.flatnonzero(np.bincount(source)).tolist()
    found: list[FlatSpans] = []
    for number in numbers:
        dataset = sources[number]
        if not isinstance(dataset, TokenDataset):
            return None
        rows = None if len(numbers) == 1 else np.flatnonzero(source == number)
        files = dataset.flat_spans(index if rows is None else index[rows])
        if files is None:
            return None
        for file in files:
            within = rows if file.rows is None else file.rows if rows is None else rows[file.rows]
            found.append(file._replace(rows=within))
    return found
