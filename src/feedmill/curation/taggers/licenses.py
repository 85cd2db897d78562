"""Links to Creative Commons licenses in the HTML that a document was extracted from (``metadata.html``)."""

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
_LICENSE = r"licenses/(?P<license>by(?:-nc)?(?:-nd)?(?:-sa)?)|(?P<domain>publicdomain/(?:zero|certification|mark))"
_REST = r"(?:(?:/\w{2})?/(?:(?:deed|legalcode)\.)?(?P<language>\w{2}))?"
_END = r"""(?-s:.)*?(?:['"]|&quot;)(?-s:.)*?>"""
_FAST = r"""https?://creativecommons\.org/licenses/(?P<license>by(?:-sa|-nd|-nc(?:-sa|-nd)?)?|publicdomain)["/ >]"""


@cache
def _patterns() -> tuple[Any, Any]:
    import regex

    careful = rf"{_LINK}https*://creativecommons\.org/(?:{_LICENSE})(?P<version>/\d+\.\d+)?{_REST}{_END}"
    return regex.compile(careful), regex.compile(_FAST)


@register("cc_re", metadata=True)
def cc_re(batch: Batch) -> Spans:
    """Tag each license linked from an ``a`` or ``meta`` element with its type, version and language."""
    return _licenses(batch, _careful)


@register("cc_re_fast", metadata=True)
def cc_re_fast(batch: Batch) -> Spans:
    """Tag each license whose URL occurs anywhere in the HTML with its type."""
    return _licenses(batch, lambda html: (match["license"] for match in _patterns()[1].finditer(html)))


def _careful(html: str) -> Iterator[str]:
    for match in _patterns()[0].finditer(html):
        parts = (match["license"] or match["domain"], (match["version"] or "").strip("/"), match["language"])
        yield "_".join(part for part in parts if part)


def _licenses(batch: Batch, find: Any) -> Spans:
    """Return one span over the document per license; number i scores ``0.5 + 0.5 / i``."""
    kinds: dict[str, int] = {}
    by_document: list[list[tuple[int, int, int, float]]] = []
    for k, row in enumerate(batch.rows):
        html = _html(row, batch.place(k))
        names = find(html) if any(place in html for place in _PLACES) else ()
        length = len(row.text)
        by_document.append(
            [
                (kinds.setdefault(f"cc_{name}", len(kinds)), 0, length, 0.5 + 0.5 / number)
                for number, name in enumerate(names, 1)
            ]
        )
    return Spans.of_lists(tuple(kinds), by_document) if kinds else Spans.none(("cc",))


def _html(row: Any, place: str) -> str:
    metadata = row.metadata if isinstance(row, RowWithMetadata) else None
    html = (metadata or {}).get("html")
    if not isinstance(html, str):
        raise DataError(
            "this document has no string 'html' in its metadata: the license taggers search there for links",
            record=place,
            kind="bad-document",
            fix="Remove 'cc_re' and 'cc_re_fast' for documents that did not come from web pages.",
        )
    return html
