"""Write one output of a stream: read its inputs, merge attributes, apply the rules, and write the documents."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import orjson
import xxhash

from feedmill.curation.jsonpath_compare import same
from feedmill.curation.mix.attributes import END, Attributes
from feedmill.curation.mix.bulk import texts_unseen
from feedmill.curation.mix.config import FilterConfig, Stream
from feedmill.curation.mix.finished import Finished
from feedmill.curation.mix.pieces import Piece, pieces
from feedmill.curation.mix.rules import INCLUDE, Rules
from feedmill.curation.mix.spans import SpanError
from feedmill.documents.beside import FOLDER
from feedmill.documents.file import DocumentFile
from feedmill.documents.jq import JqError
from feedmill.documents.lineage.runs import Runs
from feedmill.documents.lineage.sidecar import Origins
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import bad_row, dump, dump_lines, large_integers, load, negative_zeros, uncollected
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.documents import read_lines, rows_of, write_lines
from feedmill.jobs.run import Policy, run
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.kernels.jsonl.rawtexts import lift
from feedmill.storage import LocalStore, open_store

Document = dict[str, Any]
EXAMPLES = 3
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


@dataclass(slots=True)
class Counts:
    """Numbers of documents and spans of an output or a stream.

    Attributes:
        read: Documents read.
        kept: Documents kept.
        written: Documents written, including repeats.
        dropped: Documents dropped by each rule.
        examples: Some ids of documents dropped by each rule.
        replaced, passed: Spans replaced and skipped.
        unmatched: Rows without attributes.
        without_id: Documents without an id.
        lost: Documents that lost a value, as with Dolma; see `_check_odd`.
    """

    read: int = 0
    kept: int = 0
    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Any]] = field(default_factory=dict)
    replaced: int = 0
    passed: int = 0
    unmatched: int = 0
    without_id: int = 0
    lost: int = 0

    @classmethod
    def of(cls, stream: Stream) -> Counts:
        """Return counts with 0 for each rule, so that reports show the rules that drop nothing."""
        rules = [INCLUDE] * bool(stream.include) + [f"exclude {text}" for text in stream.exclude]
        rules += [f"keep {text}" for text in stream.keep]
        return cls(dropped=Counter(dict.fromkeys(rules, 0)))

    def drop(self, rule: str, one: Any) -> None:
        """Count a document that a rule drops."""
        self.dropped[rule] += 1
        kept = self.examples.setdefault(rule, [])
        if len(kept) < EXAMPLES:
            kept.append(one)

    def add(self, other: Counts) -> None:
        """Add the counts of another output."""
        for name in ("read", "kept", "written", "replaced", "passed", "unmatched", "without_id", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        for rule, ids in other.examples.items():
            kept = self.examples.setdefault(rule, [])
            kept.extend(ids[: EXAMPLES - len(kept)])

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "read": self.read,
            "kept": self.kept,
            "written": self.written,
            "dropped": dict(sorted(self.dropped.items())),
            "examples": {rule: self.examples[rule] for rule in sorted(self.examples)},
            "replaced": self.replaced,
            "passed": self.passed,
            "unmatched": self.unmatched,
            "without_id": self.without_id,
            "lost": self.lost,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Counts:
        """Return the counts from plain data."""
        return cls(**{**data, "dropped": Counter(data["dropped"])})


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
    store, busy = open_store(folder), "another process is writing this output"
    with (
        store.exclusive(f"{FOLDER}/{name}.feedmill-lock", what=busy, file=store.locate(name))
        if isinstance(store, LocalStore)
        else nullcontext(),
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


def filter_piece(shard: Shard, piece: Piece) -> tuple[int, bytes, Counts, list[int]]:
    """Return the number of a piece's file, the lines to write, their counts, and their rows in the file."""
    file, stream, counts, rows = shard.files[piece.file], shard.stream, Counts.of(shard.stream), list[int]()
    rules, draw = _compiled(stream, shard.config.exact, shard.config.seed)
    sets = [Attributes(path, (lines,), stream, piece.line) for path, lines in piece.attributes]
    with uncollected():
        ((line, documents),) = _merged((piece.lines,), sets, file, shard, counts, None, piece.line)
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
        with closing(_documents(file, shard, counts, limit)) as blocks:
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
            why = rules.dropped(document)
        except (JqError, RecursionError) as error:
            failed = _failed(error, document, file, line)
            break
        if why is None:
            kept.append(document)
            lines.append(line)
        else:
            counts.drop(why, document.get("id"))
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


def _documents(
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
        yield from _merged(source, sets, file, shard, counts, limit)


def _merged(
    source: Iterable[bytes],
    sets: list[Attributes],
    file: DocumentFile,
    shard: Shard,
    counts: Counts,
    limit: int | None,
    line: int = 1,
) -> Iterator[tuple[int, list[Document]]]:
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
            kind="bad-row",
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


def _undrawn(file: DocumentFile, line: int) -> DataError:
    return DataError(
        "the document has no 'id': a fractional rate draws documents by their ids",
        file=file.name,
        record=f"line {line}",
        kind="no-id",
        fix="Add ids to the documents, or set the rate of the stream to an integer.",
    )


def _too_deep(documents: list[Document]) -> DataError:
    """Return the error for the first of these documents that cannot be written."""
    for document in documents:
        try:
            dump(document)
        except RecursionError:
            place = document["metadata"]["provenance"]
            return DataError("the document is nested too deeply", record=place, kind="bad-row", fix="Simplify it.")
    raise AssertionError("all documents can be written")


def _failed(error: Exception, document: Document, file: DocumentFile, line: int) -> FeedmillError:
    if isinstance(error, RecursionError):
        return DataError(
            "the document is nested too deeply",
            file=file.name,
            record=f"line {line}",
            kind="bad-row",
            fix="Simplify the document.",
        )
    return DataError(
        f"{error} (document {dump(document.get('id')).decode()})",
        file=file.name,
        record=f"line {line}",
        kind="filter-failed",
        fix="Make the expression accept documents like this one (jq: '(...)? // default'), or fix the document.",
    )
