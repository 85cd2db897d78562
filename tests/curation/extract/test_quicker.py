"""Trafilatura made quicker: the same elements, the same texts, and what is left out."""

from __future__ import annotations

import math
import random
import re
import sys
from functools import partial
from typing import Any

import pytest

pytest.importorskip("trafilatura")

import trafilatura
from lxml import etree, html
from trafilatura import settings, xpaths
from trafilatura.external import try_readability
from trafilatura.utils import load_html, trim

from feedmill.curation.extract import quicker
from feedmill.curation.extract.linearizers import linearizer, prepare
from feedmill.curation.extract.xpaths import Remembered, remembered
from feedmill.jobs.sandbox import Sandbox

EXPRESSIONS = [
    settings.BASIC_CLEAN_XPATH,
    *(one for many in vars(xpaths).values() if isinstance(many, list) for one in many),
]
TAGS = [
    "a",
    "b",
    "p",
    "h1",
    "h2",
    "ul",
    "ol",
    "li",
    "tr",
    "td",
    "div",
    "span",
    "main",
    "aside",
    "list",
    "item",
    "quote",
]
TAGS += ["table", "section", "article", "header", "footer", "details"]
NAMES = ["id", "class", "role", "style", "itemprop", "rel", "data-x", "svg:k"]
FUNCTIONS = {"re": "http://exslt.org/regular-expressions"}


def _tree(dice: random.Random, size: int, path: str) -> Any:
    """Return a tree with much of what an expression looks for."""
    words = {"", "x", "true", "Über", "a b", "\u2028y"}
    for literal in re.findall(r"'([^']*)'", path):
        words.update(re.sub(r"\(\?.*?\)|[^\w -]|\\d", "", one) for one in [literal, *literal.split("|")])
    names = sorted({*re.findall(r"@([\w-]+)", path), *dice.sample(NAMES, 2)})
    root = html.fromstring("<html><body></body></html>")
    elements = [root, root[0]]
    for _ in range(size):
        element = etree.SubElement(dice.choice(elements[-12:]), dice.choice(TAGS))
        for name in dice.sample(names, dice.choice([0, 1, 2, 3]) % (len(names) + 1)):
            value = dice.choice(["", " ", "-"]).join(dice.choices(sorted(words), k=dice.choice([1, 1, 2])))
            element.set(name, dice.choice([value, value, value.upper(), value.title()]))
        elements.append(element)
    root[0].append(etree.Comment("no"))
    return root


def test_an_expression_finds_what_it_does_in_lxml() -> None:
    ours = [mine for one in EXPRESSIONS if isinstance(mine := remembered(one), Remembered)]
    assert len(ours) >= 20
    dice = random.Random(1)
    for mine in ours:
        theirs, found = mine._expression, 0
        for size in [3, 40, 200, 200] * 4:
            tree = _tree(dice, size, theirs.path)
            assert mine(tree) == theirs(tree), theirs.path
            assert mine(tree[0]) == theirs(tree[0]), theirs.path
            found += len(theirs(tree))
        assert found, theirs.path


@pytest.mark.parametrize(
    ("path", "count"),
    [
        (".//p", 3),
        (".//*", 8),
        (".//p|.//b[@id]", 4),
        ("(.//p)[1]", 1),
        ("(.//p|.//b)[1]", 1),
        (".//*[self::p or self::b][@class][1]", 3),
        (".//*[not(@id or @class)]", 2),
        (".//*[@id='b' and (@class='x' or @class='y')]", 1),
        (".//*[re:test(@id|@class, '^b')]", 1),
        (".//*[starts-with(@class|@id, 'b')]", 1),
        (".//*[re:test(@class, 'LONG', 'i')]", 1),
        (".//*[contains(translate(@class, 'XYZ', 'xy'), 'xy')]", 1),
        (".//div[@class][p]", 1),  # the second predicate looks further
        (".//div[@class][2]", 0),
        (".//*[@class=''] | .//a", 2),
    ],
)
def test_expressions_that_are_remembered(path: str, count: int) -> None:
    tree = html.fromstring(
        '<section><div class="y" id="b"><p id="c" class="b">1</p><p class="long">2<b id=b class=XYZ>3</b></p></div>'
        "<div><p class=' '>4</p><i class=''>5</i></div><a>6</a><!--7--></section>"
    )
    theirs = etree.XPath(path, namespaces=FUNCTIONS)
    mine = Remembered(theirs)
    for _ in range(2):
        assert mine(tree) == theirs(tree) and len(theirs(tree)) == count


