"""A folder of this machine for files on their way to a remote store, or from it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from feedmill.errors import FeedmillError
from feedmill.storage.base import storage_error
from feedmill.storage.folders import private_folder


@contextlib.contextmanager
def spool_folder() -> Iterator[Path]:
    """Create a folder in this machine's temporary folder for a block; it is removed at the end.

    That of a killed process is removed by a later one (see `private_folder`).
    """
    try:
        folder = tempfile.mkdtemp(dir=private_folder("spool"))
    except OSError as error:
        raise spool_error(error) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spool_error(error: OSError) -> FeedmillError:
    """Return the error for a failure of the local disk, not of the store."""
    translated = storage_error(error, tempfile.gettempdir())
    if translated.kind in ("enospc", "edquot"):
        translated.fix = "Free some space there, or set TMPDIR to a folder on a larger disk."
    return translated
