"""Variables of chat templates besides the conversation, such as ``enable_thinking``: of a job, and of single rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError

COLUMN = "chat_template_kwargs"
"""Field of a row with variables of its own, the name that trl reads."""
RESERVED = ("messages", "tools", "add_generation_prompt")
"""Variables that the job sets itself."""
Variables = tuple[tuple[str, str], ...]
"""Names and values as JSON text, so that they are hashable, and sorted, so that their order does not matter."""


def checked_variables(given: Mapping[str, Any] | None, known: Collection[str]) -> Variables:
    """Return the variables of a job.

    Args:
        given: values that JSON can hold, by name.
        known: variables that the templates read.

    Raises:
        ConfigError: a variable is reserved, none of the templates reads it, or its value is no JSON.
    """
    if not given:
        return ()
    read = sorted(set(known) - set(RESERVED))
    found = []
    for name, value in sorted(given.items()):
        if name in RESERVED:
            raise ConfigError(
                f"the variable {name!r} of the chat template cannot be set",
                kind="bad-template",
                fix="The rows set it.",
            )
        if name not in read:
            raise ConfigError(
                f"the chat template does not read the variable {name!r}",
                kind="bad-template",
                fix=f"It reads {', '.join(read) or 'none'}.",
            )
        try:
            found.append((name, json.dumps(value, allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the value of the variable {name!r} is not JSON ({error})",
                kind="bad-template",
                fix="Use texts, numbers, true, false, null, lists and objects.",
            ) from None
    return tuple(found)


def row_variables(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row's own variables, an object or its JSON text. Raises BadDocument if they are something else."""
    value = row.get(COLUMN)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError):
            raise BadDocument(f"{COLUMN!r} is a text that is not JSON") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadDocument(f"{COLUMN!r} is not an object")
    for name in RESERVED:
        if name in value:
            raise BadDocument(f"{COLUMN!r} has {name!r}, which the row sets otherwise")
    return value


def parse_variables(words: Sequence[str], option: str = "--chat-template-args") -> dict[str, Any]:
    """Return the variables in words ``KEY=VALUE``: a value that is JSON is that, any other is a text.

    Raises:
        ConfigError: a word is not of this form, or a key occurs twice.

    >>> parse_variables(["enable_thinking=false", "effort=low", 'version="2"'])
    {'enable_thinking': False, 'effort': 'low', 'version': '2'}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise ConfigError(
                f"{option} {word!r} " + ("repeats a key" if name in found else "is not KEY=VALUE"),
                kind="bad-option",
                fix=f"Pass {option} name=value, once per name.",
            )
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found
