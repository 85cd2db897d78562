"""Errors of `fsspec` file systems: decide whether to retry a request, and translate errors to ours, with a fix.

Each file system has another client with its own classes of errors, so the HTTP status and the class name decide.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from feedmill.errors import FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.storage.remote.errors import AGAIN, CHECK, Reaction


class ShortAnswer(OSError):
    """An answer has fewer bytes than requested, although the file has more."""


_NETWORK = re.compile(r"Connect|Timeout|Transport|Protocol|Network|SSH|Socket|EOF|Payload|ServerDisconnected|Reset")
"""Class names of network errors of clients that do not derive from `ConnectionError`."""
_FTP_MISSING = re.compile(r"no such|not found|n.t exist|cannot find", re.IGNORECASE)
_FTP_DENIED = re.compile(r"denied|not (permitted|allowed)|permission|privilege|forbidden|prohibited", re.IGNORECASE)
_FTP_OTHER = re.compile(r"exists|not empty|space|quota|read-only", re.IGNORECASE)
"""What FTP servers say with status 550: about a missing file, denied access, and other refusals."""
_PATH = re.compile(r"\S*/\S*")
_READ_ONLY = (NotImplementedError, AttributeError)
"""What file systems raise for operations that they do not have."""


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of any client; None if it has none."""
    response: Any = getattr(error, "response", None)
    attributes = (getattr(response, "status_code", None), getattr(error, "status", None), getattr(error, "code", None))
    for status in attributes:
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


def _is_network(error: BaseException) -> bool:
    names = [kind.__name__ for kind in type(error).__mro__]
    return isinstance(error, ConnectionError | TimeoutError | asyncio.TimeoutError | EOFError) or any(
        map(_NETWORK.search, names[:-1])
    )


def is_beyond_end(error: BaseException) -> bool:
    """Return whether a request failed because its range begins after the end of the file."""
    return _status(error) == 416


def _is_missing(error: BaseException) -> bool:
    missing = isinstance(error, FileNotFoundError | NotADirectoryError) or _status(error) in (404, 410)
    if missing or not _is_refused_by_ftp(error):
        return missing
    said = _PATH.sub("", str(error))  # a path may have such words, too
    return bool(_FTP_MISSING.search(said)) or not (_FTP_DENIED.search(said) or _FTP_OTHER.search(said))


def _is_denied(error: BaseException) -> bool:
    denied = isinstance(error, PermissionError) or _status(error) == 403
    return denied or (_is_refused_by_ftp(error) and bool(_FTP_DENIED.search(_PATH.sub("", str(error)))))


def _is_refused_by_ftp(error: BaseException) -> bool:
    """Return whether this is FTP's one status for missing files, denied access and all else that is impossible."""
    return type(error).__name__ == "error_perm" and str(error).startswith("550")


def reaction_to(error: BaseException) -> Reaction:
    """Return what to do after a failed request for a range."""
    status = _status(error)
    if status in (429, 503):
        return Reaction.THROTTLED
    if _is_missing(error):
        return Reaction.FINAL
    if status == 401 or _is_denied(error):
        return Reaction.DENIED
    if isinstance(error, ShortAnswer) or status == 408 or (status is not None and status >= 500):
        return Reaction.AGAIN
    return Reaction.AGAIN if status is None and _is_network(error) else Reaction.FINAL


def translate(error: BaseException, url: str) -> FeedmillError | None:
    """Convert an error of a file system to one with a fix; None if it is not about storage."""
    if not isinstance(error, Exception):
        return None
    status, text = _status(error), " ".join(str(error).split())[:300]
    kind, what, fix = "storage", f"the store refused the request ({type(error).__name__}: {text})", AGAIN
    if isinstance(error, ImportError):
        return MissingExtra(f"the file system needs another package ({text})", file=url, fix="Install it with pip.")
    if type(error).__name__ == "HfUriError":
        fix = "Name a repository: hf://datasets/ORG/NAME, with @REVISION and the path of a folder if needed."
        return StorageError("this is not the URL of a repository of the Hub", file=url, kind="bad-url", fix=fix)
    if _is_missing(error):
        said = f" (the server said: {text})" if _is_refused_by_ftp(error) else ""  # its words may have another meaning
        return NotFound(f"there is no such file{said}", file=url, fix=CHECK)
    if status == 401:
        kind, what = "bad-credentials", "no credentials were given, or they were rejected"
        fix = "Check them; for hf:// set HF_TOKEN, or run 'hf auth login'."
    elif _is_denied(error):
        kind, what, fix = "eacces", "permission denied", "Ask for access, or check the URL and the credentials."
    elif isinstance(error, IsADirectoryError):
        kind, what, fix = "eisdir", "this is a folder, a file was expected", CHECK
    elif isinstance(error, _READ_ONLY):
        kind, what = (
            "not-supported",
            f"the file system does not support this operation ({type(error).__name__}: {text})",
        )
        fix = "Use a local folder or an object store here."
    elif isinstance(error, TimeoutError | asyncio.TimeoutError) or "Timeout" in type(error).__name__:
        kind, what = "timeout", "the server did not answer in time"
    elif status is None and _is_network(error):
        kind, what, fix = "no-connection", f"the server cannot be reached ({text})", "Check the network and the URL."
    return StorageError(what, file=url, kind=kind, fix=fix)
