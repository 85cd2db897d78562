"""Pages of records: what is read, how it is decoded, and what is left out."""

from __future__ import annotations

import gzip

import pytest

from feedmill.documents.warc.pages import Page, PageFilter, decode, read_pages
from feedmill.documents.warc.records import Fault, Record
from helpers.durations import needs
from helpers.web_archives import TEXTS, html, record, response

needs("fastwarc")


def one(data: bytes, **wanted: object) -> Page | Fault:
    (found,) = read_pages([Record(3, 70, 90, data)], PageFilter(**wanted))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("how", ["header", "meta", "neither"])
def test_pages_are_decoded_by_what_they_say_or_by_what_they_are(language: str, how: str) -> None:
    text, charset = TEXTS[language]
    body = html(text * 4, language, charset)
    if how == "meta":
        body = body.replace(b"<head>", b'<head><meta charset="%s">' % charset.encode())
    mime = f"text/html; charset={charset}" if how == "header" else "text/html"
    page = one(response("http://a.example/", body, mime))
    assert isinstance(page, Page)
    if how != "neither" or charset in ("utf-8", "shift_jis", "windows-1251"):  # the detection may err on short pages
        assert text in page.text
    assert (page.number, page.offset, page.url, page.status, page.mime) == (
        3,
        70,
        "http://a.example/",
        200,
        "text/html",
    )
    assert page.date == "2025-09-01T10:00:00Z" and len(page.id) == 36


@pytest.mark.parametrize(
    ("content", "declared", "text", "charset"),
    [
        (b"\xef\xbb\xbfa\xc3\xa9", "latin-1", "aé", "utf-8"),
        ("aé".encode("utf-16"), None, "aé", "utf-16"),
        (b"caf\xe9", '"ISO-8859-1"', "café", "cp1252"),
        ("café".encode(), "klingon", "café", "utf-8"),
        ("café".encode(), "base64", "café", "utf-8"),
        ("café".encode(), "us-ascii", "café", "utf-8"),
        (b'<?xml version="1.0" encoding="koi8-r"?>' + "да".encode("koi8-r"), None, None, "koi8-r"),
    ],
)
def test_charsets(content: bytes, declared: str | None, text: str | None, charset: str) -> None:
    found = decode(content, declared)
    assert found[1].replace("_", "-") == charset and (text is None or found[0] == text)


def test_invalid_bytes_do_not_lose_a_page() -> None:
    text, charset = decode(("Ein schöner Tag. " * 200).encode() + b"\xc3", "utf-8")
    assert charset == "utf-8" and text.startswith("Ein schöner Tag.") and text.endswith("\ufffd")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (response("http://a/", html("x"), status="404 Not Found"), "HTTP status 404"),
        (response("http://a/", b"%PDF", "application/pdf"), "type application/pdf"),
        (response("http://a/", b"plain", ""), "no type, and it does not begin like HTML"),
        (response("http://a/", b"  \n "), "an empty page"),
        (response("http://a/", b"x" * 5000), "the page is larger than 4,000 bytes"),
        (response("http://a/", gzip.compress(b"x" * 5000), http=["Content-Encoding: gzip"]), "larger than 4,000"),
        (response("http://a/", gzip.compress(b"xyz" * 9)[:-9], http=["Content-Encoding: gzip"]), ""),
        (record("response", b"no HTTP at all", "http://a/"), "the response is not HTTP"),
    ],
)
def test_what_is_no_page_is_left_out_with_the_reason(data: bytes, what: str) -> None:
    found = one(data, largest=4000)
    if what:
        assert isinstance(found, Fault) and what in found.what and found.url == "http://a/" and found.offset == 70


def test_transfer_and_content_encodings_are_undone() -> None:
    body = html("A text that was packed.")
    packed = gzip.compress(body)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)
    both = ["Transfer-Encoding: chunked", "Content-Encoding: gzip"]
    for data, http in ((packed, both[1:]), (chunked, both), (body, both[1:])):  # the last was unpacked by the crawler
        page = one(response("http://a/", data, http=http))
        assert isinstance(page, Page) and "A text that was packed." in page.text, http


def test_resources_and_the_text_of_wet_files() -> None:
    page = one(record("resource", html("Resource."), "http://a/", Content_Type="text/html"))
    assert isinstance(page, Page) and page.status is None and "Resource." in page.text and not page.is_text
    page = one(record("conversion", "Été\n".encode(), "http://a/", Content_Type="text/plain"))
    assert isinstance(page, Page) and page.is_text and page.text == "Été\n"


def test_statuses_and_types_can_be_chosen() -> None:
    data = response("http://a/", b"some text", "text/plain", status="203 Other")
    assert isinstance(one(data, statuses=(203,), mimes=("text/plain",)), Page)
    assert isinstance(one(data, statuses=(), mimes=()), Page)
    typed = response("http://a/", html("x"), "", WARC_Identified_Payload_Type="application/xhtml+xml")
    page = one(typed)
    assert isinstance(page, Page) and page.mime == "application/xhtml+xml"
