"""One output of a mix: its inputs row by row, through the rules, into one file."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash

from feedmill.curation.jq import JqError
from feedmill.curation.jsonpath_compare import same
from feedmill.curation.mix.attributes import END, Attributes
from feedmill.curation.mix.config import MixConfig, Stream
from feedmill.curation.mix.rules import INCLUDE, Rules
from feedmill.curation.mix.spans import SpanError
from feedmill.curation.patterns import DocumentFile
from feedmill.curation.rows import bad_row, dump, load, negative_zeros, uncollected
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.documents import read_lines, rows_of, write_rows
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.storage import open_store

EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Shard:
    """One output file of a stream. `spare`: there are cores to spare, so threads may pack and unpack."""

    stream: Stream
    config: MixConfig
    files: tuple[DocumentFile, ...]
    path: str
    kind: str
    spare: bool = False


@dataclass(slots=True)
class Counts:
    """What became of the documents: read, kept (written, with repeats), dropped by each rule with some ids."""

    read: int = 0
    kept: int = 0
    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Any]] = field(default_factory=dict)
    replaced: int = 0
    passed: int = 0
    unmatched: int = 0
    truth: Counter[str] = field(default_factory=Counter)

    def drop(self, rule: str, one: Any) -> None:
        """Count a document that a rule drops."""
        self.dropped[rule] += 1
        kept = self.examples.setdefault(rule, [])
        if len(kept) < EXAMPLES:
            kept.append(one)

    def add(self, other: Counts) -> None:
        """Add what another output counted."""
        for name in ("read", "kept", "written", "replaced", "passed", "unmatched"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        for rule, ids in other.examples.items():
            kept = self.examples.setdefault(rule, [])
            kept.extend(ids[: EXAMPLES - len(kept)])

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain data."""
        return {
            "read": self.read,
            "kept": self.kept,
            "written": self.written,
            "dropped": dict(sorted(self.dropped.items())),
            "examples": {rule: self.examples[rule] for rule in sorted(self.examples)},
            "replaced": self.replaced,
            "passed": self.passed,
            "unmatched": self.unmatched,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Counts:
        """The counts from plain data."""
        return cls(**{**data, "dropped": Counter(data["dropped"])})


def write_shard(shard: Shard) -> Counts:
    """Write one output; it appears when it is whole.

    Raises:
        DataError: a row cannot be used, ids differ, an expression fails; nothing is written then.
    """
    counts = Counts()
    folder, name = shard.stream.output, shard.path
    permute = shard.config.permute
    held: list[bytes] = []
    with write_rows(open_store(folder), name, kind=shard.kind) as append:
        take = held.extend if permute else append
        # Closed in any case, so that no thread outlives an error.
        with (
            uncollected(),
            closing(mixed(shard, counts)) as blocks,
            closing(ordered_map(take, blocks, workers=int(shard.spare), in_flight=2)) as done,
        ):
            for _ in done:
                pass
        if permute:
            random.Random(f"{shard.config.seed}/{shard.stream.name}/{name}").shuffle(held)
            append(held)
    return counts


def mixed(shard: Shard, counts: Counts, limit: int | None = None) -> Generator[list[bytes], None, None]:
    """The rows of an output, block by block; at most `limit` documents of each file are read."""
    rules = Rules(shard.stream, exact=shard.config.exact)
    draw = _sampler(shard.stream, shard.config)
    for file in shard.files:
        name = file.path.rpartition("/")[2]
        with closing(_documents(file, shard, counts, limit)) as blocks:
            for block in blocks:
                out: list[bytes] = []
                for line, document in block:
                    counts.read += 1
                    try:
                        _mix_one(document, rules, draw, counts, out, f"{name}:{line}")
                    except (JqError, SpanError) as error:
                        raise _failed(error, document, file, line) from None
                yield out


def _mix_one(
    document: dict[str, Any],
    rules: Rules,
    draw: Callable[[Any], int] | None,
    counts: Counts,
    out: list[bytes],
    provenance: str,
) -> None:
    one = document.get("id")
    why = rules.dropped(document)
    if why is not None:
        counts.drop(why if why == INCLUDE else f"exclude {why}", one)
        return
    why, replaced, passed = rules.change(document)
    counts.replaced += replaced
    counts.passed += passed
    if why is not None:
        counts.drop(why, one)
        return
    times = 1 if draw is None else draw(one)
    if not times:
        counts.drop("rate", one)
        return
    metadata = document.get("metadata")
    document["metadata"] = (
        {**metadata, "provenance": provenance} if type(metadata) is dict else {"provenance": provenance}
    )
    counts.kept += 1
    counts.written += times
    row = dump(document)
    out.extend([row] * times) if times > 1 else out.append(row)


def _sampler(stream: Stream, config: MixConfig) -> Callable[[Any], int] | None:
    """How often a document is taken, by its id: the whole part of the rate, and once more with its fraction."""
    if stream.rate == 1.0:
        return None
    whole = int(stream.rate)
    bound = round((stream.rate - whole) * 2**64)
    salt = f"{config.seed}/{stream.name}/".encode()

    def draw(one: Any) -> int:
        return whole + (xxhash.xxh3_64_intdigest(salt + dump(one)) < bound)

    return draw


def _documents(
    file: DocumentFile, shard: Shard, counts: Counts, limit: int | None
) -> Generator[list[tuple[int, dict[str, Any]]], None, None]:
    """Documents with their attributes, and their lines."""
    store, stream = file.store(), shard.stream
    paths = [file.attributes(name) for name in stream.attributes]
    sets = [Attributes(store, path, stream, shard.spare) for path in paths if store.exists(path)]
    with ExitStack() as stack:
        for one in sets:
            stack.callback(one.close)
        chunks = read_lines(store, file.path, kind=stream.input_compression)
        source = stack.enter_context(closing(ahead(chunks))) if shard.spare else chunks
        yield from _merged(source, sets, file, shard, counts, limit)


def _merged(
    source: Iterable[bytes], sets: list[Attributes], file: DocumentFile, shard: Shard, counts: Counts, limit: int | None
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    line, exact = 1, shard.config.exact
    for lines in source:
        rows = rows_of(lines)
        if limit is not None:
            rows = rows[: limit - line + 1]
        found = _parse(rows, file, line, negative_zeros(lines))
        columns = [one.take(len(found)) for one in sets]
        for number, document, *row in zip(range(line, line + len(found)), found, *columns, strict=True):
            if sets:
                _merge(document, row, sets, file, number, exact, counts)
        yield list(enumerate(found, line))
        line += len(rows)
        if limit is not None and line > limit:
            return


def _parse(rows: list[bytes], file: DocumentFile, first: int, unusual: frozenset[int]) -> list[dict[str, Any]]:
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


def _merge(
    document: dict[str, Any],
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
            raise _misaligned("there is no such row", of, file, line)
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
        fix="Make the attributes again: rows of documents and attributes have to be the same, in the same order.",
    )


def _failed(error: Exception, document: dict[str, Any], file: DocumentFile, line: int) -> FeedmillError:
    return DataError(
        f"{error} (document {dump(document.get('id')).decode()})",
        file=file.name,
        record=f"line {line}",
        kind="filter-failed",
        fix="Make the expression stand documents like this one (jq: '(...)? // default'), or mend the document.",
    )
