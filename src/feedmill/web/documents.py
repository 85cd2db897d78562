"""Documents as a dataset for the browser: compressed lines, text files and the like, with the attributes beside them.

Such files have no index, so their first documents are read into memory. The page says if there are more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.documents.file import DocumentFile, in_datasets
from feedmill.documents.find import find_documents, skipped_warnings
from feedmill.documents.lines import made_id, read_blocks
from feedmill.documents.rows import load
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.documents import DOCUMENTS, read_lines, rows_of
from feedmill.formats.sample import Sample, Source, no_such_key
from feedmill.storage import paths_of

MOST_BYTES, MOST_DOCUMENTS = 256 << 20, 200_000
"""Bytes of lines, and documents, that are held in memory."""
_ATTRIBUTES = "attributes"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """A range of characters of a text that an attribute marks: [start, end), the attribute's name, and the score."""

    start: int
    end: int
    name: str
    score: float


class Documents(Dataset):
    """The first documents of some files.

    Attributes:
        files: the files, in order.
        skipped: warnings about files that are no documents.
        unread: whether there are more documents than were read.
        sets: names of the sets of attributes beside the files.
        set_of: attribute -> the set that has it; the last one, as in a filter. `partial` are the sets that some of the
            files lack, and `plain` the attributes that are numbers and not spans.
        questions: set -> document -> names of the leaked questions that it has, in the order of their spans.
        problems: attribute or set -> what of it cannot be read.
        columns: numbers of each document by name, float64[len]; NaN where a document has none.
    """

    format = "documents"

    def __init__(self, url: str, files: Sequence[DocumentFile], skipped: Sequence[str] = ()) -> None:
        self.url, self.files, self.skipped = url, list(files), list(skipped)
        self._lines: list[bytes] = []
        self._places: list[tuple[int, int]] = []  # number of the file, and line from 1
        self._attributes: list[dict[str, Any]] = []
        self.sets: list[str] = []
        self.set_of: dict[str, str] = {}
        self.partial: set[str] = set()
        self.plain: set[str] = set()
        self.questions: dict[str, dict[int, list[str]]] = {}
        self.problems: dict[str, str] = {}
        self.unread = False
        taken = self._read([1.0] * len(self.files))
        if self.unread and len(self.files) > 1:  # not only the first files, which may be of one source
            left = np.cumsum([file.size for file in reversed(self.files)])[::-1]
            taken = self._read([file.size / max(1, int(rest)) for file, rest in zip(self.files, left, strict=True)])
        having = [self._read_attributes(file, count) for file, count in zip(self.files, taken, strict=True)]
        self.partial = {name for name in self.sets if any(name not in known for known in having)}
        self._ids: dict[str, int] | None = None
        self.columns = self._columns()

    def _read(self, shares: Sequence[float]) -> list[int]:
        """Read the first rows of each file: at most this share of the memory that earlier files have left.

        Returns:
            The number of rows of each file that were read.
        """
        self._lines.clear()
        self._places.clear()
        self.unread, size, taken = False, 0, []
        for number, (file, share) in enumerate(zip(self.files, shares, strict=True)):
            first, end = len(self._lines), size + (MOST_BYTES - size) * share
            most = first + math.ceil((MOST_DOCUMENTS - first) * share)
            for line, row in enumerate(self._rows(file), 1):
                if not row.strip():
                    continue  # no document, as for `feedmill.open`
                if size + len(row) > end or len(self._lines) >= most:
                    self.unread = True
                    break
                size += len(row)
                self._lines.append(row)
                self._places.append((number, line))
            taken.append(len(self._lines) - first)
        return taken

    @staticmethod
    def _rows(file: DocumentFile) -> Iterator[bytes]:
        for block in read_blocks(file):
            yield from rows_of(block)

    def _read_attributes(self, file: DocumentFile, count: int) -> set[str]:
        """Add the attributes of the documents of a file that were read. Return the sets that it has."""
        own: list[dict[str, Any]] = [{} for _ in range(count)]
        try:
            (inside,) = in_datasets([file])
        except ConfigError:
            self._attributes += own
            return set()
        store = inside.store()
        try:
            names = sorted({entry.path.split("/")[1] for entry in store.files(_ATTRIBUTES)})
        except NotFound:
            names = []
        known = set()
        for name in names:
            path = inside.attributes(name, DOCUMENTS)
            if not store.exists(path):
                continue
            known.add(name)
            if name not in self.sets:
                self.sets.append(name)
            rows = (row for block in read_lines(store, path) for row in rows_of(block))
            first = len(self._attributes)
            lines = [line for _, line in self._places[first : first + count]]  # attributes are matched line by line
            chosen = compress(rows, map(set(lines).__contains__, range(1, max(lines, default=0) + 1)))
            for number, (attributes, row) in enumerate(zip(own, chosen, strict=False), first):
                found = _attributes_in(row)
                if found is None:
                    self.problems.setdefault(name, f"there is a row without attributes in {path}")
                    continue
                attributes.update(found)
                self.set_of.update(dict.fromkeys(found, name))
                if b'"questions"' in row and isinstance(questions := orjson.loads(row).get("questions"), list):
                    self.questions.setdefault(name, {})[number] = [str(one) for one in questions]
        self._attributes += own
        return known

    def _columns(self) -> dict[str, Floats]:
        """Return lengths, and the score of each attribute that covers whole documents, or its number of spans."""
        texts = [self.text(n) for n in range(len(self))]
        lengths = np.array([len(text) for text in texts], np.float64)
        found: dict[str, Floats] = {"characters": lengths}
        names = dict.fromkeys(name for attributes in self._attributes for name in attributes)
        for name in names:
            column, values = self._column(name, lengths)
            found[column] = values
        return {name: values for name, values in found.items() if np.isfinite(values).any()}

    def _column(self, name: str, lengths: Floats) -> tuple[str, Floats]:
        """Return the numbers of an attribute, and the column's name. What is neither spans nor a number is left out."""
        scores, counts, numbers = np.full(len(self), np.nan), np.zeros(len(self)), np.full(len(self), np.nan)
        whole, wrong = True, 0
        for number, attributes in enumerate(self._attributes):
            spans = attributes.get(name)
            if type(spans) in (int, float):
                numbers[number] = spans
            elif isinstance(spans, list):
                try:
                    if spans:
                        start, end, score = map(float, spans[0])
                        if len(spans) == 1 and start == 0 and end >= lengths[number]:
                            scores[number] = score
                        else:
                            whole = False
                    counts[number] = len(spans)
                except (TypeError, LookupError, ValueError, OverflowError):
                    wrong += 1
                    del attributes[name]
            elif spans is not None:
                wrong += 1
        if wrong:
            self.problems[name] = f"{wrong:,} documents have neither spans nor a number there"
        if np.isfinite(numbers).any():
            self.plain.add(name)
            return name, numbers
        return (name, scores) if whole else (f"spans of {name}", counts)

    def __len__(self) -> int:
        return len(self._lines)

    def row(self, index: int) -> dict[str, Any]:
        """Return a document as it is stored; an empty object if the line is none."""
        try:
            value = load(self._lines[index])
        except (orjson.JSONDecodeError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def having(self, numbers: npt.NDArray[Any], words: str) -> npt.NDArray[Any]:
        """Return those of some documents whose stored line may have these ASCII words, in any case.

        A line that writes letters as escapes may have them, too.
        """
        low = words.lower().encode()
        inside = [low in (line := self._lines[n]).lower() or b"\\u00" in line for n in numbers.tolist()]
        return numbers[np.array(inside, np.bool_)]

    def text(self, index: int) -> str:
        """Return the text of a document; empty if it has none."""
        text = self.row(index).get("text")
        return text if isinstance(text, str) else ""

    def file_of(self, index: int) -> str:
        """Return the path of the file of a document."""
        return self.files[self._places[index][0]].path

    def spans(self, index: int) -> list[Span]:
        """Return the spans of attributes that mark parts of a document, not all of it."""
        size, found = len(self.text(index)), []
        for name, spans in self._attributes[index].items():
            for span in spans if isinstance(spans, list) else ():
                try:
                    start, end, score = int(span[0]), int(span[1]), float(span[2])
                except (TypeError, LookupError, ValueError, OverflowError):
                    continue
                if 0 <= start < end <= size and (start > 0 or end < size):
                    found.append(Span(start, end, name, score))
        return sorted(found, key=lambda span: (span.start, span.end, span.name))

    def scores(self, index: int) -> dict[str, Any]:
        """Return the attributes of a document as they are stored."""
        return self._attributes[index]

    def read_raw(self, indices: Indices) -> list[Sample]:
        found = []
        for index in indices:
            number = self._checked(int(index))
            line = self._lines[number]
            key = self.locate(number).key
            found.append(Sample(key, line, {"json": (0, len(line))}, partial(self.locate, number), _decoded))
        return found

    def locate(self, index: int) -> Source:
        number, line = self._places[index]
        file = self.files[number]
        own = self.row(index).get("id")
        key = str(own) if isinstance(own, str | int) and own != "" else made_id(file, line)
        return Source(file.folder or ".", file.path, line, len(self._lines[index]), index, key)

    def find(self, key: str) -> int:
        if self._ids is None:
            self._ids = {self.locate(n).key: n for n in reversed(range(len(self)))}
        if key not in self._ids:
            raise no_such_key(self.url, key)
        return self._ids[key]

    def fingerprint(self) -> str:
        digest = xxhash.xxh3_64()
        for file in self.files:
            digest.update(repr(file.identity).encode())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "path": self.url,
            "samples": len(self),
            "shards": len(self.files),
            "bytes": sum(file.size for file in self.files),
            "indexed": False,
        }