@pytest.mark.parametrize(
    "path",
    [
        "//p",
        "./p",
        ".//p/b",
        ".//p//b",
        ".//text()",
        ".//node()",
        "p",
        "(.//p)[2]",
        "(.//p)[1]|.//b",
        "count(.//p)",
        ".//@id",
        ".//x:p",
        ".//p[1]|.//b[1]|b",
    ],
)
def test_expressions_of_other_shapes_stay(path: str) -> None:
    expression = etree.XPath(path, namespaces={"x": "urn:x"})
    assert remembered(expression) is expression
    assert remembered(path) is path


@pytest.mark.parametrize(
    "predicate",
    [
        "position()=1",
        "last()",
        "@*",
        "@id=@class",
        "@id!='x'",
        "text()='1'",
        "self::node()",
        "self::*",
        "ancestor::p",
        "..",
        "p",
        "rel='me'",
        "not(p)",
        "@a:b",
        "string-length(@id)>1",
        "re:test(., 'x')",
        "re:test(@id, @class)",
        "re:test(@id, 'x', 'g')",
        "contains(@id, 'x')='true'",
        "@id[.='x']",
        "lang('en')",
        "'x'",
    ],
)
def test_a_predicate_that_looks_further_is_left_to_lxml(predicate: str) -> None:
    expression = etree.XPath(f".//p[@id][{predicate}]", namespaces={**FUNCTIONS, "a": "urn:a"})
    mine = Remembered(expression)
    assert not mine._shape.exact
    calls = list[Any]()
    mine._expression = lambda tree: calls.append(tree) or expression(tree)
    without, with_id = html.fromstring("<div><p>1</p></div>"), html.fromstring("<div><p id=x>1</p></div>")
    assert mine(without) == [] and not calls
    assert mine(with_id) == expression(with_id) and calls == [with_id]


def test_memory_for_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from feedmill.curation.extract import xpaths as ours

    monkeypatch.setattr(ours, "_MOST", 50)
    mine = Remembered(etree.XPath(".//*[contains(@class, 'x')]"))
    tree = html.fromstring(
        f"<div>{''.join(f'<p class=x{k}>1</p>' for k in range(120))}<b class={'x' * 501}>2</b></div>"
    )
    assert len(mine(tree)) == 121 == len(mine(tree))
    assert 0 < len(mine._answers) <= 50 and not any("x" * 501 in str(key) for key in mine._answers)


WORDS = [
    "river",
    "bridge",
    "morning",
    "people",
    "stood",
    "quiet",
    "water",
    "house",
    "table",
    "chair",
    "letter",
    "garden",
]
COMMON = [
    *["div", "div class=post-content", "div class=sidebar", "div class=comments", "section class='related'", "section"],
    *["article", "main", "header", "aside", "footer class=footer", "p class=teaser", "h2", "blockquote", "span", "b"],
    *["a href=/x", "br", "ul", "li", "table", "tr", "td"],
]
RARE = [
    *["iframe src=https://www.youtube.com/1", "iframe src=/2", "noscript", "noframes", "noembed", "xmp", "plaintext"],
    *["textarea", "select", "option", "form", "svg", "figure", "title", "script", "style", "pre", "code", "q", "hr"],
    *["div style='display:none'", "div id=cookie-bar", "details", "nav", "dl", "dd"],
]


def page(dice: random.Random) -> str:
    """Return a page of random pieces, in which any part of Trafilatura may have the last word."""
    rare, common = dice.choice([0, 0, 0.05, 0.2]), ["p"] * dice.choice([1, 30, 100]) + COMMON

    def text() -> str:
        if dice.random() < rare / 2:
            return dice.choice(["&lt;b&gt; &amp;amp;", "{", "\n \x0b", "x&#133;y&#28;", "\x0c", "&nbsp;&foo;"])
        words = dice.choices(WORDS, k=dice.choice([0, 1, 3, 12, 40, 90]))
        return " ".join(words).capitalize() + dice.choice([". ", ", ", ""])

    def pieces(depth: int, count: int) -> str:
        made = []
        for _ in range(count):
            piece = dice.choice(RARE if dice.random() < rare else common)
            inside = pieces(depth - 1, dice.randint(0, 4)) if depth else ""
            tail = text() if dice.random() < 0.2 else ""
            made.append(f"<{piece}>{text()}{inside}</{piece.split()[0]}>{tail}\n")
        return "".join(made)

    body = pieces(dice.randint(0, 3), dice.randint(1, 20))
    return f"<!DOCTYPE html><html><head><title>{text()}</title></head><body>{body}</body></html>"


