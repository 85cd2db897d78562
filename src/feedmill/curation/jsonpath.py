"""JSONPath in the dialect of Dolma's configurations (that of the library jsonpath-rust 0.3).

Paths: ``$``, ``@`` (also within a path), ``.key`` of letters, digits and ``_ - / # \\``, ``['any key']``,
``['a','b']``,
``[n]``, ``[a,b]``, ``[start:end:step]`` (negative bounds count from the end; an end of 0 is the end), ``[*]``, ``.*``,
``..key``, ``..*``, ``.length()`` and filters ``[?(...)]`` with ``&& || !``, parentheses and the comparisons
``== != < <= > >= ~= in nin size noneOf anyOf subsetOf`` of paths and literals.

What surprises, and is kept: a filter on an array tests its elements, on anything else the value itself; ``<`` and
``>`` compare numbers by value, while ``==`` (also inside ``<=`` and ``>=``) tells 1 from 1.0; a path alone means that
it exists, be it null or false; ``&&``, ``||`` and ``!`` apply their sides as filters again, so on an array they test
its elements; the result of ``.length()`` cannot be compared, it is nothing there; and nothing at all is ``anyOf``,
``subsetOf`` and ``size`` of everything.

A path is parsed once. What it compiles to is made of plain functions: nothing is generated or evaluated as code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

from feedmill.curation.jsonpath_compare import COMPARISONS, below
from feedmill.errors import ConfigError

Path = Callable[[Any], list[Any]]
Step = Callable[[list[Any], Any], list[Any]]
Test = Callable[[Any, Any], bool]
Values = Callable[[Any, Any], list[Any]]

MISSING = object()
_KEY = re.compile(r"[^\W]+(?:[-/\\#]|[^\W])*|[-/\\#_](?:[-/\\#]|[^\W])*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_INTEGER = re.compile(r"-?\d+")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.S)
_SIGN = re.compile(r"==|!=|~=|<=|>=|<|>|(?:in|nin|size|noneOf|anyOf|subsetOf)(?!\w)")
_SPACE = re.compile(r"\s*")


@cache
def compile_path(text: str) -> Path:
    """A function from a JSON value to the list of values that the path finds.

    >>> compile_path("$.a[?(@.n > 1)].t")({"a": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]})
    ['y']

    Raises:
        ConfigError: of kind ``bad-jsonpath``, with the place of what is wrong.
    """
    keys, steps = _Parser(text).whole()
    if not steps:
        return _straight(keys)

    def run(document: Any) -> list[Any]:
        value = _walk(document, keys)
        if value is MISSING:
            return []
        found = [value]
        for step in steps:
            found = step(found, document)
            if not found:
                break
        return found

    return run


@cache
def compile_test(text: str) -> Callable[[Any], bool]:
    """A function from a JSON value to whether the path finds anything; faster than to find it. Raises as above."""
    keys, steps = _Parser(text).whole()
    if len(steps) != 1 or not isinstance(steps[0], _Filter):
        path = compile_path(text)
        return lambda document: bool(path(document))
    test = steps[0].test

    def run(document: Any) -> bool:
        value = _walk(document, keys)
        if type(value) is list:
            return any(test(element, document) for element in value)
        return value is not MISSING and test(value, document)

    return run


def _walk(value: Any, keys: Sequence[str | int]) -> Any:
    for key in keys:
        kind = type(value)
        if kind is dict:
            value = value.get(key, MISSING)
            if value is MISSING:
                return MISSING
        elif kind is list and type(key) is int and key < len(value):
            value = value[key]
        else:
            return MISSING
    return value


def _straight(keys: list[str | int]) -> Path:
    def run(document: Any) -> list[Any]:
        value = _walk(document, keys)
        return [] if value is MISSING else [value]

    return run


class _Parser:
    """Recursive descent; each method takes what it parses and gives a function for it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> tuple[list[str | int], list[Step]]:
        self.space()
        if not self.text[self.at :].startswith(("$", "@")):
            self.fail("a path begins with '$'")
        keys, steps, _ = self.chain()
        self.space()
        if self.at < len(self.text):
            self.fail("the path should end here")
        return keys, steps

    def fail(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{what}, at character {self.at + 1} of the JSONPath {self.text!r}",
            kind="bad-jsonpath",
            fix="See docs/mix.md for the dialect, or use syntax: jq.",
        )

    def space(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]

    def take(self, token: str) -> bool:
        self.space()
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.space()
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def chain(self) -> tuple[list[str | int], list[Step], bool]:
        """Keys that lead straight down, then steps; and whether the path is one of the whole document."""
        keys: list[str | int] = []
        steps: list[Step] = []
        many, root = False, False
        begin = self.at
        while self.at < len(self.text):
            if self.text.startswith("$", self.at):
                self.at += 1
                if self.at - 1 == begin:
                    root = True
                else:
                    steps.append(lambda found, document: [document] * len(found))
            elif self.text.startswith("@", self.at):
                self.at += 1
            elif self.text.startswith(".length()", self.at):
                self.at += len(".length()")
                steps.append(_count if many else _length)
            else:
                step, several = self.step()
                if step is None:
                    break
                many |= several
                if isinstance(step, str | int) and not steps:
                    keys.append(step)
                else:
                    steps.append(_down(step) if isinstance(step, str | int) else step)
        return keys, steps, root

    def step(self) -> tuple[str | int | Step | None, bool]:
        """One step, and whether it may find several values; None where there is no other."""
        if self.text.startswith("..", self.at):
            self.at += 2
            if self.take("*"):
                return _everything, True
            key = self.quoted() if self.text.startswith("[", self.at) else self.key()
            return _deep(key), True
        if self.text.startswith(".[", self.at):
            self.at += 1
        if self.text.startswith("[", self.at):
            self.at += 1
            return self.bracket()
        if self.text.startswith(".", self.at):
            self.at += 1
            return (_children, True) if self.take("*") else (self.key(), False)
        return None, False

    def key(self) -> str:
        found = self.match(_KEY)
        if not found:
            self.fail("expected a key")
        return found[0]

    def quoted(self) -> str:
        self.expect("[")
        key = self.string()
        if key is None:
            self.fail("expected a key in quotes")
        self.expect("]")
        return key

    def string(self) -> str | None:
        found = self.match(_STRING)
        if not found:
            return None
        return re.sub(r"\\(['\"\\])", r"\1", found[1] if found[1] is not None else found[2])

    def bracket(self) -> tuple[str | int | Step, bool]:
        self.space()
        if self.take("*"):
            self.expect("]")
            return _children, True
        if self.take("?"):
            self.expect("(")
            test = self.alternatives()
            self.expect(")")
            self.expect("]")
            return _Filter(test), True
        if self.text[self.at : self.at + 1] in ("'", '"'):
            keys: list[str | int] = []
            while not keys or self.take(","):
                key = self.string()
                if key is None:
                    self.fail("expected a key in quotes")
                keys.append(key)
            self.expect("]")
            return (keys[0], False) if len(keys) == 1 else (_union(keys), True)
        return self.numbers()

    def numbers(self) -> tuple[str | int | Step, bool]:
        bounds: list[int | None] = [self.integer()]
        if self.take(","):
            indices: list[str | int] = [self.index(bounds[0]), self.index(self.integer())]
            while self.take(","):
                indices.append(self.index(self.integer()))
            self.expect("]")
            return _union(indices), True
        while len(bounds) < 3 and self.take(":"):
            bounds.append(self.integer())
        self.expect("]")
        if len(bounds) == 1:
            return self.index(bounds[0]), False
        if len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1:
            self.fail("the step of a slice is 1 or more")
        return _slice(bounds[0] or 0, bounds[1] or 0, (bounds[2] if len(bounds) == 3 else None) or 1), True

    def integer(self) -> int | None:
        found = self.match(_INTEGER)
        return int(found[0]) if found else None

    def index(self, number: int | None) -> int:
        if number is None or number < 0:
            self.fail("an index is 0 or more (write [-1:] for the last element)")
        return number

    def alternatives(self) -> Test:
        tests = [self.conjunction()]
        while self.take("||"):
            tests.append(self.conjunction())
        return tests[0] if len(tests) == 1 else _any(tests)

    def conjunction(self) -> Test:
        tests = [self.negation()]
        while self.take("&&"):
            tests.append(self.negation())
        return tests[0] if len(tests) == 1 else _all(tests)

    def negation(self) -> Test:
        self.space()
        if self.text.startswith("!", self.at) and not self.text.startswith("!=", self.at):
            self.at += 1
            return _not(self.negation())
        if self.take("("):
            test = self.alternatives()
            self.expect(")")
            return test
        return self.comparison()

    def comparison(self) -> Test:
        left = self.operand()
        found = self.match(_SIGN)
        if not found:
            return lambda element, document: bool(left(element, document))
        right = self.operand()
        if found[0] in ("<", ">") and isinstance(left, _Below) and isinstance(right, _Literal):
            return _limit(left.keys, found[0], right.value)
        compare = COMPARISONS[found[0]]
        return lambda element, document: compare(left(element, document), right(element, document))

    def operand(self) -> Values:
        self.space()
        if self.text[self.at : self.at + 1] in ("$", "@"):
            keys, steps, root = self.chain()
            return _Below(keys) if not steps and not root else _operand(keys, steps, root)
        return _Literal(self.literal())

    def literal(self) -> Any:
        text = self.string()
        if text is not None:
            return text
        for word, value in (("true", True), ("false", False), ("null", None)):
            if self.take(word):
                return value
        if self.take("["):
            items: list[Any] = []
            while not self.take("]"):
                if items:
                    self.expect(",")
                items.append(self.literal())
            return items
        found = self.match(_NUMBER)
        if not found:
            self.fail("expected a path, a string, a number, a list, true, false or null")
        return int(found[0]) if _INTEGER.fullmatch(found[0]) else float(found[0])


