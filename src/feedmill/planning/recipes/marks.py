"""Parse YAML with the line of every value, for error messages about recipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from feedmill.errors import ConfigError
from feedmill.formats import yamls

Place = Sequence[int | str]
"""Keys and list indices from the root of the document to a value."""


class Marks:
    """One YAML document with the lines of its values.

    Attributes:
        data: the document as plain data.
        file: path, URL or display name of the document.
    """

    def __init__(self, text: str | bytes, file: str) -> None:
        """Parse a document.

        Raises:
            ConfigError: invalid YAML, a duplicate key, or aliases that expand without end.
        """
        self.file = file
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")  # the parser rejects surrogates with their position
        try:
            self._root = yamls.compose(text, file)
            yamls.refuse_twice(self._root, file)
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
