"""The texts and the loss of conversations of the same shape, without rendering each.

The shape of a conversation is all of it but the words. Rendered once with probes instead of words, it gives the pieces
that the template writes between them, and where what contributes to the loss begins and ends. What the template asked
of the words meanwhile (`feedmill.tokens.chat.watched`) tells for which other words it writes the same pieces. Where
that is unknown, a rendered text that is that of the probes with the words in their places has its answers where theirs
were.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec

from feedmill.documents.batch import BadDocument
from feedmill.tokens.chat.answers import ASSISTANT, THOUGHTS, Learned, Stops
from feedmill.tokens.chat.forms import Conversation, Messages
from feedmill.tokens.chat.render import MOST, Rendered, Span
from feedmill.tokens.chat.values import Message
from feedmill.tokens.chat.watched import Watch, Word

_TAGS = re.compile(r"(</?think>)")
_PROBE = "feedmill{}probe"
_PLACE = re.compile(_PROBE.format(r"(\d+)"))
_QUOTED = re.compile(r'["\\\x00-\x1f]')
"""Characters that JSON writes in another way."""
_PLAIN = ["role", "content"]
Shape = tuple[Any, ...]
Place = tuple[int, int, int, int]
"""A range of characters: words before its begin, and characters of pieces before it; the same of its end."""


class Turn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message as nearly all are."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A row of the form ``messages`` as nearly all are."""

    messages: list[Turn]
    id: str | int | None = None


class Words(NamedTuple):
    """Texts that words may not have, so that a template writes the same pieces between them.

    Attributes:
        needles: texts that are not in a word, nor begin before or end after it.
        firsts, lasts: with which no word begins, or ends; `tops`, `tails`: the first or last character of each.
        quoted: whether words are written as JSON.
    """

    needles: tuple[str, ...]
    firsts: tuple[str, ...]
    lasts: tuple[str, ...]
    tops: frozenset[str]
    tails: frozenset[str]
    quoted: bool

    @classmethod
    def of(cls, watch: Watch, stops: Stops) -> Words:
        """Return what a rendering asked of its words, none of which ends with a stop token."""
        needles = tuple(sorted(watch.needles))
        firsts = {needle[at:] for needle in needles for at in range(1, len(needle))} | watch.edges
        lasts = {needle[:at] for needle in needles for at in range(1, len(needle))} | watch.edges | set(stops)
        return cls(
            needles,
            tuple(sorted(firsts)),
            tuple(sorted(lasts)),
            frozenset(first[0] for first in firsts),
            frozenset(last[-1] for last in lasts),
            watch.quoted,
        )

    def allow(self, words: Sequence[str]) -> bool:
        """Return whether the template writes the same pieces between these words."""
        tops, tails = self.tops, self.tails
        for word in words:
            if word[-1] in tails and word.endswith(self.lasts):
                return False
            if tops and word[0] in tops and word.startswith(self.firsts):
                return False
        for needle in self.needles:
            for word in words:
                if needle in word or word in needle:
                    return False
        return not (self.quoted and any(map(_QUOTED.search, words)))


@dataclass(slots=True)
class Skeleton:
    """The text of a conversation of probes, and its loss.

    Attributes:
        pieces: what the template writes around words; `places`: the number of the word after each but the last.
        learned: its loss, whose ranges are `spans` and `answers`.
        asked: whether the template was asked for which words it writes this; `allowed`: these, None if it is unknown.
        said: what the checks say of it, None if that is unknown.
        closing: whether an EOS after the text ends an answer.
        uses: how often it was written without rendering it.
    """

    pieces: tuple[str, ...]
    places: tuple[int, ...]
    learned: Learned
    spans: tuple[Place, ...] | None
    answers: tuple[Place, ...]
    stops: Stops
    asked: bool = False
    allowed: Words | None = None
    said: tuple[str, ...] | None = None
    closing: bool = False
    uses: int = 0

    def written(self, words: Sequence[str]) -> tuple[str, tuple[Span, ...] | None] | None:
        """Return the text with these words and what of it contributes to the loss; None if it must be rendered."""
        if self.allowed is None or self.said is None or not self.allowed.allow(words):
            return None
        placed = list(map(words.__getitem__, self.places))
        text = self._text(placed)
        return (text, _ranges(self.spans, placed)) if 0 < len(text) <= MOST else None

    def ask(self, messages: Messages, render: Callable[[Messages, Watch], Rendered]) -> None:
        """Ask the template for which words it writes this.

        Args:
            messages: of a conversation of this shape, as templates see them.
            render: renders messages with words that note what is asked of them.
        """
        self.asked, watch = True, Watch()
        probes = [_PROBE.format(place) for place in self.places]
        probed = _probed(messages, lambda text: Word(text, watch))
        try:
            text = render(probed, watch).text
        except BadDocument:
            return
        same = text == self._text(probes)
        # A message whose keys were listed may be written in another order than that of `Plain`.
        if same and not watch.blind and not any(isinstance(one, Message) and one._listed for one in probed):
            allowed = Words.of(watch, self.stops)
            self.allowed = allowed if allowed.allow(probes) else None

    def found(self, text: str, words: Sequence[str]) -> Learned | None:
        """Return what of a text contributes to the loss; None if it is not that of the probes with these words."""
        placed = list(map(words.__getitem__, self.places))
        if any(word.endswith(self.stops) for word in placed) or self._text(placed) != text:
            return None
        return self.learned._replace(spans=_ranges(self.spans, placed), answers=_ranges(self.answers, placed) or ())

    def _text(self, placed: Sequence[str]) -> str:
        """Return the text with these words in its places."""
        parts = [""] * (2 * len(placed) + 1)
        parts[::2] = self.pieces
        parts[1::2] = placed
        return "".join(parts)


