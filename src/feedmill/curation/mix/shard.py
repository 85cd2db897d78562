"""Write one output of a stream: read its inputs, merge attributes, apply the rules, and write the documents.

Inputs are cut into pieces, so that several processes can filter one file. Which outputs are finished is a small JSON
file for each, in a `RecordFolder`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson
import xxhash

from feedmill.curation.mix.attributes import Attributes
from feedmill.curation.mix.config import Stream
from feedmill.curation.mix.merging import Document, Shard, merged, read_merged
from feedmill.curation.mix.report import Counts
from feedmill.curation.mix.rules import Rules
from feedmill.curation.mix.spans import SpanError
from feedmill.curation.records import Records
from feedmill.documents.expressions import JqError
from feedmill.documents.file import DocumentFile
from feedmill.documents.lineage.sidecar import Origins, Runs, hidden
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import dump, dump_lines
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.documents import read_lines, write_lines
from feedmill.jobs.engine import Policy
from feedmill.jobs.memory import uncollected
from feedmill.jobs.run import run
from feedmill.jobs.threads import ordered_map
from feedmill.storage import open_store


def write_shard(shard: Shard, origins: Origins, workers: int = 1) -> Counts:
    """Write one output. It is published when it is complete.

    Args:
        shard: The output.
        origins: Receives where each of its rows comes from.
        workers: Number of processes that filter its documents; this process reads and writes.

    Raises:
        DataError: A row is invalid, ids differ, or an expression fails. No output is written.
    """
    counts = Counts.of(shard.stream)
    folder, name = shard.stream.output, shard.path
    permute = shard.config.permute
    held: list[bytes] = []
    store = open_store(folder)
    with (
        Finished(folder).place.lock(name, "this output", file=store.locate(name)),
        write_lines(store, name, kind=shard.kind) as write,
    ):

        def take(documents: list[Document]) -> None:
            try:
                if permute:
                    held.extend(map(dump, documents))
                else:
                    write(dump_lines(documents))
            except RecursionError:
                raise _too_deep(documents) from None

        if workers > 1 and not permute:
            for data in _filtered(shard, counts, origins, workers):
                write(data)
        else:
            # Always closed, so that no thread outlives an error.
            with (
                uncollected(),
                closing(mixed(shard, counts, origins=origins)) as blocks,
                closing(ordered_map(take, blocks, workers=int(shard.spare), in_flight=2)) as done,
            ):
                for _ in done:
                    pass
        if permute:
            order = list(range(len(held)))
            random.Random(f"{shard.config.seed}/{shard.stream.name}/{name}").shuffle(order)
            origins.reorder(order)
            write(b"".join([part for number in order for part in (held[number], b"\n")]))
        Finished(folder).remove_lineage(name)  # of the output that is replaced now
    return counts


def _filtered(shard: Shard, counts: Counts, origins: Origins, workers: int) -> Iterator[bytes]:
    """Yield the lines of an output, piece by piece, filtered by several processes."""
    stream = shard.stream
    numbers = [origins.number(file.url, file.size) for file in shard.files]
    parts = pieces(shard.files, stream.attributes, stream.input_compression)
    with closing(run(filter_piece, parts, workers=workers, preload=(__name__,), policy=Policy(shared=shard))) as done:
        for file, data, own, rows in done:
            counts.add(own)
            yield data
            origins.add(Runs.of(numbers[file], rows))


def filter_piece(shard: Shard, piece: LineBlock) -> tuple[int, bytes, Counts, list[int]]:
    """Return the number of a piece's file, the lines to write, their counts, and their rows in the file."""
    file, stream, counts, rows = shard.files[piece.file], shard.stream, Counts.of(shard.stream), list[int]()
    rules, draw = _compiled(stream, shard.config.exact, shard.config.seed)
    sets = [Attributes(path, (lines,), stream, piece.line) for path, lines in piece.attributes]
    with uncollected():
        ((line, documents),) = merged((piece.lines,), sets, file, shard, counts, None, piece.line)
        kept = _mix(documents, rules, draw, counts, file, line, rows)
        try:
            return piece.file, dump_lines(kept), counts, rows
        except RecursionError:
            raise _too_deep(kept) from None


