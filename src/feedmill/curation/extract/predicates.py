"""Predicates of XPath that look at the name and the attributes of the element itself, as functions.

They know what such predicates consist of: ``self::name``, ``@name``, ``@name='text'``, ``or``, ``and``, ``not()``, and
`contains`, `starts-with` and `re:test` of a literal in an attribute, in the first one of several attributes
(``@id|@class``), or in a translated one. Anything else, such as a position or an element below, is a `ValueError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(r"\s*(\.//|'[^']*'|\"[^\"]*\"|@[\w.-]+|self::[\w.-]+|[\w:.-]+|\S)")


Attributes = dict[str, str]
"""Attributes in the order of the element."""
Test = Callable[[str, Attributes], bool]
"""Whether an element passes, by its name and attributes."""
_Text = Callable[[Attributes], str]


class Reader:
    """Reads an expression from its start.

    Attributes:
        names, attributes: those that predicates mentioned.
    """

    def __init__(self, path: str) -> None:
        self._tokens: list[str] = ["", *_TOKEN.findall(path)[::-1]]
        self.names, self.attributes = set[str](), set[str]()

    def next(self) -> str:
        """Return the next word; at the end, an empty one."""
        return self._tokens.pop() if len(self._tokens) > 1 else ""

    def comes(self, word: str) -> bool:
        """Return whether this word comes next."""
        return self._tokens[-1] == word

    def take(self, word: str) -> bool:
        """Return whether this word came next, and skip it."""
        return self.comes(word) and self.next() == word

    def need(self, word: str) -> None:
        """Skip this word. Raises `ValueError` if another one comes."""
        if not self.take(word):
            raise ValueError(f"{self._tokens[-1]!r} instead of {word!r}")

    def predicate(self) -> Test | str:
        """Return the test in brackets; its text if it looks further than the element."""
        self.need("[")
        left = list(self._tokens)
        try:
            test = self._either()
            self.need("]")
        except ValueError:
            self._tokens = left
            inside, depth = "", 1
            while depth:
                word = self.next()
                depth += (word == "[") - (word in ("]", ""))
                inside += word if depth else ""
            return inside
        return test

    def named(self, wanted: str) -> Test:
        """Return the test for a name."""
        self.names.add(wanted)
        return lambda name, _: name == wanted

    def choice(self) -> list[str]:
        """Return the names that the next predicate consists of; none if there is something else in it."""
        names = list[str]()
        for word in self._tokens[-2::-1] if self._tokens[-1] == "[" else []:
            if word == "]":
                return names
            if word != "or":
                names.append(word.removeprefix("self::"))
                if not word.startswith("self::"):
                    break
        return []

    def _either(self) -> Test:
        return any_of(self._joined("or", self._both))

    def _both(self) -> Test:
        return all_of(self._joined("and", self._one))

    def _joined(self, word: str, part: Callable[[], Test]) -> list[Test]:
        tests = [part()]
        while self.take(word):
            tests.append(part())
        return tests

    def _one(self) -> Test:
        word = self.next()
        if word.startswith("self::"):
            return self.named(word.removeprefix("self::"))
        if word.startswith("@"):
            return self._attribute(word[1:])
        if word not in ("(", "not", "contains", "starts-with", "re:test"):
            raise ValueError(word)
        if word != "(":
            self.need("(")
        test = self._search(word) if word in ("contains", "starts-with", "re:test") else self._either()
        self.need(")")
        return (lambda name, attributes: not test(name, attributes)) if word == "not" else test

    def _attribute(self, key: str) -> Test:
        self.attributes.add(key)
        if not self.take("="):
            return lambda _, attributes: key in attributes
        value = self._literal()
        return lambda _, attributes: attributes.get(key) == value

    def _search(self, function: str) -> Test:
        text = self._text()
        self.need(",")
        value = self._literal()
        if function == "contains":
            return lambda _, attributes: value in text(attributes)
        if function == "starts-with":
            return lambda _, attributes: text(attributes).startswith(value)
        flags = self._literal() if self.take(",") else ""
        if flags not in ("", "i"):
            raise ValueError(flags)
        search = re.compile(value, re.IGNORECASE if flags else 0).search
        return lambda _, attributes: search(text(attributes)) is not None

    def _text(self) -> _Text:
        if self.take("translate"):
            self.need("(")
            text = self._text()
            self.need(",")
            old = self._literal()
            self.need(",")
            new = self._literal()
            self.need(")")
            table = {ord(one): new[k : k + 1] for k, one in reversed(list(enumerate(old)))}
            return lambda attributes: text(attributes).translate(table)
        names = [self._name()]
        while self.take("|"):
            names.append(self._name())
        if len(names) == 1:
            only = names[0]
            return lambda attributes: attributes.get(only, "")
        # of several attributes, XPath takes the first one of the element
        return lambda attributes: next((text for name, text in attributes.items() if name in names), "")

    def _name(self) -> str:
        word = self.next()
        if not word.startswith("@"):
            raise ValueError(word)
        self.attributes.add(word[1:])
        return word[1:]

    def _literal(self) -> str:
        word = self.next()
        if word[:1] not in ("'", '"') or len(word) < 2:
            raise ValueError(word)
        return word[1:-1]


def any_of(tests: Sequence[Test]) -> Test:
    """Return a test that is passed by what passes one of these."""
    if len(tests) == 1:
        return tests[0]

    def either(name: str, attributes: Attributes) -> bool:
        for test in tests:  # noqa: SIM110 - half the time of any()
            if test(name, attributes):
                return True
        return False

    return either


def all_of(tests: Sequence[Test]) -> Test:
    """Return a test that is passed by what passes all of these."""
    if len(tests) == 1:
        return tests[0]

    def both(name: str, attributes: Attributes) -> bool:
        for test in tests:  # noqa: SIM110
            if not test(name, attributes):
                return False
        return True

    return both
