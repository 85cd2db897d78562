"""jq in the dialect of jaq 1.2, which Dolma's mixer uses.

It differs from jq 1.7: indexing ``null`` is an error (``.a.b`` without an ``a``), indexing distinguishes integers from
floats, and ``/`` returns floats. Supported are paths, comparisons, logic, arithmetic, constructions, ``if``, ``try``,
variables, ``reduce`` and the functions of `functions`.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from feedmill.documents.expressions.functions import FUNCTIONS
from feedmill.documents.expressions.tree import IDENTITY, Node
from feedmill.errors import ConfigError

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<string>")
    |(?P<field>\.[A-Za-z_]\w*)|(?P<variable>\$[A-Za-z_]\w*)|(?P<format>@[a-z0-9]+)|(?P<word>[A-Za-z_]\w*)
    |(?P<sign>\?//|//=|\|=|\+=|-=|\*=|/=|%=|\.\.|//|==|!=|<=|>=|and|or|[.\[\]{}()|,:;<>=+\-*/%?])""",
    re.X,
)
_OPERATORS = (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_STEPS = ("index", "each", "slice")
_ASSIGNMENTS = ("=", "|=", "+=", "-=", "*=", "/=", "%=", "//=", "?//")
_STATEMENTS = ("def", "label", "import", "include", "foreach")
_NEITHER = ("IN/1", "getpath/1", "index/1", "inputs/0", "$ENV")
"""What Dolma's jq does not have either."""


def read_jq(text: str) -> Node:
    """Return the tree of a jq expression.

    Raises:
        ConfigError: Of kind ``bad-expression``, with the position of the invalid or unsupported part.
    """
    return _Reader(text).whole()


class _Reader:
    """Recursive descent parser, by precedence: ``|``, ``,``, ``//``, or, and, comparisons, sums, products, postfix.

    Each rule is a method that consumes its tokens and returns a node. All raise `ConfigError` for invalid syntax.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.kind, self.value, self.begin = "", "", 0
        self.bound: frozenset[str] = frozenset()
        self.advance()

    def fail(self, what: str, begin: int | None = None, fix: str = "") -> NoReturn:
        """Raise `ConfigError` for the current token, or for one that begins at another character."""
        raise ConfigError(
            f"{what}, at character {(self.begin if begin is None else begin) + 1} of the jq expression {self.text!r}",
            kind="bad-expression",
            fix=fix or "See docs/filter.md for the supported syntax.",
        )

    def refuse(self, what: str, begin: int) -> NoReturn:
        """Raise `ConfigError` for a part of jq that is not supported."""
        whose = "Dolma does not support it either." if what in _NEITHER else "If it is jq, Dolma may support it."
        names = ", ".join(sorted({name for name, _ in FUNCTIONS if name.isidentifier()}))
        self.fail(
            f"Feedmill does not support {what}",
            begin,
            f"{whose} Supported are paths, comparisons, logic, + - * / %, if, try, reduce, and the functions {names}.",
        )

    def advance(self) -> None:
        """Read the next token."""
        while True:
            self.begin = self.at
            if self.at >= len(self.text):
                self.kind, self.value = "end", ""
                return
            match = _TOKEN.match(self.text, self.at)
            if not match:
                self.fail(f"unexpected character {self.text[self.at]!r}")
            self.kind, self.value, self.at = str(match.lastgroup), match[0], match.end()
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
            self.refuse(f"{self.value} (assignments)", self.begin)
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
        """Parse a term and what follows it: steps, and ``as``."""
        tree = self.steps(self.term())
        return self.binding(tree) if self.take("as") else tree

    def steps(self, tree: Node) -> Node:
        """Parse the fields, brackets and ``?`` behind a term."""
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
            else:
                return tree

    def binding(self, source: Node) -> Node:
        """Parse ``as $name | body``, behind the `source` of the values."""
        if self.kind != "variable":
            self.fail("only plain variables can be bound")
        name = self.value
        self.advance()
        self.expect("|")
        return ("as", source, name, self.within(name))

    def within(self, name: str) -> Node:
        """Parse an expression in which a variable is bound."""
        outer, self.bound = self.bound, self.bound | {name}
        body = self.pipe()
        self.bound = outer
        return body

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
            self.refuse(f"{value} (formats)", self.begin)
        if kind == "field":
            self.advance()
            return ("index", IDENTITY, ("literal", value[1:]))
        if kind == "variable":
            return self.variable()
        if kind == "word":
            return self.word()
        return self.sign()

    def variable(self) -> Node:
        """Return a bound variable."""
        name, begin = self.value, self.begin
        if name not in self.bound:
            self.refuse(name, begin)
        self.advance()
        return ("variable", name)

    def sign(self) -> Node:
        """Parse a term that begins with a sign: ``-``, ``(``, ``[``, ``{``, ``..`` or ``.``."""
        if self.is_("-"):
            self.advance()
            return ("negative", self.postfix())
        if self.take("("):
            tree = self.pipe()
            self.expect(")")
            return ("pipe", IDENTITY, tree) if tree[0] in _STEPS else tree  # one unit, for a "?" after it
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
            return ("index", IDENTITY, self.string()) if self.kind == "string" else IDENTITY
        self.fail(f"expected an expression, found {self.value or 'the end'!r}")

    def word(self) -> Node:
        """Parse a constant, ``if``, ``try``, ``reduce`` or a call with its arguments."""
        name, begin = self.value, self.begin
        if name in _STATEMENTS:
            self.refuse(name, begin)
        self.advance()
        if name in ("true", "false", "null"):
            return ("literal", {"true": True, "false": False, "null": None}[name])
        if name == "if":
            return self.condition()
        if name == "try":
            body = self.postfix()
            return ("try", body, self.postfix() if self.take("catch") else None)
        if name == "reduce":
            return self.reduction()
        if name in ("then", "else", "elif", "end", "as", "catch", "and", "or"):
            self.fail(f"unexpected {name!r}")
        arguments: list[Node] = []
        if self.take("("):
            arguments.append(self.pipe())
            while self.take(";"):
                arguments.append(self.pipe())
            self.expect(")")
        if (name, len(arguments)) not in FUNCTIONS:
            self.refuse(f"{name}/{len(arguments)}", begin)
        return ("call", name, arguments)

    def condition(self) -> Node:
        """Parse an ``if`` or ``elif`` behind its keyword; without ``else``, the input is the result."""
        test = self.pipe()
        self.expect("then")
        then = self.pipe()
        if self.take("elif"):
            return ("if", test, then, self.condition())
        other: Node = self.pipe() if self.take("else") else IDENTITY
        self.expect("end")
        return ("if", test, then, other)

    def reduction(self) -> Node:
        """Parse ``reduce source as $name (start; update)`` behind its keyword."""
        source = self.steps(self.term())
        self.expect("as")
        name = self.value
        if self.kind != "variable":
            self.fail("only plain variables can be bound")
        self.advance()
        self.expect("(")
        start = self.pipe()
        self.expect(";")
        update = self.within(name)
        self.expect(")")
        return ("reduce", source, name, start, update)

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
            return ("literal", value[1:]), self.variable()
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
        return (key, self.alternative()) if self.take(":") else (key, ("index", IDENTITY, key))

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
    if tree[0] not in _STEPS or tree[1] == IDENTITY:
        return ("try", tree, None)
    step = (tree[0], ("variable", "$ before"), *tree[2:])
    return ("as", tree[1], "$ before", ("try", step, None))
