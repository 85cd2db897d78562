"""Text of data for pages: escaped, cut, and with every invisible character made visible."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup  # of the extra web, which cards do without

MOST, LONGEST_LINE = 2_000, 4_000
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control and format characters: bidirectional overrides, zero-width characters, tags, lone surrogates."""


def marked(text: str) -> Markup:
    """Return text as HTML whose hidden characters are shown as boxes with their code."""
    from markupsafe import Markup, escape

    if _HIDDEN.search(text) is None:
        return escape(text)
    parts, last = [], 0
    for found in _HIDDEN.finditer(text):
        parts += [escape(text[last : found.start()]), _mark(found[0])]
        last = found.end()
    return Markup("").join([*parts, escape(text[last:])])


def visible(value: Any) -> Any:
    """Return a text for attributes and labels, with hidden characters as their code in brackets; others unchanged."""
    if type(value) is not str:  # markup has its own marks
        return value
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", value)


def cut(text: str, most: int = MOST, line: int = LONGEST_LINE) -> tuple[str, int]:
    """Return at most `most` characters, with lines of at most `line`, and the number of characters left out."""
    kept = text[:most]
    if len(kept) > line:
        rows = kept.split("\n")
        kept = "\n".join(row[:line] for row in rows)
    return kept, len(text) - len(kept)


def one_line(text: str, most: int = 160) -> str:
    """Return the beginning of a text as one line."""
    return " ".join(text[: 4 * most].split())[:most]


def _mark(character: str) -> Markup:
    from markupsafe import Markup

    code = f"U+{ord(character):04X}"
    name = unicodedata.name(character, "control character").lower()
    return Markup('<span class="hidden-mark" title="{}">{}</span>').format(name, code)
