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


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Exempt all objects made so far from collections in a block; cycles that the block makes are collected.

    Does nothing if the program has frozen objects itself: unfreezing would release those, too.
    """
    own = gc.get_freeze_count() == 0
    if own:
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()
