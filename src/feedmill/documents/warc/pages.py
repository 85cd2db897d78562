"""Read pages from the records of a web archive.

FastWARC parses the headers of WARC and HTTP, and undoes transfer and content encodings. What is no page is left out,
with the reason.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from feedmill.documents.warc import HTML
from feedmill.documents.warc.records import INFO, Fault, Record
from feedmill.errors import MissingExtra

KINDS = ("response", "resource", "conversion")
"""Types of records that have pages; ``conversion`` is the plain text of a page, in ``.wet`` files."""
TEXT = "text/plain"
_MARKS = (b"<html", b"<!doctype html")
_SNIFFED = 1024
_CODINGS = b"\x1f\x8b"
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(rb"""<(?:meta\s[^>]*?charset|\?xml\s[^>]*?encoding)\s*=\s*["']?\s*([\w.:-]{2,40})""", re.I)
_DECLARATION = 4096
"""First bytes of a page in which its declaration is looked for; HTML allows 1024."""


@dataclass(frozen=True, slots=True)
class PageFilter:
    """Filter of the pages to read.

    Attributes:
        statuses: statuses of HTTP responses; empty for all.
        mimes: types; empty for all. Pages without a type are read if they begin like HTML.
        largest: largest page, in bytes.
    """

    statuses: Sequence[int] = (200,)
    mimes: Sequence[str] = HTML
    largest: int = 16 << 20


@dataclass(slots=True)
class Page:
    """A page.

    Attributes:
        number, offset: of its record, see `Record`.
        id: the record's id, without ``<urn:uuid:`` and ``>``; empty if it has none.
        url, date: ``WARC-Target-URI`` and ``WARC-Date``.
        status: status of the HTTP response; None for other records.
        mime: type in lower case, without parameters.
        charset: Python's name of the charset.
        text: the decoded HTML, or the text of a record of type ``conversion``.
        is_text: whether `text` is no HTML.
    """

    number: int
    offset: int
    id: str
    url: str
    date: str
    status: int | None
    mime: str
    charset: str
    text: str
    is_text: bool


def parsed(record: Record, decoding: Literal["all", "none"] = "all") -> Any:
    """Return a record as FastWARC parses it; None if it cannot be parsed.

    Args:
        decoding: whether transfer and content encodings of HTTP are undone.

    Raises:
        MissingExtra: FastWARC is not installed.
    """
    try:
        from fastwarc.warc import ArchiveIterator
    except ImportError:
        raise MissingExtra("reading web archives needs the package fastwarc", "curation") from None
    try:
        return next(iter(ArchiveIterator(io.BytesIO(record.data), auto_decode=decoding, stream_detect=False)), None)
    except OSError:
        return None


def read_pages(items: Sequence[Record | Fault], wanted: PageFilter) -> Iterator[Page | Fault]:
    """Yield the pages of records, and what is left out, in order."""
    for item in items:
        if isinstance(item, Fault):
            yield item
        elif (found := _page(item, wanted)) is not None:
            yield found


def _page(record: Record, wanted: PageFilter) -> Page | Fault | None:
    found = parsed(record)
    if found is None:
        return Fault(record.offset, "the header of the record is invalid")
    headers = found.headers
    kind = (headers.get("WARC-Type") or "").lower()
    if kind == INFO:
        return None
    url = (headers.get("WARC-Target-URI") or "").strip("<>")
    status = mime = declared = None
    if kind == "response":
        if found.http_headers is None and not _has_http(found):
            return Fault(record.offset, "the response is not HTTP", url)
        status = found.http_headers.status_code
        if wanted.statuses and status not in wanted.statuses:
            return Fault(record.offset, f"HTTP status {status}", url)
        declared = found.http_charset
        mime = headers.get("WARC-Identified-Payload-Type") or found.http_headers.get("Content-Type")
    elif found.http_headers is not None:
        declared, mime = found.http_charset, found.http_headers.get("Content-Type")
    else:
        mime = headers.get("Content-Type")
    mime = (mime or "").partition(";")[0].strip().lower()
    is_text = kind == "conversion" and mime in (TEXT, "")
    if mime and not is_text and wanted.mimes and mime not in wanted.mimes:
        return Fault(record.offset, f"type {_shown(mime)}", url)
    content = _content(found, record, wanted.largest)
    if isinstance(content, str):
        return Fault(record.offset, content, url)
    if not mime and not is_text and wanted.mimes and not _is_html(content):
        return Fault(record.offset, "no type, and it does not begin like HTML", url)
    text, charset = decode(content, declared)
    if not text.strip():
        return Fault(record.offset, "an empty page", url)
    name = (headers.get("WARC-Record-ID") or "").strip("<>").removeprefix("urn:uuid:")
    date = headers.get("WARC-Date") or ""
    return Page(record.number, record.offset, name, url, date, status, mime or HTML[0], charset, text, is_text)


