"""Rows of tokens in one pass each: copy spans of documents, lay out their positions, and make targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.interface import NUMBERS, TOKENS
from feedmill.kernels.machine import prefetch
from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_READABLE = {NUMBERS[one] for one in (*TOKENS.split("|"), "u64")}
_NO_ROWS = np.zeros((0, 0), np.uint8)
_NO_ENDS = np.zeros((0, 0), np.int32)
_NO_LOSS = np.zeros(0, np.uint8)


class Layout(NamedTuple):
    """Rows of spans.

    Attributes:
        positions: int32[rows, width], from 0 in each span and in the padding.
        ends: int32[rows, k], where each span begins, and the end; padding is one more span, and shorter rows repeat
            their end.
        to: int64[spans], where each span begins in the flattened rows.
    """

    positions: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    to: Int64s


def lay_out(
    row_offsets: Int64s,
    lengths: Int64s,
    tokens: npt.NDArray[np.int64],
    pad: int,
    positions: npt.NDArray[np.int32] | None = None,
) -> Layout:
    """Return the layout of rows, and fill the padding of their tokens.

    Args:
        row_offsets: int64[rows + 1], the first span of each row, then the number of spans.
        lengths: int64[spans], tokens of each span; those of a row must fit into its width.
        tokens: int64[rows, width], of which only the padding is written.
        pad: the padding token.
        positions: int32[rows, width] to fill; default: a new array.

    Raises:
        ValueError: the spans of a row are longer than its width; compiled code would write beyond the arrays.

    >>> tokens = np.zeros((1, 6), np.int64)
    >>> found = lay_out(np.array([0, 2]), np.array([2, 3]), tokens, 9)
    >>> found.positions.tolist(), found.ends.tolist(), tokens.tolist()
    ([[0, 1, 0, 1, 2, 0]], [[0, 2, 5, 6]], [[0, 0, 0, 0, 0, 9]])
    """
    most = int(np.diff(row_offsets).max(initial=0)) + 2
    filled = int(np.diff(bounds_of(lengths)[row_offsets]).max(initial=0))
    if filled > tokens.shape[1]:
        raise ValueError(f"a row has {filled} tokens, more than {tokens.shape[1]}")
    positions = np.empty(tokens.shape, np.int32) if positions is None else positions
    ends, to = np.empty((len(tokens), most), np.int32), np.empty(len(lengths), np.int64)
    used = _lay_out(row_offsets, np.ascontiguousarray(lengths), pad, tokens, positions, ends, to)
    return Layout(positions, np.ascontiguousarray(ends[:, :used]), to)


def readable(dtype: np.dtype[Any]) -> bool:
    """Return whether kernels read tokens of this type."""
    return dtype.isnative and dtype.name in _READABLE


def copied(source: npt.NDArray[Any], out: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Return both arrays in types between which kernels copy; None if there are none.

    They copy between equal types, and from native types of tokens to int64.
    """
    if source.dtype == out.dtype:
        bits = np.dtype(np.int64 if out.itemsize == 8 else f"u{out.itemsize}")
        return source.view(bits), out.view(bits)
    return (_signed(source), out) if out.dtype == np.int64 and readable(source.dtype) else None