def test_texts_are_those_of_trafilatura() -> None:
    dice = random.Random(7)
    pages = [page(dice) for _ in range(150)]
    wanted = [trafilatura.extract(one, include_comments=False) or "" for one in pages]
    assert len(set(wanted)) > 100
    with Sandbox(linearizer("trafilatura"), 60, partial(prepare, "trafilatura")) as sandbox:
        assert list(sandbox.map(pages)) == wanted
    without_tables = [trafilatura.extract(one, include_comments=False, include_tables=False) or "" for one in pages]
    with Sandbox(linearizer("trafilatura", dolma=True), 60, partial(prepare, "trafilatura")) as sandbox:
        assert list(sandbox.map(pages)) == without_tables != wanted


def test_no_text_is_longer_than_what_its_page_has() -> None:
    dice, bounded = random.Random(3), 0
    for _ in range(300):
        tree = load_html(page(dice))
        most = quicker._most_text(tree)
        if not math.isfinite(most):  # of the rare characters, some are errors for Trafilatura
            continue
        bounded += 1
        assert len(trafilatura.html2txt(tree)) <= most + 2 * quicker._count_elements(tree)
        assert len(trim(etree.tostring(try_readability(tree), method="text", encoding="unicode"))) <= most
    assert bounded > 150


@pytest.mark.parametrize(
    ("before", "after", "left_out"),
    [
        ("", "", (True, True)),
        ("<script>var x = 1;</script>" * 20, "<iframe src='/1'></iframe>", (True, True)),
        ("", "".join(f"<p>{word}</p>" for word in WORDS * 15), (False, True)),  # all of it may be readability's text
        ("", "".join(f"<p>{word}</p>" for word in WORDS * 99), (False, False)),  # much more than five times the text
        ("", "<xmp>&lt;b&gt;</xmp>", (False, False)),
        ("", "<p>a&#28;b</p>", (False, False)),
    ],
)
def test_steps_are_left_out_where_they_cannot_change_the_text(
    before: str, after: str, left_out: tuple[bool, bool]
) -> None:
    article = "".join(f"<p>{' '.join(WORDS)}</p>" for _ in range(6))
    page = f"<html><body>{before}<article>{article}</article><aside class='related'>{after}</aside></body></html>"
    with Sandbox(_left_out, 60, partial(prepare, "trafilatura")) as sandbox:
        assert list(sandbox.map([page])) == [(trafilatura.extract(page, include_comments=False), *left_out)]


def _left_out(page: str) -> tuple[str, bool, bool]:
    """Return the text of a page, and whether readability and the text of the page were left out."""
    core, external = sys.modules["trafilatura.core"], sys.modules["trafilatura.external"]
    steps, calls = core.html2txt.__self__, list[str]()
    page_text = steps._page_text
    steps._page_text = lambda tree: calls.append("text") or page_text(tree)
    text = linearizer("trafilatura")(page)
    return text, external.try_readability is quicker._no_readability, not calls


def test_another_version_keeps_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quicker, "_KNOWN", ("2.0.0",))
    with Sandbox(_functions, 60, partial(prepare, "trafilatura")) as sandbox:
        assert list(sandbox.map([""])) == [(["compare_extraction", "html2txt", "try_readability"], True)]


def _functions(_: str) -> tuple[list[str], bool]:
    core, external = sys.modules["trafilatura.core"], sys.modules["trafilatura.external"]
    names = [one.__qualname__ for one in (core.compare_extraction, core.html2txt, external.try_readability)]
    return names, isinstance(core.REMOVE_COMMENTS_AND_LISTS_XPATH[0], Remembered)