def _ranges(places: tuple[Place, ...] | None, placed: Sequence[str]) -> tuple[Span, ...] | None:
    """Return ranges of the text with these words in its places."""
    if places is None:
        return None
    ends = list(accumulate(map(len, placed), initial=0))
    return tuple([(ends[a] + b, ends[c] + d) for a, b, c, d in places])


def shape_of_plain(row: Plain) -> tuple[Shape, list[str]] | None:
    """Return `shape_of` of a plain row; None if one of its messages is not."""
    words: list[str] = []
    shape: list[Any] = [None, None, 0, ()]
    for message in row.messages:
        content = message.content
        word = content.strip()
        if not word or "think>" in content:
            return None
        words.append(word)
        shape.append(message.role)
        if len(word) < len(content):
            shape.append(_around(word, content))
    return (tuple(shape), words) if words else None


def _around(word: str, content: str) -> tuple[str, str]:
    """Return what is before and after a word."""
    at = content.index(word)
    return content[:at], content[at + len(word) :]


def shape_of(conversation: Conversation, own: Mapping[str, Any]) -> tuple[Shape, list[str]]:
    """Return all that decides the skeleton of a conversation, which includes the white space around words; its words.

    Args:
        conversation: the conversation; `own`: variables of its row.
    """
    messages, tools, first, unread = conversation
    words: list[str] = []
    shape: list[Any] = [repr(tools) if tools is not None else None, repr(own) if own else None, first, unread]
    for message in messages:
        content = message["content"] if [*message] == _PLAIN else None
        if type(content) is str and "think>" not in content and (word := content.strip()):  # nearly all messages
            words.append(word)
            shape.append(message["role"])
            if len(word) < len(content):
                shape.append(_around(word, content))
        else:
            shape.append(_kinds(message, words))
    return tuple(shape), words


def skeleton_of(
    conversation: Conversation,
    shape: Shape,
    stops: Stops,
    render: Callable[[Messages], Rendered],
    learn: Callable[[Conversation, Rendered], Learned],
) -> Skeleton | None:
    """Return the skeleton of a conversation; None if what contributes to the loss begins or ends inside of a word.

    Args:
        conversation: the conversation as templates see it; `shape`: its shape.
        stops: tokens that end an answer.
        render: renders messages.
        learn: returns what contributes to the loss, or raises BadDocument.
    """
    if _PLACE.search(repr(shape)):
        return None
    try:
        probed = conversation._replace(messages=_probed(conversation.messages, str))
        rendered = render(probed.messages)
        learned = learn(probed, rendered)
    except BadDocument:
        return None  # the words of each conversation decide
    text = rendered.text
    probes = list(_PLACE.finditer(text))
    begins, ends = [0, *(probe.end() for probe in probes)], [*(probe.start() for probe in probes), len(text)]
    before = list(accumulate((len(probe[0]) for probe in probes), initial=0))

    def placed(spans: tuple[Span, ...]) -> tuple[Place, ...]:
        found = []
        for begin, end in spans:
            first, last = bisect_left(ends, begin), bisect_right(begins, end) - 1
            if begin < begins[first] or end > ends[last]:
                raise BadDocument("a range begins or ends inside of a probe")
            found.append((first, begin - before[first], last, end - before[last]))
        return tuple(found)

    try:
        spans = None if learned.spans is None else placed(learned.spans)
        answers = placed(learned.answers)
    except BadDocument:
        return None
    return Skeleton(
        tuple(text[begin:end] for begin, end in zip(begins, ends, strict=True)),
        tuple(int(probe[1]) for probe in probes),
        learned,
        spans,
        answers,
        stops,
    )


def _texts(message: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the texts of a message whose words are replaced, by key, each in pieces with the tags of thinking."""
    names = ("content", *THOUGHTS) if message.get("role") == ASSISTANT else ("content",)
    return [(name, _TAGS.split(value)) for name in names if isinstance(value := dict.get(message, name), str)]


def _kinds(message: dict[str, Any], words: list[str]) -> Shape:
    """Return what decides the skeleton of a message, and add its words."""
    kinds: list[Any] = [tuple(dict.keys(message))]
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
            kinds.append(_around(word, piece) if len(word) < len(piece) else None)
    kinds += [repr(value) for key, value in dict.items(message) if key not in replaced]
    return tuple(kinds)


def _probed(messages: Messages, made: Callable[[str], str]) -> Messages:
    """Return messages with probes instead of words, in texts that `made` makes."""
    out: Messages = []
    count = 0
    for number, message in enumerate(messages):
        found = dict(dict.items(message))  # not read as a template reads it
        for name, pieces in _texts(message):
            for at, piece in enumerate(pieces):
                if at % 2 == 0 and (word := piece.strip()):
                    pieces[at] = piece.replace(word, _PROBE.format(count), 1)
                    count += 1
            found[name] = made("".join(pieces)) if "".join(pieces) else ""
        out.append(Message(found, number))
    return out
