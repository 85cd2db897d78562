"""Small web archives: records, responses, and files of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

TEXTS = {
    "en": ("The river was quiet in the morning, and two people stood on the bridge.", "utf-8"),
    "de": ("Über den Fluss führt eine Straße, und größere Brücken gibt es hier nicht.", "iso-8859-1"),
    "fr": ("L'été dernier, la rivière était déjà très basse à cet endroit.", "windows-1252"),
    "ru": ("Утром река была спокойна, и два человека стояли на мосту.", "windows-1251"),
    "ja": ("朝の川は静かで、橋の上に二人の人が立っていました。", "shift_jis"),
}
"""Language -> a sentence, and a charset in which such pages were written."""


def record(kind: str, block: bytes, url: str = "", payload: bytes | None = None, **more: str) -> bytes:
    """Return a record; names of further fields have _ for -."""
    digest = base64.b32encode(hashlib.sha1(block if payload is None else payload).digest()).decode()
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{uuid5(NAMESPACE_URL, kind + url)}>",
        "WARC-Date": "2025-09-01T10:00:00Z",
        **({"WARC-Target-URI": url, "WARC-Payload-Digest": f"sha1:{digest}"} if url else {}),
        "Content-Length": str(len(block)),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"WARC/1.0\r\n{head}\r\n".encode() + block + b"\r\n\r\n"


def response(
    url: str, body: bytes, mime: str = "text/html", status: str = "200 OK", http: Sequence[str] = (), **more: str
) -> bytes:
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {mime}"] if mime else []), *http]
    more = {"Content-Type": "application/http; msgtype=response", **more}
    return record("response", "\r\n".join([*lines, "", ""]).encode() + body, url, body, **more)


def html(text: str, language: str = "en", charset: str = "utf-8", title: str = "A page") -> bytes:
    """Return a page with a menu, the text as an article of three paragraphs, and a footer."""
    paragraphs = "\n".join(f"<p>{text} {text}</p>" for _ in range(3))
    page = f"""<!DOCTYPE html><html lang="{language}"><head><title>{title}</title><script>var x = 1;</script></head>
<body><nav><ul><li><a href="/">Home</a></li><li><a href="/all">All</a></li></ul></nav>
<main><article><h1>{title}</h1>{paragraphs}</article></main><footer><p>Footer</p></footer></body></html>"""
    return page.encode(charset, "xmlcharrefreplace")


def pages(count: int, site: str = "a") -> list[bytes]:
    """Return the records of `count` pages in all languages, each in the charset of its language or in UTF-8."""
    found = [record("warcinfo", b"software: tests\r\n")]
    for k in range(count):
        language = list(TEXTS)[k % len(TEXTS)]
        text, charset = TEXTS[language]
        charset = "utf-8" if k % 3 == 0 else charset
        url = f"https://www.{site}.example/{language}/{k}"
        found.append(record("request", b"GET / HTTP/1.1\r\n\r\n", url))
        body = html(f"{text} ({k})", language, charset, f"{k}. {text[:12]}")
        found.append(response(url, body, f"text/html; charset={charset}"))
    return found


def archive(path: Path, records: Iterable[bytes], whole: bool = False) -> Path:
    """Write an archive: plain or gzip by its name, each record a member, or all of them one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".gz":
        path.write_bytes(b"".join(records))
    elif whole:
        path.write_bytes(gzip.compress(b"".join(records), mtime=0))
    else:
        path.write_bytes(b"".join(gzip.compress(one, mtime=0) for one in records))
    return path
