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
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from feedmill.documents.expressions.tree import DOCUMENT, IDENTITY, Node
from feedmill.errors import ConfigError

_KEY = re.compile(r"[^\W]+(?:[-/\\#]|[^\W])*|[-/\\#_](?:[-/\\#]|[^\W])*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DIGITS = 18
_DIGITS_OF_VALUES = 300  # as those of the largest floats; Python refuses more than 4,300
_INTEGER = re.compile(r"-?\d+")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.S)
_SIGN = re.compile(r"==|!=|~=|<=|>=|<|>|(?:in|nin|size|noneOf|anyOf|subsetOf)(?!\w)")
_SPACE = re.compile(r"\s*")
_LENGTH = ".length()"
_CHILDREN: Node = ("call", "[*]", [])


def read_path(text: str) -> Node:
    """Return the tree of a JSONPath.

    Raises:
        ConfigError: The path is invalid (kind ``bad-expression``); the message has the position of the error.
    """
    return _Reader(text).whole()


class _Reader:
    """Recursive descent parser. Each method consumes what it parses and returns a node for it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> Node:
        self.space()
        if not self.text[self.at :].startswith(("$", "@")):
            self.fail("a path must begin with '$'")
        tree = self.path(IDENTITY)
        self.space()
        if self.at < len(self.text):
            self.fail("unexpected text after the end of the path")
        return tree

    def fail(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{what}, at character {self.at + 1} of the JSONPath {self.text!r}",
            kind="bad-expression",
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
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def path(self, root: Node) -> Node:
        """Parse a path that begins with ``$``, for which `root` stands, or ``@``."""
        tree, many = root if self.text[self.at] == "$" else IDENTITY, False
        self.at += 1
        while self.at < len(self.text):
            if self.text.startswith("$", self.at):
                self.at += 1
                tree = ("pipe", tree, DOCUMENT)
            elif self.text.startswith("@", self.at):
                self.at += 1
            elif self.text.startswith(_LENGTH, self.at):
                self.at += len(_LENGTH)
                tree = ("size", tree, many)
            else:
                step = self.step(tree)
                if step is None:
                    break
                tree, several = step
                many |= several
        return tree

    def step(self, tree: Node) -> tuple[Node, bool] | None:
        """Parse one step behind a tree, if one follows.

        Returns:
            The tree with the step, and whether the step can find several values.
        """
        if self.text.startswith("..", self.at):
            self.at += 2
            if self.take("*"):
                return ("pipe", tree, ("call", "..*", [])), True
            key = self.quoted() if self.text.startswith("[", self.at) else self.key()
            return _find(("pipe", tree, ("call", "recurse", [])), key), True
        if self.text.startswith(".[", self.at):
            self.at += 1
        if self.text.startswith("[", self.at):
            self.at += 1
            return self.bracket(tree)
        if self.text.startswith(".", self.at):
            self.at += 1
            return (("pipe", tree, _CHILDREN), True) if self.take("*") else (_find(tree, self.key()), False)
        return None

    def key(self) -> str:
        match = self.match(_KEY)
        if not match:
            self.fail("expected a key")
        return match[0]

    def quoted(self) -> str:
        self.expect("[")
        key = self.string()
        if key is None:
            self.fail("expected a key in quotes")
        self.expect("]")
        return key

    def string(self) -> str | None:
        match = self.match(_STRING)
        if not match:
            return None
        return re.sub(r"\\(['\"\\])", r"\1", match[1] if match[1] is not None else match[2])

    def bracket(self, tree: Node) -> tuple[Node, bool]:
        self.space()
        if self.take("*"):
            self.expect("]")
            return ("pipe", tree, _CHILDREN), True
        if self.take("?"):
            self.expect("(")
            test = self.alternatives()
            self.expect(")")
            self.expect("]")
            return ("filter", tree, test), True
        if self.text[self.at : self.at + 1] in ("'", '"'):
            keys: list[Any] = []
            while not keys or self.take(","):
                key = self.string()
                if key is None:
                    self.fail("expected a key in quotes")
                keys.append(key)
            self.expect("]")
            return _find(tree, *keys), len(keys) > 1
        return self.numbers(tree)

    def numbers(self, tree: Node) -> tuple[Node, bool]:
        bounds: list[int | None] = [self.integer()]
        if self.take(","):
            indices = [self.index(bounds[0]), self.index(self.integer())]
            while self.take(","):
                indices.append(self.index(self.integer()))
            self.expect("]")
            return _find(tree, *indices), True
        while len(bounds) < 3 and self.take(":"):
            bounds.append(self.integer())
        self.expect("]")
        if len(bounds) == 1:
            return _find(tree, self.index(bounds[0])), False
        if len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1:
            self.fail("the step of a slice must be 1 or more")
        return ("part", tree, bounds[0] or 0, bounds[1] or 0, (bounds[2] if len(bounds) == 3 else None) or 1), True

    def integer(self) -> int | None:
        match = self.match(_INTEGER)
        if not match:
            return None
        if len(match[0]) > _DIGITS:
            self.refuse_long(match[0], _DIGITS)
        return int(match[0])

    def refuse_long(self, number: str, most: int = _DIGITS_OF_VALUES) -> None:
        """Raise `ConfigError` for a number of too many digits."""
        if len(number) > most:
            self.fail(f"a number has {len(number)} digits: at most {most} are supported")

    def index(self, number: int | None) -> int:
        if number is None or number < 0:
            self.fail("an index must be 0 or more (write [-1:] for the last element)")
        return number

    def alternatives(self) -> Node:
        tests = [self.conjunction()]
        while self.take("||"):
            tests.append(self.conjunction())
        return _joined("or", tests)

    def conjunction(self) -> Node:
        tests = [self.negation()]
        while self.take("&&"):
            tests.append(self.negation())
        return _joined("and", tests)

    def negation(self) -> Node:
        self.space()
        if self.text.startswith("!", self.at) and not self.text.startswith("!=", self.at):
            self.at += 1
            return ("pipe", _again(self.negation()), ("call", "not", []))
        if self.take("("):
            test = self.alternatives()
            self.expect(")")
            return test
        return self.comparison()

    def comparison(self) -> Node:
        left = self.operand()
        match = self.match(_SIGN)
        return ("compare", left, self.operand(), match[0]) if match else ("exists", left)

    def operand(self) -> Node:
        self.space()
        if self.text[self.at : self.at + 1] in ("$", "@"):
            tree = self.path(DOCUMENT)
            return ("call", "empty", []) if tree[0] == "size" else tree
        return ("literal", self.literal())

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
        match = self.match(_NUMBER)
        if not match:
            self.fail("expected a path, a string, a number, a list, true, false or null")
        if _INTEGER.fullmatch(match[0]):
            self.refuse_long(match[0])
            return int(match[0])
        return float(match[0])


def _find(tree: Node, *keys: Any) -> Node:
    """Return the step to one of the keys, or to several."""
    return ("find", tree, ("literal", keys[0]) if len(keys) == 1 else ("keys", keys))


def _joined(word: str, tests: list[Node]) -> Node:
    """Return the test of ``&&`` or ``||``. Its operands are filters: on an array they test the elements."""
    return tests[0] if len(tests) == 1 else _balanced(word, [_again(test) for test in tests])


def _balanced(word: str, tests: list[Node]) -> Node:
    """Return a tree that is not deep for hundreds of tests."""
    half = len(tests) // 2
    return (word, _balanced(word, tests[:half]), _balanced(word, tests[half:])) if half else tests[0]


def _again(test: Node) -> Node:
    """Return a test as a filter of its own."""
    return ("exists", ("filter", IDENTITY, test))