class _Below:
    """A path straight down from the element."""

    def __init__(self, keys: list[str | int]) -> None:
        self.keys = keys

    def __call__(self, element: Any, _document: Any) -> list[Any]:
        value = _walk(element, self.keys)
        return [] if value is MISSING else [value]


class _Literal:
    """A value that stands in the path."""

    def __init__(self, value: Any) -> None:
        self.value, self.values = value, [value]

    def __call__(self, _element: Any, _document: Any) -> list[Any]:
        return self.values


def _limit(keys: list[str | int], sign: str, limit: Any) -> Test:
    """The most common test: a value beside a number."""
    if type(limit) is not int and type(limit) is not float:
        return lambda _element, _document: False

    def more(element: Any, _document: Any) -> bool:
        value = _walk(element, keys)
        return (type(value) is float or type(value) is int) and bool(value > limit)

    def less(element: Any, _document: Any) -> bool:
        value = _walk(element, keys)
        return (type(value) is float or type(value) is int) and bool(value < limit)

    return more if sign == ">" else less


def _operand(keys: list[str | int], steps: list[Step], root: bool) -> Values:
    if steps and steps[-1] in (_length, _count):
        return lambda _element, _document: []

    def run(element: Any, document: Any) -> list[Any]:
        value = _walk(document if root else element, keys)
        if value is MISSING:
            return []
        found = [value]
        for step in steps:
            found = step(found, document)
        return found

    return run