def _signed(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return tokens as kernels take them: uint64 as int64."""
    return tokens.view(np.int64) if tokens.dtype == np.uint64 else tokens


def copy_spans(source: npt.NDArray[Any], first: Int64s, lengths: Int64s, to: Int64s, out: npt.NDArray[Any]) -> None:
    """Copy ``source[first : first + length]`` to ``out[to : to + length]`` for each span.

    Args:
        source: flat tokens or masks; spans must be inside of it.
        first, lengths, to: int64[spans].
        out: flat array.
    """
    views = copied(source, out)
    if views is not None:
        _copy_spans(views[0], *map(np.ascontiguousarray, (first, lengths, to)), views[1])
        return
    for begin, count, place in zip(first.tolist(), lengths.tolist(), to.tolist(), strict=True):
        out[place : place + count] = source[begin : begin + count]


def count_spans(mask: npt.NDArray[np.uint8], first: Int64s, stop: Int64s) -> Int64s:
    """Return how many values of ``mask[first:stop]`` are not 0, for each span, int64[spans].

    Args:
        mask: uint8[n]; spans must be inside of it.
        first, stop: int64[spans].

    >>> count_spans(np.array([0, 1, 1, 0, 7], np.uint8), np.array([0, 2]), np.array([3, 5])).tolist()
    [2, 2]
    """
    out = np.empty(len(first), np.int64)
    _count_spans(mask, np.ascontiguousarray(first, np.int64), np.ascontiguousarray(stop, np.int64), out)
    return out


def targets_of(
    tokens: npt.NDArray[Any],
    ignore: int,
    *,
    loss: Bools | None = None,
    begins: Bools | None = None,
    ends: npt.NDArray[Any] | None = None,
    real: Int64s | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Return all tokens but the first of each row, int64[n, width - 1], with `ignore` for targets that do not count.

    Args:
        tokens: integers[n, width].
        ignore: value of ignored targets.
        loss: bool[n, width], which tokens contribute to the loss; None for all.
        begins: bool[n, width], the first tokens of documents, which are ignored.
        ends: integers[n, k], the same as offsets of documents in rows.
        real: int64[n], tokens of each row before its padding.
        out: int64[n, width - 1] to fill; default: a new array.

    >>> targets_of(np.array([[5, 6, 7, 8]]), -1, ends=np.array([[0, 2, 4]])).tolist()
    [[6, -1, 8]]
    """
    count, width = tokens.shape
    out = np.empty((count, width - 1), np.int64) if out is None else out
    native = np.ascontiguousarray(tokens, np.uint16 if tokens.dtype == np.uint16 else np.int64)
    masks = (_NO_ROWS if mask is None else np.ascontiguousarray(mask).view(np.uint8) for mask in (loss, begins))
    places = _NO_ENDS if ends is None else np.ascontiguousarray(ends, np.int32)
    full = np.full(count, width, np.int64) if real is None else np.ascontiguousarray(real, np.int64)
    _targets_of(native, ignore, *masks, places, full, out)
    return out


def shift_rows(
    source: npt.NDArray[Any],
    loss: npt.NDArray[Any] | None,
    starts: Int64s,
    rows: Int64s,
    ignore: int,
    inputs: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
) -> None:
    """Copy ``source[start : start + width]`` to rows of inputs, and the tokens after them to rows of targets.

    Args:
        source: flat `readable` tokens, of which ``start + width`` must be inside.
        loss: uint8[tokens], which tokens contribute to the loss; None for all.
        starts, rows: int64[m], where each row begins, and its number in the outputs.
        ignore: value of targets that do not contribute.
        inputs, targets: int64[n, width] to fill.

    >>> inputs, targets = np.zeros((1, 3), np.int64), np.zeros((1, 3), np.int64)
    >>> mask = np.array([1, 1, 0, 1, 1], np.uint8)
    >>> shift_rows(np.array([5, 6, 7, 8, 9]), mask, np.array([1]), np.array([0]), -1, inputs, targets)
    >>> inputs.tolist(), targets.tolist()
    ([[6, 7, 8]], [[-1, 8, 9]])
    """
    _shift_rows(_signed(source), _NO_LOSS if loss is None else loss, starts, rows, ignore, inputs, targets)


class ShiftedLayout(NamedTuple):
    """Rows of spans as inputs, of which the tokens are still to be filled by `shift_spans`.

    Attributes:
        positions: int32[rows, width], from 0 in each span and in the padding.
        ends: int32[rows, k], where each span begins, and the end, ascending; shorter rows repeat their end.
        rows, columns: int64[spans], the place of the first token of each span.
        real: int64[rows], inputs of each row before its padding.
    """

    positions: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    rows: Int64s
    columns: Int64s
    real: Int64s


def lay_out_shifted(
    row_offsets: Int64s,
    lengths: Int64s,
    pad: int,
    ignore: int,
    inputs: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int32],
) -> ShiftedLayout:
    """Return the layout of rows of ``width + 1`` tokens as inputs, and fill the padding of inputs and targets.

    Args:
        row_offsets: int64[rows + 1], the first span of each row, then the number of spans.
        lengths: int64[spans], tokens of each span, at least one; those of a row must fit into ``width + 1``.
        pad, ignore: the padding of inputs and of targets.
        inputs, targets: int64[rows, width].
        positions: int32[rows, width] to fill.

    >>> inputs, targets, positions = np.zeros((1, 5), np.int64), np.zeros((1, 5), np.int64), np.zeros((1, 5), np.int32)
    >>> found = lay_out_shifted(np.array([0, 2]), np.array([2, 2]), 9, -1, inputs, targets, positions)
    >>> inputs.tolist(), targets.tolist(), positions.tolist(), found.ends.tolist()
    ([[0, 0, 0, 0, 9]], [[0, 0, 0, -1, -1]], [[0, 1, 0, 1, 0]], [[0, 2, 4, 5]])
    """
    most = int(np.diff(row_offsets).max(initial=0)) + 2
    ends, places = np.empty((len(inputs), most), np.int32), np.empty((2, len(lengths)), np.int64)
    real = np.empty(len(inputs), np.int64)
    used = _lay_out_shifted(row_offsets, lengths, pad, ignore, inputs, targets, positions, ends, *places, real)
    return ShiftedLayout(positions, np.ascontiguousarray(ends[:, :used]), places[0], places[1], real)


