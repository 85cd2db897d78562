"""Where a run keeps what it needs until it is done."""

from __future__ import annotations

import contextlib
import tempfile

from feedmill.curation.attribute_set import FOLDER
from feedmill.curation.patterns import DocumentFile
from feedmill.storage import LocalStore


def work_folder(file: DocumentFile, name: str, what: str, run_print: str) -> str:
    """The folder for work on an attribute set: beside the attributes, or on this machine where those are remote.

    Args:
        file: one of the documents. name: of the attribute set.
        what: tells kinds of work apart. run_print: tells runs apart.
    """
    store = file.store()
    if isinstance(store, LocalStore):
        return store.below(f"attributes/{name}/{FOLDER}/{what}").root
    return LocalStore(tempfile.gettempdir()).below(f"feedmill-{what}-{run_print}").root


def remove_folder(folder: str) -> None:
    """Remove it as far as that is possible."""
    import shutil

    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
