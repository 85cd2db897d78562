"""The characters of a rendered conversation that contribute to the loss.

generation  what the template marks with ``{% generation %}``
turns       the answers of the assistant with the stop token of each; see `feedmill.tokens.chat.answers`
last        the last answer only, by the same rule
none        no mask: everything contributes
auto        generation if the template has such blocks, else turns
"""

from __future__ import annotations

from typing import Any, NamedTuple

from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError
from feedmill.tokens.chat.answers import ASSISTANT, Answers, Render, Skeletons, Stops, thoughts
from feedmill.tokens.chat.forms import Conversation, learns
from feedmill.tokens.chat.render import Rendered, Span

RULES = ("auto", "generation", "turns", "last", "none")


class Learned(NamedTuple):
    """What of a conversation contributes to the loss.

    Attributes:
        spans: the ranges of characters, in order; None for all.
        answers: the last range of each answer, which must end in a stop token.
        ignored: messages whose weight has no effect.
        unsure: whether headers of answers are unknown, so that they may be in the loss.
        unthinking: whether thinking of an answer is not in the text.
    """

    spans: tuple[Span, ...] | None
    answers: tuple[Span, ...]
    ignored: tuple[int, ...]
    unsure: bool = False
    unthinking: bool = False


def rule_for(rule: str, has_generation: bool) -> str:
    """Return the rule for a template. Raises ConfigError if it has no blocks that the rule needs."""
    if rule not in RULES:
        raise ConfigError(f"unknown chat mask {rule!r}", kind="bad-option", fix=f"Use one of {', '.join(RULES)}.")
    if rule == "auto":
        return "generation" if has_generation else "turns"
    if rule == "generation" and not has_generation:
        raise ConfigError(
            "the chat template has no {% generation %} blocks",
            kind="bad-option",
            fix="Use --chat-mask turns, or a template that marks what the model generates.",
        )
    return rule


def learned(
    conversation: Conversation,
    rendered: Rendered,
    rule: str,
    render: Render,
    stops: Stops,
    skeletons: Skeletons,
    variant: Any,
) -> Learned:
    """Return what of a conversation contributes to the loss.

    Args:
        conversation: the conversation.
        rendered: its text.
        rule: one of `RULES`, but not ``auto``.
        render: renders other messages in the same way.
        stops: tokens that end an answer.
        skeletons, variant: see `Skeletons.spans`.

    Raises:
        BadDocument: it cannot be proven where an answer is; or a weight is invalid.
    """
    messages = conversation.messages
    weights = [learns(message, number) for number, message in enumerate(messages)]
    if rule == "none":
        last = (0, len(rendered.text)) if messages[-1].get("role") == ASSISTANT else None
        return Learned(None, () if last is None else (last,), tuple(n for n, w in enumerate(weights) if w is not None))
    if rule == "generation":
        return _marked(conversation, rendered, render, weights, stops)
    answers = [
        number
        for number, message in enumerate(messages)
        if number >= conversation.first and message.get("role") == ASSISTANT
    ]
    chosen = [number for number in (answers[-1:] if rule == "last" else answers) if weights[number] is not False]
    spans, unsure = skeletons.spans(messages, chosen, rendered.text, render, stops, variant)
    ignored = tuple(number for number, weight in enumerate(weights) if weight and number not in chosen)
    unthinking = any(
        thought not in rendered.text[begin:end]
        for number, (begin, end) in zip(chosen, spans, strict=True)
        for thought in thoughts(messages[number])
    )
    return Learned(spans, spans, ignored, unsure, unthinking)


def _marked(
    conversation: Conversation, rendered: Rendered, render: Render, weights: list[bool | None], stops: Stops
) -> Learned:
    """Return the loss by the blocks of the template."""
    off = {number for number, weight in enumerate(weights) if weight is False}
    answers = {number for number in off if conversation.messages[number].get("role") == ASSISTANT}
    if answers and None in rendered.owners:
        raise BadDocument(
            f"it is unknown which generation block of the template is of message {min(answers)}, which must not be"
            " learned (--chat-mask turns finds the answers without the blocks)"
        )
    begin = 0
    if conversation.first:
        begin = Answers(conversation.messages, rendered.text, render, stops).begin(conversation.first)
    spans: list[Span] = []
    ends: dict[object, Span] = {}
    for number, ((first, stop), owner) in enumerate(zip(rendered.spans, rendered.owners, strict=True)):
        if stop <= begin or owner in off:
            continue
        spans.append((max(first, begin), stop))
        # Blocks of one message, or blocks that touch, are one answer, whose last block must have the stop token.
        touching = owner is None and bool(ends) and next(reversed(ends.values()))[1] == first
        ends[("block", number) if owner is None else owner] = spans[-1]
        if touching:
            del ends[list(ends)[-2]]
    seen = {owner for owner in rendered.owners if owner is not None}
    known = None not in rendered.owners
    return Learned(
        tuple(spans),
        tuple(span for span in ends.values() if span[0] < span[1]),
        tuple(number for number, weight in enumerate(weights) if weight and known and number not in seen),
    )