def _has_http(found: Any) -> bool:
    """Parse the HTTP headers of a record that does not say that it has any. Return whether there are."""
    try:
        found.parse_http()
    except (OSError, ValueError):
        return False
    return found.http_headers is not None and found.http_headers.status_code is not None


def _content(found: Any, record: Record, largest: int) -> bytes | str:
    """Return the payload of a record, or why there is none."""
    try:
        content: bytes = found.reader.read(largest + 1)
    except OSError:
        # Crawlers often store the decoded payload with the original header.
        plain = parsed(record, "none")
        content = plain.reader.read(largest + 1)
        if content.startswith(_CODINGS):
            return "its content encoding is corrupt"
    return content if len(content) <= largest else f"the page is larger than {largest:,} bytes"


def _is_html(content: bytes) -> bool:
    begin = content[:_SNIFFED].lower()
    return any(mark in begin for mark in _MARKS)


def _shown(mime: str) -> str:
    return mime if len(mime) <= 60 else f"{mime[:60]}..."


def decode(content: bytes, declared: str | None) -> tuple[str, str]:
    """Return the text of a page and the name of its charset.

    A page with other characters than ASCII that is valid UTF-8 is UTF-8: many declare something else. Otherwise, a
    declared charset is used if the whole page is valid in it; as in browsers, ISO 8859-1 means Windows-1252. Otherwise
    the charset is detected, and invalid bytes become U+FFFD.

    Args:
        declared: the charset of the HTTP header, if any.

    >>> decode("<p>été".encode("latin-1"), "ISO-8859-1")
    ('<p>été', 'cp1252')
    """
    for mark, known in _BOMS:
        if content.startswith(mark):
            return content.decode(known, "replace"), known.removesuffix("-sig")
    match = _DECLARED.search(content[:_DECLARATION])
    own = match[1].decode("ascii", "replace") if match is not None else None
    for label in (declared, own, "utf-8") if content.isascii() else ("utf-8", declared, own):
        name = codec(label) if label else None
        if name:
            try:
                return content.decode(name), name
            except (UnicodeDecodeError, LookupError):
                continue
    from resiliparse.parse.encoding import detect_encoding

    detected: str | None = detect_encoding(content)
    guess = codec(detected or "utf-8") or "utf-8"
    return content.decode(guess, "replace"), guess


def codec(label: str) -> str | None:
    """Return Python's name of the charset that browsers use for a label; None if it is unknown, or no charset of text.

    >>> codec("latin1"), codec(' "UTF8" '), codec("base64"), codec("klingon")
    ('cp1252', 'utf-8', None, None)
    """
    label = label.strip(" \"'").lower()
    if label.startswith("utf-16"):
        return label
    try:
        info = codecs.lookup(label)
    except (LookupError, ValueError):  # a NUL in the label
        return None
    if not info._is_text_encoding:
        return None
    from resiliparse.parse.encoding import map_encoding_to_html5

    mapped: str | None = map_encoding_to_html5(label)
    # Labels that HTML does not know are mapped to UTF-8.
    return mapped if mapped != "utf-8" or info.name == "utf-8" else info.name
