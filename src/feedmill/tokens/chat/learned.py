"""The characters of a rendered conversation that contribute to the loss.

generation  what the template marks with ``{% generation %}``
turns       the answers of the assistant, found by rendering the conversation up to each of them
last        the last answer only
none        no mask: everything contributes
auto        generation if the template has such blocks, else turns
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError
from feedmill.tokens.chat.forms import Conversation, Messages
from feedmill.tokens.chat.render import Rendered, Span

RULES = ("auto", "generation", "turns", "last", "none")
Render = Callable[..., Rendered]
"""``render(messages, add_generation_prompt=False)``."""
PROBE = "feedmill-probe-of-an-answer"


def rule_for(rule: str, has_generation: bool) -> str:
    """Return the rule for a template. Raises ConfigError if it has no blocks that the rule needs."""
    if rule not in RULES:
        raise ConfigError(f"unknown chat mask {rule!r}", kind="bad-chat-mask", fix=f"Use one of {', '.join(RULES)}.")
    if rule == "auto":
        return "generation" if has_generation else "turns"
    if rule == "generation" and not has_generation:
        raise ConfigError(
            "the chat template has no {% generation %} blocks",
            kind="bad-chat-mask",
            fix="Use --chat-mask turns, or a template that marks what the model generates.",
        )
    return rule


def learned(conversation: Conversation, rendered: Rendered, rule: str, render: Render) -> tuple[Span, ...] | None:
    """Return the ranges of characters that contribute to the loss, in order; None for all.

    Args:
        conversation: the conversation.
        rendered: its text.
        rule: one of `RULES`, but not ``auto``.
        render: renders other messages in the same way.

    Raises:
        BadDocument: the text of the conversation does not begin with that of its first messages, or it begins with an
            answer and the template writes something before it that is unknown.
    """
    if rule == "none":
        return None
    if rule == "generation":
        if not conversation.first:
            return rendered.spans
        begin = len(_start(conversation.messages[: conversation.first], rendered.text, render, prompt=True))
        return tuple((max(first, begin), stop) for first, stop in rendered.spans if stop > begin)
    places = [
        number
        for number, message in enumerate(conversation.messages)
        if number >= conversation.first and message.get("role") == "assistant"
    ]
    spans = []
    for number in places[-1:] if rule == "last" else places:
        before = _start(conversation.messages[:number], rendered.text, render, prompt=True)
        if number + 1 == len(conversation.messages):
            spans.append((len(before), len(rendered.text)))
        else:
            upto = _start(conversation.messages[: number + 1], rendered.text, render, prompt=False)
            spans.append((len(before), len(upto)))
    return tuple(spans)


def _start(messages: Messages, text: str, render: Render, *, prompt: bool) -> str:
    """Return the text of the first messages, which must be the beginning of the whole text."""
    if not messages:
        return _opening(text, render)
    found: Any = render(messages, add_generation_prompt=prompt).text
    if not text.startswith(found):
        raise BadDocument(
            f"the template renders the first {len(messages)} messages differently if more follow, so it is unknown"
            " where the answer is (--chat-mask last needs only the last one)"
        )
    return str(found)


def _opening(text: str, render: Render) -> str:
    """Return what the template writes before an answer that begins the conversation: BOS, a system prompt, a header."""
    # Templates raise errors for no messages, and what they add to them depends on the first: an answer to search for.
    probe: Messages = [{"role": "assistant", "content": PROBE}]
    alone = render(probe).text
    opening, found, _ = alone.partition(PROBE)
    header = render(probe, add_generation_prompt=True).text.removeprefix(alone)
    if header and (begin := opening.rfind(header)) >= 0:
        # Without what the template adds to an answer, such as an empty block of thinking.
        opening = opening[: begin + len(header)]
    if not found or not text.startswith(opening):
        raise BadDocument(
            "the conversation begins with an answer, and the template renders another answer there differently, so it"
            " is unknown where this one begins (begin with a message of the system or the user)"
        )
    return opening
