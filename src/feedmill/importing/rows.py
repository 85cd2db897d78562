"""Documents of one file: whole texts, and rows of tables with the column that holds their text.

Ids are ``FILE:ROW`` as in `feedmill.documents.lines`, with the row's number from 1, unless a row has an id. The
other columns of a row become metadata.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from feedmill.documents.file import DocumentFile
from feedmill.errors import ConfigError, DataError, FeedmillError, did_you_mean
from feedmill.formats.csv_rows import csv_rows
from feedmill.formats.documents import json_fault, rows_of, whole_lines
from feedmill.importing import kinds
from feedmill.importing.encodings import NAME_IT, decode, encoding_of, encoding_of_file
from feedmill.importing.scanning import File, read_file
from feedmill.storage import Store
from feedmill.storage.codec import compression, unpacked
from feedmill.storage.limits import max_unpacked, too_large

_HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "math", "iframe", "object", "head"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "caption", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "legend", "li"),
        *("main", "nav", "ol", "option", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr"),
        "ul",
    )
)
_CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"\s+")
_BLANK = re.compile(r"\n{3,}")
_PARAGRAPHS = frozenset(("p", "pre", "blockquote", "table", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6"))


def html_text(page: str) -> tuple[str, str | None]:
    """Return the shown text of a page, and its title if it has one.

    >>> html_text("<title>A page</title><p>One <b>bold</b> word.<p>Two")
    ('One bold word.\\n\\nTwo', 'A page')
    """
    parser = _Text()
    parser.feed(page)
    parser.close()
    text = _BLANK.sub("\n\n", "\n".join(line.rstrip() for line in "".join(parser.out).split("\n"))).strip()
    title = _SPACE.sub(" ", "".join(parser.title)).strip()
    return text, title or None


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self.title: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag == "body":
            self._hidden.clear()  # an unclosed <head>
        elif tag == "title" and not self.title:
            self._in_title = True
        elif tag in _HIDDEN:
            self._hidden.append(tag)
        elif self._hidden == ["head"] and tag in _BLOCKS:
            self._hidden.clear()  # content ends a head without an end tag
            self._break(tag)
        elif tag in _BLOCKS:
            self._break(tag)
        elif tag in _CELLS:
            self.out.append("\t" if self._is_inside_line else "")
        if tag == "pre":
            self._pre += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _HIDDEN:  # <script/> is not closed in HTML, but is in XHTML
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag in _BLOCKS:
            self._break(tag)
        if tag == "pre":
            self._pre = max(0, self._pre - 1)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            text = data if self._pre else _SPACE.sub(" ", data)
            if not self._pre and not self._is_inside_line:
                text = text.lstrip()
            if text:
                self.out.append(text)

    @property
    def _is_inside_line(self) -> bool:
        return bool(self.out) and not self.out[-1].endswith(("\n", " ", "\t"))

    def _break(self, tag: str) -> None:
        if self.out:
            self.out.append("\n\n" if tag in _PARAGRAPHS else "" if self.out[-1].endswith("\n") else "\n")


TEXT_COLUMNS = ("text", "content", "body", "document", "article", "markdown")
"""Columns that hold the text if no other is given, the first that a file has."""
_DELIMITERS = (",", ";", "\t", "|")
_LONGEST_FIELD = 1 << 30
_load = msgspec.json.Decoder().decode


class Row(NamedTuple):
    """A row of a file: its number from 1, and its columns, or the reason why it is left out."""

    number: int
    columns: dict[str, Any] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read.

    Attributes:
        text: column of the text; None for the first of `TEXT_COLUMNS`.
        id: column of the ids; None for ``id``, and made ids for rows without one.
        encoding: of texts that are not UTF-8 and have no byte order mark.
        used: encoding -> number of files that were read with it.
    """

    text: str | None = None
    id: str | None = None
    encoding: str = "utf-8"
    used: Counter[str] = field(default_factory=Counter, compare=False)

    def of(self, encoding: str) -> str:
        """Count a file with this encoding, and return it."""
        self.used[encoding.removesuffix("-sig")] += 1
        return encoding


def read_documents(store: Store, prefix: str, file: File, reading: Reading) -> Iterable[dict[str, Any] | Row]:
    """Return the documents of a file; a `Row` with a reason for each row that is left out.

    Args:
        store: the file's root.
        prefix: of its name, see `feedmill.importing.scanning.Files`.

    Raises (during the iteration, too):
        FeedmillError: the file cannot be read, or has no column for the text.
    """
    source = store.url[store.url.rfind("/") + 1 :]
    kind = kinds.divide(file.path).kind
    if kind == kinds.TEXT or kind == kinds.HTML:
        return (_of_text(store, prefix + file.path, source, file, kind, reading),)
    return _of_table(store, prefix + file.path, source, file, reading)


