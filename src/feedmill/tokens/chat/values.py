"""What templates see: messages that know which keys were read, arguments of tool calls as JSON, and variables.

Rows have the arguments of a tool call as an object or as JSON text (OpenAI's form). Some templates write them with
``tojson``, which would quote a text again; others write them as they are, which would make an object a Python literal;
others take an object apart, which fails for a text. `as_seen` makes all of them write JSON, once.

Variables besides the conversation, such as ``enable_thinking``, are of a job or of single rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError

Notes = set[str]
"""What happened while a conversation was rendered."""
CONVERTED = "arguments of tool calls in another form than the template takes"
_CALLS = ("tool_calls", "function_call")


class Message(dict[str, Any]):
    """A message that knows which of its keys were read, and whether all were listed."""

    # The sandbox does not give templates attributes that begin with an underscore.
    __slots__ = ("_listed", "_number", "_seen")

    def __init__(self, values: Mapping[str, Any], number: int) -> None:
        super().__init__(values)
        self._number, self._seen, self._listed = number, set[Any](), False

    def __getitem__(self, key: str) -> Any:
        self._seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._seen.add(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> Any:
        self._list()
        return super().keys()

    def values(self) -> Any:
        self._list()
        return super().values()

    def items(self) -> Any:
        self._list()
        return super().items()

    def _list(self) -> None:
        self._listed = True
        self._seen.update(super().keys())


def unread(message: Message) -> list[str]:
    """Return the keys of a message that have a value and were not read."""
    seen = message._seen
    return [key for key, value in dict.items(message) if key not in seen and value not in (None, "", [], {}, False)]


class JsonText(str):
    """JSON text of an object, which the filter ``tojson`` writes as that object instead of quoting it."""

    _value: dict[str, Any]
    _notes: Notes

    def __new__(cls, text: str, value: dict[str, Any], notes: Notes) -> JsonText:
        self = super().__new__(cls, text)
        self._value, self._notes = value, notes
        return self

    def unquoted(self) -> dict[str, Any]:
        """Return the object, and note that it was needed."""
        self._notes.add(CONVERTED)
        return self._value

    def __iter__(self) -> Iterator[str]:
        """Refuse to be taken apart: a template that does so needs the object."""
        raise TypeError("the template takes an object apart")


class JsonObject(dict[str, Any]):
    """An object that is written as JSON where a template writes it as it is."""

    __slots__ = ("_notes",)

    def __init__(self, values: Mapping[str, Any], notes: Notes) -> None:
        super().__init__(values)
        self._notes = notes

    def __str__(self) -> str:
        self._notes.add(CONVERTED)
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: Any) -> str:
        return str(self) + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> str:
        return other + str(self) if isinstance(other, str) else NotImplemented


def unquoted(value: Any) -> Any:
    """Return a value with the objects of its `JsonText`."""
    if isinstance(value, JsonText):
        return value.unquoted()
    if isinstance(value, dict):
        return {key: unquoted(item) for key, item in value.items()}
    return list(map(unquoted, value)) if isinstance(value, list | tuple) else value


def as_seen(messages: list[dict[str, Any]], notes: Notes, *, objects: bool) -> list[dict[str, Any]]:
    """Return messages as templates see them.

    Args:
        notes: gets `CONVERTED` when arguments are written in another form than the template alone would.
        objects: whether arguments that are JSON text become objects.

    Raises:
        BadDocument: ``tool_calls`` is a text that is no JSON.
    """
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if any(message.get(name) for name in _CALLS):
            message = {
                **message,
                **{name: _calls(message[name], notes, objects) for name in _CALLS if message.get(name)},
            }
        found.append(Message(message, number))
    return found


def _calls(value: Any, notes: Notes, objects: bool) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadDocument("'tool_calls' is a text that is not JSON") from None
    if isinstance(value, list):
        return [_calls(item, notes, objects) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    if isinstance(found.get("function"), dict):
        found["function"] = _calls(found["function"], notes, objects)
    for name in ("arguments", "parameters"):
        if name in found:
            found[name] = json_of(found[name], notes, objects)
    return found


def json_of(value: Any, notes: Notes, objects: bool) -> Any:
    """Return an object, or a text that is JSON of one, as templates see it; other values unchanged."""
    if isinstance(value, dict):
        return JsonObject(value, notes)
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    if objects:
        notes.add(CONVERTED)
        return JsonObject(parsed, notes)
    return JsonText(value, parsed, notes)


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
