"""From a block of records to the rows of the outputs, in any process: read, tag, linearize, tag again.

A `Form` says what becomes of a page: `documents.DocumentForm` or `dolma.DolmaForm`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from feedmill.curation.documents import Batch, RowWithMetadata
from feedmill.curation.extract.linearizers import linearizer, prepare
from feedmill.curation.registry import Choice
from feedmill.curation.tag import fragments_of, tagger_of
from feedmill.documents.warc.records import Block, Fault, Record
from feedmill.jobs.sandbox import Failure, Sandbox

Pieces = dict[str, bytes]
"""Tagger -> JSON of the attributes of one document, without the braces."""
_open: dict[tuple[Any, ...], Sandbox[str, str]] = {}
"""The sandbox of this process, which lasts over blocks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the text and the attributes of pages.

    Attributes:
        linearizer: name of the linearizer.
        dolma: use Dolma's options for it.
        seconds: limit for one page.
        before, after: taggers of the HTML, and of the text.
        only_tagged_before, only_tagged_after: leave out pages in which these taggers find nothing.
        modules: modules of the user's taggers, with their hashes.
    """

    linearizer: str
    dolma: bool
    seconds: float
    before: tuple[Choice, ...] = ()
    after: tuple[Choice, ...] = ()
    only_tagged_before: bool = False
    only_tagged_after: bool = False
    modules: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Draft:
    """A page on its way to a document.

    Attributes:
        offset, url: of its record.
        row: what taggers see; the text is empty until the page is linearized.
        html: the HTML; None if the record has plain text, which is in the row.
        fields: further fields of the document.
    """

    offset: int
    url: str
    row: RowWithMetadata
    html: str | None
    fields: dict[str, Any]


class Form(Protocol):
    """Form of the outputs. It is sent to processes."""

    def drafts(self, items: Sequence[Record | Fault], info: Record | None) -> Iterator[Draft | Fault]:
        """Yield a draft for each page, and what is left out, in order.

        Args:
            info: the last record of type ``warcinfo`` before.
        """
        ...

    def rows(self, draft: Draft, pieces: Pieces) -> list[bytes]:
        """Return the row of each output for a page: the document, then the attribute sets. Without line ends."""
        ...


class ArchiveSettings(NamedTuple):
    """Settings that all blocks of an archive share."""

    form: Form
    settings: Settings


class BlockResult(NamedTuple):
    """Result of a block.

    Attributes:
        lines: lines of each output; empty without documents.
        documents: number of lines.
        left_out: in order.
        skipped: number of records of other types.
    """

    lines: list[bytes]
    documents: int
    left_out: list[Fault]
    skipped: dict[str, int]


def extract_block(work: ArchiveSettings, block: Block) -> BlockResult:
    """Return what becomes of a block."""
    form, settings = work.form, work.settings
    drafts, left_out = list[Draft](), list[Fault]()
    for draft in form.drafts(block.items, block.info):
        (drafts if isinstance(draft, Draft) else left_out).append(draft)  # type: ignore[arg-type]
    pieces: list[Pieces] = [{} for _ in drafts]
    drafts, pieces = _tagged(drafts, pieces, settings.before, settings.only_tagged_before, settings, left_out, "HTML")
    drafts, pieces = _linearized(drafts, pieces, settings, left_out)
    drafts, pieces = _tagged(drafts, pieces, settings.after, settings.only_tagged_after, settings, left_out, "text")
    rows = [form.rows(draft, found) for draft, found in zip(drafts, pieces, strict=True)]
    lines = [b"".join([row + b"\n" for row in column]) for column in zip(*rows, strict=True)]
    left_out.sort(key=lambda fault: fault.offset)
    return BlockResult(lines, len(drafts), left_out, block.skipped)


def _tagged(
    drafts: list[Draft],
    pieces: list[Pieces],
    choices: Sequence[Choice],
    only_tagged: bool,
    settings: Settings,
    left_out: list[Fault],
    what: str,
) -> tuple[list[Draft], list[Pieces]]:
    if not drafts or not (choices or only_tagged):
        return drafts, pieces
    batch = Batch([draft.row for draft in drafts], settings.dolma)
    found: list[Pieces] = [{} for _ in drafts]
    for choice in choices:
        tagger = tagger_of(choice, settings.modules, choice.state())
        for mine, piece in zip(found, fragments_of(tagger, batch, choice.name, choice.name), strict=True):
            mine[choice.name] = piece
    kept = []
    for draft, before, mine in zip(drafts, pieces, found, strict=True):
        if only_tagged and not any(mine.values()):
            left_out.append(Fault(draft.offset, f"the taggers of the {what} found nothing", draft.url))
        else:
            kept.append((draft, {**before, **mine}))
    return [draft for draft, _ in kept], [both for _, both in kept]


def _linearized(
    drafts: list[Draft], pieces: list[Pieces], settings: Settings, left_out: list[Fault]
) -> tuple[list[Draft], list[Pieces]]:
    """Set the texts. Pages without text are left out; Dolma keeps them."""
    sandbox = _sandbox(settings.linearizer, settings.dolma, settings.seconds)
    texts = sandbox.map([draft.html for draft in drafts if draft.html is not None])
    kept = []
    for draft, found in zip(drafts, pieces, strict=True):
        text: str | Failure = draft.row.text if draft.html is None else next(texts)
        if isinstance(text, Failure):
            left_out.append(Fault(draft.offset, f"the linearizer {text.why}", draft.url))
        elif not (settings.dolma or text.strip()):
            left_out.append(Fault(draft.offset, "the linearizer found no text", draft.url))
        else:
            draft.row.text = text
            kept.append((draft, found))
    return [draft for draft, _ in kept], [found for _, found in kept]


def _sandbox(*key: Any) -> Sandbox[str, str]:
    if key not in _open:
        close()
        name, dolma, seconds = key
        _open[key] = Sandbox(linearizer(name, dolma), seconds, partial(prepare, name))
    return _open[key]


def close() -> None:
    """End the child process that linearizes for this process."""
    while _open:
        _open.popitem()[1].close()
