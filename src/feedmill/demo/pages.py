"""Render documents as page images: a WebDataset of images and text. The same documents give the same bytes."""

from __future__ import annotations

import io
import tarfile
import textwrap
from collections.abc import Sequence
from typing import Any

import orjson

from feedmill.demo.corpus import Document
from feedmill.errors import MissingExtra
from feedmill.storage import Store

WIDTH, HEIGHT = 400, 520
_MARGIN, _LINE, _COLUMNS = 22, 13, 74
_LINES = (HEIGHT - 2 * _MARGIN - 30) // _LINE


class PageWriter:
    """Renderer of pages with Pillow's own font, so that no font must be installed.

    Raises:
        MissingExtra: Pillow is not installed.
    """

    def __init__(self) -> None:
        try:
            from PIL import ImageFont
        except ImportError:
            raise MissingExtra("rendering pages needs Pillow", extra="media") from None
        self._title_font: Any = ImageFont.load_default(15)
        self._text_font: Any = ImageFont.load_default(10)

    def render(self, title: str, lines: Sequence[str]) -> bytes:
        """Return a white page with a title, a rule and lines of text, as JPEG."""
        from PIL import Image, ImageDraw

        page = Image.new("L", (WIDTH, HEIGHT), 255)
        draw = ImageDraw.Draw(page)
        draw.text((_MARGIN, _MARGIN - 4), title[:46], fill=0, font=self._title_font)
        draw.line((_MARGIN, _MARGIN + 18, WIDTH - _MARGIN, _MARGIN + 18), fill=120)
        for number, line in enumerate(lines):
            draw.text((_MARGIN, _MARGIN + 28 + number * _LINE), line, fill=30, font=self._text_font)
        file = io.BytesIO()
        page.convert("RGB").save(file, "JPEG", quality=80)
        return file.getvalue()


def page_lines(text: str) -> list[str]:
    """Return the wrapped lines of `text` that fit on one page; line breaks are kept."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        indent = " " * min(len(paragraph) - len(paragraph.lstrip()), 16)
        lines += textwrap.wrap(paragraph, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [""]
        if len(lines) >= _LINES:
            break
    return lines[:_LINES]


def write_pages(store: Store, documents: Sequence[Document], *, shards: int) -> None:
    """Write one page per document to `shards` tar files with equally many pages (up to one).

    Members are ``page-000042.jpg`` and ``page-000042.json``: ``{"id", "title", "text"}``, where the text is that of the
    page.
    """
    writer = PageWriter()
    for shard in range(shards):
        first, stop = len(documents) * shard // shards, len(documents) * (shard + 1) // shards
        name = f"pages-{shard:06d}.tar"
        with store.write(name) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(first, stop):
                document = documents[number]
                lines = page_lines(document.text)
                about = {"id": document.id, "title": document.title, "text": "\n".join(lines)}
                add_member(tar, f"page-{number:06d}.jpg", writer.render(document.title, lines))
                add_member(tar, f"page-{number:06d}.json", orjson.dumps(about))


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append a file to a tar."""
    # A new TarInfo has time, owner and group 0, so the shard does not depend on this machine.
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
