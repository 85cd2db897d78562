"""List the files below a folder of this machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from feedmill.errors import NotFound
from feedmill.storage.base import Entry
from feedmill.storage.staging import TEMPORARY_SUFFIX


def walk(top: str, relative: str, suffixes: tuple[str, ...], hidden: bool) -> Iterator[Entry]:
    """Yield every file below `top`, those of hidden folders only on request.

    Links to folders are followed, unless they lead to a folder above them.
    """
    status = os.stat(top)
    todo = [(top, relative, frozenset([(status.st_dev, status.st_ino)]))]
    while todo:
        folder, relative, parents = todo.pop()
        with os.scandir(folder) as items:
            for item in items:
                name = item.name
                if _is_folder(item):
                    status = item.stat()
                    identity = (status.st_dev, status.st_ino)
                    if (hidden or not name.startswith(".")) and identity not in parents:
                        todo.append((item.path, f"{relative}{name}/", parents | {identity}))
                elif not name.endswith(TEMPORARY_SUFFIX) and (not suffixes or name.endswith(suffixes)):
                    entry = _listed(item, relative + name)
                    if entry is not None:
                        yield entry


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError as error:  # a link to itself is no folder; `_listed` reports it if its suffix is listed
        if error.errno != errno.ELOOP:
            raise
        return False


def _listed(item: os.DirEntry[str], path: str) -> Entry | None:
    """Return the entry of a regular file; None for sockets, pipes, and files deleted since the folder was read."""
    try:
        if item.is_file():
            return entry_of(path, item.stat())
    except FileNotFoundError:
        return None
    if item.is_symlink() and not os.path.exists(item.path):
        raise NotFound(
            f"the target of this link does not exist ({os.readlink(item.path)})",
            file=item.path,
            kind="dangling-link",
            fix="Restore its target, or remove the link.",
        )
    return None


def entry_of(path: str, status: os.stat_result) -> Entry:
    """Return the entry of a file, whose version is its time of change and its size."""
    return Entry(path, status.st_size, f"{status.st_mtime_ns:x}-{status.st_size:x}")
