"""The characters of a rendered conversation that contribute to the loss.

generation  what the template marks with ``{% generation %}``
turns       the answers of the assistant with the stop token of each
last        the last answer only, by the same rule
none        no mask: everything contributes
auto        generation if the template has such blocks, else turns

The rule of ``turns``, proven by rendering other conversations:

begin   an answer begins after its header: where the text departs from the text with which the template asks for this
        answer (``add_generation_prompt``). Text that the template adds to an answer belongs to the answer.
end     it ends with its stop token, which may be the token that begins the next message. White space after it, such as
        a line end, is not in the answer.

Both are proven in one of two ways. Turn by turn: the text of the first messages is how that of the whole conversation
begins. By differences: with other words in an answer, all but a range of the text stays as it is; header and stop token
lie around this range as they do in the conversation that ends there. The second way takes templates that write earlier
messages differently once more follow, such as those that remove thinking.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

from feedmill.documents.batch import BadDocument
from feedmill.errors import ConfigError
from feedmill.tokens.chat.forms import Conversation, Messages, learns
from feedmill.tokens.chat.render import Rendered, Span
from feedmill.tokens.chat.values import Message, unread

RULES = ("auto", "generation", "turns", "last", "none")
ASSISTANT = "assistant"
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought")
"""Keys of messages with thinking."""
Render = Callable[..., Rendered]
"""``render(messages, add_generation_prompt=False)``."""
Stops = tuple[str, ...]
"""Special tokens as text."""
_PROBES = ("feedmill-probe-of-an-answer", "another-feedmill-probe")
"""Begin and end with other letters, so that no letter of an answer can be that of both."""
_SHOWN = 60
"""Characters of each rendering in an error."""


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


class Answers:
    """The answers of one text."""

    def __init__(self, messages: Messages, text: str, render: Render, stops: Stops) -> None:
        self._messages, self._text, self._render, self._stops = messages, text, render, stops
        self.unsure = False
        """Whether the header of an answer is unknown, so that it may be in the loss."""
        self._asked: set[str] = set()
        """Roles after which the template writes the header of an answer when it is asked to."""

    def span(self, number: int) -> Span:
        """Return the characters of an answer. Raises BadDocument, with two renderings, if they cannot be proven."""
        begin = self.begin(number)
        return begin, max(begin, self._end(number, begin))

    def begin(self, number: int) -> int:
        """Return where an answer begins. Raises BadDocument, with two renderings, if that cannot be proven."""
        text = self._text
        if not number:
            return len(_opening(text, self._render))
        before = self._messages[:number]
        prompt: str = self._render(before, add_generation_prompt=True).text
        if text.startswith(prompt):
            return len(prompt) + len(self._header(before, prompt))
        plain = self._render(before).text
        asked = prompt.removeprefix(plain)
        if not prompt.startswith(plain) or not asked:
            raise _differs(number, prompt, text)
        common = _common(prompt, text)
        if text.startswith(plain) and len(plain) < common and text.endswith(self._stops, 0, common):
            return common
        first, _ = self._depends(self._messages, text, number)
        low = 0
        if text.startswith(plain):
            low = len(plain)
        elif _worded(self._messages[number - 1]):
            low = self._depends(self._messages, text, number - 1)[1]
        # What the prompt alone has, such as the beginning of a thought, is not in the header of this answer.
        for cut in range(len(asked), 0, -1):
            header = asked[:cut]
            if not (cut == len(asked) or header.endswith(("\n", *self._stops))):
                continue
            at = text.find(header, low, first)
            if at >= 0:
                if text.find(header, at + 1, first) >= 0:
                    break
                return min(at + _common(asked, text[at : at + len(asked)]), first)
        raise _differs(number, prompt, text)

    def _header(self, before: Messages, prompt: str) -> str:
        """Return the header of an answer that a template does not write to ask for one: it ignores such a request."""
        after = str(before[-1].get("role"))
        if after in self._asked:
            return ""
        plain = self._render(before).text
        if plain != prompt:
            self._asked.add(after)
            return ""
        probe = self._render([*before, {"role": ASSISTANT, "content": _PROBES[0]}]).text
        header, found, _ = probe.removeprefix(plain).partition(_PROBES[0])
        known = found and probe.startswith(plain)
        if known and not header.strip():
            return ""
        if known and self._text.startswith(header, len(prompt)):
            return header
        self.unsure = True
        return ""

    def _end(self, number: int, begin: int) -> int:
        text, stops = self._text, self._stops
        if number + 1 == len(self._messages):
            return self._with_stop(number, begin, len(text))
        first = self._messages[: number + 1]
        upto: str = self._render(first).text
        end: int | None = len(upto)
        if not text.startswith(upto):
            end = _before_closing(upto, text, stops)
            if end is None or end <= begin:
                after, last = self._depends(first, upto, number)[1], self._depends(self._messages, text, number)[1]
                # Both texts have the same after the words of the answer, up to what closes a conversation.
                more = _before_closing(upto[after:], text[last:], stops)
                if more is None or last < begin:
                    raise _differs(number + 1, upto, text)
                end = last + more
        assert end is not None
        end = self._with_stop(number, begin, end)
        if self._messages[number + 1].get("role") == ASSISTANT:
            return end
        if ends_in(text, (begin, end), stops) and not self._ends_with_words(number, begin, end):
            return end
        return end + len(max((stop for stop in stops if text.startswith(stop, end)), key=len, default=""))

    def _with_stop(self, number: int, begin: int, end: int) -> int:
        """Return the end of an answer without the white space after its stop token, as templates mark it."""
        last = begin + len(self._text[begin:end].rstrip())
        stopped = self._text.endswith(self._stops, begin, last) and not self._ends_with_words(number, begin, end)
        return last if stopped else end

    def _ends_with_words(self, number: int, begin: int, end: int) -> bool:
        """Return whether an answer ends with its own words, so that a stop token at its end is one of them."""
        content = self._messages[number].get("content")
        words = content.strip() if isinstance(content, str) else ""
        return bool(words) and self._text.find(words, begin, end) + len(words) == len(self._text[:end].rstrip())

    def _depends(self, messages: Messages, text: str, number: int) -> Span:
        """Return the range of a text outside of which it stays as it is with other words in a message.

        Raises:
            BadDocument: the template does not write these words, or the message has a content that is no text.
        """
        before = after = len(text)
        message = dict(dict.items(messages[number]))  # not read as a template reads it
        for probe in _PROBES:
            replaced = {**message, "content": probe}
            other = self._render([*messages[:number], replaced, *messages[number + 1 :]]).text
            if probe not in other and (called := _called(message, probe)) is not None:
                other = self._render([*messages[:number], called, *messages[number + 1 :]]).text
            if probe not in other or not _worded(message):
                raise BadDocument(
                    f"the template changes or drops the words of message {number}, and those before it depend on what"
                    f" follows, so it is unknown where the answer is: {_shown(other, text)} (--chat-mask last needs"
                    " only the last one)"
                )
            before = min(before, _common(text, other))
            after = min(after, _common(text[::-1], other[::-1]))
        return before, max(before, len(text) - after)


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
) -> Learned:
    """Return what of a conversation contributes to the loss.

    Args:
        conversation: the conversation.
        rendered: its text.
        rule: one of `RULES`, but not ``auto``.
        render: renders other messages in the same way.
        stops: tokens that end an answer.

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
    proof = Answers(messages, rendered.text, render, stops)
    spans = tuple(map(proof.span, chosen))
    ignored = tuple(number for number, weight in enumerate(weights) if weight and number not in chosen)
    unthinking = any(
        thought not in rendered.text[begin:end]
        for number, (begin, end) in zip(chosen, spans, strict=True)
        for thought in thoughts(messages[number])
    )
    return Learned(spans, spans, ignored, proof.unsure, unthinking)


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


