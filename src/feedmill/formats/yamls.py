"""Parse YAML as Energon does, with line numbers for error messages.

The scalar rules are Energon's, so a file has the same meaning in both: quoted and block scalars are text. Plain ones
are None (``null``, ``~``, nothing; any case), true (``true``, ``yes``), false (``false``, ``no``), a float if they
contain ``.`` or ``e`` and Python's `float` accepts them, an int if Python's `int` does, and text otherwise. So
``0x10``, ``12:30``, ``off`` and dates are text. Keys are always text. Anchors and aliases are rejected, tags are
ignored, and one file is one document. Two equal keys are an error; Energon silently keeps the last.

Parse YAML with the line of every value, for error messages about recipes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from feedmill.errors import ConfigError
from feedmill.storage.limits import DEEPEST, TOO_DEEP, check_nesting

_log = logging.getLogger("feedmill")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
UNREADABLE = (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError)
"""Errors that building values can raise: constructors of YAML types fail in many ways, for example on ``!!int ""``."""
_WORDS = {"null": None, "~": None, "": None, "true": True, "yes": True, "false": False, "no": False}

MOST_VALUES = 100_000
"""Maximum number of values that aliases may add. A long list of sources or samples uses no aliases."""

Path = tuple[str | int, ...]
_SMALL, _MOST_PARSED = 2048, 256


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file.

    Attributes:
        value: mappings with text keys, lists, None, bool, int, float and str.
        where: path of the file.
    """

    value: Any
    where: str
    _lines: dict[Path, int] = field(default_factory=dict, repr=False)

    def line(self, path: Sequence[str | int] = ()) -> int | None:
        """Return the line, counted from 1, of the entry at `path` (keys and list indices), or of its nearest parent.

        >>> read_yaml("a: 1\\nb:\\n- x\\n- y\\n", "f.yaml").line(("b", 1))
        4
        """
        keys = tuple(path)
        while keys not in self._lines and keys:
            keys = keys[:-1]
        return self._lines.get(keys)

    def at(self, path: Sequence[str | int] = ()) -> str:
        """Return ``file:line`` of the entry at `path`, for error messages."""
        line = self.line(path)
        return f"{self.where}:{line}" if line else self.where


_parsed: dict[tuple[str | bytes, bool], Document] = {}
"""Small documents by their text: the descriptions of the many sources of a recipe are mostly alike."""


def read_config(text: str | bytes, where: str, *, last_counts: bool = False) -> Document:
    """Parse a ``.json`` file as JSON, any other with `read_yaml`. Raises `ConfigError` if it is invalid.

    Args:
        text: the content of the file; `where`: its path, for errors.
        last_counts: if a key occurs twice in YAML, use the last value, with a warning in the log.
    """
    if not where.endswith(".json"):
        return read_yaml(text, where, last_counts=last_counts)
    try:
        value = json.loads(text)
        check_nesting(value, where)
        json.dumps(
            value, ensure_ascii=False
        ).encode()  # rejects lone surrogates from escapes: file names cannot have them
        return Document(value, where)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg}", file=f"{where}:{error.lineno}", fix="Fix this line.") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, numbers of thousands of digits, or nested too deep
        raise ConfigError(f"not JSON: {error}", file=where, fix="Fix the file.") from None