def _attributes_in(row: bytes) -> dict[str, Any] | None:
    """Return the attributes of a row; None if it has none."""
    try:
        value = orjson.loads(row)
    except orjson.JSONDecodeError:
        return None
    found = value.get("attributes") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {} if found is None and isinstance(value, dict) else None


def _decoded(name: str, data: bytes) -> Any:  # noqa: ARG001 - there is one part
    try:
        return load(data)
    except (orjson.JSONDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"this line is not JSON: {error}", kind="bad-line", fix="Correct or delete it.") from None


def open_documents(path: str) -> Documents:
    """Return the documents of a file, folder or pattern.

    Raises:
        NotFound: there are none.
        FeedmillError: they cannot be read.
    """
    documents = find_documents(paths_of(path), unnamed=None)
    return Documents(path, documents.files, skipped_warnings(documents))


def marked_text(text: str, spans: Sequence[Span], most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the beginning of a text in pieces: ``text`` and the ``names`` of the spans that cover it.

    The second result is the number of characters that were left out.
    """
    kept = text[:most]
    edges = sorted({0, len(kept), *(at for span in spans for at in (span.start, span.end) if at < len(kept))})
    pieces = []
    for low, high in pairwise(edges):
        names = list(dict.fromkeys(short(span.name) for span in spans if span.start < high and span.end > low))
        pieces.append({"text": kept[low:high], "names": names})
    return pieces, len(text) - len(kept)


def short(name: str) -> str:
    """Return the last word of an attribute's name: ``EMAIL_ADDRESS`` of ``pii__pii_regex_v2__EMAIL_ADDRESS``."""
    return re.sub(r"^.*__", "", name)
