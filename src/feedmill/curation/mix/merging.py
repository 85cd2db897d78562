"""Read the documents of an output of `filter`, block by block, and merge their attributes into them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from feedmill.curation.mix.attributes import END, Attributes
from feedmill.curation.mix.config import FilterConfig, Stream
from feedmill.curation.mix.report import Counts
from feedmill.curation.mix.spans import texts_unseen
from feedmill.documents.expressions.evaluate import same
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import bad_row, dump, large_integers, load, negative_zeros
from feedmill.errors import DataError
from feedmill.formats.documents import read_lines, rows_of
from feedmill.jobs.threads import ahead
from feedmill.kernels.jsonl.rawtexts import lift

Document = dict[str, Any]


_OBJECTS = {"metadata", "attributes"}


_OBJECT = {dict, type(None)}


@dataclass(frozen=True, slots=True)
class Shard:
    """One output file of a stream. With `spare` there are idle cores, so threads compress and decompress."""

    stream: Stream
    config: FilterConfig
    files: tuple[DocumentFile, ...]
    path: str
    kind: str
    spare: bool = False


def read_merged(
    file: DocumentFile, shard: Shard, counts: Counts, limit: int | None
) -> Generator[tuple[int, list[Document]], None, None]:
    """Yield blocks of documents with their attributes, each with the line of its first document."""
    store, stream = file.store(), shard.stream
    paths = [file.attributes(name) for name in stream.attributes]
    with ExitStack() as stack:

        def opened(chunks: Generator[bytes, None, None]) -> Iterable[bytes]:
            return stack.enter_context(closing(ahead(chunks) if shard.spare else chunks))

        paths = [path for path in paths if store.exists(path)]
        lines = [(store.locate(path), opened(read_lines(store, path, json=True))) for path in paths]
        sets = [Attributes(path, chunks, stream) for path, chunks in lines]
        source = opened(read_blocks(file, packed=stream.input_compression))
        yield from merged(source, sets, file, shard, counts, limit)


def merged(
    source: Iterable[bytes],
    sets: list[Attributes],
    file: DocumentFile,
    shard: Shard,
    counts: Counts,
    limit: int | None,
    line: int = 1,
) -> Iterator[tuple[int, list[Document]]]:
    """Yield blocks of documents with their attributes, each with the line of its first document.

    Args:
        source: blocks of lines of the documents.
        sets: their attributes, read in step with them.
        limit: number of documents to read; None for all.
        line: line of the first document, from 1.

    Raises:
        DataError: a row is invalid, or is not that of the document.
    """
    exact, unseen = shard.config.exact, limit is None and texts_unseen(shard.stream)
    for lines in source:
        found = _without_texts(lines) if unseen else None
        if found is None:
            rows = rows_of(lines)
            if limit is not None:
                rows = rows[: limit - line + 1]
            found = _parse(rows, file, line, negative_zeros(lines))
        _check_odd(found, lines, file, line, shard, counts)
        columns = [one.take(len(found)) for one in sets]
        if sets and not _merge_all(found, columns):
            for number, (document, *row) in enumerate(zip(found, *columns, strict=True), line):
                _merge(document, row, sets, file, number, exact, counts)
        yield line, found
        line += len(found)
        if limit is not None and line > limit:
            return


def _check_odd(
    documents: list[Document], lines: bytes, file: DocumentFile, first: int, shard: Shard, counts: Counts
) -> None:
    """Count documents without an id, and raise for values that would be lost.

    These are integers beyond 64 bits, which would become floats, and metadata and attributes that are not objects. For
    Dolma's output they are only counted.
    """
    counts.without_id += [document.get("id") for document in documents].count(None)
    odd: dict[int, str] = {}
    for n, value in large_integers(lines).items():
        if n < len(documents):
            odd[n] = f"the integer {value} has more than 64 bits and would become a float"
    for name in _OBJECTS - set(shard.stream.discard):
        kinds = [type(document.get(name)) for document in documents]
        if not set(kinds) <= _OBJECT:
            odd.update(
                (n, f"{name!r} is not an object and would be lost")
                for n, kind in enumerate(kinds)
                if kind not in _OBJECT
            )
    if odd and not (shard.config.exact or shard.config.dolma_names):
        n = min(odd)
        raise DataError(
            odd[n],
            file=file.name,
            record=f"line {first + n}",
            kind="bad-document",
            fix="Fix the document: write large integers as strings, and other values as fields of their own.",
        )
    counts.lost += len(odd)


def _without_texts(lines: bytes) -> list[Document] | None:
    """Return the documents with their texts as JSON (`msgspec.Raw`), or None if a line cannot be read this way."""
    lifted = lift(lines)
    if lifted is None or negative_zeros(lifted.rows):
        return None
    try:
        found: list[Document] = orjson.loads(lifted.rows)
    except orjson.JSONDecodeError:
        return None
    view = memoryview(lines)
    for document, (low, high) in zip(found, lifted.texts, strict=True):
        if low >= 0:
            document["text"] = msgspec.Raw(view[low:high])
        elif type(document.get("text")) is not str:
            return None
    return found


def _parse(rows: list[bytes], file: DocumentFile, first: int, unusual: frozenset[int]) -> list[Document]:
    found = []
    for line, row in enumerate(rows, first):
        try:
            document = load(row, line - first not in unusual)
        except orjson.JSONDecodeError as error:
            raise bad_row(row, str(error), file.name, line) from None
        if type(document) is not dict or type(document.get("text")) is not str:
            raise bad_row(row, "the row has no string 'text'", file.name, line)
        found.append(document)
    return found


def _merge_all(documents: list[Document], columns: list[list[Any]]) -> bool:
    """Merge attributes into documents if all ids are equal strings and no document has attributes of its own.

    Return False, and change nothing, in other cases.
    """
    ids = [document.get("id") for document in documents]
    if set(map(type, ids)) != {str} or any("attributes" in document for document in documents):
        return False
    found: list[Sequence[Any]] = []
    for column in columns:
        if column[-1] is END:
            return False
        named, attributes = zip(*column, strict=True)
        if list(named) != ids or set(map(type, attributes)) != {dict}:
            return False
        found.append(attributes)
    for document, own in zip(documents, found[0], strict=True):
        document["attributes"] = own
    for more in found[1:]:
        for own, others in zip(found[0], more, strict=True):
            own.update(others)
    return True


def _merge(
    document: Document,
    row: list[Any],
    sets: list[Attributes],
    file: DocumentFile,
    line: int,
    exact: bool,
    counts: Counts,
) -> None:
    merged, own = document.get("attributes"), document.get("id")
    for found, of in zip(row, sets, strict=True):
        if found is END:
            counts.unmatched += 1
            if exact:
                break  # Dolma reads no further attributes for this row
            raise _misaligned("the row is missing", of, file, line)
        one, attributes = found
        if (type(one) is not str or one != own) and not same(one, own):
            ids = dump(one).decode(), dump(own).decode()
            what = f"the row belongs to the id {ids[0]}, the document to {ids[1]}"
            raise _misaligned(what, of, file, line)
        if type(attributes) is not dict:
            raise _misaligned("the row has no object 'attributes'", of, file, line)
        if type(merged) is dict:
            merged.update(attributes)
        else:
            merged = attributes
    document["attributes"] = merged if type(merged) is dict else {}


def _misaligned(what: str, of: Attributes, file: DocumentFile, line: int) -> DataError:
    return DataError(
        f"{what} (document in {file.name})",
        file=of.path,
        record=f"line {line}",
        kind="misaligned-attributes",
        fix="Compute the attributes again: documents and attributes must have the same rows in the same order.",
    )
