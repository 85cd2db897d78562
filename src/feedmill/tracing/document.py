"""The fate of a raw document: the outputs that hold it, the rules that dropped it, and where a run sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from feedmill.documents.file import kind_of
from feedmill.documents.lineage.chain import Descent, Lineages, OutputRows, Row, find_ids, read_raw
from feedmill.documents.lineage.shards import find_keys, is_shard, noun_of
from feedmill.errors import FeedmillError, NotFound
from feedmill.planning import ledger
from feedmill.planning.plan import Plan
from feedmill.tracing.held import Held

LISTED = 1000
"""Sightings of a document that are listed; all are counted."""
_SHOWN = 8


@dataclass(frozen=True)
class Artefact:
    """An output made from a document.

    Attributes:
        file: path or URL of the output.
        verb: the verb that wrote it.
        rows: rows from 0 that hold the document; empty if it was dropped.
        lines: whether these rows are lines of text; otherwise they are numbers of documents or sequences.
        source, source_row: the row from which they were made.
        dropped: why it was dropped: a rule of the filter, or what is known.
    """

    file: str
    verb: str
    rows: list[int]
    lines: bool
    source: str
    source_row: int
    dropped: str | None = None

    @property
    def noun(self) -> str:
        """What the rows are, see `noun_of`."""
        return noun_of(self.file, self.verb)

    @property
    def shown(self) -> str:
        """The rows as users count them: lines and samples from 1, documents from 0."""
        numbers = [f"{row + (self.noun != 'row'):,}" for row in self.rows]
        return ", ".join(numbers[:_SHOWN]) + (", ..." if len(numbers) > _SHOWN else "")


@dataclass(frozen=True)
class Document:
    """A raw document and its outputs.

    Attributes:
        file, row: where it is; rows count from 0.
        artefacts: its outputs, nearest first.
        attributes: the files of attributes whose row of this number is the document's.
    """

    file: str
    row: int
    artefacts: list[Artefact] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)

    def raw(self) -> bytes:
        """Return its line as stored, without the line end."""
        return read_raw(self.file, [self.row])[self.row]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; lines count from 1."""
        made = [asdict(artefact) for artefact in self.artefacts]
        return {"file": self.file, "line": self.row + 1, "attributes": self.attributes, "artefacts": made}

    def summary(self) -> list[str]:
        """Return a line for each file that was made from it."""
        lines = [f"attributes: {path}, line {self.row + 1:,}" for path in self.attributes]
        for made in self.artefacts:
            where = f"{made.noun} {made.shown}" if made.rows else f"dropped: {made.dropped}"
            lines.append(f"{made.verb}: {made.file}, {where}")
        return lines