def shift_spans(
    source: npt.NDArray[Any],
    loss: npt.NDArray[Any] | None,
    bounds: Int64s,
    spans: tuple[Int64s, Int64s, Int64s],
    places: tuple[Int64s, Int64s],
    ignore: int,
    borders: bool,
    inputs: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
) -> int:
    """Copy spans of documents to rows of inputs, and the tokens after each of them to rows of targets.

    Args:
        source: flat `readable` tokens.
        loss: uint8[tokens], which tokens contribute to the loss; None for all.
        bounds: int64[documents + 1], where each document begins in them, and the end.
        spans: document, first token in it, and tokens of each span, int64[n] each.
        places: row and column of each span, int64[n] both. A row has one token more than inputs.
        ignore: value of targets that do not contribute.
        borders: whether the first token of a span, as the target of the one before it, does not contribute.
        inputs, targets: int64[rows, width] to fill.

    Returns:
        The number of the first span outside of its document or of the tokens; -1 if there is none.

    >>> inputs, targets = np.zeros((1, 3), np.int64), np.zeros((1, 3), np.int64)
    >>> spans, places = np.array([[1, 0], [0, 1], [2, 2]]), np.array([[0, 0], [0, 2]])
    >>> tokens, bounds = np.array([5, 6, 7, 8, 9]), np.array([0, 3, 5])
    >>> shift_spans(tokens, None, bounds, tuple(spans), tuple(places), -1, True, inputs, targets)
    -1
    >>> inputs.tolist(), targets.tolist()
    ([[8, 9, 6]], [[9, -1, 7]])
    """
    mask = _NO_LOSS if loss is None else loss
    found = _shift_spans(_signed(source), mask, bounds, *spans, *places, ignore, int(borders), inputs, targets)
    return int(found)


def count_up(rows: Int64s, places: Int64s, out: npt.NDArray[np.int64]) -> None:
    """Fill rows with positions that begin at 0, and again at each of the given places.

    Args:
        rows, places: int64[k], the row of each place and its column, both ascending.
        out: int64[n, width] to fill.

    >>> out = np.zeros((2, 4), np.int64)
    >>> count_up(np.array([1]), np.array([3]), out)
    >>> out.tolist()
    [[0, 1, 2, 3], [0, 1, 2, 0]]
    """
    _count_up(np.ascontiguousarray(rows), np.ascontiguousarray(places), out)


# --- compiled ---------------------------------------------------------------------------------------------------------


@kernel("i64[:], i64[:], i64, out i64[:,:], out i32[:,:], out i32[:,:], out i64[:] -> i64")
def _lay_out(row_offsets, lengths, pad, tokens, positions, ends, to):  # type: ignore[no-untyped-def]
    """Fill positions, ends and places, and the padding of tokens. Return the number of used columns of `ends`."""
    width, most, used = tokens.shape[1], ends.shape[1], 1
    for row in range(tokens.shape[0]):
        at, column = 0, 0
        ends[row, 0] = 0
        line = positions[row]
        for span in range(row_offsets[row], row_offsets[row + 1]):
            to[span] = row * width + at
            part = line[at : at + lengths[span]]
            for place in range(lengths[span]):
                part[place] = place
            at += lengths[span]
            column += 1
            ends[row, column] = at
        if at < width:
            for place in range(width - at):
                tokens[row, at + place] = pad
                line[at + place] = place
            column += 1
            ends[row, column] = width
        used = max(used, column + 1)
        for rest in range(column + 1, most):
            ends[row, rest] = ends[row, column]
    return used


