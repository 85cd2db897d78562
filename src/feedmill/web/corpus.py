"""The documents of what is open, for the filter bench and the duplicates: read once, with sources and numbers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, NotFound
from feedmill.web.documents import Documents, open_documents
from feedmill.web.library import OpenItem

MOST_FIELDS, MOST_SOURCES = 32, 12
_reading = threading.Lock()

Floats = npt.NDArray[np.float64]


class NoDocuments(ConfigError):
    """Raised for a dataset without documents. A page says so in place of what it would show."""


class Corpus:
    """Documents in memory, and what was found in one pass over them.

    Attributes:
        documents: the documents; if there are more than memory holds, the first ones of each file.
        sources: names, by number of documents; the last one is "others" if there are more than `MOST_SOURCES`.
        source: int64[n], the source of each document: its field ``source``, or its file if no document has one.
        fields: numbers in the documents by their place, ``metadata.score``: float64[n], NaN where there is none.
        digests: uint64[n], hash of each text; 0 for an empty one.
    """

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        count = len(documents)
        self.fields: dict[str, Floats] = {}
        self.digests = np.zeros(count, np.uint64)
        named: list[str | None] = []
        for number in range(count):
            row = documents.row(number)
            text, source = row.get("text"), row.get("source")
            if isinstance(text, str) and text.strip():
                self.digests[number] = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) or 1
            named.append(source if isinstance(source, str) and source else None)
            self._numbers(number, "", row)
            if isinstance(row.get("metadata"), dict):
                self._numbers(number, "metadata.", row["metadata"])
        if not any(named):
            named = [documents.file_of(number) for number in range(count)]
        self.sources, self.source = _coded([name or "no source" for name in named])

    def _numbers(self, number: int, place: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if type(value) not in (int, float) or (not place and name == "id"):
                continue
            column = self.fields.get(place + name)
            if column is None:
                if len(self.fields) == MOST_FIELDS:
                    continue
                column = self.fields[place + name] = np.full(len(self.documents), np.nan)
            column[number] = _float(value)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def sample(self) -> dict[str, Any]:
        """Extent of what was read: documents and files, and whether there is more."""
        return {"documents": len(self), "files": len(self.documents.files), "more": self.documents.unread}

    def excerpt(self, number: int, most: int) -> dict[str, Any]:
        """Return a document as plain data: ``index``, ``key``, ``source``, the beginning of ``text``, and ``more``."""
        text = self.documents.text(number)
        return {
            "index": number,
            "key": self.documents.locate(number).key,
            "source": self.sources[self.source[number]],
            "slot": slot(int(self.source[number]), len(self.sources)),
            "text": text[:most],
            "more": max(0, len(text) - most),
        }


def slot(source: int, count: int) -> int:
    """Return the color of a source, 1 to 10, or 0 for those from the eleventh on."""
    return source + 1 if source < min(count, 10) else 0


def corpus_of(thing: OpenItem) -> Corpus:
    """Return the documents of a dataset, which are read when they are first asked for.

    Raises:
        NoDocuments: the dataset has none.
        FeedmillError: they cannot be read.
    """
    with _reading:
        known = thing.__dict__.get("_corpus")
        if known is None:
            try:
                known = Corpus(_documents(thing))
            except NoDocuments as error:
                known = error
            thing.__dict__["_corpus"] = known
    if isinstance(known, NoDocuments):
        raise known
    corpus: Corpus = known
    return corpus


def _documents(thing: OpenItem) -> Documents:
    dataset = thing.dataset()
    if isinstance(dataset, Documents):
        return dataset
    fix = "Give a file or folder of JSON lines, Parquet or text, with its attributes beside it."
    try:
        documents = open_documents(thing.path)
    except (ConfigError, NotFound) as error:
        what = f"this is a dataset of the format {dataset.format}, without documents"
        raise NoDocuments(what, file=thing.path, kind="no-documents", fix=fix) from error
    if not any(documents.text(number) for number in range(min(len(documents), 100))):
        raise NoDocuments("these lines have no 'text'", file=thing.path, kind="no-documents", fix=fix)
    return documents


def _coded(names: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the names by how often they occur, with the rarest as "others", and the number of each."""
    known, codes, counts = np.unique(np.array(names, object).astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    sources = [str(name) for name in known[order]]
    if len(sources) > MOST_SOURCES:
        sources = [*sources[: MOST_SOURCES - 1], f"{len(sources) - MOST_SOURCES + 1} others"]
    return sources, np.minimum(rank[codes], len(sources) - 1)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("nan")
