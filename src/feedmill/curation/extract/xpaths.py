"""XPath expressions about names and attributes of elements, evaluated in Python and remembered.

In lxml, `re:test` calls Python for each element every time, though the elements of pages have the same few
names and attributes again and again. A `Remembered` expression evaluates its predicates once for each combination of
them, and keeps the answers over pages. Only some expressions can be remembered: unions of ``.//name`` and ``.//*`` with
predicates, of which the first ones look at the name and the attributes of the element itself (`predicates`).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from lxml import etree

from feedmill.curation.extract.predicates import Reader, Test, all_of, any_of

_MOST = 50_000
"""Answers that an expression remembers."""
_LONGEST = 500
"""Characters of attributes in one that is remembered."""


class Remembered:
    """An XPath expression; called with an element, as `lxml.etree.XPath` is.

    Raises:
        ValueError: the expression cannot be remembered.
    """

    def __init__(self, expression: etree.XPath) -> None:
        self._expression = expression
        self._shape = shape_of(expression.path)
        self._answers: dict[tuple[Any, ...], bool] = {}

    def __repr__(self) -> str:
        return repr(self._expression)

    def __call__(self, tree: etree._Element) -> Any:
        """Return the elements below an element that the expression finds, in the order of the document."""
        shape, answers = self._shape, self._answers
        names, attributes = shape.names, shape.attributes
        found = []
        for element in tree.iterdescendants(*shape.tags):
            tag, items = element.tag, element.items()
            if items:
                items = [item for item in items if item[0] in attributes]
            key = (tag if tag in names else "", *items)
            answer = answers.get(key)
            if answer or (answer is None and self._answer(key)):
                found.append(element)
        if found and not shape.exact:
            return self._expression(tree)
        if shape.first == "each":
            firsts: dict[etree._Element | None, etree._Element] = {}
            for element in found:
                firsts.setdefault(element.getparent(), element)
            return list(firsts.values())
        return found[:1] if shape.first else found

    def _answer(self, key: tuple[Any, ...]) -> bool:
        attributes = dict(key[1:])
        answer = self._shape.test(key[0], attributes)
        if sum(map(len, attributes.values())) <= _LONGEST:
            if len(self._answers) >= _MOST:
                self._answers.clear()
            self._answers[key] = answer
        return answer


def remembered(expression: Any) -> Any:
    """Return an expression that finds the same, sooner if it can be remembered."""
    if not isinstance(expression, etree.XPath):
        return expression
    try:
        return Remembered(expression)
    except ValueError:
        return expression


class Shape(NamedTuple):
    """What an expression asks for.

    Attributes:
        test: what an element must pass.
        exact: whether it decides alone; if not, the expression may find fewer elements.
        first: ``"all"``: only the first element is found; ``"each"``: the first one below each parent; else every one.
        tags: names of the elements that can pass, or ``*``.
        names, attributes: those that the tests look at.
    """

    test: Test
    exact: bool
    first: str
    tags: tuple[str, ...]
    names: frozenset[str]
    attributes: frozenset[str]


def shape_of(path: str) -> Shape:
    """Return the shape of an expression. Raises `ValueError` if the expression cannot be remembered."""
    whole = re.fullmatch(r"\s*\((.*)\)\s*\[1\]\s*", path, re.DOTALL)
    first, exact = "all" if whole else "", True
    reader = Reader(whole[1] if whole else path)
    tests, tags = list[Test](), list[str]()
    while not tests or reader.take("|"):
        reader.need(".//")
        name, own, further = reader.next(), list[Test](), list[str]()
        if not re.fullmatch(r"\*|[\w-]+", name):
            raise ValueError(name)
        if name == "*":
            tags += reader.choice() or [name]
        else:
            tags.append(name)
            own.append(reader.named(name))
        while reader.comes("["):
            predicate = reader.predicate()
            if isinstance(predicate, str):
                further.append(predicate)
            elif not further:
                own.append(predicate)
        if further == ["1"] and not tests and not first and reader.comes(""):
            first = "each"
        elif further:
            exact = False
        tests.append(all_of(own))
    reader.need("")
    names, attributes = frozenset(reader.names), frozenset(reader.attributes)
    return Shape(any_of(tests), exact, first, tuple(dict.fromkeys(tags)), names, attributes)