@kernel(
    "token[:], i64[:], i64[:], i64[:], out i64[:]",
    "u8[:], i64[:], i64[:], i64[:], out u8[:]",
    "u16[:], i64[:], i64[:], i64[:], out u16[:]",
    "u32[:], i64[:], i64[:], i64[:], out u32[:]",
)
def _copy_spans(source, first, lengths, to, out):  # type: ignore[no-untyped-def]
    """Copy spans."""
    for span in range(len(first)):
        if span + 1 < len(first):
            _prefetch_span(source, first[span + 1], lengths[span + 1])
        count = lengths[span]
        part = source[first[span] : first[span] + count]
        target = out[to[span] : to[span] + count]
        for place in range(count):  # LLVM vectorizes this loop, because it is over views
            target[place] = part[place]


@kernel("u8[:], i64[:], i64[:], out i64[:]")
def _count_spans(mask, first, stop, out):  # type: ignore[no-untyped-def]
    """Count what is not 0 in each span."""
    for span in range(len(first)):
        length = stop[span] - first[span]
        part = mask[first[span] : stop[span]]
        total = 0
        for place in range(length):  # vectorized, because it is over a view
            total += 1 if part[place] else 0
        out[span] = total


@kernel("u16|i64[:,:], i64, u8[:,:], u8[:,:], i32[:,:], i64[:], out i64[:,:]")
def _targets_of(tokens, ignore, loss, begins, ends, real, out):  # type: ignore[no-untyped-def]
    """Fill the targets; masks and ends without rows are not used."""
    width = out.shape[1]
    for row in range(out.shape[0]):
        source, target = tokens[row][1 : width + 1], out[row]
        if loss.shape[0]:
            mask = loss[row][1 : width + 1]
            for place in range(width):
                token = source[place]  # read in any case: a conditional read would not be vectorized
                target[place] = token if mask[place] else ignore
        else:
            for place in range(width):
                target[place] = source[place]
        if begins.shape[0]:
            starts = begins[row][1 : width + 1]
            for place in range(width):
                target[place] = ignore if starts[place] else target[place]
        for column in range(ends.shape[1] if ends.shape[0] else 0):
            if 0 < ends[row, column] <= width:
                target[ends[row, column] - 1] = ignore
        for place in range(max(real[row] - 1, 0), width):
            target[place] = ignore


@kernel("token[:], u8[:], i64[:], i64[:], i64, out i64[:,:], out i64[:,:]")
def _shift_rows(source, loss, starts, rows, ignore, inputs, targets):  # type: ignore[no-untyped-def]
    """Fill inputs and targets; a mask of no bytes is not used."""
    width = inputs.shape[1]
    for number in range(len(starts)):
        begin = starts[number]
        if number + 1 < len(starts):
            _prefetch_span(source, starts[number + 1], width)
            if len(loss):
                _prefetch_span(loss, starts[number + 1], width)
        part, target = source[begin : begin + width], inputs[rows[number]]
        for place in range(width):
            target[place] = part[place]
        # A second loop costs no reads, because the part is in the processor's nearest cache.
        part, target = source[begin + 1 : begin + 1 + width], targets[rows[number]]
        if len(loss):
            mask = loss[begin + 1 : begin + 1 + width]
            for place in range(width):
                token = np.int64(part[place])
                target[place] = token if mask[place] else ignore
        else:
            for place in range(width):
                target[place] = part[place]


