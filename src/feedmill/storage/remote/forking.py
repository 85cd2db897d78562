"""Remote stores and `fork`: threads and connections do not survive it, so a child must not send requests."""

from __future__ import annotations

import os

from feedmill.errors import StorageError

_process = {"requested": False, "forked": False}


def has_requested() -> bool:
    """Return whether this process has sent requests to a store, so that a forked child could send none."""
    return _process["requested"]


def guard_against_fork(url: str) -> None:
    """Raise `StorageError` in a child that was forked after requests were made."""
    if _process["forked"]:
        raise StorageError(
            "this process was forked after its parent had sent requests to a store: requests would hang",
            file=url,
            kind="wrong-process",
            fix="Start processes with 'spawn' or 'forkserver' (for a torch DataLoader: multiprocessing_context=...).",
        )
    if not _process["requested"]:
        _process["requested"] = True
        os.register_at_fork(after_in_child=lambda: _process.update(forked=True))
