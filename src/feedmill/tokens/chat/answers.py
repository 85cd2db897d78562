"""Where the answers of a rendered conversation are, proven by rendering other conversations.

The rule, for every template without generation blocks:

begin   an answer begins after its header: where the text departs from the text with which the template asks for this
        answer (``add_generation_prompt``). Text that the template adds to an answer belongs to the answer.
end     it ends with its stop token, which may be the token that begins the next message. White space after it, such as
        a line end, is not in the answer.

Both are proven in one of two ways. Turn by turn: the text of the first messages is how that of the whole conversation
begins. By differences: with other words in an answer, all but a range of the text stays as it is; header and stop token
lie around this range as they do in the conversation that ends there. The second way takes templates that write earlier
messages differently once more follow, such as those that remove thinking.

`Skeletons` need neither for most conversations: all words are replaced by probes, and a text that is that of the probes
with the words in their places has its answers where the probes had theirs.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from feedmill.documents.batch import BadDocument
from feedmill.tokens.chat.forms import Messages
from feedmill.tokens.chat.render import Rendered, Span
from feedmill.tokens.chat.values import Message, unread

ASSISTANT = "assistant"
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought")
"""Keys of messages with thinking."""
Render = Callable[..., Rendered]
"""``render(messages, add_generation_prompt=False)``."""
Stops = tuple[str, ...]
"""Special tokens as text."""
_PROBES = ("feedmill-probe-of-an-answer", "another-feedmill-probe")
"""Begin and end with other letters, so that no letter of an answer can be that of both."""
_TAGS = re.compile(r"(</?think>)")
_PLACE = re.compile(r"feedmill(\d+)x(\d+)probe")
_KNOWN = 4096
"""Skeletons that are kept."""
_SHOWN = 60
"""Characters of each rendering in an error."""


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


class _Skeleton(NamedTuple):
    """The text of a conversation of probes: pieces of the template, and the probes between them.

    Attributes:
        pieces: texts of the template; `places`: the number of the message, and of the text in it, after each but one.
        spans: for each answer, piece and character in it where the answer begins and where it ends.
        unsure: see `Answers`.
    """

    pieces: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int, int, int], ...]
    unsure: bool

    def found(self, text: str, words: Sequence[Sequence[str]], stops: Stops) -> tuple[Span, ...] | None:
        """Return the answers of a text; None if it is not that of the probes with these words in their places."""
        starts, at = [0], len(self.pieces[0])
        if not text.startswith(self.pieces[0]):
            return None
        for (number, which), piece in zip(self.places, self.pieces[1:], strict=True):
            word = words[number][which]
            if word.endswith(stops):
                return None
            if not text.startswith(word, at):
                return None
            at += len(word)
            if not text.startswith(piece, at):
                return None
            starts.append(at)
            at += len(piece)
        if at != len(text):
            return None
        return tuple((starts[a] + b, starts[c] + d) for a, b, c, d in self.spans)


class Skeletons:
    """Finds the answers of conversations, and keeps what it learned of conversations of the same shape."""

    def __init__(self) -> None:
        self._known: dict[Any, _Skeleton | None] = {}

    def spans(
        self,
        messages: Messages,
        numbers: Sequence[int],
        text: str,
        render: Render,
        stops: Stops,
        variant: Any,
    ) -> tuple[tuple[Span, ...], bool]:
        """Return the characters of answers, and whether headers of answers are unknown.

        Args:
            messages: the conversation; `numbers`: those of the answers.
            text: its text.
            render: renders other messages in the same way.
            stops: tokens that end an answer.
            variant: what else the text depends on; hashable.

        Raises:
            BadDocument: an answer cannot be proven; the message has both renderings.
        """
        shape, words = [], []
        for message in messages:
            kinds, texts = _shape(message)
            shape.append(kinds)
            words.append(texts)
        key = (variant, tuple(numbers), tuple(shape))
        if key not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            try:
                self._known[key] = _skeleton(messages, numbers, render, stops)
            except BadDocument:
                self._known[key] = None  # the words of each conversation decide
        skeleton = self._known[key]
        if skeleton is not None and (found := skeleton.found(text, words, stops)) is not None:
            return found, skeleton.unsure
        answers = Answers(messages, text, render, stops)
        return tuple(map(answers.span, numbers)), answers.unsure


def _skeleton(messages: Messages, numbers: Sequence[int], render: Render, stops: Stops) -> _Skeleton | None:
    """Return the skeleton of a conversation; None if an answer begins or ends inside of a probe."""
    probed = [_probed(message, number) for number, message in enumerate(messages)]
    text = render(probed).text
    answers = Answers(probed, text, render, stops)
    spans = list(map(answers.span, numbers))
    probes = list(_PLACE.finditer(text))
    begins, ends = [0, *(probe.end() for probe in probes)], [*(probe.start() for probe in probes), len(text)]
    placed = []
    for begin, end in spans:
        first, last = bisect_left(ends, begin), bisect_right(begins, end) - 1
        if begin < begins[first] or end > ends[last]:
            return None
        placed.append((first, begin - begins[first], last, end - begins[last]))
    pieces = tuple(text[begin:end] for begin, end in zip(begins, ends, strict=True))
    places = tuple((int(probe[1]), int(probe[2])) for probe in probes)
    return _Skeleton(pieces, places, tuple(placed), answers.unsure)


def _texts(message: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the texts of a message whose words are replaced, by key, each in pieces with the tags of thinking."""
    names = ("content", *THOUGHTS) if message.get("role") == ASSISTANT else ("content",)
    return [(name, _TAGS.split(value)) for name in names if isinstance(value := dict.get(message, name), str)]


def _shape(message: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return what decides the skeleton of a message, which includes the white space around words, and its words."""
    words: list[str] = []
    kinds: list[Any] = []
    replaced = set()
    for name, pieces in _texts(message):
        replaced.add(name)
        kinds.append(name)
        for number, piece in enumerate(pieces):
            word = "" if number % 2 else piece.strip()
            if not word:
                kinds.append(piece)
                continue
            words.append(word)
            kinds.append(tuple(piece.split(word, 1)) if len(word) < len(piece) else None)
    kinds += [
        (key, value if isinstance(value, str) else repr(value))
        for key, value in dict.items(message)
        if key not in replaced
    ]
    return tuple(kinds), words


def _probed(message: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a message with probes instead of words."""
    found, count = dict(dict.items(message)), 0  # not read as a template reads it
    for name, pieces in _texts(message):
        for at, piece in enumerate(pieces):
            if at % 2 == 0 and (word := piece.strip()):
                pieces[at] = piece.replace(word, f"feedmill{number}x{count}probe", 1)
                count += 1
        found[name] = "".join(pieces)
    return found


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
