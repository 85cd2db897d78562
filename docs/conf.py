"""The site of the documentation: ``make docs`` builds it with Sphinx, and a warning is an error.

Pages are Markdown that also reads well where the repository is browsed, so they have no directives: `navigation.yaml`
has the order of the pages, and this file adds it to ``index.md`` while the site is built.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import feedmill

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from pages import llms, navigation  # noqa: E402

project = "Feedmill"
author = copyright = "Feedmill developers"
release = version = feedmill.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["diagrams", "notebooks", "schemas"]
html_theme = "furo"
html_title = "Feedmill"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["schemas/recipe.json", "schemas/filter.json"]
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 6  # of every heading, as links between pages have them
suppress_warnings = ["myst.header"]

default_role = "literal"  # docstrings are written as Markdown: `name`
autodoc_typehints = "none"  # signatures show them as the source has them
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def prepare(_: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the first page, and adapt links: pages are named by their titles, others are downloads."""
    text = re.sub(r"\]\(((?:\.\./)+[^)#]*(?:README|CHANGELOG)\.md)\)", r"](<path:\1>)", source[0])
    text = re.sub(r"\[[\w./ ]+\.md\]\(([^)<]+)\)", r"[](\1)", text)
    if name == "index":
        for title, pages in navigation().items():
            text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])
    source[0] = text


def quote_patterns(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Make literals of quoted patterns of files: a star in them is not emphasis."""
    lines[:] = [re.sub(r"'([^'`]*\*[^'`]*)'", r"``\1``", line) for line in lines]


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Write ``llms.txt`` at the root of the site."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "llms.txt").write_text(llms(), encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", quote_patterns, priority=100)  # before napoleon
    app.add_lexer("output", TextLexer)
    app.connect("source-read", prepare)
    app.connect("build-finished", write_llms)