@kernel(
    "i64[:], i64[:], i64, i64, out i64[:,:], out i64[:,:], out i32[:,:], out i32[:,:], out i64[:], "
    "out i64[:], out i64[:] -> i64"
)
def _lay_out_shifted(row_offsets, lengths, pad, ignore, inputs, targets, positions, ends, rows, columns, real):  # type: ignore[no-untyped-def]
    """Fill all of the rows but the tokens of spans. Return the number of used columns of `ends`."""
    width, most, used = inputs.shape[1], ends.shape[1], 1
    for row in range(inputs.shape[0]):
        at, column = 0, 0
        line = positions[row]
        ends[row, 0] = 0
        for span in range(row_offsets[row], row_offsets[row + 1]):
            rows[span], columns[span] = row, at
            stop = min(at + lengths[span], width)
            part = line[at:stop]
            for place in range(len(part)):
                part[place] = place
            at += lengths[span]
            if stop > ends[row, column]:
                column += 1
                ends[row, column] = stop
        if at < width:
            for place in range(width - at):
                inputs[row, at + place] = pad
                line[at + place] = place
            column += 1
            ends[row, column] = width
        for place in range(max(at - 1, 0), width):
            targets[row, place] = ignore
        real[row] = min(at, width)
        used = max(used, column + 1)
        for rest in range(column + 1, most):
            ends[row, rest] = width
    return used


@kernel("token[:], u8[:], i64[:], i64[:], i64[:], i64[:], i64[:], i64[:], i64, i64, out i64[:,:], out i64[:,:] -> i64")
def _shift_spans(source, loss, bounds, documents, starts, lengths, rows, columns, ignore, borders, inputs, targets):  # type: ignore[no-untyped-def]
    """Fill inputs and targets of spans; a mask of no bytes is not used. Return the first invalid span, or -1."""
    width = inputs.shape[1]
    for span in range(len(documents)):
        document, count, column = documents[span], lengths[span], columns[span]
        if span + 1 < len(documents) and 0 <= documents[span + 1] < len(bounds):
            ahead = bounds[documents[span + 1]] + starts[span + 1]
            _prefetch_span(source, ahead, lengths[span + 1])
            if len(loss):
                _prefetch_span(loss, ahead, lengths[span + 1])
        if document < 0 or document >= len(bounds) - 1 or starts[span] < 0 or count < 0:
            return span
        first = bounds[document] + starts[span]
        # each limit by itself: a sum of corrupt bounds could overflow
        if bounds[document] < 0 or bounds[document + 1] > len(source) or count > bounds[document + 1] - first:
            return span
        part, target = source[first : first + count], inputs[rows[span]][column : min(column + count, width)]
        for place in range(len(target)):
            target[place] = part[place]
        line = targets[rows[span]]
        if column:
            before = np.int64(part[0]) if count and not borders else ignore
            if len(loss) and count and not loss[first]:
                before = ignore
            line[column - 1] = before
        part, target = part[1:], line[column : column + max(count - 1, 0)]
        if len(loss):
            mask = loss[first + 1 : first + max(count, 1)]
            for place in range(len(target)):
                token = np.int64(part[place])
                target[place] = token if mask[place] else ignore
        else:
            for place in range(len(target)):
                target[place] = part[place]
    return -1


@kernel("i64[:], i64[:], out i64[:,:]")
def _count_up(rows, places, out):  # type: ignore[no-untyped-def]
    """Fill positions."""
    at = 0
    for row in range(out.shape[0]):
        begin, line = 0, out[row]
        while at < len(rows) and rows[at] == row:
            part = line[begin : places[at]]
            for place in range(len(part)):
                part[place] = place
            begin, at = places[at], at + 1
        part = line[begin:]
        for place in range(len(part)):
            part[place] = place


# --- fetching ahead ---------------------------------------------------------------------------------------------------
# A batch reads its tokens from hundreds of random places of a mapped file. The processor notices a sequence after two
# or three lines of it, and each of these costs as much as copying a hundred tokens. A kernel that names the place one
# span ahead does not wait for them: packed rows with masks take a third less time.


_LINE = 64
_FIRST = 8
"""Lines after which the processor reads ahead by itself."""


@kernel
def _prefetch_span(array, first, count):  # type: ignore[no-untyped-def]
    """Fetch the first lines of ``array[first : first + count]``, a flat array."""
    step = _LINE // array.itemsize
    for place in range(first, first + min(count, _FIRST * step), step):
        prefetch(array, place)
