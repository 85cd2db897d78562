"""Documents that a set of attributes marks: with leaked questions, or as duplicates."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from feedmill.curation.provenance import check_attributes
from feedmill.documents.file import documents_of
from feedmill.documents.kinds import is_hidden
from feedmill.documents.lineage.chain import Row
from feedmill.documents.rows import bad_row, load
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS, read_lines, rows_of
from feedmill.storage import Store, open_store

Marked = dict[Row, list[str]]
"""Row of a file of documents -> the names of the questions that it has, as `decontaminate` writes them; or none."""


def read_marked(path: str) -> Marked | None:
    """Return the marked documents of a set of attributes: those with a span of the set's name and a positive score.

    Args:
        path: folder ``attributes/NAME``, or a file or folder below it; path or URL.

    Returns:
        None if the path is none of these.

    Raises:
        ConfigError: the set has no attribute of its own name.
        DataError: it was computed from other documents, or a row is invalid.
        NotFound: its documents are missing.
        StorageError: they cannot be read.
    """
    parts = path.rstrip("/").split("/")
    if ATTRIBUTES not in parts[:-1] or path.startswith(("http://", "https://")):  # addresses are ids of pages
        return None
    at = parts.index(ATTRIBUTES)
    store, name = open_store("/".join(parts[:at]) or ("/" if path.startswith("/") else ".")), parts[at + 1]
    own, found, known = orjson.dumps(name), Marked(), False
    files = list(_files(store, "/".join(parts[at:])))
    for file in files:
        documents = f"{DOCUMENTS}/{documents_of('/'.join(file.split('/')[2:]))}"
        if not store.exists(documents):
            raise NotFound("the documents of these attributes are missing", file=store.locate(file))
        check_attributes(store.locate(file))
        place, row = store.locate(documents), 0
        for block in read_lines(store, file):
            for line in rows_of(block):
                known = known or own in line
                if own in line and own + b":[]" not in line:  # most are not marked
                    try:
                        content = load(line)
                        if any(span[2] > 0 for span in content["attributes"].get(name, ())):
                            found[Row(place, row)] = list(content.get("questions", ()))
                    except (ValueError, TypeError, LookupError, AttributeError):
                        raise bad_row(line, "the row has no spans", store.locate(file), row + 1) from None
                row += 1
    if files and not known:
        raise ConfigError(
            f"these attributes have no {name!r}, so they mark no documents",
            file=path,
            kind="bad-option",
            fix="Give a set that decontaminate, dedupe or dedupe --near wrote.",
        )
    return found if files else None


def _files(store: Store, path: str) -> Iterator[str]:
    """Yield the attribute files below a path."""
    try:
        entries = list(store.files(path))
    except NotFound:
        if store.exists(path):
            yield path
        return
    yield from (entry.path for entry in entries if not is_hidden(entry.path))
