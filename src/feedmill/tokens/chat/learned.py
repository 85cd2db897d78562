"""The characters of a rendered conversation that contribute to the loss.

generation  what the template marks with ``{% generation %}``
turns       the answers of the assistant with the stop token of each, found by rendering the conversation up to them
last        the last answer only
none        no mask: everything contributes
auto        generation if the template has such blocks, else turns
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError
from feedmill.tokens.chat.forms import Conversation, Messages, learns
from feedmill.tokens.chat.render import Rendered, Span

ASSISTANT = "assistant"
RULES = ("auto", "generation", "turns", "last", "none")
Render = Callable[..., Rendered]
"""``render(messages, add_generation_prompt=False)``."""
Stops = tuple[str, ...]
"""Special tokens as text."""
PROBE = "feedmill-probe-of-an-answer"


class Learned(NamedTuple):
    """What of a conversation contributes to the loss.

    Attributes:
        spans: the ranges of characters, in order; None for all.
        answers: the last range of each answer, which must end in a stop token.
        ignored: messages whose weight has no effect.
        unsure: whether headers of answers are unknown, so that they may be in the loss.
    """

    spans: tuple[Span, ...] | None
    answers: tuple[Span, ...]
    ignored: tuple[int, ...]
    unsure: bool = False


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


def learned(conversation: Conversation, rendered: Rendered, rule: str, render: Render, stops: Stops) -> Learned:
    """Return what of a conversation contributes to the loss.

    Args:
        conversation: the conversation.
        rendered: its text.
        rule: one of `RULES`, but not ``auto``.
        render: renders other messages in the same way.
        stops: tokens that end an answer.

    Raises:
        BadDocument: the text of the conversation does not begin with that of its first messages, or it begins with an
            answer and the template writes something before it that is unknown; or a weight is invalid.
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
    turns = Turns(messages, rendered.text, render, stops)
    spans = tuple(turns.answer(number) for number in chosen)
    ignored = tuple(number for number, weight in enumerate(weights) if weight and number not in chosen)
    return Learned(spans, spans, ignored, turns.unsure)


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
        turns = Turns(conversation.messages, rendered.text, render, stops)
        begin = turns.begin(conversation.first)
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


class Turns:
    """Finds answers by rendering the first messages of a conversation."""

    def __init__(self, messages: Messages, text: str, render: Render, stops: Stops) -> None:
        self._messages, self._text, self._render, self._stops = messages, text, render, stops
        self.unsure = False
        """Whether the header of an answer is unknown, so that it may be in the loss."""
        self._asked: set[str] = set()
        """Roles after which the template writes the header of an answer when it is asked to."""

    def answer(self, number: int) -> Span:
        """Return the characters of an answer that contribute to the loss. Raises BadDocument if they are unknown."""
        begin = self.begin(number)
        return begin, max(begin, self._end(number, begin))

    def begin(self, number: int) -> int:
        """Return where an answer begins: after its header, which the template writes to ask for an answer."""
        text = self._text
        if not number:
            return len(_opening(text, self._render))
        before = self._messages[:number]
        prompt: str = self._render(before, add_generation_prompt=True).text
        begin = len(prompt)
        if not text.startswith(prompt):
            begin = _common(prompt, text)
            plain = self._render(before).text
            # What the prompt alone has, such as the beginning of a thought, follows a token that begins the answer.
            if not (len(plain) < begin and text.startswith(plain) and text.endswith(self._stops, 0, begin)):
                raise _differs(number)
        return begin + len(self._header(before, prompt, begin))

    def _header(self, before: Messages, prompt: str, begin: int) -> str:
        """Return the header of an answer that a template does not write to ask for one: it ignores such a request."""
        after = str(before[-1].get("role"))
        if after in self._asked:
            return ""
        plain = self._render(before).text
        if plain != prompt:
            self._asked.add(after)
            return ""
        probe = self._render([*before, {"role": ASSISTANT, "content": PROBE}]).text
        header, found, _ = probe.removeprefix(plain).partition(PROBE)
        known = found and probe.startswith(plain)
        if known and not header.strip():
            return ""
        if known and self._text.startswith(header, begin):
            return header
        self.unsure = True
        return ""

    def _end(self, number: int, begin: int) -> int:
        """Return where an answer ends: with its stop token, which may be the token that begins the next message."""
        text, stops = self._text, self._stops
        if number + 1 == len(self._messages):
            return _with_stop(text, begin, len(text), stops)
        upto: str = self._render(self._messages[: number + 1]).text
        end = len(upto)
        if not text.startswith(upto):
            end = _before_closing(upto, text, stops)
            if end <= begin:
                raise _differs(number + 1)
        end = _with_stop(text, begin, end, stops)
        if ends_in(text, (begin, end), stops) or self._messages[number + 1].get("role") == ASSISTANT:
            return end
        return end + len(max((stop for stop in stops if text.startswith(stop, end)), key=len, default=""))


def ends_in(text: str, span: Span, stops: Stops) -> bool:
    """Return whether a range of characters ends in a stop token; white space may follow it."""
    return text[slice(*span)].rstrip().endswith(stops)


def _with_stop(text: str, begin: int, end: int, stops: Stops) -> int:
    """Return the end of an answer without the white space after its stop token, as templates mark it."""
    last = begin + len(text[begin:end].rstrip())
    return last if text.endswith(stops, begin, last) else end


def _before_closing(upto: str, text: str, stops: Stops) -> int:
    """Return the end of an answer after which the template closes a conversation that ends there, with stop tokens.

    Args:
        upto: the text of the conversation if it ends with the answer.
        text: the text of the whole conversation; the part that both have in common ends at or before the answer's end.
    """
    common = _common(upto, text)
    closing = len(upto)
    borders = [closing]
    while True:
        bare = len(upto[:closing].rstrip())
        stop = max((stop for stop in stops if upto.endswith(stop, 0, bare)), key=len, default=None)
        if stop is None:
            break
        borders.append(bare)
        closing = bare - len(stop)
        borders.append(closing)
    return max((border for border in borders if border <= common), default=0)


def _common(one: str, two: str) -> int:
    """Return the number of characters with which both texts begin."""
    return bisect_left(range(min(len(one), len(two))), True, key=lambda last: one[: last + 1] != two[: last + 1])


def _differs(count: int) -> BadDocument:
    return BadDocument(
        f"the template renders the first {count} messages differently if more follow, so it is unknown"
        " where the answer is (--chat-mask last needs only the last one)"
    )


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
