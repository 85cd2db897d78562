"""Make Trafilatura quicker in a process that does nothing else, with the same texts.

Its XPath expressions are remembered (`xpaths`), whatever its version. For most pages, the outcome of two steps is
certain, because no text is longer than all the text of the page:

- readability's text replaces Trafilatura's own if it is more than twice as long, or the own one lacks paragraphs;
- the extraction is repeated if its text is less than a fifth of the page's.

These steps are left out where the page is too short for them. A new version may change them, so this is done for known
versions only.
"""

from __future__ import annotations

import math
import re
import sys
from importlib.metadata import version
from typing import Any, cast

from lxml import etree, html

from feedmill.curation.extract.xpaths import remembered

_KNOWN = ("2.3.1",)
"""Versions of Trafilatura whose steps are left out."""
_RAW = ("noembed", "noframes", "plaintext", "xmp")
"""Elements whose text grows when readability writes it as XML and reads it as HTML."""
_VIDEO = len("VIDEO")
"""Length of what readability writes into an ``iframe``."""
_UNCERTAIN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x85\ufffe\uffff]")
"""Characters that lxml does not set, at which steps fail, and white space that may become something else."""
_has_paragraphs = etree.XPath("boolean(.//p//text())")
_count_elements = etree.XPath("count(descendant-or-self::*)")


def make_quicker() -> None:
    """Replace expressions and functions of Trafilatura in this process."""
    import trafilatura  # noqa: F401

    names = ("baseline", "core", "external", "xpaths")  # in trafilatura, baseline is a function
    baseline, core, external, xpaths = (cast(Any, sys.modules[f"trafilatura.{name}"]) for name in names)
    for expressions in vars(xpaths).values():
        if isinstance(expressions, list):  # the other modules have the same lists
            expressions[:] = map(remembered, expressions)
    if hasattr(baseline, "BASIC_CLEAN_XPATH"):
        baseline.BASIC_CLEAN_XPATH = remembered(baseline.BASIC_CLEAN_XPATH)
    if version("trafilatura") in _KNOWN:
        _Steps(core, external)


class _Steps:
    """The steps that may be left out, in the place of Trafilatura's own."""

    def __init__(self, core: Any, external: Any) -> None:
        self._external, self._share = external, core.ESCALATION_PAGE_SHARE
        self._compare, self._page_text = core.compare_extraction, core.html2txt
        self._readability = external.try_readability
        self._is_enough = False
        """Whether the text that was compared last is enough for its page."""
        core.compare_extraction, core.html2txt = self.compare, self.page_text

    def compare(self, cleaned: Any, page: Any, body: Any, text: str, options: Any) -> tuple[Any, str]:
        """Compare a text with readability's, if that can be longer than twice the text."""
        self._is_enough = False
        most = elements = math.inf
        if options.focus == "balanced":
            elements, most = _count_elements(page), _most_text(page)
        is_certain = 0 < most <= 2 * len(text) and _is_sound(body)
        self._external.try_readability = _no_readability if is_certain else self._readability
        body, text = self._compare(cleaned, page, body, text, options)
        # the text of the page has two more spaces for each block; shorter texts may still be replaced
        enough = max(options.min_extracted_size, self._share * (most + 2 * elements))
        self._is_enough = len(text) >= enough
        return body, text

    def page_text(self, page: Any) -> str:
        """Return the text of a page, of which the length is wanted; nothing if that is short enough."""
        is_enough, self._is_enough = self._is_enough, False
        return "" if is_enough else self._page_text(page)


def _most_text(page: Any) -> float:
    """Return the number of characters that no text of a page exceeds; infinity if there is no certainty.

    Scripts and styles are no part of texts. The page stays as it is, because readability may need it.
    """
    text = etree.tostring(page, method="text", encoding="unicode")
    if _UNCERTAIN.search(text) or next(page.iter(*_RAW), None) is not None:
        return math.inf
    most = _length(text) + _VIDEO * sum(1 for _ in page.iter("iframe"))
    for element in page.iter("script", "style"):
        # without it, two words may begin where there was the middle of one
        most -= max(0, _length(element.text or "") - 2)
    return most


def _length(text: str) -> int:
    """Return the number of characters with one space between words."""
    return len(" ".join(text.split()))


def _is_sound(body: Any) -> bool:
    """Return whether a text is kept beside a longer one: it has paragraphs, and tables are not more than they."""
    return _has_paragraphs(body) and len(body.findall(".//table")) <= len(body.findall(".//p"))


def _no_readability(page: Any) -> Any:  # noqa: ARG001
    """Return what Trafilatura makes of a page in which readability finds nothing."""
    return html.HtmlElement()
