"""Linearizers: from the HTML of a page to its text, each by a package of its own.

The text is what the package returns for these options. They are Dolma's, except that Trafilatura keeps tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import version

from feedmill.curation.options import LinearizerName
from feedmill.errors import ConfigError, MissingExtra

Linearizer = Callable[[str], str]
RESILIPARSE: LinearizerName = "resiliparse"
TRAFILATURA: LinearizerName = "trafilatura"
NAMES = (RESILIPARSE, TRAFILATURA)
_EXTRA = "curation"
_FLUSH = 10_000
"""Pages after which Trafilatura's caches are emptied: they grow."""


def check_name(name: str) -> None:
    """Raise `ConfigError` unless there is a linearizer of this name."""
    if name not in NAMES:
        raise ConfigError(f"unknown linearizer {name!r}", kind="bad-option", fix=f"Use {' or '.join(NAMES)}.")


def release(name: str) -> str:
    """Return the version of the package of a linearizer. Raises `MissingExtra`."""
    linearizer(name)
    return version(name)


def linearizer(name: str, dolma: bool = False) -> Linearizer:
    """Return a function from the HTML of a page to its text, empty if there is none.

    Args:
        name: one of `NAMES`.
        dolma: use Dolma's options.

    Raises:
        MissingExtra: the package is not installed.
    """
    return _resiliparse() if name == RESILIPARSE else _trafilatura(tables=not dolma)


def prepare(name: str) -> None:
    """Make a linearizer faster in a process that does nothing else. The text is the same.

    lxml calls a function of Python for the class of each element, to find the classes of forms. Trafilatura uses none
    of them, so all elements get the base class, for which lxml calls nothing.
    """
    if name != TRAFILATURA:
        return
    from lxml import etree, html
    from trafilatura.utils import HTML_PARSER

    classes = etree.ElementDefaultClassLookup(
        element=html.HtmlElement, comment=html.HtmlComment, pi=html.HtmlProcessingInstruction, entity=html.HtmlEntity
    )
    for parser in (HTML_PARSER, html.html_parser):
        parser.set_element_class_lookup(classes)


@cache
def _resiliparse() -> Linearizer:
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.html import HTMLTree
    except ImportError:
        raise MissingExtra("this linearizer needs the package resiliparse", _EXTRA) from None

    def linearize(html: str) -> str:
        text: str = extract_plain_text(
            HTMLTree.parse(html),
            preserve_formatting=True,
            main_content=True,
            list_bullets=True,
            alt_texts=False,
            links=False,
            form_fields=False,
            noscript=False,
            comments=True,
            skip_elements=None,
        )
        return text

    return linearize


@cache
def _trafilatura(tables: bool) -> Linearizer:
    try:
        import trafilatura
        from trafilatura.meta import reset_caches
        from trafilatura.settings import Extractor
    except ImportError:
        raise MissingExtra("this linearizer needs the package trafilatura", _EXTRA) from None
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it logs each page without text
    options = Extractor(output_format="txt", comments=False, tables=tables)
    count = 0

    def linearize(html: str) -> str:
        nonlocal count
        count += 1
        if count % _FLUSH == 0:
            reset_caches()
        return trafilatura.extract(html, options=options) or ""

    return linearize
