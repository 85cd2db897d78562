"""The compiled loops of `feedmill.kernels.rows`, which describes their arguments."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import kernel
from feedmill.kernels.prefetch_compiled import prefetch_span


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
        if number + 1 < len(starts):
            prefetch_span(source, starts[number + 1], width)
            if len(loss):
                prefetch_span(loss, starts[number + 1], width)
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
def lay_out_shifted(row_offsets, lengths, pad, ignore, inputs, targets, positions, ends, rows, columns, real):  # type: ignore[no-untyped-def]
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


@kernel
def shift_spans(source, loss, bounds, documents, starts, lengths, rows, columns, ignore, borders, inputs, targets):  # type: ignore[no-untyped-def]
    """Fill inputs and targets of spans; a mask of no bytes is not used. Return the first invalid span, or -1."""
    width = inputs.shape[1]
    for span in range(len(documents)):
        document, count, column = documents[span], lengths[span], columns[span]
        if span + 1 < len(documents) and 0 <= documents[span + 1] < len(bounds):
            ahead = bounds[documents[span + 1]] + starts[span + 1]
            prefetch_span(source, ahead, lengths[span + 1])
            if len(loss):
                prefetch_span(loss, ahead, lengths[span + 1])
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
