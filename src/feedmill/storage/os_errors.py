"""Errors of the operating system as errors with a fix."""

from __future__ import annotations

import errno
import os

from feedmill.errors import FeedmillError, NotFound, StorageError

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE}


def storage_error(error: OSError, file: str | None = None) -> FeedmillError:
    """Convert an `OSError` to an error with a fix.

    Args:
        file: path for the message; None for the file name in the `OSError`.
    """
    if file is None and isinstance(error.filename, str | bytes | os.PathLike):
        file = os.fsdecode(error.filename)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound("there is no such file or folder", file=file, fix="Check the path.")
    reasons = {
        errno.EACCES: ("permission denied", "Change its permissions or run as a user who has access."),
        errno.EPERM: ("permission denied", "Change its permissions or run as a user who has access."),
        errno.EROFS: ("the file system is read-only", "Write to another folder or mount it writable."),
        errno.ENOSPC: ("the disk is full", "Free disk space and run the same command again; finished work is kept."),
        errno.EDQUOT: ("the disk quota is used up", "Free disk space and run the same command again."),
        errno.ELOOP: ("its symbolic links form a loop", "Remove the link that points back to itself."),
        errno.EISDIR: ("this is a folder, a file was expected", "Check the path."),
        errno.EMFILE: ("too many files are open", "Raise the limit with 'ulimit -n'."),
        errno.ENFILE: ("too many files are open on this machine", "Stop other programs, or raise the system's limit."),
    }
    what, fix = reasons.get(error.errno or 0, (error.strerror or str(error), "Check the disk and the path."))
    return StorageError(what, file=file, fix=fix, kind=errno.errorcode.get(error.errno or 0, "storage").lower())


def is_disk_error(error: OSError) -> bool:
    """Return whether an error comes from writing to an open file, as on a full disk."""
    return error.filename is None and error.errno in _DISK_ERRORS  # errors of opening have a file name


def is_about(error: OSError, *paths: str) -> bool:
    """Return whether the file name in an error is one of the paths."""
    return isinstance(error.filename, str | os.PathLike) and os.fspath(error.filename) in paths
