"""The form of Feedmill: documents, and an attribute set for each tagger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from feedmill.curation.documents import RowWithMetadata
from feedmill.curation.extract.pages import Draft, Form, Pieces
from feedmill.curation.tag import attribute_row
from feedmill.documents.warc.pages import Page, PageFilter, read_pages
from feedmill.documents.warc.records import Fault, Record

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class DocumentForm(Form):
    """Documents with ``id``, ``text``, ``source``, ``created`` and ``metadata``.

    Attributes:
        archive: path of the archive below the folder that was given.
        source: the ``source`` of the documents.
        wanted: which pages are read.
        html: keep the HTML in ``metadata.html``.
        sets: names of the attribute sets.
    """

    archive: str
    source: str
    wanted: PageFilter
    html: bool
    sets: tuple[str, ...]

    def drafts(self, items: Sequence[Record | Fault], info: Record | None) -> Iterator[Draft | Fault]:  # noqa: ARG002
        for page in read_pages(items, self.wanted):
            yield page if isinstance(page, Fault) else self._draft(page)

    def _draft(self, page: Page) -> Draft:
        metadata: dict[str, Any] = {
            "url": page.url,
            "content_type": page.mime,
            "charset": page.charset,
            "warc": self.archive,
            "offset": page.offset,
            "html": page.text,
        }
        text, html = (page.text, None) if page.is_text else ("", page.text)
        name = page.id or f"{self.archive}:{page.number}"
        row = RowWithMetadata(id=name, text=text, source=self.source, metadata=metadata)
        return Draft(page.offset, page.url, row, html, {"created": page.date} if page.date else {})

    def rows(self, draft: Draft, pieces: Pieces) -> list[bytes]:
        row = draft.row
        metadata = {key: value for key, value in (row.metadata or {}).items() if key != "html" or self.html}
        document = {"id": row.id, "text": row.text, "source": row.source, **draft.fields, "metadata": metadata}
        return [_encode(document), *(attribute_row(row, [pieces[name]]) for name in self.sets)]