@lru_cache(4)
def _compiled(stream: Stream, exact: bool, seed: int) -> tuple[Rules, Callable[[Document], int] | None]:
    return Rules(stream, exact=exact), _sampler(stream, seed)


def mixed(
    shard: Shard, counts: Counts, limit: int | None = None, origins: Origins | None = None
) -> Generator[list[Document], None, None]:
    """Yield the documents of an output, block by block. At most `limit` documents of each file are read."""
    rules = Rules(shard.stream, exact=shard.config.exact)
    draw = _sampler(shard.stream, shard.config.seed)
    for file in shard.files:
        number = 0 if origins is None else origins.number(file.url, file.size)
        with closing(read_merged(file, shard, counts, limit)) as blocks:
            for line, block in blocks:
                rows: list[int] = []
                yield _mix(block, rules, draw, counts, file, line, rows)
                if origins is not None:
                    origins.add(Runs.of(number, rows))


def _mix(
    documents: list[Document],
    rules: Rules,
    draw: Callable[[Document], int] | None,
    counts: Counts,
    file: DocumentFile,
    first: int,
    rows: list[int],
) -> list[Document]:
    """Return the documents to write, and append the row of each (from 0). Errors are raised in their order."""
    kept: list[Document] = []
    lines: list[int] = []
    failed: FeedmillError | None = None
    for line, document in enumerate(documents, first):
        try:
            rule, *more = rules.dropped(document) or ("",)
        except (JqError, RecursionError) as error:
            failed = _failed(error, document, file, line)
            break
        if rule:
            counts.drop(rule, document.get("id"))
            counts.matched.update(one for one in (rule, *more) if one in rules.short)
        else:
            kept.append(document)
            lines.append(line)
    counts.read += len(documents)
    out: list[Document] = []
    name, seen = file.path.rpartition("/")[2], 0
    try:
        for document, line, (why, replaced, passed) in zip(kept, lines, rules.changes(kept), strict=True):
            seen += 1
            if replaced or passed:
                counts.replaced += replaced
                counts.passed += passed
            if why is not None:
                counts.drop(why, document.get("id"))
                continue
            times = 1 if draw is None else draw(document)
            if times < 0:
                raise _undrawn(file, line)
            if not times:
                counts.drop("rate", document.get("id"))
                continue
            metadata = document.get("metadata")
            if type(metadata) is dict:
                metadata["provenance"] = f"{name}:{line}"
            else:
                document["metadata"] = {"provenance": f"{name}:{line}"}
            counts.kept += 1
            for _ in range(times):
                out.append(document)
                rows.append(line - 1)
    except (JqError, SpanError, RecursionError) as error:
        raise _failed(error, kept[seen], file, lines[seen]) from None
    if failed is not None:
        raise failed
    counts.written += len(out)
    return out


def _sampler(stream: Stream, seed: int) -> Callable[[Document], int] | None:
    """Return a function from a document to the number of times it is written, or None for the rate 1.

    The number is the integer part of the rate, plus 1 with the probability of its fraction, drawn by the id. It is -1
    if the document has no id to draw by.
    """
    if stream.rate == 1.0:
        return None
    whole = int(stream.rate)
    bound = round((stream.rate - whole) * 2**64)
    salt = f"{seed}/{stream.name}/".encode()

    def draw(document: Document) -> int:
        one = document.get("id")
        if one is None:  # a draw would take all documents without an id, or none
            return -1 if bound else whole
        return whole + (xxhash.xxh3_64_intdigest(salt + dump(one)) < bound)

    return draw


def _undrawn(file: DocumentFile, line: int) -> DataError:
    return DataError(
        "the document has no 'id': a fractional rate draws documents by their ids",
        file=file.name,
        record=f"line {line}",
        kind="bad-document",
        fix="Add ids to the documents, or set the rate of the stream to an integer.",
    )


def _too_deep(documents: list[Document]) -> DataError:
    """Return the error for the first of these documents that cannot be written."""
    for document in documents:
        try:
            dump(document)
        except RecursionError:
            place = document["metadata"]["provenance"]
            return DataError("the document is nested too deeply", record=place, kind="bad-document", fix="Simplify it.")
    raise AssertionError("all documents can be written")


