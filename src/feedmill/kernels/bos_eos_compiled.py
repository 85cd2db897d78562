"""The compiled loop of `feedmill.kernels.bos_eos`."""

from __future__ import annotations

from feedmill.kernels.native import kernel


@kernel
def add_bos_eos(ids, lengths, kept, bos, eos, always, out, stored, before):  # type: ignore[no-untyped-def]
    """Do the work of `feedmill.kernels.bos_eos.add_bos_eos` and return the number of tokens written.

    Args:
        bos, eos: -1 for none.
        always: 1 to add them even if they are present, else 0.
        out: filled; must have space for all ids and two more for each document.
        stored, before: int64[n], filled.
    """
    at, begin = 0, 0
    for n in range(len(lengths)):
        size = lengths[n]
        source = ids[begin : begin + size]
        begin += size
        first, before[n] = at, 0
        if size > 0 and kept[n]:
            if bos >= 0 and (always or source[0] != bos):
                out[at] = bos
                at += 1
                before[n] = 1
            target = out[at : at + size]
            for i in range(size):  # LLVM vectorizes this loop, because it is over views
                target[i] = source[i]
            at += size
            if eos >= 0 and (always or source[size - 1] != eos):
                out[at] = eos
                at += 1
        stored[n] = at - first
    return at
