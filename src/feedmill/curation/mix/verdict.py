"""Why a filter kept or dropped one document: its attributes, and the rules in the lineage of the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.curation.mix.config import Replacement, Stream
from feedmill.curation.mix.rules import Rules
from feedmill.documents.file import DocumentFile, in_datasets
from feedmill.documents.find import find_documents
from feedmill.documents.lineage.chain import Row, read_raw
from feedmill.documents.rows import load
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.documents import ATTRIBUTES


def why_dropped(options: Mapping[str, Any], row: Row) -> str | None:
    """Return the rule by which a filter drops a document, worded as in its report; None if it keeps it.

    Args:
        options: of the lineage of the output.
        row: the document that the filter read.

    Raises:
        FeedmillError: the document, its attributes or a rule cannot be read.
    """
    stream = stream_of(options)
    document = load(read_raw(row.path, [row.row])[row.row])
    sets = attributes_of(row, stream.attributes)
    merged = dict(document.get("attributes") or {})
    for attributes in sets.values():
        merged.update(attributes)
    if sets or merged:
        document["attributes"] = merged
    rules = Rules(stream, exact=bool(options.get("exact")))
    if dropped := rules.dropped(document):
        return dropped[0]
    ((short, _, _),) = rules.changes([document])
    return short or (f"rate {stream.rate:g}" if stream.rate != 1 else None)


def stream_of(options: Mapping[str, Any]) -> Stream:
    """Return the stream of a lineage, without inputs and output."""
    known = {name: value for name, value in options.items() if name in Stream.__dataclass_fields__}
    lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    replacements = tuple(Replacement(**one) for one in known.get("replacements", ()))
    return Stream(**{**known, **lists, "replacements": replacements, "documents": (), "output": ""})


def attributes_of(row: Row, names: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the attributes of a document by name of the set; of all sets beside its file without `names`.

    Sets that do not have its file are not included.
    """
    files = attribute_files(row.path, names)
    rows = {name: load(read_raw(path, [row.row])[row.row]) for name, path in files.items()}
    return {name: one.get("attributes") or {} for name, one in rows.items()}


def attribute_files(path: str, names: Sequence[str] | None = None) -> dict[str, str]:
    """Return the existing attribute files of a file of documents by name of the set; of all sets without `names`."""
    file = _in_dataset(path)
    if file is None:
        return {}
    store = file.store()
    if names is None:
        try:
            names = sorted({entry.path.split("/")[1] for entry in store.files(ATTRIBUTES)})
        except NotFound:
            return {}
    paths = {name: file.attributes(name) for name in names}
    return {name: store.locate(below) for name, below in paths.items() if store.exists(below)}


def _in_dataset(path: str) -> DocumentFile | None:
    """Return a file relative to the root of its dataset; None if it is in none, so that it has no attributes."""
    try:
        (file,) = in_datasets(find_documents([path]).files)
    except ConfigError:
        return None
    return file
