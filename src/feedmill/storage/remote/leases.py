"""Leases: locks in object stores that end by themselves after their process was killed.

A process that works on an engine may be started again on another machine, which cannot see whether the first one is
alive. So it puts its lock again every few seconds. A lock is dead if the process that its content names has ended, as
its own machine can see, or if it was not put again for `EXPIRY` seconds. These are counted by the clock of the server:
the clocks of two machines may differ.

A lock is put on the condition that it is still the one that was read (``If-Match``), so two processes never take over
the same one, and a process that was stopped for too long notices that its lock is another's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from feedmill.errors import NotFound, StorageError
from feedmill.storage.boot import boot_id

if TYPE_CHECKING:
    from feedmill.storage.remote.range_store import RangeStore, Seen

logger = logging.getLogger("feedmill")

EXPIRY = 90.0
_BEAT = 15.0
_LOOK = 2.0


def identity() -> dict[str, Any]:
    """Return what lets this machine find out whether this process is alive."""
    return {"machine": _machine(), "birth": _birth(os.getpid())}


@cache
def _machine() -> str:
    """Return an id of this boot of the machine and of the space of process ids; empty if the system has none."""
    boot = boot_id()
    try:
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}" if boot else ""
    except OSError:
        return ""


def _birth(process: int) -> str:
    """Return the time at which a process of this machine began, in ticks; empty if it has ended, or is unknown."""
    with contextlib.suppress(OSError, IndexError):
        with open(f"/proc/{process}/stat") as f:
            facts = f.read().rpartition(")")[2].split()
        return "" if facts[0] in "ZX" else facts[19]
    return ""


def has_ended(
    store: RangeStore, path: str, content: Mapping[str, Any], seen: Seen, folder: str, *, wait: bool = False
) -> bool:
    """Return whether the process of a lock has ended. A lock that is no lease never ends by itself.

    Args:
        content, seen: the lock at `path`, as it was read.
        folder: where an object may be put to read the server's clock.
        wait: if it is unknown, wait until the lock is renewed or expires.

    Raises:
        StorageError: a request failed.
    """
    if not content.get("lease"):
        return False
    process, machine = content.get("process"), content.get("machine")
    if machine and machine == _machine() and isinstance(process, int):
        return _birth(process) != content.get("birth")
    told = False
    while seen.modified is not None:
        now = _now(store, folder)
        if now is None or now - seen.modified > EXPIRY:
            return now is not None
        if not wait:
            break
        if not told:
            logger.warning("%s: waiting to see whether the process that locked this is alive", store.locate(path))
            told = True
        time.sleep(_LOOK)
        try:
            after = store.examine(path)
        except NotFound:
            return True
        if (after.data, after.modified) != (seen.data, seen.modified):
            break
    return False


def _now(store: RangeStore, folder: str) -> float | None:
    """Return the time of the server's clock; None if it does not tell."""
    path = f"{folder}/clock-{secrets.token_hex(8)}"
    try:
        store.write_bytes(path, b"")
        return store.examine(path).modified
    except NotFound:
        return None  # a process that looks for locks there took it for the rest of a killed one
    finally:
        store.delete(path)


class Beat:
    """A thread that puts a lock again until `stop`.

    Attributes:
        lost: whether another process has the lock by now.
    """

    def __init__(self, store: RangeStore, path: str, seen: Seen) -> None:
        self._store, self._path, self._seen = store, path, seen
        self.lost, self._renewed = False, time.time()  # which counts the time during which the machine sleeps
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedmill-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_BEAT):
            try:
                seen = self._store.put_over(self._path, self._seen.data, self._seen)
                seen = seen or self._again()
            except Exception as error:  # also of a library: without this thread the lock expires unnoticed
                if time.time() - self._renewed > EXPIRY / 2:
                    logger.warning("the lock could not be renewed, so another process may take it: %s", error)
                continue
            if seen is None:
                self.lost = True
                return
            self._seen, self._renewed = seen, time.time()

    def _again(self) -> Seen | None:
        """Return the lock if it is still ours: the answer to an earlier request was lost."""
        try:
            seen = self._store.examine(self._path)
        except NotFound:
            return None
        return seen if seen.data == self._seen.data else None

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise `StorageError` if another process has taken the lock, because this one did not renew it in time."""
        late = time.time() - self._renewed > EXPIRY  # the thread may not have noticed yet
        if self.lost or (late and self._again() is None):
            raise StorageError(
                "another process has taken over this work, because this one did not answer for a while",
                file=self._store.locate(self._path),
                kind="busy",
                fix="Wait until the other one has ended; then run this command again.",
            )
