"""Conversations about media, in the form that a template of a vision-language model reads.

Templates of such models read a content as a list: ``[{"type": "image"}, {"type": "text", "text": ...}]``. Datasets have
texts as well. LLaVA, ShareGPT, LLaMA-Factory and ms-swift mark a medium by ``<image>``, ``<video>`` or ``<audio>`` in
the text. Some templates (LLaVA 1.5) take a text for an empty list, and leave it out without an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from feedmill.documents.batch import BadDocument
from feedmill.tokens.chat.forms import Messages

_MARK = re.compile(r"\n*<(image|video|audio)>\n*")
"""Line breaks around a mark separate it from the text; templates write what they need there."""
_PROBE = "feedmill-probe-{}-of-a-text"
_KNOWN = 4096
"""Shapes of conversations whose way is kept."""


class Placing:
    """Puts media in their places, and writes texts as lists if the template leaves out other texts.

    Which way a template takes depends on the roles and contents of a conversation, not on their words: words are
    replaced by probes that must be in the rendered text.
    """

    def __init__(self) -> None:
        self._ways: dict[Any, Callable[[Messages], Messages]] = {}

    def placed(self, messages: Messages, render: Callable[[Messages], str], variant: Any = None) -> Messages:
        """Return the messages as the template takes them.

        Args:
            messages: as the row has them.
            render: returns their text; may raise `BadDocument`.
            variant: what else of the row the text depends on; hashable.
        """
        if not any(isinstance(message.get("content"), str) for message in messages):
            return messages
        shape = (variant, tuple(map(_shape, messages)))
        if shape not in self._ways:
            probed = [_probed(message, number) for number, message in enumerate(messages)]
            if len(self._ways) >= _KNOWN:
                self._ways.clear()
            self._ways[shape] = min((_marked, _listed, list), key=lambda way: _lost(way(probed), render))
        return self._ways[shape](messages)


def _shape(message: dict[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, str):
        inner: Any = tuple(piece if number % 2 else bool(piece) for number, piece in enumerate(_MARK.split(content)))
    else:
        inner = repr([each.get("type") if isinstance(each, dict) else each for each in content or ()])
    return message.get("role"), inner, tuple(sorted(message))


def _probed(message: dict[str, Any], number: int) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    pieces = _MARK.split(content)
    probes = (_PROBE.format(f"{number}-{n}") if piece else "" for n, piece in enumerate(pieces[::2]))
    marks = (f"<{mark}>" for mark in (*pieces[1::2], None) if mark)
    return {**message, "content": "".join(one for pair in zip(probes, (*marks, ""), strict=True) for one in pair)}


def _lost(messages: Messages, render: Callable[[Messages], str]) -> float:
    """Return how many probes are not in the rendered text; infinity if it fails, or has a list as a Python literal."""
    try:
        text = render(messages)
    except BadDocument:
        return float("inf")
    if "{'type':" in text:
        return float("inf")
    return sum(probe not in text for probe in re.findall(_PROBE.format(r"\d+-\d+"), repr(messages)))


def _marked(messages: Messages) -> Messages:
    """Return texts with marks as lists. A conversation with a list says there where its media are."""
    if not all(isinstance(message.get("content") or "", str) for message in messages):
        return messages
    return [_list_of(each) if _MARK.search(each.get("content") or "") else each for each in messages]


def _listed(messages: Messages) -> Messages:
    """Return all texts as lists, with marks as in `_marked`."""
    return [
        {**each, "content": [{"type": "text", "text": content}]}
        if isinstance(content := each.get("content"), str)
        else each
        for each in _marked(messages)
    ]


def _list_of(message: dict[str, Any]) -> dict[str, Any]:
    pieces = _MARK.split(message["content"])
    parts = [{"type": piece} if n % 2 else {"type": "text", "text": piece} for n, piece in enumerate(pieces)]
    return {**message, "content": [part for part in parts if part.get("text") != ""]}
