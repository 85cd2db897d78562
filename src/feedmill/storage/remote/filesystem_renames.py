"""Publish a file on a file system of `fsspec` by renaming it, and undo what a killed process left of that."""

from __future__ import annotations

from typing import Any

from feedmill.storage.staging import TEMPORARY_SUFFIX


def is_temporary(path: str) -> bool:
    """Return whether a file has a hidden name of an upload (`temporary_beside`)."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def renames(fs: Any) -> bool:
    """Return whether a file system can rename a file; for others, `fsspec` would copy it."""
    from fsspec.spec import AbstractFileSystem

    return not fs.async_impl and type(fs).mv is not AbstractFileSystem.mv


def make_folder(fs: Any, folder: str) -> None:
    """Create a folder and its parents, although other threads and processes may create them at the same time."""
    left = len(folder.strip("/").split("/"))
    while True:
        try:
            fs.makedirs(folder, exist_ok=True)
            return
        except Exception:  # each file system has another error for a folder that exists by now
            fs.invalidate_cache()
            if fs.isdir(folder):
                return
            left -= 1  # if others were faster, at least one more of the folders exists now
            if not left:
                raise


def replace(fs: Any, source: str, target: str) -> None:
    """Rename a file over another one; if the file system cannot replace files, rename the other one first."""
    try:
        fs.mv(source, target)
        return
    except (OSError, ValueError):
        if not fs.exists(target):
            raise
    previous = _previous(source)
    fs.mv(target, previous)
    try:
        fs.mv(source, target)
    except BaseException:
        fs.mv(previous, target)
        raise
    fs.rm_file(previous)


def _previous(hidden: str) -> str:
    """Return the name of the file that is being replaced."""
    return hidden.removesuffix(TEMPORARY_SUFFIX) + "-old" + TEMPORARY_SUFFIX


def undo(fs: Any, hidden: str) -> None:
    """Remove what a killed process left of an upload under a hidden name (`temporary_beside`)."""
    folder, _, name = hidden.rpartition("/")
    target, previous = f"{folder}/{name[1:].rpartition('.')[0].rpartition('.')[0]}", _previous(hidden)
    if fs.exists(previous):
        fs.rm_file(previous) if fs.exists(target) else fs.mv(previous, target)
    if fs.exists(hidden):
        fs.rm_file(hidden)
