"""What every run over conversations checks: stop tokens, something to learn, and keys that have an effect.

A check does not make a document invalid. It is counted, and named with the first document that it found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from feedmill.tokens.chat.answers import Learned, ends_in
from feedmill.tokens.chat.forms import KEYS, MEDIA, Conversation
from feedmill.tokens.chat.values import CONVERTED, Message, unread

NO_STOP = "answers whose loss does not end in a stop token"
NOTHING = "nothing to learn"
HEADER = "answers whose header may be in the loss"
UNTHINKING = "answers without their thinking"
NO_EFFECT = "keys without effect: "
_READ = ("role", *KEYS)
"""Keys that decide the loss, whether the template reads them or not."""
_LONGEST = 60
_NAMED = 5
"""Keys that a note names."""
_MEANING = {
    NO_STOP: "the model does not learn to end such an answer. Pass --eos TOKEN to end conversations with a special"
    " token, or use a template (if it has generation blocks: --chat-mask turns) that has one after each answer",
    NOTHING: "no token contributes to the loss: check the roles and weights of the messages, and --chat-mask",
    HEADER: "the template ignores add_generation_prompt, and writes another header before another answer. Use a"
    " template that asks for an answer, or generation blocks",
    UNTHINKING: "the template drops the thinking of earlier answers, so the model learns to give these without it;"
    " --chat-mask last learns the last answer alone",
    CONVERTED: "they were written as JSON, once",
}
_TO = (
    " token files hold text alone. To train on text and media, make samples of both with 'feedmill import FOLDER TABLE"
    " OUT', and pack them by their 'lengths'"
)


@dataclass(slots=True)
class Check:
    """What a check found: the number of documents, and file and line of the first."""

    count: int
    file: str
    line: int

    @property
    def where(self) -> str:
        """Return the place of the first document, for messages."""
        return f"{self.file} line {self.line}"


def added(*several: Mapping[str, Check]) -> dict[str, Check]:
    """Return the sums of what checks found."""
    out: dict[str, Check] = {}
    for checks in several:
        for name, one in checks.items():
            out[name] = replace(out[name], count=out[name].count + one.count) if name in out else one
    return out


def unread_keys(conversation: Conversation, reads_tools: bool) -> list[str]:
    """Return the keys of a rendered conversation that its template did not read, each with the role of its message."""
    found = list(conversation.unread)
    if conversation.tools is not None and not reads_tools:
        found.append("'tools' of the row")
    for message in conversation.messages:
        if isinstance(message, Message):
            found += [_named(key, message) for key in unread(message) if key not in _READ]
    return found


def check(
    conversation: Conversation,
    text: str,
    found: Learned,
    unread_keys: Sequence[str],
    notes: set[str],
    *,
    stops: tuple[str, ...],
    closed: bool,
) -> tuple[str, ...]:
    """Return what the checks found in a conversation, without repeats.

    Args:
        text, found: its text, and what contributes to the loss.
        unread_keys: see the function of this name.
        notes: what happened while it was rendered.
        stops, closed: the stop tokens, and whether an EOS follows each text; see `ChatSpec`.
    """
    names = {*notes, *(NO_EFFECT + key for key in unread_keys)}
    for number in found.ignored:
        message = conversation.messages[number]
        names |= {NO_EFFECT + _named(key, message) for key in KEYS if message.get(key) is not None}
    if found.unsure:
        names.add(HEADER)
    if found.unthinking:
        names.add(UNTHINKING)
    if found.spans is not None and not any(begin < end for begin, end in found.spans):
        names.add(NOTHING)
    elif not all(ends_in(text, answer, stops) or (closed and is_closed(text, answer)) for answer in found.answers):
        names.add(NO_STOP)
    return tuple(sorted(names))


def is_closed(text: str, answer: tuple[int, int]) -> bool:
    """Return whether nothing follows an answer, so that an EOS after the text ends it."""
    return not text[answer[1] :].strip()


def _named(key: object, message: Mapping[str, object]) -> str:
    return f"{str(key)!r:.{_LONGEST}} of {message.get('role')!s:.{_LONGEST}}"


def remarks(found: Mapping[str, Check], documents: int) -> Iterator[tuple[bool, str]]:
    """Yield what to report of the checks of a run: whether it concerns every conversation, and a sentence.

    Args:
        documents: number of conversations.
    """
    for name, meaning in _MEANING.items():
        if name in found:
            one = found[name]
            every = one.count >= documents and name != CONVERTED
            yield every, f"{_count(one, documents)}: {name} (first: {one.where}): {meaning}"
    keys = {name.removeprefix(NO_EFFECT): one for name, one in found.items() if name.startswith(NO_EFFECT)}
    for name in (f"{column!r} of the row" for column in MEDIA):
        if name in keys:
            one = keys.pop(name)
            yield (
                one.count >= documents,
                f"{_count(one, documents)}: {name} is not in the tokens (first: {one.where}):{_TO}",
            )
    if keys:
        most = sorted(keys.items(), key=lambda item: (-item[1].count, item[0]))
        shown = ", ".join(f"{key} ({_count(one, documents)}, first: {one.where})" for key, one in most[:_NAMED])
        more = f", and {len(most) - _NAMED:,} more" if len(most) > _NAMED else ""
        yield False, f"keys of messages have no effect on the text or the loss: {shown}{more}"


def _count(found: Check, documents: int) -> str:
    return f"{found.count:,} of {documents:,} conversations"