def ends_in(text: str, span: Span, stops: Stops) -> bool:
    """Return whether a range of characters ends in a stop token; white space may follow it."""
    return text[slice(*span)].rstrip().endswith(stops)


def thoughts(message: dict[str, Any]) -> list[str]:
    """Return the thinking of an answer: that of keys which the template read, and what its text has between tags."""
    unused = unread(message) if isinstance(message, Message) else ()
    found = [dict.get(message, name) for name in THOUGHTS if name not in unused]
    content = message.get("content")
    if isinstance(content, str) and "</think>" in content:
        found.append(content.partition("</think>")[0].rpartition("<think>")[2])
    return [thought.strip() for thought in found if isinstance(thought, str) and thought.strip()]


def _worded(message: dict[str, Any]) -> bool:
    """Return whether other words can take the place of those of a message."""
    content = message.get("content")
    return content is None or isinstance(content, str)


def _called(message: dict[str, Any], probe: str) -> dict[str, Any] | None:
    """Return an answer whose tool calls have other names; None if it has no such calls."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls) or not calls:
        return None
    named = [
        {**call, "function": {**call["function"], "name": probe}}
        if isinstance(call.get("function"), dict)
        else {**call, "name": probe}
        for call in calls
    ]
    return {**message, "tool_calls": named}


def _before_closing(upto: str, text: str, stops: Stops) -> int | None:
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
    return max((border for border in borders if border <= common), default=None)


def _common(one: str, two: str) -> int:
    """Return the number of characters with which both texts begin."""
    return bisect_left(range(min(len(one), len(two))), True, key=lambda last: one[: last + 1] != two[: last + 1])


def _differs(count: int, one: str, two: str) -> BadDocument:
    return BadDocument(
        f"the template renders the first {count} messages differently if more follow, so it is unknown where the answer"
        f" is: {_shown(one, two)} (--chat-mask last needs only the last one)"
    )


def _shown(one: str, two: str) -> str:
    """Return what two renderings have around their first difference."""
    begin = max(0, _common(one, two) - _SHOWN // 2)
    cut = [f"{'...' if begin else ''}{text[begin : begin + _SHOWN]}" for text in (one, two)]
    return f"{cut[0]!r}, but in the conversation {cut[1]!r}"


def _opening(text: str, render: Render) -> str:
    """Return what the template writes before an answer that begins the conversation: BOS, a system prompt, a header."""
    # Templates raise errors for no messages, and what they add to them depends on the first: an answer to search for.
    probe: Messages = [{"role": ASSISTANT, "content": _PROBES[0]}]
    alone = render(probe).text
    opening, found, _ = alone.partition(_PROBES[0])
    header = render(probe, add_generation_prompt=True).text.removeprefix(alone)
    if header and (begin := opening.rfind(header)) >= 0:
        # Without what the template adds to an answer, such as an empty block of thinking.
        opening = opening[: begin + len(header)]
    if not found or not text.startswith(opening):
        raise BadDocument(
            "the conversation begins with an answer, and the template renders another answer there differently, so it"
            f" is unknown where this one begins: {alone[:_SHOWN]!r}, and {text[:_SHOWN]!r} (begin with a message of the"
            " system or the user)"
        )
    return opening