class Documents:
    """The raw documents from which some outputs were made.

    Args:
        outputs: the files to begin with.
    """

    def __init__(self, outputs: Sequence[str], lineages: Lineages | None = None) -> None:
        from feedmill.curation.mix.verdict import attribute_files  # loads the language of rules

        self.descent = Descent(outputs, lineages)
        self._attribute_files = lru_cache(maxsize=1024)(attribute_files)

    def find(self, words: Sequence[str]) -> dict[str, list[Document]]:
        """Return the documents of each ``FILE:LINE`` or id; a row of an output stands for what it was made from.

        Raises:
            NotFound: one of them is in no raw file.
        """
        documents: dict[str, list[Document]] = {}
        ids = []
        for word in words:
            rows = self._of_line(word)
            if rows is None:
                ids.append(word)
            else:
                documents[word] = [self._document(row) for row in rows]
        texts = [path for path in self.descent.raw if kind_of(path) is not None]
        by_id = find_ids(texts, ids)
        shards = [path for path in self.descent.raw if is_shard(path)]
        for key, path, row in find_keys(shards, [word for word in ids if word not in by_id]):
            by_id.setdefault(key, []).append(Row(path, row))
        missing = [word for word in ids if word not in by_id]
        if missing and not texts and not shards:
            raise NotFound(
                "the raw documents are unknown, because this file has no lineage",
                file=next(iter(self.descent.raw), None),
                kind="no-lineage",
                fix="Write it again with this release, which writes its lineage.",
            )
        if missing:
            searched = [*texts, *shards]
            names = ", ".join(searched[:3]) + (", ..." if len(searched) > 3 else "")
            raise NotFound(
                f"no raw file has a document with this id, and it is not a FILE:LINE of them (looked in {names})",
                record=missing[0],
                kind="no-such-sample",
                fix="Give its id, or the file and the line from 1, such as raw/a.jsonl:17.",
            )
        return {word: documents.get(word) or [self._document(row) for row in by_id[word]] for word in words}

    def _of_line(self, word: str) -> list[Row] | None:
        name, _, number = word.rpartition(":")
        if not name or not (number.isascii() and number.isdigit() and len(number) < 19) or int(number) < 1:
            return None
        files = self.descent.named(name)
        if not files:
            return None
        if len(files) > 1:
            raise NotFound(
                f"{len(files)} files have this name: {', '.join(files[:3])}",
                record=word,
                kind="ambiguous",
                fix="Give more of the path.",
            )
        row = Row(files[0], int(number) - 1)
        if self.descent.files[row.path] is None:
            read_raw(row.path, [row.row])  # raises for a line behind the end
        return self._raw(row)

    def _raw(self, row: Row) -> list[Row]:
        """Return the raw rows that a row of one of the files was made from."""
        return [row] if self.descent.files[row.path] is None else self.descent.lineages.follow(*row).raw

    def at(self, row: Row) -> list[Document] | None:
        """Return the documents that a row was made from, without the rules that dropped them; None for other files.

        For many documents: no file is read.
        """
        row = Row(self.descent.lineages.place(row.path), row.row)
        return [self._document(made, why=False) for made in self._raw(row)] if row.path in self.descent.files else None

    def _document(self, row: Row, why: bool = True) -> Document:
        made = list(self.descent.made_from(*row))
        attributes = self._attribute_files(row.path) if kind_of(row.path) is not None else {}
        return Document(
            row.path, row.row, [self._artefact(artefact, why) for artefact in made], list(attributes.values())
        )

    def _artefact(self, made: OutputRows, why: bool) -> Artefact:
        dropped = None
        if not made.rows and why:
            from feedmill.curation.mix.verdict import why_dropped

            lineage = self.descent.files[made.output]
            assert lineage is not None
            try:
                by_rules = "include" in lineage.header.options  # not by limits of lengths and lists of numbers
                dropped = why_dropped(lineage.header.options, made.source) if by_rules else None
            except FeedmillError as error:
                dropped = f"unknown: {error}"
        if not made.rows:
            dropped = dropped or f"not written by {made.verb}"
        lines = noun_of(made.output, made.verb) == "line"
        return Artefact(made.output, made.verb, made.rows, lines, made.source.path, made.source.row, dropped)


@dataclass(frozen=True)
class Sighting:
    """A position at which a run sees a sample that has a document; see `feedmill.planning.ledger.Occurrence`."""

    source: str
    index: int
    position: int
    epoch: int
    step: int | None
    span: tuple[int, int] | None = None


def sightings(plan: Plan, held: Held, document: Document, **options: Any) -> list[Sighting]:
    """Return where a run sees a document, in order of positions; options are those of `ledger.occurrences`."""
    outputs = [(document.file, [document.row]), *((artefact.file, artefact.rows) for artefact in document.artefacts)]
    samples = dict.fromkeys(sample for path, rows in outputs for row in rows for sample in held.samples(path, row))
    sighted = [
        Sighting(source, index, occurrence.position, occurrence.epoch, occurrence.step, occurrence.span)
        for source, index in samples
        for occurrence in ledger.occurrences(plan, source, index, **options)
    ]
    return sorted(sighted, key=lambda sighting: (sighting.position, sighting.span or (0, 0)))
