"""Filters of StarCoder's training data (Li et al. 2023, https://arxiv.org/abs/2305.06161): stars, comments, HTML.

``metadata.ext`` gives the language. Python comments are found by Python's own tokenizer and parser, which run no code;
comments of other languages by Pygments; the text of HTML pages by BeautifulSoup.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
import warnings
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from feedmill.curation.documents import Batch, RowWithMetadata
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.errors import MissingExtra

_COMMENTED = ("python", "java", "javascript")
_ENOUGH = 100  # an HTML page must show more characters of text than this
_NEUTRAL, _UNKNOWN = 0.5, -1.0
_DOCUMENTED = {ast.ClassDef: "class", ast.FunctionDef: "function", ast.Module: "module"}


@cache
def languages() -> dict[str, str]:
    """Return the language of each file name extension, by Linguist's name in lower case."""
    text = files("feedmill.curation").joinpath("data/languages.txt").read_text("utf-8")
    return {ending: name for name, *endings in map(str.split, text.splitlines()) for ending in endings}


def comment_share(text: str, language: str) -> float:
    """Return the share of characters in comments; for Python, docstrings count too and ``#`` does not.

    Raises:
        ValueError: Pygments does not know the language.
        ZeroDivisionError: The text is empty.
    """
    if language == "python":
        return len(_python_comments(text)) / len(text)
    from pygments import lex
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment

    lexer = get_lexer_by_name(language)
    kinds = (Comment.Multiline, Comment.Single)
    return sum(len(piece) for kind, piece in lex(text, lexer) if kind in kinds) / len(text)


def _python_comments(text: str) -> str:
    docstrings: list[tuple[str, str, str]] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        for node in ast.walk(tree):
            if type(node) in _DOCUMENTED:
                found = ast.get_docstring(node, clean=False)  # type: ignore[arg-type]
                if found and (found := inspect.cleandoc(found)):
                    docstrings.append((_DOCUMENTED[type(node)], getattr(node, "name", ""), found))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        docstrings = []
    try:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = "".join(token.string for token in tokens if token.type == tokenize.COMMENT).replace("#", "")
    except (tokenize.TokenError, SyntaxError, ValueError):  # IndentationError is a SyntaxError
        comments = ""
    docstrings.sort(key=lambda entry: entry[:2])
    return ("\n".join(found for _, _, found in docstrings) + "\n" + comments).strip()


def shown_share(html: str) -> float:
    """Return the share of characters that a page shows, or 0 if it shows 100 or fewer."""
    from bs4 import BeautifulSoup

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page = BeautifulSoup(html, features="html.parser")
    for hidden in page(["script", "style"]):
        hidden.extract()
    text = page.get_text()
    return len(text) / len(html) * (len(text) > _ENOUGH)


class _Starcoder:
    metadata = True
    comments = ""

    def __init__(self) -> None:
        try:
            import bs4
            import pygments
        except ImportError:
            raise MissingExtra("comments and HTML need the packages pygments and beautifulsoup4", "curation") from None
        del bs4, pygments

    def ratios(self, text: str, language: str | None) -> tuple[float, float]:
        """Return the share of comments, and of HTML the share that is shown. `language` None: unknown."""
        raise NotImplementedError

    def tag(self, batch: Batch) -> Spans:
        ratios = np.zeros((len(batch), 2))
        stars = np.zeros(len(batch))
        for k, row in enumerate(batch.rows):
            metadata: dict[str, Any] = (row.metadata if isinstance(row, RowWithMetadata) else None) or {}
            ending = metadata.get("ext", "-no-lang")
            language = languages().get(ending) if isinstance(ending, str) else None
            ratios[k] = self.ratios(row.text, language)
            stars[k] = _float_or_zero(metadata.get("max_stars_count"))
        return Spans.of_documents(
            batch.lengths,
            has_xml_template_doc=["<?xml version=" in text[:100] for text in batch.texts],
            num_github_stars_doc=stars,
            **{self.comments: ratios[:, 0]},
            code_to_text_ratio_html_doc=ratios[:, 1],
        )


def _float_or_zero(value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError, OverflowError):
        return 0.0


@register("code_starcoder_taggers_v1")
class StarcoderV1(_Starcoder):
    """Comments of all languages and shown text of HTML; both are -1 if the language is unknown or parsing fails."""

    comments = "nl_ratio_doc"

    def ratios(self, text: str, language: str | None) -> tuple[float, float]:
        if language is None:
            return _UNKNOWN, _UNKNOWN
        try:
            return comment_share(text, language), shown_share(text) if language == "html" else 1.0
        except Exception:  # parsers raise many kinds of errors on arbitrary text
            return _UNKNOWN, _UNKNOWN


@register("code_starcoder_taggers_v2")
class StarcoderV2(_Starcoder):
    """Comments of Python, Java and JavaScript, 0.5 for all other languages; shown text of HTML."""

    comments = "code_to_comment_ratio_doc"

    def ratios(self, text: str, language: str | None) -> tuple[float, float]:
        share, shown = _NEUTRAL, 1.0
        if language in _COMMENTED:
            share = comment_share(text, language) if text else _NEUTRAL  # Dolma stops at an empty file
        if language == "html":
            try:
                shown = shown_share(text)
            except Exception:  # as above
                shown = _UNKNOWN
        return share, shown