def _of_text(store: Store, name: str, source: str, file: File, kind: str, reading: Reading) -> dict[str, Any] | Row:
    """Return the document of a file that is one text."""
    metadata: dict[str, Any] = {"file": name}
    data = _whole(store, file)
    text = decode(data, reading.of(encoding_of((data,), reading.encoding)), name)
    if kind == kinds.HTML:
        text, title = html_text(text)
        if title is not None:
            metadata["title"] = title
    if not text or text.isspace():
        return Row(1, None, "a file without text")
    return {"id": _made(name, 1), "text": text, "source": source, "metadata": metadata}


def _of_table(store: Store, name: str, source: str, file: File, reading: Reading) -> Iterator[dict[str, Any] | Row]:
    """Yield the documents of the rows of a file."""
    column = None
    encoding = reading.encoding
    if kinds.divide(file.path).kind == kinds.CSV:
        encoding = reading.of(encoding_of_file(store, file, encoding))
    for row in read_rows(store, file, encoding):
        if row.columns is None:
            yield row
            continue
        if column is None:
            column = _text_column(row.columns, reading.text, name)
        yield _document(name, source, row, column, reading.id)


def read_rows(store: Store, file: File, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield the rows of a table: CSV, TSV, JSON lines, a list in JSON, Parquet or Arrow. Raises as `read_documents`.

    Args:
        encoding: of CSV, see `encoding_of_file`.
    """
    kind = kinds.divide(file.path).kind
    if kind == kinds.COLUMNS:
        from feedmill.documents.columns import read_rows as read_columns

        form = "parquet" if file.path.lower().endswith(".parquet") else "arrow"
        document = DocumentFile(store.url, file.path, form, file.size, file.version)
        batches: Iterable[Sequence[dict[str, Any]]] = read_columns(document)
        yield from (Row(n, row) for n, row in enumerate((row for batch in batches for row in batch), 1))
        return
    if kind == kinds.JSON:
        yield from _of_json(store, file)
        return
    packing = compression(file.path.lower())
    with (
        store.local_copy(file.path) as local,
        open(local, "rb") as raw,
        unpacked(raw, packing, file=store.locate(file.path)) as stream,
    ):
        if kind in (kinds.CSV, kinds.TEXT):
            yield from _of_csv(stream, file.path, encoding)
        else:
            limit = max_unpacked(file.size) if packing else None
            yield from _of_lines(whole_lines(stream, limit, store.locate(file.path)))


def _whole(store: Store, file: File) -> bytes:
    data = read_file(store, file.path, file.size)
    packing = "" if kinds.is_plain(file.path) else compression(file.path.lower())
    if not packing:
        return data
    limit = max_unpacked(file.size)
    with unpacked(cast(BinaryIO, io.BytesIO(data)), packing, file=file.path) as stream:
        text = stream.read(limit + 1)
    if len(text) > limit:
        raise too_large(limit, file=file.path)
    return text


def _of_csv(stream: BinaryIO, path: str, encoding: str) -> Iterator[Row]:
    buffered = io.BufferedReader(cast(Any, stream)) if not hasattr(stream, "peek") else stream
    lines = io.TextIOWrapper(cast(Any, buffered), encoding, newline="")
    try:
        first = lines.readline()
    except UnicodeDecodeError:
        raise _bad_encoding(encoding) from None
    table = csv_rows(_again(first, lines), _LONGEST_FIELD, delimiter=_delimiter(first, path))
    names: list[str] | None = None
    number = 0
    try:
        for cells in table:
            if names is None:
                names = _column_names(cells, path)
                continue
            if not cells:
                continue
            number += 1
            if len(cells) != len(names):
                yield Row(number, None, f"a row of {len(cells)} cells, expected {len(names)}")
            else:
                yield Row(number, dict(zip(names, cells, strict=True)))
    except UnicodeDecodeError:
        raise _bad_encoding(encoding) from None
    except csv.Error as error:
        raise DataError(f"not valid CSV ({error})", kind="bad-line", fix="Repair the file, or --exclude it.") from None


def _delimiter(header: str, path: str) -> str:
    """Return the delimiter with which a header has the most columns; a tab in .tsv files, if it has one.

    Delimiters within quotes do not count.
    """

    def columns(delimiter: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=delimiter, strict=True), ()))
        except csv.Error:  # a quote ends before another delimiter
            return 1

    return "\t" if ".tsv" in path.lower() and columns("\t") > 1 else max(_DELIMITERS, key=columns)


def _column_names(header: list[str], path: str) -> list[str]:
    """Return the names of columns. Several columns without a name, as spreadsheets append them, get one each."""
    if header.count("") > 1:
        header = [name or f"column {number}" for number, name in enumerate(header, 1)]
    if (twice := next((name for name in header if header.count(name) > 1), None)) is not None:
        from feedmill.documents.columns import two_columns

        raise two_columns(path, header.count(twice), twice)
    return header


def _bad_encoding(encoding: str) -> DataError:
    return DataError(f"not valid {encoding} (use --encoding)", kind="bad-encoding", fix=NAME_IT)


def _again(first: str, lines: io.TextIOWrapper) -> Iterator[str]:
    yield first
    yield from lines


def _of_lines(blocks: Iterable[bytes]) -> Iterator[Row]:
    number = 0
    for block in blocks:
        for line in rows_of(block):
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line or line.isspace():
                continue
            try:
                value = _load(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                yield Row(number, None, "a line that is not JSON" if line[:1] != b"{" else _fault(line, error))
                continue
            if isinstance(value, dict):
                yield Row(number, value)
            elif isinstance(value, str):
                yield Row(number, {"text": value})
            else:
                yield Row(number, None, "a line that is not a JSON object")


def _fault(line: bytes, error: Exception) -> str:
    why = json_fault(line, error)
    return "a line with a lone surrogate" if "surrogate" in why else "a line of invalid JSON"


def _of_json(store: Store, file: File) -> Iterator[Row]:
    """Yield the elements of a list, or the object of the whole file; otherwise the file is JSON lines."""
    data = _whole(store, file).removeprefix(codecs.BOM_UTF8)
    try:
        value = _load(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        yield from _of_lines([data])
        return
    for number, item in enumerate(value if isinstance(value, list) else [value], 1):
        if isinstance(item, str):
            item = {"text": item}
        yield Row(number, item) if isinstance(item, dict) else Row(number, None, "an element that is not an object")


def _text_column(columns: dict[str, Any], given: str | None, name: str) -> str:
    if given is not None:
        if given in columns:
            return given
        raise _no_column(f"there is no column {given!r}{did_you_mean(given, list(columns))}", columns, name)
    found = next((column for column in TEXT_COLUMNS if column in columns), None)
    texts = [column for column, value in columns.items() if isinstance(value, str) and column != "id"]
    if found is None and len(texts) == 1:
        return texts[0]
    if found is None:
        raise _no_column("which column holds the text is not clear", columns, name)
    return found


class NoTextColumn(ConfigError):
    """It is not clear which column holds the text.

    Attributes:
        columns: of the first row.
    """

    columns: tuple[str, ...] = ()


def _no_column(why: str, columns: Iterable[str], name: str) -> NoTextColumn:
    error = NoTextColumn(
        f"{why} (the columns are: {', '.join(columns)})",
        file=name,
        kind="no-column",
        fix="Name it with --text COLUMN, or leave the file out with --exclude or --on-error skip.",
    )
    error.columns = tuple(columns)
    return error


def _document(name: str, source: str, row: Row, column: str, id_column: str | None) -> dict[str, Any] | Row:
    columns = row.columns or {}
    text = columns.get(column)
    if text is None:
        return Row(row.number, None, "a row without text")
    if not isinstance(text, str):
        return Row(row.number, None, "a row whose text is not a string")
    if not text.strip():
        return Row(row.number, None, "a row without text")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        return Row(row.number, None, "a row with a lone surrogate")
    identity = columns.get(id_column or "id")
    if identity is None or identity == "":
        if id_column is not None:
            return Row(row.number, None, f"a row without {id_column!r}, its id")
        identity = _made(name, row.number)
    used = (column, "id") if id_column in (None, "id") else (column,)
    others = {key: value for key, value in columns.items() if key not in used}
    own, more = columns.get("source"), columns.get("metadata")
    if own is None or isinstance(own, str):
        others.pop("source", None)
    if more is None or (isinstance(more, dict) and more.keys().isdisjoint(others)):
        others.pop("metadata", None)
        others |= more or {}
    return {
        "id": identity if isinstance(identity, str) else str(identity),
        "text": text,
        "source": own if isinstance(own, str) and own else source,
        "metadata": {"file": name, "row": row.number, **others},
    }


def _made(name: str, row: int) -> str:
    return f"{name}:{row}"


def reason_of(error: FeedmillError) -> str:
    """Return why a whole file is left out, without its name."""
    return f"cannot be read: {error.what}"