def read_yaml(text: str | bytes, where: str, *, last_counts: bool = False) -> Document:
    """Parse one YAML document by Energon's rules; the value of an empty file is None. For arguments see `read_config`.

    Raises:
        ConfigError: a syntax error, an anchor or alias, a duplicate key, or several documents; names file and line.
    """
    known = _parsed.get((text, last_counts)) if len(text) <= _SMALL else None
    if known is not None:
        return Document(_copied(known.value), where, known._lines)
    try:
        builder = _Builder(where, last_counts)
        document = builder.build(yaml.parse(text, Loader=_LOADER))
        if len(text) <= _SMALL and not builder.warned:
            if len(_parsed) >= _MOST_PARSED:
                _parsed.clear()
            _parsed[text, last_counts] = Document(_copied(document.value), where, document._lines)
        return document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(
            f"not YAML: {error.problem or error.context}",
            file=f"{where}:{mark.line + 1}" if mark else where,
            fix="Fix this line. Text with ': ', '#', braces or brackets needs quotes.",
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # not UTF-8, or numbers of thousands of digits
        why = str(error).partition("\n")[0]  # the second line names the string that was parsed
        raise ConfigError(f"not YAML: {why}", file=where, fix="Save the file as UTF-8 text.") from None


def _copied(value: Any) -> Any:
    """Return plain data with lists and mappings of its own; many times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def read_settings(text: str | bytes, where: str, *, ours: bool = False) -> Any:
    """Parse YAML of other tools as safe loaders do, with aliases.

    Args:
        text: the YAML; `where`: where it is from, for errors.
        ours: another tool has no say in what the numbers mean: see `refuse_old_numbers`.

    Raises:
        ConfigError: a syntax error, or a duplicate key, which safe loaders silently drop.
    """
    try:
        root = compose(text, where)
        refuse_twice(root, where)
        if ours:
            refuse_old_numbers(root, where)
        return yaml.load(text, Loader=_SAFE)  # noqa: S506 - a safe loader  # nosec B506
    except UNREADABLE as error:
        raise ConfigError(f"not YAML: {error}", file=where, kind="bad-config") from None


def compose(text: str | bytes, where: str) -> yaml.Node | None:
    """Return the nodes of a document after checking depth and aliases; None for an empty document.

    Raises:
        yaml.YAMLError, ValueError: the text is not valid YAML.
        ConfigError: it is nested deeper than `DEEPEST`, or its aliases expand to more than `MOST_VALUES` values.
    """
    depth = 0
    for event in yaml.parse(text, _SAFE):  # parsing events does not recurse, composing nodes does
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _refused(TOO_DEEP, event, where, "Check the brackets.")
    root: yaml.Node | None = yaml.compose(text, _SAFE)
    written: dict[int, tuple[int, int]] = {}
    if root is not None and _expanded(root, where, written)[0] - len(written) > MOST_VALUES:
        raise _refused(f"aliases expand to more than {MOST_VALUES:,} values", root, where)
    return root


def _expanded(node: yaml.Node, where: str, written: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values a node expands to, and their depth, including aliases; `written` has each node."""
    if id(node) in written:
        if not written[id(node)][0]:
            raise _refused("an alias contains itself", node, where)
        return written[id(node)]
    written[id(node)] = (0, 0)
    total = depth = 1
    if isinstance(node, yaml.CollectionNode):
        pairs = isinstance(node, yaml.MappingNode)
        for child in (one for pair in node.value for one in pair) if pairs else node.value:
            more, below = _expanded(child, where, written)
            total, depth = total + more, max(depth, below + 1)
    if depth > DEEPEST + 1:
        raise _refused(TOO_DEEP, node, where)
    written[id(node)] = (total, depth)
    return total, depth


def _refused(what: str, at: Any, where: str, fix: str = "Remove it.") -> ConfigError:
    line = at.start_mark.line + 1 if at.start_mark else 1
    return ConfigError(what, file=f"{where}:{line}", kind="bad-config", fix=fix)


def refuse_twice(node: yaml.Node | None, where: str) -> None:
    """Raise `ConfigError` for a duplicate key in a mapping."""
    todo: list[Any] = [node]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen or not isinstance(one, yaml.CollectionNode):
            continue
        seen.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            todo += one.value
            continue
        names = set()
        for key, value in one.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise ConfigError(
                    f"the key {key.value!r} occurs twice",
                    file=f"{where}:{key.start_mark.line + 1}",
                    kind="bad-config",
                    fix="Keep one of the two.",
                )
            names.add(key.value if isinstance(key, yaml.ScalarNode) else None)
            todo += [key, value]


def refuse_old_numbers(root: yaml.Node | None, where: str) -> None:
    """Raise `ConfigError` for numbers that YAML 1.1 reads otherwise than people: ``010`` as 8, ``1:30`` as 90."""
    for one in [] if root is None else _scalars(root):
        kind, digits = one.tag.rpartition(":")[2], one.value.replace("_", "").lstrip("+-")
        octal = kind == "int" and digits.isdigit() and digits[:1] == "0" and int(digits, 8) != int(digits)
        if octal or (kind in ("int", "float") and ":" in digits):
            base = "8" if octal else "60"
            raise ConfigError(
                f"YAML 1.1 reads {one.value!r} as {yaml.SafeLoader('').construct_object(one)}, a number of base {base}",
                file=f"{where}:{one.start_mark.line + 1}",
                kind="bad-config",
                fix="Write the number without zeros before it and without colons, or put text in quotes.",
            )


def scalar(text: str) -> Any:
    """Return the value of a plain scalar.

    >>> [scalar(word) for word in ("NULL", "Yes", "1_000", "1e3", "0x10", "a cat")]
    [None, True, 1000, 1000.0, '0x10', 'a cat']
    """
    lowered = text.lower()
    if lowered in _WORDS:
        return _WORDS[lowered]
    try:
        return float(text) if "." in text or "e" in lowered else int(text)
    except ValueError:
        return text


class _Builder:
    """Builds the document from parser events."""

    def __init__(self, where: str, last_counts: bool = False) -> None:
        self.where, self.last_counts = where, last_counts
        self.lines: dict[Path, int] = {}
        self.stack: list[tuple[Any, Path]] = []
        self.pending: tuple[str, int] | None = None  # key and line of the entry whose value is next
        self.root: Any = None
        self.warned = False

    def build(self, events: Iterator[Any]) -> Document:
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(event, "the file has several documents", "Keep one document per file.")
            elif isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self._open(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self.stack.pop()
            elif isinstance(event, yaml.AliasEvent):
                raise self._error(event, f"the alias *{event.anchor} is not supported", "Write the value out.")
        return Document(self.root, self.where, self.lines)

    def _scalar(self, event: Any) -> None:
        if event.anchor:
            raise self._error(event, f"the anchor &{event.anchor} is not supported", "Remove it.")
        if self.stack and isinstance(self.stack[-1][0], dict) and self.pending is None:
            self._key(event)
            return
        plain = event.style is None or event.style == ""
        self._place(event, scalar(event.value) if plain else event.value)

    def _key(self, event: Any) -> None:
        mapping, path = self.stack[-1]
        if event.value in mapping:
            error = self._error(
                event,
                f"duplicate key {event.value!r}: it is also in line {self.lines[(*path, event.value)]}",
                "Keep one of them.",
            )
            if not self.last_counts:
                raise error
            self.warned = True
            _log.warning("the last value is used: %s", error)
        self.pending = (event.value, event.start_mark.line + 1)

    def _open(self, event: Any, container: Any) -> None:
        if event.anchor:
            raise self._error(event, f"the anchor &{event.anchor} is not supported", "Remove it.")
        if self.stack and isinstance(self.stack[-1][0], dict) and self.pending is None:
            raise self._error(event, "a key is a mapping or list: expected text", "Quote text with braces.")
        if len(self.stack) >= DEEPEST:
            raise self._error(event, TOO_DEEP, "Check the brackets.")
        self.stack.append((container, self._place(event, container)))

    def _place(self, event: Any, value: Any) -> Path:
        line = event.start_mark.line + 1
        path: Path = ()
        if not self.stack:
            self.root = value
        else:
            parent, above = self.stack[-1]
            if isinstance(parent, dict):
                assert self.pending is not None
                key, line = self.pending
                parent[key], path = value, (*above, key)
                self.pending = None
            else:
                path = (*above, len(parent))
                parent.append(value)
        self.lines[path] = line
        return path

    def _error(self, event: Any, what: str, fix: str) -> ConfigError:
        return ConfigError(what, file=f"{self.where}:{event.start_mark.line + 1}", fix=fix)


Place = Sequence[int | str]
"""Keys and list indices from the root of the document to a value."""


class Marks:
    """One YAML document with the lines of its values.

    Attributes:
        data: the document as plain data.
        file: path, URL or display name of the document.
    """

    def __init__(self, text: str | bytes, file: str, *, ours: bool = False) -> None:
        """Parse a document; `ours` is that of `read_settings`.

        Raises:
            ConfigError: invalid YAML, a duplicate key, or aliases that expand without end.
        """
        self.file = file
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")  # the parser rejects surrogates with their position
        try:
            self._root = compose(text, file)
            refuse_twice(self._root, file)
            if ours:
                refuse_old_numbers(self._root, file)
            self.data: Any = None if self._root is None else _built(self._root, file)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise ConfigError(
                f"this is not valid YAML: {error.problem or error.context}",
                file=f"{file}:{mark.line + 1}" if mark else file,
                kind="bad-config",
                fix="Check the indentation, quotes and brackets around here.",
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"this is not valid YAML: {str(error).splitlines()[0]}", file=file, kind="bad-config"
            ) from None

    def where(self, place: Place) -> str:
        """Return ``file:line`` of a value, or of its nearest existing ancestor."""
        return f"{self.file}:{self.line(place)}"

    def line(self, place: Place) -> int:
        """Return the line of a value, from 1, or of its nearest existing ancestor."""
        node, line = self._root, 0
        for step in place:
            found = None
            if isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = (node.value[step], node.value[step])
            if found is None and step == 0:  # the list of one source that a mapping abbreviates
                continue
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        return line + 1


def _built(root: yaml.Node, file: str) -> Any:
    """Return the document as plain data."""
    try:
        return yaml.SafeLoader("").construct_document(root)
    except (ValueError, LookupError, AttributeError, TypeError):
        # The constructors of YAML types (as in '!!int ""' or 2020-13-01) raise various errors without a position.
        for scalar in _scalars(root):
            try:
                yaml.SafeLoader("").construct_object(scalar)
            except (ValueError, LookupError, AttributeError, TypeError):
                kind = scalar.tag.rpartition(":")[2]
                raise ConfigError(
                    f"{scalar.value[:60]!r} is not a valid value of the YAML type {kind!r}",
                    file=f"{file}:{scalar.start_mark.line + 1}",
                    kind="bad-config",
                    fix="Put text in quotes, without a tag.",
                ) from None
        raise


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _scalars(child)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for child in pair:
                yield from _scalars(child)
