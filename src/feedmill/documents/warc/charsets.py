"""Decode the bytes of a page: by its byte order mark, its HTTP header, its own declaration, or by detection."""

from __future__ import annotations

import codecs
import re

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(rb"""<(?:meta\s[^>]*?charset|\?xml\s[^>]*?encoding)\s*=\s*["']?\s*([\w.:-]{2,40})""", re.I)
_DECLARATION = 4096
"""First bytes of a page in which its declaration is looked for; HTML allows 1024."""


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
    found = _DECLARED.search(content[:_DECLARATION])
    own = found[1].decode("ascii", "replace") if found is not None else None
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
