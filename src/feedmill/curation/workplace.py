"""Where a run keeps what it needs until it is done."""

from __future__ import annotations

import contextlib
import os
import tempfile

from feedmill.curation.attribute_set import FOLDER
from feedmill.curation.patterns import DocumentFile


def work_folder(file: DocumentFile, name: str, what: str, run_print: str) -> str:
    """The folder for work on an attribute set: beside the attributes, or on this machine where those are remote.

    Args:
        file: one of the documents. name: of the attribute set.
        what: tells kinds of work apart. run_print: tells runs apart.
    """
    store = file.store()
    if store.is_local:
        return store.locate(f"attributes/{name}/{FOLDER}/{what}")
    return os.path.join(tempfile.gettempdir(), f"feedmill-{what}-{run_print}")


def remove_folder(folder: str) -> None:
    """Remove it as far as that is possible."""
    import shutil

    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
