"""Chat templates: jinja2 in a sandbox, as Hugging Face transformers sets it up.

A template is a function of ``messages``, ``tools`` and the special tokens. Text inside of ``{% generation %} ...
{% endgeneration %}`` is what the model generates; `Template.render` returns where these blocks are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, MissingExtra
from feedmill.tokens.chat.values import Message, unquoted
from feedmill.tokens.chat.watched import Watch, watching

Span = tuple[int, int]
"""Begin and end of a range of characters."""
MOST = 1 << 26
"""Characters of the longest text of a conversation."""


class Rendered(NamedTuple):
    """The text of a conversation, and the characters inside of generation blocks, in order.

    Attributes:
        owners: for each block, the number of the message in whose loop it was written; None if that is unknown.
    """

    text: str
    spans: tuple[Span, ...]
    owners: tuple[int | None, ...] = ()


class _Tracker:
    """What one rendering has written so far, and its generation blocks."""

    def __init__(self, loops: frozenset[str]) -> None:
        self.written = 0
        self.blocks: list[tuple[int, str, int | None]] = []
        self._loops = loops

    def add(self, block: str, context: Any) -> None:
        """Add a block that was written with this context."""
        here = [context.get(name) for name in self._loops]
        owners = {message._number for message in here if isinstance(message, Message)}
        self.blocks.append((self.written, block, owners.pop() if len(owners) == 1 else None))


class Template:
    """A compiled template; not thread-safe.

    Args:
        text: the template.
        today: the date of the function ``strftime_now``.
        watched: whether to render `feedmill.tokens.chat.watched.Word`, for `watch`.

    Raises:
        MissingExtra: jinja2 is not installed.
        ConfigError: a syntax error, or a generation block whose position is unknown; the message has its line.
    """

    def __init__(self, text: str, today: date | None = None, *, watched: bool = False) -> None:
        environment = sandbox(watched, extensions=[_generation_tag(), "jinja2.ext.loopcontrols"])
        environment.globals["strftime_now"] = lambda format: (
            datetime(today.year, today.month, today.day) if today else datetime.now()
        ).strftime(format)
        self._environment = environment
        self.has_generation, self._loops = _generation(environment, text)
        self._compiled = compiled(environment, text)

    def watch(self, watch: Watch, **variables: Any) -> Rendered:
        """Return `render`, and note what is asked of the words in the variables. Raises as `render`."""
        self._environment.watch = watch
        watch.blind = self._environment.escapes
        return self.render(**variables)

    def render(self, **variables: Any) -> Rendered:
        """Return the text and its generation blocks.

        Raises:
            ValueError: the text is longer than `MOST`, or that of a generation block is not where it was written (a
                recursive loop).
            Exception: whatever the template raises.
        """
        tracker = _Tracker(self._loops)
        self._environment.feedmill_tracker = tracker
        pieces: list[str] = []
        for piece in self._compiled.generate(**variables):
            pieces.append(piece)
            tracker.written += str.__len__(piece)  # a watched text notes that its own is asked for
            if tracker.written > MOST:
                raise ValueError(f"the text is longer than {MOST:,} characters")
        text = "".join(pieces)
        spans = []
        for begin, block, _ in tracker.blocks:
            if not text.startswith(block, begin):
                raise ValueError("the text of a generation block is not where the block was written")
            spans.append((begin, begin + len(block)))
        return Rendered(text, tuple(spans), tuple(owner for _, _, owner in tracker.blocks))


@lru_cache(8)
def template_of(text: str, thread: int, today: date | None = None) -> Template:  # noqa: ARG001
    """Return a compiled template of a thread."""
    return Template(text, today)


def sandbox(watched: bool = False, **options: Any) -> Any:
    """Return a sandboxed jinja2 environment with the filter ``tojson`` and the function ``raise_exception``.

    Args:
        watched: see `Template`.
        options: of the environment.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtra("chat templates need jinja2", "tokenize") from None

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    kind: Any = watching(ImmutableSandboxedEnvironment) if watched else ImmutableSandboxedEnvironment
    environment = kind(trim_blocks=True, lstrip_blocks=True, **options)
    environment.filters["tojson"] = _tojson
    if watched:
        environment.begin()
    environment.globals["raise_exception"] = raise_exception
    return environment


def prepare_children() -> None:
    """Import and make what every template needs, so that the child processes that compile them inherit it.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    Template("{% generation %}{{ messages }}{% endgeneration %}")
    variables_of("")


def compiled(environment: Any, text: str) -> Any:
    """Return a compiled template. Raises ConfigError with the line of a syntax error.

    The compiler computes expressions of constants: a template of others is compiled in a `feedmill.jobs.sandbox` only.
    """
    return _checked(environment.from_string, text)


def _checked(function: Callable[[str], Any], text: str) -> Any:
    """Return ``function(text)`` of a template. Raises ConfigError if it is no template."""
    from jinja2 import TemplateSyntaxError

    try:
        return function(text)
    except TemplateSyntaxError as error:
        what = f"syntax error in line {error.lineno} of the chat template: {error.message}"
    except RecursionError:
        what = "the chat template is nested too deeply"
    except (ValueError, OverflowError) as error:  # a number of more digits than Python reads
        what = f"the chat template cannot be compiled ({error})"
    raise ConfigError(what, kind="bad-template", fix="Fix the template.")


def variables_of(text: str) -> set[str]:
    """Return the names that a template reads without setting them. Raises as `Template` does."""
    from jinja2 import meta

    environment = sandbox(extensions=[_generation_tag(), "jinja2.ext.loopcontrols"])
    tree = _checked(environment.parse, text)
    return set(meta.find_undeclared_variables(tree)) - {"raise_exception", "strftime_now"}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    value = unquoted(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _generation(environment: Any, text: str) -> tuple[bool, frozenset[str]]:
    """Return whether a template has generation blocks, and the variables of the loops around them.

    Raises:
        ConfigError: it is no template, or a block has no position of its own.
    """
    from jinja2 import nodes

    def blocks(node: Any) -> list[Any]:
        calls = node.find_all(nodes.CallBlock)
        return [call for call in calls if isinstance(call.call.node, nodes.ExtensionAttribute)]

    tree = _checked(environment.parse, text)
    for inside in tree.find_all((nodes.Macro, nodes.AssignBlock, nodes.FilterBlock)):
        if found := blocks(inside):
            raise ConfigError(
                f"the chat template has a generation block inside of a macro, a filter or an assignment, in line"
                f" {found[0].lineno}: where its text ends up is unknown",
                kind="bad-template",
                fix="Move the block to where its text is written.",
            )
    loops = {
        loop.target.name for loop in tree.find_all(nodes.For) if isinstance(loop.target, nodes.Name) and blocks(loop)
    }
    return bool(blocks(tree)), frozenset(loops)


@lru_cache(1)
def _generation_tag() -> type[Any]:
    """Return the jinja2 extension of the tag ``generation``; jinja2 is optional, so the class is made when needed."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - the interface of jinja2

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_note", [nodes.DerivedContextReference()])
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _note(self, context: Any, caller: Callable[[], str]) -> str:
            block = str.__str__(caller())
            tracker = getattr(self.environment, "feedmill_tracker", None)
            if tracker is not None:
                tracker.add(block, context)
            return block

    return Generation