def _failed(error: Exception, document: Document, file: DocumentFile, line: int) -> FeedmillError:
    if isinstance(error, RecursionError):
        return DataError(
            "the document is nested too deeply",
            file=file.name,
            record=f"line {line}",
            kind="bad-document",
            fix="Simplify the document.",
        )
    return DataError(
        f"{error} (document {dump(document.get('id')).decode()})",
        file=file.name,
        record=f"line {line}",
        kind="bad-document",
        fix="Make the expression accept documents like this one (jq: '(...)? // default'), or fix the document.",
    )


_NEWLINE = 10


class LineBlock(NamedTuple):
    """Lines of a file.

    Attributes:
        file: Number of the file.
        line: Number of the first line, from 1.
        lines: Lines of documents with line ends.
        attributes: Path of each attribute file, and its lines for these documents.
    """

    file: int
    line: int
    lines: bytes
    attributes: tuple[tuple[str, bytes], ...]

    def __repr__(self) -> str:
        return f"the lines from {self.line} on of file {self.file}"


class _Lines:
    """Lines of a file that is read in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, b""

    def take(self, count: int) -> bytes:
        """Return the next lines, fewer at the end of the file."""
        parts = []
        while count and (chunk := self._left or next(self._chunks, b"")):
            have = rows_in(chunk)
            if have > count:
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE)
                at, have = int(ends[count - 1]) + 1, count
            else:
                at = len(chunk)
            parts.append(chunk[:at])
            self._left = chunk[at:]
            count -= have
        return b"".join(parts)


def rows_in(lines: bytes) -> int:
    """Return the number of lines; the last one may lack its line end."""
    return lines.count(b"\n") + (not lines.endswith(b"\n"))


def pieces(files: Sequence[DocumentFile], attributes: Sequence[str], packed: str | None) -> Iterator[LineBlock]:
    """Yield the pieces of files in order, with the lines of their attribute sets that exist.

    Args:
        packed: Compression of the documents; by default given by their names.
    """
    for number, file in enumerate(files):
        store = file.store()
        with ExitStack() as stack:
            paths = [path for name in attributes if store.exists(path := file.attributes(name))]
            sets = [(p, _Lines(stack.enter_context(closing(read_lines(store, p, json=True))))) for p in paths]
            line = 1
            for lines in stack.enter_context(closing(read_blocks(file, packed=packed))):
                rows = rows_in(lines)
                yield LineBlock(number, line, lines, tuple((store.locate(path), one.take(rows)) for path, one in sets))
                line += rows


class Finished(Records):
    """Records of the finished outputs in a folder, by their paths in it."""

    def read(self, output: str) -> dict[str, Any] | None:
        """Return the record of an output, or None if it is missing or invalid."""
        for place in self.places:
            if place.store.exists(place.path(output)):
                with contextlib.suppress(orjson.JSONDecodeError, FeedmillError):
                    content = orjson.loads(place.store.read(place.path(output)))
                    if isinstance(content, dict):
                        return content
        return None

    def record(self, output: str, record: dict[str, Any]) -> None:
        """Write the record of a published output."""
        self.write(output, orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))

    def begin(self, output: str) -> None:
        """Write that a filter makes this output. It is synced: if it were lost, the output would be no filter's."""
        self.write(output, orjson.dumps({"begun": True}), durable=True)

    def forget(self, output: str) -> None:
        """Remove the record of an output that was not published."""
        for place in self.places:
            place.store.delete(place.path(output))

    def write_lineage(self, output: str, data: bytes) -> None:
        """Write the lineage of a published output."""
        self.place.store.write_note(hidden(self.place, output), data)

    def has_lineage(self, output: str) -> bool:
        """Return whether there is the lineage of an output."""
        return self.place.store.exists(hidden(self.place, output))

    def remove_lineage(self, output: str) -> None:
        """Remove the lineage of an output that is about to be replaced, or removed."""
        self.place.store.delete(hidden(self.place, output))
