"""What a machine that loses its power forgets: bytes that nobody synced, and names in folders that nobody synced.

`Unsynced` is told of every call before it is made, and keeps what a later loss brings back. A file's bytes are safe
once it was synced after the last write; a name (made, moved, removed) once its folder was. Journaling file systems keep
more than that; no program may count on it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from faults.calls import Kind
from faults.tracer import Call

_MADE = ("open", "openat", "openat2", "creat", "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat")
_MOVED = ("rename", "renameat", "renameat2")
_REMOVED = ("unlink", "unlinkat", "rmdir")
_WRITTEN = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range", "splice", "ftruncate",
            "truncate", "fallocate")  # fmt: skip


@dataclass
class _Change:
    """One change of names.

    Attributes:
        folders: those that have to be synced for it to last.
        path, to: as of the call; `to` is empty but for a move.
        kept: the file that was there before, by another name, if there was one.
    """

    path: Path
    to: Path | None = None
    kept: Path | None = None
    folder: bool = False
    folders: set[Path] = field(default_factory=set)


class Unsynced:
    """What would be lost now.

    Args:
        folder: what is watched.
        store: a new folder on the same disk, for what may have to come back.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder, self.store = folder, store
        self._bytes: set[int] = set()
        self._names: list[_Change] = []
        self._count = 0
        store.mkdir()

    def __call__(self, kind: Kind, call: Call) -> None:
        """A call is about to be made."""
        path = self.folder / call.path
        if kind.name in ("fsync", "fdatasync"):
            self._synced(path)
        elif kind.name in _WRITTEN or (kind.flags is not None and path.is_file()):
            with contextlib.suppress(OSError):
                self._bytes.add(path.stat().st_ino)
        elif kind.name in _MADE and not os.path.lexists(path):
            self._names.append(_Change(path, folders={path.parent}))
        elif kind.name in _MOVED and path.exists():
            to = self.folder / call.to
            self._names.append(_Change(path, to, self._keep(to), folders={path.parent, to.parent}))
        elif kind.name in _REMOVED and os.path.lexists(path):
            self._names.append(_Change(path, kept=self._keep(path), folder=path.is_dir(), folders={path.parent}))

    def _keep(self, path: Path) -> Path | None:
        if not path.is_file():
            return None
        self._count += 1
        kept = self.store / str(self._count)
        os.link(path, kept)
        return kept

    def _synced(self, path: Path) -> None:
        if path.is_dir():
            for change in self._names:
                change.folders.discard(path)
            self._names = [change for change in self._names if change.folders]
        elif path.exists():
            self._bytes.discard(path.stat().st_ino)

    def lose(self, *, names: bool) -> bool:
        """Lose bytes, and `names` too; whether there was anything to lose."""
        files = [path for root in (self.folder, self.store) for path in root.rglob("*") if path.is_file()]
        torn = [path for path in files if path.stat().st_ino in self._bytes and path.stat().st_size]
        for path in torn:
            os.truncate(path, 0)
        if names:
            for change in reversed(self._names):
                self._undo(change)
        return bool(torn or (names and self._names))

    def _undo(self, change: _Change) -> None:
        if change.to is not None:
            change.path.parent.mkdir(parents=True, exist_ok=True)
            if change.to.exists():
                os.replace(change.to, change.path)
            if change.kept is not None:
                change.to.parent.mkdir(parents=True, exist_ok=True)
                os.link(change.kept, change.to)
        elif change.kept is not None:
            change.path.parent.mkdir(parents=True, exist_ok=True)
            if not change.path.exists():
                os.link(change.kept, change.path)
        elif change.folder:
            change.path.mkdir(parents=True, exist_ok=True)
        elif change.path.is_dir() and not change.path.is_symlink():
            shutil.rmtree(change.path)
        else:
            change.path.unlink(missing_ok=True)
