"""Rows of conversations in the forms in which datasets have them.

    messages    {"messages": [{"role": "user", "content": ...}, ...], "tools": [...]}
    sharegpt    {"conversations": [{"from": "human", "value": ...}, ...], "system": ..., "tools": ...}
    prompt      {"prompt": text or messages, "completion": text or messages}
    preference  {"prompt": text or messages (optional), "chosen": ..., "rejected": text or messages}

A text as prompt is a message of the user; a text as completion, ``chosen`` or ``rejected`` is one of the assistant.
Some keys of a message say whether it contributes to the loss, by the names that other programs give them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from feedmill.documents.batch import BadDocument
from feedmill.tokens.chat.values import json_of

ON = ("weight", "loss", "loss_weight", "loss_scale", "train", "training", "trainable")
"""1 or true: the message is learned. OpenAI's ``weight``, ``loss`` of ms-swift and XTuner, ``train`` of axolotl ..."""
OFF = ("masked",)
"""True: the message is not learned; torchtune's name."""
KEYS = (*ON, *OFF)
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Columns of a row about media: token files have no media."""
UNSUPPORTED = {"train_detail": "ranges inside of a message"}
"""Keys that would change the loss in a way that is unsupported."""
_WEIGHING = frozenset((*KEYS, *UNSUPPORTED))
_UNREAD = frozenset((*MEDIA, *KEYS, "system"))

FORMS = ("messages", "sharegpt", "prompt", "preference")
EACH = "each"
"""Each row has its own form, but that of preferences, whose rows have two texts."""
SIDES = ("chosen", "rejected")
COLUMNS = (
    "messages", "conversations", "conversation", "prompt", "completion", *SIDES, "tools", "system", "id",
    "chat_template_kwargs", *KEYS,
)  # fmt: skip
"""Fields of a row that are read; weights only to name those that have no effect, because they are not of a message."""

_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_TURN = ("from", "value", *KEYS, *UNSUPPORTED)
"""Keys of a turn of ShareGPT that are read."""
_ASKED, _ANSWERED = ("prompt", "instruction", "question", "query"), ("completion", "response", "output", "answer")
"""Columns of questions and answers in other datasets, those of the form ``prompt`` first."""
Messages = list[dict[str, Any]]


class Conversation(NamedTuple):
    """One conversation.

    Attributes:
        messages: dicts with ``role`` and ``content``, and what else the row has.
        tools: the tools as the template gets them; None for none.
        first: the first message that contributes to the loss; those before are the prompt.
        unread: keys of the row and its turns that are not read, as text.
    """

    messages: Messages
    tools: list[Any] | None
    first: int = 0
    unread: tuple[str, ...] = ()


def is_conversation(columns: Collection[str]) -> bool:
    """Return whether rows with these columns are probably conversations."""
    known = {"chosen", "rejected"}, {"prompt", "completion"}
    alone = ("messages", "conversations", "conversation")
    return any(name in columns for name in alone) or any(names <= set(columns) for names in known)


def form_of(row: Mapping[str, Any]) -> str:
    """Return the form of a row. Raises BadDocument if it has none."""
    if "chosen" in row and "rejected" in row:
        return "preference"
    if "prompt" in row and "completion" in row:
        return "prompt"
    for name in ("messages", "conversations", "conversation"):
        turns = row.get(name)
        if isinstance(turns, list):
            first = turns[0] if turns else {}
            return "sharegpt" if isinstance(first, dict) and "from" in first else "messages"
    names = ", ".join(map(repr, list(row)[:12])) or "none"
    advice = renaming(row)
    raise BadDocument(
        "it is not a conversation: it has no messages, no conversations, no prompt with completion and no chosen with"
        f" rejected (only {names}){f'; {advice}' if advice else ''}"
    )


def renaming(columns: Collection[str]) -> str:
    """Return how to name columns with questions and answers, so that rows are conversations; empty if there are none.

    >>> renaming(["id", "instruction", "output"])
    "rename 'instruction' to 'prompt' and 'output' to 'completion'"
    """
    asked = next((name for name in _ASKED if name in columns), None)
    answered = next((name for name in _ANSWERED if name in columns), None)
    if asked is None or answered is None:
        return ""
    pairs = ((asked, "prompt"), (answered, "completion"))
    return f"rename {' and '.join(f'{old!r} to {new!r}' for old, new in pairs if old != new)}"


def conversation_of(row: Any, form: str, side: str = "") -> Conversation:
    """Return the conversation of a row.

    Args:
        row: the row.
        form: one of `FORMS`, or `EACH`.
        side: for preferences: ``chosen`` or ``rejected``.

    Raises:
        BadDocument: the row has another form.
    """
    if not isinstance(row, dict):
        raise BadDocument("it is not an object with a conversation")
    own = form_of(row)
    if form == EACH and own == "preference":
        raise BadDocument("a pair of preferences has two texts")
    if form not in (EACH, own):
        raise BadDocument(f"it has the form {own!r}, not {form!r}")
    tools = _tools(row.get("tools"))
    found = _conversation(row, own, side, tools)
    if _UNREAD.isdisjoint(row):
        return found  # nearly all
    ignored = (*MEDIA, *KEYS) if own == "sharegpt" and isinstance(row.get("system"), str) else (*MEDIA, *KEYS, "system")
    unread = tuple(f"{key!r} of the row" for key in ignored if row.get(key) not in (None, "", []))
    return found._replace(unread=(*unread, *found.unread))


def _conversation(row: Mapping[str, Any], form: str, side: str, tools: list[Any] | None) -> Conversation:
    if form == "preference":
        return _preference(row, side, tools)
    if form == "prompt":
        before = _messages(row["prompt"], "user", "prompt")
        return Conversation([*before, *_messages(row["completion"], "assistant", "completion")], tools, len(before))
    name = next(name for name in ("messages", "conversations", "conversation") if isinstance(row.get(name), list))
    unread: tuple[str, ...] = ()
    if form == "sharegpt":
        messages = _sharegpt(row[name], row.get("system"))
        keys = {(key, _SHAREGPT[turn["from"]]) for turn in row[name] for key in turn if key not in _TURN and turn[key]}
        unread = tuple(f"{key!r:.60} of {role}" for key, role in sorted(keys))
    else:
        messages = _messages(row[name], "user", name)
    if not messages:
        raise BadDocument("the conversation has no messages")
    return Conversation(messages, tools, 0, unread)


def _preference(row: Mapping[str, Any], side: str, tools: list[Any] | None) -> Conversation:
    sides = {name: _messages(row[name], "assistant", name) for name in SIDES}
    if row.get("prompt") is not None:
        before = _messages(row["prompt"], "user", "prompt")
        return Conversation([*before, *sides[side]], tools, len(before))
    shared = 0
    for one, two in zip(*sides.values(), strict=False):
        if one != two:
            break
        shared += 1
    if shared == min(map(len, sides.values())):
        raise BadDocument("chosen and rejected do not differ in an answer")
    return Conversation(sides[side], tools, shared)


def _messages(value: Any, role: str, name: str) -> Messages:
    """Return messages; a text is a message of this role."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise BadDocument(f"{name!r} is neither a text nor a list of messages")
    if value and isinstance(value[0], dict) and "from" in value[0]:
        return _sharegpt(value, None)
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadDocument(f"message {number} of {name!r} has no role")
    return value


