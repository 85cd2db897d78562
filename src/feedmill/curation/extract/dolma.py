"""The form of Dolma's ``warc``: what its version 1.2.1 writes for each record, with the attributes in the document.

Two values that depend on the time of the run are in each of Dolma's documents. ``added`` is that time here too. The
time of pages without a ``Date`` (``created``), and of archives without a record ``warcinfo`` (``warc_date``), is the
date of their record here. docs/migration/dolma.md has further differences, which all are about records on which
Dolma fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from feedmill.curation.documents import RowWithMetadata
from feedmill.curation.extract.pages import Draft, Form, Pieces
from feedmill.documents.warc.pages import parsed
from feedmill.documents.warc.records import INFO, Fault, Record
from feedmill.errors import MissingExtra

KINDS = ("response", "resource")
VERSION = "v0"
DATE_FORMATS = ("%a, %d %b %Y %H:%M:%S %Z", "%Y-%m-%dT%H:%M:%SZ")
_USUAL = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_AROUND = re.compile(r"^['\"<]+|[/'\">]+$")
_WWW = re.compile(r"^www\d*\.|/+$", re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class DolmaForm(Form):
    """Documents as Dolma writes them.

    Attributes:
        source: the ``source`` of the documents.
        added: the time of the run.
        html: keep the HTML in ``metadata.html``.
    """

    source: str
    added: str
    html: bool

    def drafts(self, items: Sequence[Record | Fault], info: Record | None) -> Iterator[Draft | Fault]:
        archive = _info(info)
        for item in items:
            if isinstance(item, Fault):
                yield item
                continue
            found = parsed(item, "none")
            if found is None:
                yield Fault(item.offset, "the header of the record is invalid")
            elif (found.headers.get("WARC-Type") or "").lower() == INFO:
                archive = _info(item)
            else:
                yield self._draft(item, found, archive)

    def _draft(self, record: Record, found: Any, archive: tuple[datetime | None, str]) -> Draft | Fault:
        target = found.headers.get("WARC-Target-URI") or ""
        html = _decoded(found.reader.read(), found.http_charset)
        if html is None:
            return Fault(record.offset, "the charset of the page is unknown", target)
        if not html:
            return Fault(record.offset, "an empty page", target)
        digest = (found.headers.get("WARC-Payload-Digest") or "").partition(":")[2].partition(":")[0].lower()
        if not (digest and target):
            missing = "WARC-Target-URI" if digest else "valid WARC-Payload-Digest"
            return Fault(record.offset, f"the record has no {missing}", target)
        response = (found.headers.get("WARC-Type") or "").lower() == "response"
        http = found.http_headers or {}
        mime = (http if response else found.headers).get("Content-Type") or ""
        date = http.get("Date") if response else found.headers.get("WARC-Date")
        metadata = {
            "warc_url": target,
            "url": normalized(target),
            "html": html,
            "warc_date": timestamp(archive[0] or found.record_date),
            "warc_filename": archive[1],
            "content_type": mime.split(";")[0],
            "uncompressed_offset": record.position,
        }
        created = timestamp((parsed_date(date) if date else None) or found.record_date)
        row = RowWithMetadata(id=digest, text="", source=self.source, version=VERSION, metadata=metadata)
        return Draft(record.offset, target, row, html, {"created": created})

    def rows(self, draft: Draft, pieces: Pieces) -> list[bytes]:
        row = draft.row
        metadata = {key: value for key, value in (row.metadata or {}).items() if key != "html" or self.html}
        attributes = b"{%b}" % b",".join([piece for piece in pieces.values() if piece])
        document = {
            "id": row.id,
            "text": row.text,
            "source": row.source,
            **draft.fields,
            "added": self.added,
            "version": row.version,
            "metadata": metadata,
            "attributes": msgspec.Raw(attributes),
        }
        return [_encode(document)]


def _info(record: Record | None) -> tuple[datetime | None, str]:
    """Return the date and the id of a record ``warcinfo``."""
    found = None if record is None else parsed(record)
    return (None, "") if found is None else (found.record_date, found.record_id or "")


def _decoded(content: bytes, declared: str | None) -> str | None:
    """Return the text of a page; None if its charset is unknown."""
    text = ""
    if declared:
        try:
            text = content.decode(declared).strip()
        except (UnicodeDecodeError, LookupError):
            text = ""
    if text or not content.strip():
        return text
    encoding = _detector()(content)["encoding"]
    try:
        return content.decode(str(encoding)).strip() if encoding else None
    except (UnicodeDecodeError, LookupError):
        return None


def timestamp(time: datetime | None) -> str:
    """Return a time as Dolma writes it; of now without one.

    >>> timestamp(datetime(2023, 4, 20, 12, 30))
    '2023-04-20T12:30:00.000Z'
    """
    return (time or datetime.now()).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"


def parsed_date(text: str) -> datetime | None:
    """Return the time of a date in any spelling, in the time zone that it names; None if it is no date.

    >>> parsed_date("Thu, 20 Apr 2023 12:00:00 GMT")
    datetime.datetime(2023, 4, 20, 12, 0)
    """
    if _USUAL.fullmatch(text):  # dateparser takes a hundred times as long
        for form in DATE_FORMATS:
            try:
                return datetime.strptime(text, form)
            except ValueError:
                continue
    found: datetime | None = _dateparser()(date_string=text, date_formats=list(DATE_FORMATS))
    return found


def normalized(url: str) -> str:
    """Return a URL without scheme, ``www.`` and final slashes, with sorted parameters; as it is if it is invalid.

    >>> normalized("https://www.example.org/a/?b=2&a=1")
    'example.org/a/?a=1&b=2'
    """
    canonicalize, normalize = _normalizers()
    try:
        found = str(normalize(canonicalize(_AROUND.sub("", url))))
    except Exception:  # both libraries raise various errors for invalid URLs
        return url
    return _WWW.sub("", found.partition("://")[2] or found)


@cache
def _normalizers() -> tuple[Callable[[str], str], Callable[[str], str | None]]:
    try:
        from url_normalize import url_normalize
        from w3lib.url import canonicalize_url
    except ImportError:
        raise MissingExtra("Dolma's documents need the packages w3lib and url-normalize", "curation") from None
    return canonicalize_url, url_normalize


@cache
def _detector() -> Callable[[bytes], Any]:
    try:
        from charset_normalizer import detect
    except ImportError:
        raise MissingExtra("Dolma's documents need the package charset-normalizer", "curation") from None
    found: Callable[[bytes], Any] = detect
    return found


@cache
def _dateparser() -> Callable[..., Any]:
    try:
        from dateparser import parse
    except ImportError:
        raise MissingExtra("Dolma's documents need the package dateparser", "curation") from None
    found: Callable[..., Any] = parse
    return found