def _down(key: str | int) -> Step:
    keys = [key]
    return lambda found, _document: [v for value in found if (v := _walk(value, keys)) is not MISSING]


def _union(keys: list[str | int]) -> Step:
    return lambda found, _document: [v for value in found for key in keys if (v := _walk(value, [key])) is not MISSING]


def _slice(start: int, end: int, step: int) -> Step:
    def run(found: list[Any], _document: Any) -> list[Any]:
        out = []
        for value in found:
            size = len(value) if isinstance(value, list) else -1
            if size < 0 or max(start, end) > size or min(start, end) < -size:
                continue
            low, high = start + size * (start < 0), end + size * (end < 0)
            out.extend(value[low : high or size : step])
        return out

    return run


def _children(found: list[Any], _document: Any) -> list[Any]:
    return [child for value in found for child in below(value)]


def _everything(found: list[Any], _document: Any) -> list[Any]:
    out = []
    for value in found:
        children = below(value)
        out.extend(children)
        out.extend(_everything(children, _document))
    return out


def _deep(key: str) -> Step:
    def run(found: list[Any], document: Any) -> list[Any]:
        out = []
        for value in found:
            if isinstance(value, dict) and key in value:
                out.append(value[key])
            out.extend(run(below(value), document))
        return out

    return run


def _count(found: list[Any], _document: Any) -> list[Any]:
    return [len(found)] if found else []


def _length(found: list[Any], _document: Any) -> list[Any]:
    return [len(found[0])] if found and isinstance(found[0], list) else []


class _Filter:
    """``[?(...)]``, a step."""

    def __init__(self, test: Test) -> None:
        self.test = test

    def __call__(self, found: list[Any], document: Any) -> list[Any]:
        out, test = [], self.test
        for value in found:
            elements = value if isinstance(value, list) else [value]
            out.extend([element for element in elements if test(element, document)])
        return out


def _again(test: Test, element: Any, document: Any) -> bool:
    """A side of ``&&``, ``||`` and ``!`` is a filter of its own."""
    if isinstance(element, list):
        return any(test(inner, document) for inner in element)
    return test(element, document)


def _all(tests: list[Test]) -> Test:
    return lambda element, document: all(_again(test, element, document) for test in tests)


def _any(tests: list[Test]) -> Test:
    return lambda element, document: any(_again(test, element, document) for test in tests)


def _not(test: Test) -> Test:
    return lambda element, document: not _again(test, element, document)
