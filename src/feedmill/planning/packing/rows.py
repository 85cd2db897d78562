"""Rows of packed plans as samples: read the tokens of their spans, also where no file is mapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset, TokenReader
from feedmill.formats.tokens.base import TokenDataset
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.nodes import Located
from feedmill.planning.packing.documents import IntArray
from feedmill.planning.packing.spans import LocatedSpans, Spans


class Row(dict[str, Any]):
    """A row of a `PackedPlan`: its fields, and access to the earlier tokens of documents that continue in it."""

    def __init__(self, fields: dict[str, Any], pieces: dict[int, tuple[Dataset, int, int]]) -> None:
        super().__init__(fields)
        self._pieces = pieces

    def before(self, place: int, most: int) -> npt.NDArray[Any]:
        """Return the last `most` tokens of the document at this place of the row that precede the row."""
        if place not in self._pieces:
            return np.zeros(0, np.int64)
        dataset, index, start = self._pieces[place]
        low = max(start - most, 0)
        (tokens,) = read_tokens(dataset, np.array([index]), np.array([low]), np.array([start - low]))
        return tokens


def fill_spans(
    sources: Sequence[Dataset],
    rows_at: LocatedSpans,
    to: IntArray,
    tokens: IntArray,
    masks: npt.NDArray[np.bool_] | None,
) -> None:
    """Copy tokens and masks of all spans to the flattened rows, with one bulk read per source in stored order."""
    spans, located = rows_at.spans, rows_at.located
    order = np.lexsort((spans.start, located.index, located.source))
    groups = np.split(order, np.flatnonzero(np.diff(located.source[order])) + 1)
    for group in groups if len(order) else ():
        dataset = sources[int(located.source[group[0]])]
        asked = located.index[group], spans.start[group], spans.length[group]
        if isinstance(dataset, TokenDataset):
            dataset.fill(*asked, to[group], tokens, masks)
            continue
        for span, found in zip(group.tolist(), read_tokens(dataset, *asked), strict=True):
            if len(found) != spans.length[span]:
                raise _wrong_length(dataset, located, spans, span, len(found))
            tokens[to[span] : to[span] + len(found)] = found
            if masks is not None:
                masks[to[span] : to[span] + len(found)] = True


def continued(sources: Sequence[Dataset], rows_at: LocatedSpans) -> dict[int, dict[int, tuple[Dataset, int, int]]]:
    """Return for each row the spans that do not begin their document: place -> dataset, sample, first token."""
    out: dict[int, dict[int, tuple[Dataset, int, int]]] = {}
    spans = rows_at.spans
    numbers = np.flatnonzero(spans.start)
    if not len(numbers):
        return out
    located = rows_at.located[numbers]
    rows = np.searchsorted(spans.row_offsets, numbers, side="right") - 1
    begins = bounds_of(spans.length)
    at = begins[numbers] - begins[spans.row_offsets[rows]]
    columns = (rows, at, located.source, located.index, spans.start[numbers])
    for row, place, source, index, start in zip(*(column.tolist() for column in columns), strict=True):
        out.setdefault(row, {})[place] = sources[source], index, start
    return out


def read_tokens(
    dataset: Dataset, indices: IntArray, starts: IntArray, lengths: IntArray
) -> Sequence[npt.NDArray[np.integer[Any]]]:
    """Return tokens ``[start, start + length)`` of each document of a token dataset, int64[n] all three.

    Raises:
        ConfigError: the dataset has no tokens to read.
    """
    if not isinstance(dataset, TokenReader):
        raise ConfigError(
            "this dataset has lengths in tokens, but no tokens",
            file=dataset.url,
            kind="no-tokens",
            fix="Tokenize it, and use the token files in the recipe.",
        )
    return dataset.read_tokens(indices, starts, lengths)


def _wrong_length(dataset: Dataset, located: Located, spans: Spans, span: int, found: int) -> DataError:
    start, length = int(spans.start[span]), int(spans.length[span])
    return DataError(
        f"tokens {start} to {start + length} were requested, {found} were read",
        file=dataset.url,
        record=str(int(located.index[span])),
        kind="bad-lengths",
        fix="The index does not match the tokens: rebuild it.",
    )
