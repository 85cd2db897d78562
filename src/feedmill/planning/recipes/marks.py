"""YAML with the line of every value, so that a message about a recipe can say where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from feedmill.errors import ConfigError

Place = Sequence[int | str]
"""Keys and list numbers from the top of the document down to a value."""

_MOST_VALUES = 100_000  # that aliases repeat: a long list of sources or samples needs none
_DEEPEST = 100


class Marks:
    """Where the values of one YAML document stand.

    Attributes:
        data: the document as plain data.
        file: path or URL of the document, or another name for it.
    """

    def __init__(self, text: str | bytes, file: str) -> None:
        """Read a document.

        Raises:
            ConfigError: not YAML, a key given twice, or aliases that unfold without end.
        """
        self.file = file
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")  # the parser refuses surrogates, and says where
        safe = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        loader = safe(text)
        try:
            _check_depth(yaml.parse(text, safe), file)
            self._root: yaml.Node | None = loader.get_single_node()
            if self._root is not None:
                _check_aliases(self._root, file)
            self.data: Any = None if self._root is None else _built(loader, self._root, file)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise ConfigError(
                f"this is not valid YAML: {error.problem or error.context}",
                file=f"{file}:{mark.line + 1}" if mark else file,
                kind="bad-yaml",
                fix="Check the indentation, quotes and brackets around here.",
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"this is not valid YAML: {str(error).splitlines()[0]}", file=file, kind="bad-yaml"
            ) from None
        finally:
            loader.dispose()

    def where(self, place: Place) -> str:
        """``file:line`` of a value, or of the nearest value above it that exists."""
        return f"{self.file}:{self.line(place)}"

    def line(self, place: Place) -> int:
        """The line, from 1, of a value, or of the nearest value above it that exists."""
        node, line = self._root, 0
        for step in place:
            found = None
            if isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = (node.value[step], node.value[step])
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        return line + 1


def _check_depth(events: Iterator[yaml.Event], file: str) -> None:
    """Refuse nesting that no recipe needs: the parser gives events without recursion, but builds nodes with it."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ConfigError(
                f"this is nested more than {_DEEPEST} levels deep",
                file=f"{file}:{event.start_mark.line + 1 if event.start_mark else 1}",
                kind="bad-yaml",
                fix="Check the brackets.",
            )


def _check_aliases(root: yaml.Node, file: str) -> None:
    """Refuse keys given twice, and aliases that unfold to much more than was written."""
    known: dict[int, int] = {}
    if _values(root, file, known) - len(known) > _MOST_VALUES:
        raise _refused(f"aliases unfold to more than {_MOST_VALUES:,} values", root, file)


def _values(node: yaml.Node, file: str, known: dict[int, int]) -> int:
    """How many values a node unfolds to, counting what aliases repeat; `known` has each node that was written."""
    if id(node) in known:
        if known[id(node)] < 0:
            raise _refused("an alias contains itself", node, file)
        return known[id(node)]
    known[id(node)] = -1
    total = 1
    if isinstance(node, yaml.SequenceNode):
        total += sum(_values(child, file, known) for child in node.value)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refused(f"the key {key.value!r} is given twice", key, file)
                seen.add(key.value)
            total += _values(key, file, known) + _values(value, file, known)
    known[id(node)] = total
    return total


def _built(loader: Any, root: yaml.Node, file: str) -> Any:
    """The document as plain data."""
    try:
        return loader.construct_document(root)
    except (ValueError, LookupError, AttributeError, TypeError):
        # YAML's own types, as in '!!int ""' or 2020-13-01: their readers fail in many ways, and do not say where.
        for scalar in _scalars(root):
            try:
                yaml.SafeLoader("").construct_object(scalar)
            except (ValueError, LookupError, AttributeError, TypeError):
                kind = scalar.tag.rpartition(":")[2]
                raise ConfigError(
                    f"{scalar.value[:60]!r} is no value of the YAML type {kind!r}",
                    file=f"{file}:{scalar.start_mark.line + 1}",
                    kind="bad-yaml",
                    fix="Write text in quotes, and no tag.",
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


def _refused(what: str, node: yaml.Node, file: str) -> ConfigError:
    return ConfigError(what, file=f"{file}:{node.start_mark.line + 1}", kind="bad-yaml", fix="Remove it.")
