"""Faults where system calls cannot be traced: at what Python itself sees, in the one process of a verb.

Python's audit events tell of files that are opened, renamed, removed, made; writes and syncs are told of by the
functions that feedmill calls for them. What libraries write (SQLite, Arrow) is not seen: `tracer` sees it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from faults.calls import FLAGS_OF_OPENING
from faults.tracer import Call

_EVENTS = {
    "os.rename": "rename", "os.remove": "unlink", "os.mkdir": "mkdir", "os.rmdir": "rmdir", "os.truncate": "truncate",
    "os.link": "link", "os.symlink": "symlink", "os.chmod": "chmod",
}  # fmt: skip
_NEED_SPACE = ("open", "mkdir", "link", "symlink", "truncate", "write", "fsync")


class _Striking:
    def __init__(self, folder: str, note: str, fault: str | None, at: int) -> None:
        self.folder, self.fault, self.at = folder, fault, at
        self.note = os.open(note, os.O_WRONLY | os.O_APPEND)
        self.count, self.full = 0, False
        self.lock = threading.Lock()  # verbs write from several threads: none of their calls goes uncounted
        self.write_bytes = os.write

    def event(self, event: str, args: tuple[Any, ...]) -> None:
        """Of the interpreter."""
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & FLAGS_OF_OPENING:
                self.call("open", path)
        elif event in _EVENTS:
            self.call(_EVENTS[event], args[0], args[1] if event in ("os.rename", "os.link") else "")

    def call(self, name: str, path: Any, to: Any = "") -> None:
        """One call, before it is made. Raises `OSError` where it is to fail."""
        where = self._below(path)
        if where is None:
            return
        with self.lock:
            self.count += 1
            now = self.count == self.at
            self.write_bytes(self.note, json.dumps([name, where, self._below(to) or ""]).encode() + b"\n")
            if now and self.fault == "kill":
                os.killpg(0, signal.SIGKILL)
        if now and self.fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO), *_shown(path))
        if (now and self.fault == "ENOSPC") or (self.full and name in _NEED_SPACE):
            self.full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *_shown(path))

    def _below(self, path: Any) -> str | None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}") if os.path.exists(f"/proc/self/fd/{path}") else ""
        full = os.path.abspath(os.fsdecode(path)) if path else ""
        if full == self.folder:
            return "."
        return full[len(self.folder) + 1 :] if full.startswith(self.folder + "/") else None


def _shown(path: Any) -> list[Any]:
    """The name that the system's own error would have: none for a descriptor."""
    return [] if isinstance(path, int) else [path]


def install(folder: str, note: str, fault: str | None, at: int) -> None:
    """In the process of a verb: count its calls below a folder into the file `note`, and strike at one of them."""
    striking = _Striking(folder, note, fault, at)
    from feedmill.storage.staging import WriteBehind

    plain_write = WriteBehind.write

    def write(self: WriteBehind, data: Any) -> int:
        striking.call("write", self.fileno())
        return plain_write(self, data)

    def sync(file: Any) -> None:
        striking.call("fsync", file if isinstance(file, int) else file.fileno())

    WriteBehind.write = write  # type: ignore[method-assign]
    os.fsync = sync
    sys.addaudithook(striking.event)


def read(note: str, at: int) -> tuple[list[Call], Call | None]:
    """The calls that were counted, and that at which it struck."""
    calls = [Call(*json.loads(line)) for line in Path(note).read_text().splitlines()]
    return calls, calls[at - 1] if 0 < at <= len(calls) else None
