"""The compiled loops of `feedmill.kernels.rows`, which describes their arguments."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import kernel


@kernel
def lay_out(row_offsets, lengths, pad, tokens, positions, ends, to):  # type: ignore[no-untyped-def]
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


@kernel
def copy_spans(source, first, lengths, to, out):  # type: ignore[no-untyped-def]
    """Copy spans."""
    for span in range(len(first)):
        count = lengths[span]
        part = source[first[span] : first[span] + count]
        target = out[to[span] : to[span] + count]
        for place in range(count):  # LLVM vectorizes this loop, because it is over views
            target[place] = part[place]


@kernel
def targets_of(tokens, ignore, loss, begins, ends, real, out):  # type: ignore[no-untyped-def]
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


@kernel
def shift_rows(source, loss, starts, rows, ignore, inputs, targets):  # type: ignore[no-untyped-def]
    """Fill inputs and targets; a mask of no bytes is not used."""
    width = inputs.shape[1]
    for number in range(len(starts)):
        begin = starts[number]
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


@kernel
def count_up(rows, places, out):  # type: ignore[no-untyped-def]
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
