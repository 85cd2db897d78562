"""Links to Creative Commons licences in the HTML that a document was made from (``metadata.html``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from feedmill.curation.documents import Batch, RowWithMetadata
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.errors import DataError

_PLACES = ("creativecommons.org/licenses", "creativecommons.org/publicdomain")
_LINK = r"""<(?:[aA]|meta)\s[\w\p{P}\s=]*(?:href|HREF|content)=(?:['"]|&quot;)?"""
_LICENCE = r"licenses/(?P<licence>by(?:-nc)?(?:-nd)?(?:-sa)?)|(?P<domain>publicdomain/(?:zero|certification|mark))"
_REST = r"(?:(?:/\w{2})?/(?:(?:deed|legalcode)\.)?(?P<language>\w{2}))?"
_END = r"""(?-s:.)*?(?:['"]|&quot;)(?-s:.)*?>"""
_FAST = r"""https?://creativecommons\.org/licenses/(?P<licence>by(?:-sa|-nd|-nc(?:-sa|-nd)?)?|publicdomain)["/ >]"""


@cache
def _patterns() -> tuple[Any, Any]:
    import regex

    careful = rf"{_LINK}https*://creativecommons\.org/(?:{_LICENCE})(?P<version>/\d+\.\d+)?{_REST}{_END}"
    return regex.compile(careful), regex.compile(_FAST)


@register("cc_re", metadata=True)
def cc_re(batch: Batch) -> Spans:
    """Type, version and language of each licence linked from a link or meta element."""
    return _licences(batch, _careful)


@register("cc_re_fast", metadata=True)
def cc_re_fast(batch: Batch) -> Spans:
    """Return the type of each licence whose address stands anywhere."""
    return _licences(batch, lambda html: (match["licence"] for match in _patterns()[1].finditer(html)))


def _careful(html: str) -> Iterator[str]:
    for match in _patterns()[0].finditer(html):
        parts = (match["licence"] or match["domain"], (match["version"] or "").strip("/"), match["language"])
        yield "_".join(part for part in parts if part)


def _licences(batch: Batch, find: Any) -> Spans:
    """One span over the document for each: the more there are, the less each one counts."""
    kinds: dict[str, int] = {}
    found: list[list[tuple[int, int, int, float]]] = []
    for k, row in enumerate(batch.rows):
        html = _html(row, batch.place(k))
        names = find(html) if any(place in html for place in _PLACES) else ()
        length = len(row.text)
        found.append(
            [
                (kinds.setdefault(f"cc_{name}", len(kinds)), 0, length, 0.5 + 0.5 / number)
                for number, name in enumerate(names, 1)
            ]
        )
    return Spans.of_lists(tuple(kinds), found) if kinds else Spans.none(("cc",))


def _html(row: Any, place: str) -> str:
    metadata = row.metadata if isinstance(row, RowWithMetadata) else None
    html = (metadata or {}).get("html")
    if not isinstance(html, str):
        raise DataError(
            "this document has no text 'html' in its metadata, where licences are looked for",
            record=place,
            kind="no-html",
            fix="Leave out 'cc_re' and 'cc_re_fast' for documents that did not come from web pages.",
        )
    return html
