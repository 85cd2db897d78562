"""JSONPath in the dialect of Dolma's configurations (that of the library jsonpath-rust 0.3).

Paths: ``$``, ``@`` (also within a path), ``.key`` of letters, digits and ``_ - / # \\``, ``['any key']``,
``['a','b']``, ``[n]``, ``[a,b]``, ``[start:end:step]`` (negative bounds count from the end; an end of 0 is the end),
``[*]``, ``.*``, ``..key``, ``..*``, ``.length()`` and filters ``[?(...)]`` with ``&& || !``, parentheses and the
comparisons ``== != < <= > >= ~= in nin size noneOf anyOf subsetOf`` of paths and literals.

Unusual behavior that is kept:

- A filter on an array tests its elements. A filter on any other value tests the value itself. ``&&``, ``||`` and ``!``
  apply their operands as filters again, so on an array they test its elements.
- ``<`` and ``>`` compare numbers by value, but ``==`` (also inside ``<=`` and ``>=``) distinguishes 1 from 1.0.
- A path alone tests whether the value exists, even if it is null or false.
- The result of ``.length()`` cannot be compared: it counts as missing. A missing value passes ``anyOf``, ``subsetOf``
  and ``size`` with any operand.

A path is parsed once and compiled to plain functions. No code is generated or evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn

from feedmill.documents.expressions.comparisons import COMPARISONS
from feedmill.documents.expressions.steps import (
    MISSING,
    Below,
    Filter,
    Literal,
    NumberTest,
    Step,
    Test,
    Values,
    all_of,
    any_of,
    children,
    count,
    deep,
    down,
    everything,
    length,
    none_of,
    operand,
    slice_of,
    union_of,
    walk,
)
from feedmill.errors import ConfigError

Path = Callable[[Any], list[Any]]
_KEY = re.compile(r"[^\W]+(?:[-/\\#]|[^\W])*|[-/\\#_](?:[-/\\#]|[^\W])*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DIGITS = 18
_DIGITS_OF_VALUES = 300  # as those of the largest floats; Python refuses more than 4,300
_INTEGER = re.compile(r"-?\d+")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.S)
_SIGN = re.compile(r"==|!=|~=|<=|>=|<|>|(?:in|nin|size|noneOf|anyOf|subsetOf)(?!\w)")
_SPACE = re.compile(r"\s*")


@cache
def compile_path(text: str) -> Path:
    """Return a function from a JSON value to the list of values that the path finds.

    >>> compile_path("$.a[?(@.n > 1)].t")({"a": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]})
    ['y']

    Raises:
        ConfigError: The path is invalid (kind ``bad-jsonpath``); the message has the position of the error.
    """
    keys, steps = _Parser(text).whole()
    if not steps:
        return _straight(keys)

    def run(document: Any) -> list[Any]:
        value = walk(document, keys)
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
    """Return a function that tests whether the path finds anything in a JSON value.

    Raises:
        ConfigError: See `compile_path`.
    """
    keys, steps = _Parser(text).whole()
    if len(steps) != 1 or not isinstance(steps[0], Filter):
        path = compile_path(text)
        return lambda document: bool(path(document))
    test = steps[0].test
    if len(keys) == 1 and type(keys[0]) is str:
        under = _beneath(keys[0], test)
        return test.beneath(keys[0], under) if isinstance(test, NumberTest) else under

    def run(document: Any) -> bool:
        value = walk(document, keys)
        if type(value) is list:
            return any(test(element, document) for element in value)
        return value is not MISSING and test(value, document)

    return run


def _beneath(key: str, test: Test) -> Callable[[Any], bool]:
    def run(document: Any) -> bool:
        value = document.get(key, MISSING) if type(document) is dict else MISSING
        if type(value) is list:
            return any(test(element, document) for element in value)
        return value is not MISSING and test(value, document)

    return run


@cache
def named_below(text: str, key: str) -> tuple[str, ...]:
    """Return the keys that an expression names directly below ``$.<key>``, in its steps or in a filter on it.

    >>> named_below("$.attributes[?(@.a[0][2] > 1 && !@.b)]", "attributes")
    ('a', 'b')

    Raises:
        ConfigError: See `compile_path`.
    """
    parser = _Parser(text, key)
    parser.whole()
    return tuple(dict.fromkeys(parser.named))


@cache
def compile_straight(text: str) -> Callable[[Any], Any] | None:
    """Return a function to the value at a path of plain keys and indices, or to `MISSING`; None for other paths.

    Raises:
        ConfigError: See `compile_path`.
    """
    keys, steps = _Parser(text).whole()
    return None if steps else partial(walk, keys=keys)


def _straight(keys: list[str | int]) -> Path:
    def run(document: Any) -> list[Any]:
        value = walk(document, keys)
        return [] if value is MISSING else [value]

    return run


class _Parser:
    """Recursive descent parser. Each method consumes what it parses and returns a function for it."""

    def __init__(self, text: str, watched: str = "") -> None:
        self.text, self.at = text, 0
        self.watched = watched
        self.named: list[str] = []  # keys directly below the watched one
        self.before: list[str | int] | None = None  # keys before the current step; None if anything else precedes it
        self.inside = False  # the current filter applies to the value of the watched key

    def whole(self) -> tuple[list[str | int], list[Step]]:
        self.space()
        if not self.text[self.at :].startswith(("$", "@")):
            self.fail("a path must begin with '$'")
        try:
            keys, steps, _ = self.chain(True)
        except RecursionError:
            raise ConfigError("the JSONPath is nested too deeply", kind="bad-jsonpath", fix="Simplify it.") from None
        self.space()
        if self.at < len(self.text):
            self.fail("unexpected text after the end of the path")
        return keys, steps

    def fail(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{what}, at character {self.at + 1} of the JSONPath {self.text!r}",
            kind="bad-jsonpath",
            fix="See docs/filter.md for the dialect, or use syntax: jq.",
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

    def note(self, keys: list[str | int], root: bool) -> None:
        """Add to `named` the key directly below the watched one, if the path `keys` leads there."""
        below = keys[1:2] if root and keys[:1] == [self.watched] else [] if root or not self.inside else keys[:1]
        self.named += [key for key in below if isinstance(key, str)]

    def chain(self, whole: bool = False) -> tuple[list[str | int], list[Step], bool]:
        """Parse a path into its leading keys, the steps after them, and whether it begins at the document's root.

        Args:
            whole: The path is the whole expression.
        """
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
                steps.append(count if many else length)
            else:
                self.before = keys if not steps and (root or whole) else None
                step, several = self.step()
                if step is None:
                    break
                many |= several
                if isinstance(step, str | int) and not steps:
                    keys.append(step)
                else:
                    steps.append(down(step) if isinstance(step, str | int) else step)
        self.note(keys, root or whole)
        return keys, steps, root

    def step(self) -> tuple[str | int | Step | None, bool]:
        """Parse one step, or None if no step follows, and whether it can find several values."""
        if self.text.startswith("..", self.at):
            self.at += 2
            if self.take("*"):
                return everything, True
            key = self.quoted() if self.text.startswith("[", self.at) else self.key()
            return deep(key), True
        if self.text.startswith(".[", self.at):
            self.at += 1
        if self.text.startswith("[", self.at):
            self.at += 1
            return self.bracket()
        if self.text.startswith(".", self.at):
            self.at += 1
            return (children, True) if self.take("*") else (self.key(), False)
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
            return children, True
        if self.take("?"):
            outer, self.inside = self.inside, self.before == [self.watched]
            self.expect("(")
            test = self.alternatives()
            self.expect(")")
            self.expect("]")
            self.inside = outer
            return Filter(test), True
        if self.text[self.at : self.at + 1] in ("'", '"'):
            keys: list[str | int] = []
            while not keys or self.take(","):
                key = self.string()
                if key is None:
                    self.fail("expected a key in quotes")
                keys.append(key)
            self.expect("]")
            return (keys[0], False) if len(keys) == 1 else (union_of(keys), True)
        return self.numbers()

    def numbers(self) -> tuple[str | int | Step, bool]:
        bounds: list[int | None] = [self.integer()]
        if self.take(","):
            indices: list[str | int] = [self.index(bounds[0]), self.index(self.integer())]
            while self.take(","):
                indices.append(self.index(self.integer()))
            self.expect("]")
            return union_of(indices), True
        while len(bounds) < 3 and self.take(":"):
            bounds.append(self.integer())
        self.expect("]")
        if len(bounds) == 1:
            return self.index(bounds[0]), False
        if len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1:
            self.fail("the step of a slice must be 1 or more")
        return slice_of(bounds[0] or 0, bounds[1] or 0, (bounds[2] if len(bounds) == 3 else None) or 1), True

    def integer(self) -> int | None:
        found = self.match(_INTEGER)
        if not found:
            return None
        if len(found[0]) > _DIGITS:
            self.refuse_long(found[0], _DIGITS)
        return int(found[0])

    def refuse_long(self, number: str, most: int = _DIGITS_OF_VALUES) -> None:
        """Raise `ConfigError` for a number of too many digits."""
        if len(number) > most:
            self.fail(f"a number has {len(number)} digits: at most {most} are supported")

    def index(self, number: int | None) -> int:
        if number is None or number < 0:
            self.fail("an index must be 0 or more (write [-1:] for the last element)")
        return number

    def alternatives(self) -> Test:
        tests = [self.conjunction()]
        while self.take("||"):
            tests.append(self.conjunction())
        return tests[0] if len(tests) == 1 else any_of(tests)

    def conjunction(self) -> Test:
        tests = [self.negation()]
        while self.take("&&"):
            tests.append(self.negation())
        return tests[0] if len(tests) == 1 else all_of(tests)

    def negation(self) -> Test:
        self.space()
        if self.text.startswith("!", self.at) and not self.text.startswith("!=", self.at):
            self.at += 1
            return none_of(self.negation())
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
        if found[0] in ("<", ">") and isinstance(left, Below) and isinstance(right, Literal):
            if type(right.value) is not int and type(right.value) is not float:
                return lambda _element, _document: False
            return NumberTest(left.keys, found[0], right.value)
        compare = COMPARISONS[found[0]]
        return lambda element, document: compare(left(element, document), right(element, document))

    def operand(self) -> Values:
        self.space()
        if self.text[self.at : self.at + 1] in ("$", "@"):
            keys, steps, root = self.chain()
            return Below(keys) if not steps and not root else operand(keys, steps, root)
        return Literal(self.literal())

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
        if _INTEGER.fullmatch(found[0]):
            self.refuse_long(found[0])
            return int(found[0])
        return float(found[0])
