"""The site of the documentation: ``make docs`` builds it with Sphinx, and a warning is an error.

Pages are Markdown that also reads well where the repository is browsed, so they have no directives: `navigation.yaml`
has the order of the pages, and this file adds it to ``index.md`` while the site is built.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import feedmill

HERE = Path(__file__).parent

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


def navigation() -> dict[str, list[str]]:
    """Return the pages of each section; a pattern stands for the pages that fit it, by name."""
    sections = yaml.safe_load((HERE / "navigation.yaml").read_text())
    return {
        title: sorted(str(path.relative_to(HERE).with_suffix("")) for path in HERE.glob(pages) if path.suffix != ".py")
        if isinstance(pages, str)
        else pages
        for title, pages in sections.items()
    }


def prepare(_: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the first page, and adapt links: pages are named by their titles, others are downloads."""
    text = re.sub(r"\]\(((?:\.\./)+[^)#]*(?:README|CHANGELOG)\.md)\)", r"](<path:\1>)", source[0])
    text = re.sub(r"\[[\w./ ]+\.md\]\(([^)<]+)\)", r"[](\1)", text)
    if name == "index":
        for title, pages in navigation().items():
            text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])
    source[0] = text


def quote_patterns(_: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Make patterns such as '**/*.gz' in a docstring literals: help texts have them in quotes."""
    lines[:] = [re.sub(r"'([^'`]*\*[^'`]*)'", r"``\1``", line) for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", quote_patterns, priority=100)  # before napoleon
    app.add_lexer("output", TextLexer)
    app.connect("source-read", prepare)
