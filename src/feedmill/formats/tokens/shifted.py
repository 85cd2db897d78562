"""Make inputs and targets of windows in the pass that reads their tokens.

A batch of windows is a megabyte and more, so a second pass over it costs as much as reading it. Here the tokens and
their mask are read once from the mapped files, and each window's inputs and targets are written from the nearest cache.
Both are contiguous, because an embedding and a loss take them flat and would copy slices of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.formats.offsets import Int64s
from feedmill.formats.tokens.gather import Gather
from feedmill.formats.tokens.masks import Masks
from feedmill.jobs.buffers import empty
from feedmill.kernels.rows import readable, shift_rows

Pair = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def shifted(
    gather: Any, masks: Masks | None, file: Int64s, start: Int64s, width: int, ignore: int, single: bool = False
) -> Pair | None:
    """Return inputs and targets of windows, int64[n, width - 1] both.

    Args:
        gather: reader of the tokens.
        masks: reader of the masks; None if all tokens contribute to the loss.
        file, start: int64[n], the file of each window, which must contain it, and its first token in it.
        width: tokens of a window.
        ignore: value of targets that do not contribute.
        single: whether there is one file.

    Returns:
        None if tokens or masks are remote, or of a kind that compiled code does not read.

    Raises:
        DataError: a file has become shorter since it was opened.
    """
    files = [0] if single else np.flatnonzero(np.bincount(file)).tolist()
    sources = sources_of(gather, masks, files)
    if sources is None:
        return None
    shape = (len(file), width - 1)
    inputs, targets = empty(shape, np.int64), empty(shape, np.int64)
    for number, tokens, loss in sources:
        rows = np.arange(len(file)) if len(sources) == 1 else np.flatnonzero(file == number)
        starts = start if len(sources) == 1 else start[rows]
        shift_rows(tokens, loss, starts, rows, ignore, inputs, targets)
    return inputs, targets


class FlatSpans(NamedTuple):
    """Spans of documents in a mapped file.

    Attributes:
        tokens: the tokens of the file, in native byte order.
        loss: uint8[tokens], its mask, empty if all tokens contribute to the loss; None if there is no mask.
        bounds: int64[documents + 1], where each document begins in them, and the end.
        rows: int64[n], which of the spans are in the file; None for all.
        documents: int64[n], their documents in the file; None for the numbers as given.
    """

    tokens: npt.NDArray[Any]
    loss: npt.NDArray[Any] | None
    bounds: Int64s
    rows: Int64s | None = None
    documents: Int64s | None = None


def sources_of(
    gather: Any, masks: Masks | None, files: Sequence[int]
) -> list[tuple[int, npt.NDArray[Any], npt.NDArray[Any] | None]] | None:
    """Return the number of each file, its tokens and its mask; None if one of them cannot be read so."""
    found = []
    for number in files if isinstance(gather, Gather) else ():
        tokens = gather.flat(number)
        if tokens is None or not readable(tokens.dtype):
            return None
        loss = None if masks is None else masks.flat(number)
        if masks is not None and loss is None:
            return None
        found.append((number, tokens, loss))
    return found or None
