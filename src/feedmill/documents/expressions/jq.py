"""Parse jq expressions to a tree of tuples: the kind of each node first, then its parts."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from feedmill.errors import ConfigError

Node = tuple[Any, ...]

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<string>")
    |(?P<field>\.[A-Za-z_]\w*)|(?P<variable>\$[A-Za-z_]\w*)|(?P<format>@[a-z0-9]+)|(?P<word>[A-Za-z_]\w*)
    |(?P<sign>\?//|//=|\|=|\+=|-=|\*=|/=|%=|\.\.|//|==|!=|<=|>=|and|or|[.\[\]{}()|,:;<>=+\-*/%?])""",
    re.X,
)
_OPERATORS = (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_STEPS = ("index", "each", "slice")
_ASSIGNMENTS = ("=", "|=", "+=", "-=", "*=", "/=", "%=", "//=", "?//")


class Parser:
    """Recursive descent parser, by precedence: ``|``, ``,``, ``//``, or, and, comparisons, sums, products, postfix.

    Each rule is a method that consumes its tokens and returns a node. All raise `ConfigError` for invalid syntax.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.kind, self.value, self.begin = "", "", 0
        self.advance()

    def fail(self, what: str) -> NoReturn:
        """Raise `ConfigError` for the current token."""
        raise ConfigError(
            f"{what}, at character {self.begin + 1} of the jq expression {self.text!r}",
            kind="bad-jq",
            fix="See docs/filter.md for the supported syntax.",
        )

    def advance(self) -> None:
        """Read the next token."""
        while True:
            self.begin = self.at
            if self.at >= len(self.text):
                self.kind, self.value = "end", ""
                return
            found = _TOKEN.match(self.text, self.at)
            if not found:
                self.fail(f"unexpected character {self.text[self.at]!r}")
            self.kind, self.value, self.at = str(found.lastgroup), found[0], found.end()
            if self.kind != "space":
                return

    def is_(self, *values: str) -> bool:
        """Return whether the current token is one of these signs or words."""
        return self.kind in ("sign", "word") and self.value in values

    def take(self, *values: str) -> bool:
        """Advance if the current token is one of these; return whether it was."""
        if self.is_(*values):
            self.advance()
            return True
        return False

    def expect(self, value: str) -> None:
        """Advance past a required token. Raises `ConfigError`."""
        if not self.take(value):
            self.fail(f"expected {value!r}, found {self.value or 'the end'!r}")

    def whole(self) -> Node:
        """Parse the whole expression. Raises `ConfigError`."""
        tree = self.pipe()
        if self.kind != "end":
            self.fail(f"unexpected {self.value!r}")
        return tree

    def pipe(self) -> Node:
        """Parse ``a | b``; the lowest precedence, so it is also the rule of what stands in brackets."""
        if self.is_("def", "label", "import", "include"):
            self.fail(f"{self.value!r} is not supported")
        left = self.comma()
        return ("pipe", left, self.pipe()) if self.take("|") else left

    def comma(self) -> Node:
        """Parse ``a, b``: the results of both, in order."""
        left = self.alternative()
        while self.take(","):
            left = ("comma", left, self.alternative())
        return left

    def alternative(self) -> Node:
        """Parse ``a // b``, which associates to the right. Assignments of the same precedence are rejected."""
        left = self.binary(0)
        if self.is_(*_ASSIGNMENTS):
            self.fail("assignments are not supported")
        return ("alternative", left, self.alternative()) if self.take("//") else left

    def binary(self, level: int) -> Node:
        """Parse the operators of a level of `_OPERATORS` and of all levels above it."""
        if level == len(_OPERATORS):
            return self.postfix()
        left = self.binary(level + 1)
        while self.is_(*_OPERATORS[level]):
            sign = self.value
            self.advance()
            left = (sign if sign in ("and", "or") else "binary", left, self.binary(level + 1), sign)
            if level == 2 and self.is_(*_OPERATORS[level]):
                self.fail("comparisons cannot be chained")
        return left

    def postfix(self) -> Node:
        """Parse a term and what follows it: fields, brackets, ``?`` and ``as``."""
        tree = self.term()
        while True:
            if self.kind == "field":
                tree = ("index", tree, ("literal", self.value[1:]))
                self.advance()
            elif self.is_(".") and self.text[self.at : self.at + 1] == '"':
                self.advance()
                tree = ("index", tree, self.string())
            elif self.is_(".") and self.text[self.at : self.at + 1] == "[":
                self.advance()
            elif self.is_("["):
                tree = self.bracket(tree)
            elif self.take("?"):
                tree = _tried(tree)
            elif self.take("as"):
                return self.binding(tree)
            else:
                return tree

    def binding(self, source: Node) -> Node:
        """Parse ``as $name | body``, behind the `source` of the values."""
        if self.kind != "variable":
            self.fail("only plain variables can be bound")
        name = self.value
        self.advance()
        self.expect("|")
        return ("as", source, name, self.pipe())

    def bracket(self, tree: Node) -> Node:
        """Parse ``[]``, ``[index]`` or ``[low:high]``, behind the `tree` that it applies to."""
        self.expect("[")
        if self.take("]"):
            return ("each", tree)
        low = None if self.is_(":") else self.pipe()
        if self.take(":"):
            high = None if self.is_("]") else self.pipe()
            self.expect("]")
            return ("slice", tree, low, high)
        self.expect("]")
        assert low is not None
        return ("index", tree, low)

    def term(self) -> Node:
        """Parse a literal, a field, a variable, a call, or an expression in brackets."""
        kind, value = self.kind, self.value
        if kind == "number":
            self.advance()
            if len(value) > 4000:  # beyond Python's limit for integers, and far beyond a double
                self.fail(f"a number of {len(value):,} digits is not supported")
            return ("literal", float(value) if re.search(r"[.eE]", value) else int(value))
        if kind == "string":
            return self.string()
        if kind == "format":
            return self.format()
        if kind == "field":
            self.advance()
            return ("index", ("identity",), ("literal", value[1:]))
        if kind == "variable":
            self.advance()
            return ("variable", value)
        if kind == "word":
            return self.word()
        return self.sign()

    def format(self) -> Node:
        """Return ``@name``, or a string after it, whose expressions it formats."""
        call: Node = ("call", self.value, [])
        self.advance()
        tree = self.string() if self.kind == "string" else call
        if tree[0] != "string":
            return tree
        return ("string", [("pipe", part, call) if k % 2 else part for k, part in enumerate(tree[1])])

    def sign(self) -> Node:
        """Parse a term that begins with a sign: ``-``, ``(``, ``[``, ``{``, ``..`` or ``.``."""
        if self.is_("-"):
            self.advance()
            return ("negative", self.postfix())
        if self.take("("):
            tree = self.pipe()
            self.expect(")")
            return ("pipe", ("identity",), tree) if tree[0] in _STEPS else tree  # one unit, for a "?" after it
        if self.take("["):
            if self.take("]"):
                return ("array", None)
            tree = self.pipe()
            self.expect("]")
            return ("array", tree)
        if self.take("{"):
            return self.object()
        if self.take(".."):
            return ("call", "recurse", [])
        if self.take("."):
            return ("index", ("identity",), self.string()) if self.kind == "string" else ("identity",)
        self.fail(f"expected an expression, found {self.value or 'the end'!r}")

    def word(self) -> Node:
        """Parse a constant, ``if``, ``try``, ``reduce``, ``foreach`` or a call with its arguments."""
        name = self.value
        self.advance()
        if name in ("true", "false", "null"):
            return ("literal", {"true": True, "false": False, "null": None}[name])
        if name == "if":
            return self.condition()
        if name == "try":
            body = self.postfix()
            return ("try", body, self.postfix() if self.take("catch") else None)
        if name in ("reduce", "foreach"):
            return self.fold(name)
        if name in ("then", "else", "elif", "end", "as", "catch", "and", "or", "def", "label"):
            self.fail(f"unexpected {name!r}")
        arguments: list[Node] = []
        if self.take("("):
            arguments.append(self.pipe())
            while self.take(";"):
                arguments.append(self.pipe())
            self.expect(")")
        return ("call", name, arguments)

    def condition(self) -> Node:
        """Parse an ``if`` or ``elif`` behind its keyword; without ``else``, the input is the result."""
        test = self.pipe()
        self.expect("then")
        then = self.pipe()
        if self.take("elif"):
            return ("if", test, then, self.condition())
        other: Node = self.pipe() if self.take("else") else ("identity",)
        self.expect("end")
        return ("if", test, then, other)

    def fold(self, name: str) -> Node:
        """Parse ``reduce`` or ``foreach``, whose name was consumed."""
        source = self.term()
        while self.kind == "field" or self.is_("[", "?"):
            if self.kind == "field":
                source = ("index", source, ("literal", self.value[1:]))
                self.advance()
            else:
                source = _tried(source) if self.take("?") else self.bracket(source)
        self.expect("as")
        variable = self.value
        if self.kind != "variable":
            self.fail("only plain variables can be bound")
        self.advance()
        self.expect("(")
        parts = [self.pipe()]
        while self.take(";"):
            parts.append(self.pipe())
        self.expect(")")
        if len(parts) != 2 and not (name == "foreach" and len(parts) == 3):
            self.fail(f"{name} requires a start and an update")
        return (name, source, variable, parts)

    def object(self) -> Node:
        """Parse the entries of an object behind its opening brace."""
        entries: list[tuple[Node, Node]] = []
        while not self.take("}"):
            if entries:
                self.expect(",")
            entries.append(self.entry())
        return ("object", entries)

    def entry(self) -> tuple[Node, Node]:
        """Parse the key and the value of an entry; a key alone stands for the field of that name."""
        kind, value = self.kind, self.value
        key: Node
        if kind == "variable":
            self.advance()
            return ("literal", value[1:]), ("variable", value)
        if kind == "string":
            key = self.string()
        elif kind == "word":
            self.advance()
            key = ("literal", value)
        elif self.take("("):
            key = self.pipe()
            self.expect(")")
        else:
            self.fail("expected a key")
        return (key, self.alternative()) if self.take(":") else (key, ("index", ("identity",), key))

    def string(self) -> Node:
        """Return a string whose opening quote is the current token; ``\\(...)`` in it is an expression."""
        parts: list[Node] = []
        plain = self.at
        while True:
            if self.at >= len(self.text):
                self.fail("the string is not terminated")
            character = self.text[self.at]
            if character == '"':
                parts.append(self.plain(plain, self.at))
                self.at += 1
                self.advance()
                return parts[0] if len(parts) == 1 else ("string", parts)
            if self.text.startswith("\\(", self.at):
                parts.append(self.plain(plain, self.at))
                self.at += 2
                self.advance()
                parts.append(self.pipe())
                if not self.is_(")"):
                    self.fail("expected ')'")
                plain = self.at
            else:
                self.at += 2 if character == "\\" else 1

    def plain(self, low: int, high: int) -> Node:
        """Return the characters from `low` to `high` of the expression, plain text of a string, as a literal."""
        try:
            return ("literal", json.loads(f'"{self.text[low:high]}"', strict=False))
        except ValueError:
            self.fail("the string is not valid JSON")


def _tried(tree: Node) -> Node:
    """Return the tree of ``tree?``, which as in jaq catches errors of the last step of a path, not of earlier steps."""
    if tree[0] not in _STEPS or tree[1] == ("identity",):
        return ("try", tree, None)
    step = (tree[0], ("variable", "$ before"), *tree[2:])
    return ("as", tree[1], "$ before", ("try", step, None))
