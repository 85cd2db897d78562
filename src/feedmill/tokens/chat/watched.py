"""Words that note what a template asks of them, so that it is known which other words it writes in the same way.

A template may look into a text: cut it at ``</think>``, trim it, compare it. Rendered with `Word` instead of words, it
says what it looked for. Other words in which nothing of this is found are written in the same places. A template that
asks for more, such as for a length, is `Watch.blind`: each of its conversations must be rendered.

`watching` closes the ways on which jinja2 and Python would read a text without asking it: filters, tests, calls, and
comparisons are asked here first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

FREE_FILTERS = frozenset(
    [
        "trim",
        "string",
        "default",
        "d",
        "length",
        "count",
        "first",
        "last",
        "list",
        "map",
        "replace",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
    ]
)
"""Filters that ask a word by its methods, or not at all."""
TYPE_TESTS = frozenset(
    [
        "boolean",
        "callable",
        "defined",
        "false",
        "float",
        "integer",
        "iterable",
        "mapping",
        "none",
        "number",
        "sequence",
        "string",
        "true",
        "undefined",
    ]
)
"""Tests whose result is that of any other text."""
FREE_TESTS = frozenset(["eq", "==", "equalto", "ne", "!="])
_LOOKS = (
    "__contains__", "__eq__", "__ne__", "count", "endswith", "partition", "removeprefix", "removesuffix", "replace",
    "rpartition", "rsplit", "split", "startswith",
)  # fmt: skip
"""Methods whose first argument is looked for; what they return has the same words for others without it."""
_TRIMS = ("lstrip", "rstrip", "strip")


class Watch:
    """What a rendering asked of its words.

    Attributes:
        needles: texts that were looked for; `edges`: characters that were trimmed, besides white space.
        quoted: whether they were written as JSON, which other characters change.
        blind: whether it asked for more.
    """

    def __init__(self) -> None:
        self.needles: set[str] = set()
        self.edges: set[str] = set()
        self.quoted = self.blind = False

    def look(self, what: Any) -> None:
        """Note a text, or several, that was looked for."""
        for each in what if isinstance(what, tuple) else (what,):
            if isinstance(each, Word) or not each:
                self.blind = True  # two words may be equal where their probes are not
            elif isinstance(each, str):
                self.needles.add(str(each))


class Held(str):
    """A text of a template, in which a word may be looked for."""

    def __contains__(self, item: object) -> bool:
        if isinstance(item, Word):
            item._watch.blind = True
        return isinstance(item, str) and str.__contains__(self, item)


class Word(Held):
    """A text that contains words; all but what is defined here makes its `Watch` blind."""

    _watch: Watch

    def __new__(cls, text: str, watch: Watch) -> Word:
        self = super().__new__(cls, text)
        self._watch = watch
        return self

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return str.__len__(self) > 0

    def __add__(self, other: Any) -> Any:
        return self._with(str.__add__(self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self._with(str.__add__(other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):  # that of a key is an error for every text
            self._watch.blind = True
        return self._with(str.__getitem__(self, key))

    def _with(self, found: Any) -> Any:
        """Return what a method made of this text, which may contain its words."""
        if isinstance(found, str):
            return Word(found, self._watch)
        return type(found)(map(self._with, found)) if isinstance(found, list | tuple) else found


def _method(name: str) -> Any:
    """Return a method of `Word` instead of that of `str`."""
    own = getattr(str, name)

    def asked(self: Word, *given: Any, **named: Any) -> Any:
        watch = self._watch
        first = given[0] if given else None
        if name in ("__eq__", "__ne__"):
            if isinstance(first, str) and first:
                watch.look(first)
        elif name in _LOOKS and isinstance(first, str | tuple) and not named:
            watch.look(first)
            watch.blind |= name.endswith("with") and len(given) > 1
        elif name in _TRIMS and not named and not isinstance(first, Word):
            watch.edges |= {character for character in first or "" if not character.isspace()}
        else:
            watch.blind = True
        return self._with(own(self, *given, **named))

    return asked


_ASKED = {*dir(str)} - {*vars(Word), *dir(object), "__getnewargs__"}
_ASKED |= {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "hash", "format", "repr")}
for _name in _ASKED:
    setattr(Word, _name, _method(_name))


def holds(value: Any) -> bool:
    """Return whether a value may have a word in it."""
    if isinstance(value, Word):
        return True
    if value is None or isinstance(value, str | int | float):
        return False
    if isinstance(value, dict):
        return any(holds(item) for pair in dict.items(value) for item in pair)
    if isinstance(value, list | tuple):
        return any(map(holds, value))
    from jinja2 import Undefined

    return not isinstance(value, Undefined)


def joined(parts: Iterable[Any]) -> str:
    """Return texts one after another."""
    texts = list(map(str, parts))
    words = next((text for text in texts if isinstance(text, Word)), None)
    text = "".join(texts)
    return text if words is None else Word(text, words._watch)


@functools.cache
def watching(base: type[Any]) -> type[Any]:
    """Return a class of jinja2 environments whose templates can ask words only by `Word`.

    Its attribute `watch` is the `Watch` of the current rendering.
    """
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.runtime import Macro
    from jinja2.utils import Namespace

    class Watching(base):  # type: ignore[misc]
        filters: dict[str, Any]
        tests: dict[str, Any]
        watch = Watch()
        concat = staticmethod(joined)
        intercepted_binops = frozenset({"%", "*", "+"})
        escapes = False
        """Whether the template changes how it writes all texts."""

        def begin(self) -> None:
            """Wrap the filters and tests, once all are known."""
            self.filters = {name: self._wrapped(name, filter_) for name, filter_ in self.filters.items()}
            self.tests = {name: self._tested(name, test) for name, test in self.tests.items()}

        def _wrapped(self, name: str, function: Any) -> Any:
            if name in FREE_FILTERS:
                return function
            skipped = int(hasattr(function, "jinja_pass_arg"))

            @functools.wraps(function)
            def asked(*given: Any, **named: Any) -> Any:
                held = holds([given[skipped:], named])
                if held and name == "tojson" and not named and len(given) == 1:
                    self.watch.quoted = True
                    return Word(function(*given), self.watch)
                self.watch.blind |= held or name == "random"
                return function(*given, **named)

            return asked

        def _tested(self, name: str, function: Any) -> Any:
            if name in FREE_TESTS:
                return function
            skipped = int(hasattr(function, "jinja_pass_arg"))

            @functools.wraps(function)
            def asked(*given: Any, **named: Any) -> Any:
                if name in TYPE_TESTS and isinstance(given[skipped], Word):
                    given = (*given[:skipped], str.__str__(given[skipped]), *given[skipped + 1 :])
                elif name not in TYPE_TESTS:
                    self.watch.blind |= holds([given[skipped:], named])
                return function(*given, **named)

            return asked

        def held(self, value: Any) -> Any:
            """Return a value with which a word may be compared."""
            return value if isinstance(value, Word) or not isinstance(value, str) else Held(value)

        def joined(self, *parts: Any) -> str:
            return joined(parts)

        def call(self, context: Any, function: Any, /, *given: Any, **named: Any) -> Any:
            of = getattr(function, "__self__", None)
            free = isinstance(of, Word | dict | list | Extension) or of is self or isinstance(function, Macro)
            if not free and function not in (Namespace, dict):
                passed = [value for name, value in named.items() if name not in ("_loop_vars", "_block_vars")]
                self.watch.blind |= getattr(function, "__name__", "") == "generate_lorem_ipsum" or holds(
                    [given, passed]
                )
            return super().call(context, function, *given, **named)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            escaping = hasattr(left, "__html__") or hasattr(right, "__html__")
            self.watch.blind |= (operator != "+" or escaping) and holds([left, right])
            return super().call_binop(context, operator, left, right)

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            self.escapes = tree.find((nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)) is not None
            for compare in list(tree.find_all(nodes.Compare)):
                compare.expr = _asked("held", [compare.expr], compare)
                for operand in compare.ops:
                    operand.expr = _asked("held", [operand.expr], compare)
            _rejoined(tree)
            return tree.set_environment(self)

    def _asked(name: str, given: list[Any], at: Any) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), given, [], None, None).set_lineno(at.lineno, override=True)

    def _rejoined(node: Any) -> None:
        """Join texts by `joined`, wherever a template does."""
        for field, value in node.iter_fields():
            items = value if isinstance(value, list) else [value]
            for at, item in enumerate(items):
                if not isinstance(item, nodes.Node):
                    continue
                _rejoined(item)
                if isinstance(item, nodes.Concat):
                    items[at] = _asked("joined", item.nodes, item)
            if not isinstance(value, list):
                setattr(node, field, items[0])

    return Watching
