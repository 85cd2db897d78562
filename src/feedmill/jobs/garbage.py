"""Keep Python's collector of cycles away from many small objects, such as rows, or what describes files.

None of them is part of a cycle, but each full collection walks through all of them: a third of the time of an import,
and up to half of the time of decoding rows.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collection of cycles in a block that makes many objects and no cycles to speak of.

    What the block made counts as old afterwards: else the next allocation would walk through all of it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            with frozen():
                pass  # objects that are no longer frozen are of the oldest generation
            gc.enable()


_ours = _theirs = False
"""Whether a `frozen` block is running, and whether the program has frozen objects itself."""


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Exempt all objects made so far from collections in a block; cycles that the block makes are collected.

    Does nothing if the program has frozen objects itself: unfreezing would release those, too.
    """
    global _ours, _theirs
    if not (_ours or _theirs):
        _theirs = gc.get_freeze_count() > 0  # once, as it counts one by one: a tenth of a second for a million
    own = not (_ours or _theirs)
    if own:
        _ours = True
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()
            _ours = False
