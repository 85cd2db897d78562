"""What the errors of file systems of `fsspec` mean. Each has another client, so status and class name are looked at."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from feedmill.errors import FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.storage.remote.errors import AGAIN, CHECK, Reaction


class ShortAnswer(OSError):
    """An answer has fewer bytes than were asked for, and than the file has."""


_NETWORK = re.compile(r"Connect|Timeout|Transport|Protocol|Network|SSH|Socket|EOF|Payload|ServerDisconnected|Reset")
"""Names of the classes of errors of clients that do not derive from `ConnectionError`."""
_READ_ONLY = (NotImplementedError, AttributeError)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of any client."""
    response: Any = getattr(error, "response", None)
    for found in (getattr(response, "status_code", None), getattr(error, "status", None), getattr(error, "code", None)):
        if isinstance(found, int) and 100 <= found < 600:
            return found
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
    # FTP has the same status for what is absent and what is denied.
    missing = isinstance(error, FileNotFoundError | NotADirectoryError) or _status(error) in (404, 410)
    return missing or (type(error).__name__ == "error_perm" and str(error).startswith("550"))


def reaction_to(error: BaseException) -> Reaction:
    """Return what to do about an error of a request for a range."""
    status = _status(error)
    if status in (429, 503):
        return Reaction.THROTTLED
    if _is_missing(error):
        return Reaction.FINAL
    if status in (401, 403) or isinstance(error, PermissionError):
        return Reaction.DENIED
    if isinstance(error, ShortAnswer) or status == 408 or (status is not None and status >= 500):
        return Reaction.AGAIN
    return Reaction.AGAIN if status is None and _is_network(error) else Reaction.FINAL


def translate(error: BaseException, where: str) -> FeedmillError | None:
    """Convert an error of a file system to one with a fix; None if it is not about storage."""
    if not isinstance(error, Exception):
        return None
    status, said = _status(error), " ".join(str(error).split())[:300]
    kind, what, fix = "storage", f"the store refused the request ({type(error).__name__}: {said})", AGAIN
    if isinstance(error, ImportError):
        return MissingExtra(f"the file system needs another package ({said})", file=where, fix="Install it with pip.")
    if type(error).__name__ == "HfUriError":
        fix = "Name a repository: hf://datasets/ORG/NAME, with @REVISION and the path of a folder if needed."
        return StorageError("this is not the URL of a repository of the Hub", file=where, kind="bad-url", fix=fix)
    if _is_missing(error):
        return NotFound("there is no such file", file=where, fix=CHECK)
    if status == 401:
        kind, what = "bad-credentials", "no credentials were given, or they were rejected"
        fix = "Check them; for hf:// set HF_TOKEN, or run 'hf auth login'."
    elif status == 403 or isinstance(error, PermissionError):
        kind, what, fix = "eacces", "permission denied", "Ask for access, or check the URL and the credentials."
    elif isinstance(error, IsADirectoryError):
        kind, what, fix = "eisdir", "this is a folder, a file was expected", CHECK
    elif isinstance(error, _READ_ONLY):
        kind, what = "not-supported", f"this file system cannot do this ({type(error).__name__}: {said})"
        fix = "Use a local folder or an object store here."
    elif isinstance(error, TimeoutError | asyncio.TimeoutError) or "Timeout" in type(error).__name__:
        kind, what = "timeout", "the server did not answer in time"
    elif status is None and _is_network(error):
        kind, what, fix = "no-connection", f"the server cannot be reached ({said})", "Check the network and the URL."
    return StorageError(what, file=where, kind=kind, fix=fix)