def _sharegpt(turns: Sequence[Any], system: Any) -> Messages:
    messages: Messages = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    for number, turn in enumerate(turns):
        who = turn.get("from") if isinstance(turn, dict) else None
        if who not in _SHAREGPT or not isinstance(turn.get("value"), str):
            known = ", ".join(_SHAREGPT)
            raise BadDocument(f"turn {number} has no text 'value' with a known 'from' ({who!r}; known: {known})")
        if who == "function_call":
            message = {"role": "assistant", "content": "", "tool_calls": _calls(turn["value"], number)}
        else:
            message = {"role": _SHAREGPT[who], "content": turn["value"]}
        messages.append(message | {key: turn[key] for key in (*KEYS, *UNSUPPORTED) if key in turn})
    return messages


def _calls(text: str, number: int) -> list[Any]:
    """Return the tool calls in a turn of ShareGPT: JSON of one or more calls, each with name and arguments."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadDocument(f"turn {number} is a function call, but its value is not JSON") from None
    calls = value if isinstance(value, list) else [value]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise BadDocument(f"turn {number} is a function call without a name")
    return [{"type": "function", "function": call} for call in calls]


def _tools(value: Any) -> list[Any] | None:
    """Return the tools of a row; they may be stored as JSON text. None if there are none."""
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadDocument("'tools' is a text that is not JSON") from None
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise BadDocument("'tools' is not a list")
    return [_tool(tool) for tool in value]


def _tool(value: Any) -> Any:
    """Return a tool; it, and the schema of its parameters, may be stored as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise BadDocument("'tools' has a text that is not the JSON of an object")
    function = value.get("function") if isinstance(value, dict) else None
    if isinstance(function, dict) and isinstance(schema := function.get("parameters"), str):
        return {**value, "function": {**function, "parameters": json_of(schema, set(), objects=True)}}
    return value


def learns(message: Mapping[str, Any], number: int) -> bool | None:
    """Return whether a message is to contribute to the loss; None if it does not say.

    Raises:
        BadDocument: a weight is neither 0 nor 1, two keys contradict each other, or a key is unsupported.
    """
    if _WEIGHING.isdisjoint(dict.keys(message) if isinstance(message, dict) else message):
        return None  # nearly all messages
    found: dict[str, bool] = {}
    for key in KEYS:
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise BadDocument(
                f"message {number}: {key!r} is {value!r:.40}, but a loss mask has only 0 and 1 (true and false)"
            )
        found[key] = bool(value) != (key in OFF)
    for key, what in UNSUPPORTED.items():
        if message.get(key):
            raise BadDocument(f"message {number}: {key!r} ({what}) is unsupported (weigh whole messages with 'weight')")
    if len(set(found.values())) > 1:
        raise BadDocument(f"message {number}: {' and '.join(map(repr, found))} contradict each other")
    return next(iter(found.values()), None)
