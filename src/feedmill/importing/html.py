"""The text of HTML pages.

Blocks (paragraphs, headings, list items, table rows) become lines, white space within them becomes single spaces, and
``<pre>`` keeps its lines. Scripts, styles and other content that browsers do not show are dropped; navigation and other
boilerplate is kept: filters remove it later. Uses Python's own parser, which accepts broken markup and runs nothing.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "math", "iframe", "object", "head"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "caption", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "legend", "li"),
        *("main", "nav", "ol", "option", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr"),
        "ul",
    )
)
_CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"\s+")
_BLANK = re.compile(r"\n{3,}")
_PARAGRAPHS = frozenset(("p", "pre", "blockquote", "table", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6"))


def html_text(page: str) -> tuple[str, str | None]:
    """Return the shown text of a page, and its title if it has one.

    >>> html_text("<title>A page</title><p>One <b>bold</b> word.<p>Two")
    ('One bold word.\\n\\nTwo', 'A page')
    """
    parser = _Text()
    parser.feed(page)
    parser.close()
    text = _BLANK.sub("\n\n", "\n".join(line.rstrip() for line in "".join(parser.out).split("\n"))).strip()
    title = _SPACE.sub(" ", "".join(parser.title)).strip()
    return text, title or None


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self.title: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag == "body":
            self._hidden.clear()  # an unclosed <head>
        elif tag == "title" and not self.title:
            self._in_title = True
        elif tag in _HIDDEN:
            self._hidden.append(tag)
        elif self._hidden == ["head"] and tag in _BLOCKS:
            self._hidden.clear()  # content ends a head without an end tag
            self._break(tag)
        elif tag in _BLOCKS:
            self._break(tag)
        elif tag in _CELLS:
            self.out.append("\t" if self._is_inside_line else "")
        if tag == "pre":
            self._pre += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _HIDDEN:  # <script/> is not closed in HTML, but is in XHTML
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag in _BLOCKS:
            self._break(tag)
        if tag == "pre":
            self._pre = max(0, self._pre - 1)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            text = data if self._pre else _SPACE.sub(" ", data)
            if not self._pre and not self._is_inside_line:
                text = text.lstrip()
            if text:
                self.out.append(text)

    @property
    def _is_inside_line(self) -> bool:
        return bool(self.out) and not self.out[-1].endswith(("\n", " ", "\t"))

    def _break(self, tag: str) -> None:
        if self.out:
            self.out.append("\n\n" if tag in _PARAGRAPHS else "" if self.out[-1].endswith("\n") else "\n")
