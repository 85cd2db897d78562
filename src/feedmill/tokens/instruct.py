"""Prepare instruction-tuning data: render conversations with a chat template, and divide them into splits.

Each line of a JSONL file holds a conversation, a list of turns. Roles are renamed, the template (jinja2, sandboxed)
renders the text, and the line with this text in ``chat`` is written to a randomly drawn part. The output equals that of
Modalities' ``prepare_instruction_tuning_data``, byte for byte.

Two marker tokens delimit the tokens that contribute to the loss; see `between`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.jobs.sandbox import Failure, Sandbox
from feedmill.storage import Store
from feedmill.tokens.chat.reader import MEMORY, SECONDS
from feedmill.tokens.chat.render import compiled, sandbox

ROLE_KEYS = ("role", "from")
"""Keys of a turn that hold a role."""
TEXT = "chat"
"""Key of the rendered text in the output."""

_READ = 1 << 20
_AT_ONCE = 1024
"""Lines that the child process gets at once."""

Template = Callable[..., str]


@dataclass(frozen=True)
class Chat:
    """Options of rendering conversations.

    Attributes:
        messages_key: key of the conversation in a line.
        roles: role -> its new name.
        template: jinja2 template; its variables are ``messages`` and ``chat_template_data``.
        data: value of ``chat_template_data``.
    """

    messages_key: str
    roles: Mapping[str, str]
    template: str
    data: Mapping[str, Any] = field(default_factory=dict)


def compile_template(text: str) -> Template:
    """Return a chat template as a function of ``messages`` and ``chat_template_data``.

    Line ends between two blocks of the template (``}`` newline ``{``) are removed. The filter ``tojson``, which does
    not escape HTML characters, and the function ``raise_exception`` are available.

    Raises:
        MissingExtra: jinja2 is not installed.
        ConfigError: the template has a syntax error. The message has its line.
    """
    found: Template = compiled(sandbox(), text.replace("}\n{", "}{")).render
    return found


def prepare_chats(
    source: tuple[Store, str],
    targets: Mapping[str, tuple[Store, str]],
    chat: Chat,
    weights: Mapping[str, float],
    seed: int,
) -> dict[str, int]:
    """Write the lines of a JSONL file, with rendered texts, to the files of their parts.

    All files are replaced atomically after the last line.

    Args:
        source: store and path of the file of conversations.
        targets: store and path of each part's file; parts of weight 0 need none.
        weights: part -> weight, in the order used for drawing.
        seed: seed of the `random.Random` that draws a part for each line.

    Returns:
        Number of lines of each part in `targets`.

    Raises:
        DataError: a line is not a conversation.
        ConfigError: the template is invalid.
    """
    where = source[0].locate(source[1])
    names = list(weights)
    dice = random.Random(seed)
    counts = dict.fromkeys(targets, 0)
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            name: stack.enter_context(store.write(path)) for name, (store, path) in targets.items()
        }
        for line in _all_rendered(source, where, chat):
            part = dice.choices(names, weights=list(weights.values()))[0]
            files[part].write(line)
            counts[part] += 1
    return counts


def _all_rendered(source: tuple[Store, str], where: str, chat: Chat) -> Iterator[bytes]:
    """Yield each line with its rendered text. The template runs in a child process with limits on time and memory."""
    sandbox()  # a missing package is found here
    lines = enumerate(read_lines(*source), 1)
    with Sandbox(partial(_made, where, chat), SECONDS, memory=MEMORY) as box:
        ready = next(box.map([(0, b"")]))
        if isinstance(ready, Failure):
            what = f"the chat template cannot be compiled: it {ready.why}"
            raise ConfigError(what, kind="bad-template", fix="Fix the template.")
        if isinstance(ready, FeedmillError):
            raise ready
        while some := list(islice(lines, _AT_ONCE)):
            for (number, _), made in zip(some, box.map(some), strict=True):
                if isinstance(made, Failure):
                    what = f"the chat template failed (it {made.why})"
                    fix = "Fix the template."
                    raise DataError(what, file=where, record=f"line {number}", kind="bad-document", fix=fix)
                if isinstance(made, FeedmillError):
                    raise made
                yield made


def _made(where: str, chat: Chat, item: tuple[int, bytes]) -> bytes | FeedmillError:
    """Return a line, given with its number, with its rendered text; nothing for number 0, which compiles only."""
    try:
        template = _compiled(chat.template)
        return _rendered(item[1], where, item[0], chat, template) if item[0] else b""
    except FeedmillError as error:
        return error


@lru_cache(1)
def _compiled(text: str) -> Template:
    return compile_template(text)


def read_lines(store: Store, path: str) -> Iterator[bytes]:
    """Yield the lines of a file without their newlines. The last line may lack one."""
    size = store.stat(path).size
    rest = b""
    for low in range(0, size, _READ):
        *lines, rest = (rest + store.read(path, low, min(_READ, size - low))).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _rendered(line: bytes, where: str, number: int, chat: Chat, template: Template) -> bytes:
    """Return a line with its rendered text, newline included."""

    def wrong(what: str, fix: str = "Correct or delete the line.") -> DataError:
        return DataError(what, file=where, record=f"line {number}", kind="bad-document", fix=fix)

    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise wrong(f"this is not valid JSON ({error})") from None
    if not isinstance(entry, dict) or chat.messages_key not in entry:
        raise wrong(f"there is no {chat.messages_key!r}", "Check 'messages_key', or correct the line.")
    turns = entry[chat.messages_key]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise wrong(f"{chat.messages_key!r} is not a list of turns")
    for turn in turns:
        for key in ROLE_KEYS:
            if key in turn:
                role = turn[key]
                if not isinstance(role, str) or role not in chat.roles:
                    raise wrong(
                        f"the role {role!r} has no mapping (mapped roles: {', '.join(chat.roles)})",
                        "Add it to 'role_mapping'.",
                    )
                turn[key] = chat.roles[role]
    try:
        entry[TEXT] = template(messages=turns, chat_template_data=chat.data)
    except Exception as error:  # a template can raise any exception
        raise wrong(f"the chat template failed ({type(error).__name__}: {error})", "Fix the template.") from None
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        raise wrong("the text has a lone surrogate, which UTF-8 cannot encode") from None


def between(tokens: Tokens, lengths: Int64s, begin: int, end: int, *, number: int = 0) -> npt.NDArray[np.bool_]:
    """Return which tokens contribute to the loss: those strictly between a begin and an end marker of their document.

    A document without a begin marker has none. If the last end marker is missing, the range extends to the document's
    end.

    Args:
        tokens: concatenated ids of all documents.
        lengths: int64[n], tokens per document.
        begin, end: ids of the markers.
        number: number of the first document, for errors.

    Returns:
        bool[len(tokens)].

    Raises:
        ConfigError: both markers are the same id.
        DataError: an end marker precedes its begin marker, or two begin markers follow each other.
    """
    if begin == end:
        raise ConfigError(f"both markers are the token {begin}", kind="bad-mask", fix="Use two different tokens.")
    step = (tokens == begin).astype(np.int64) - (tokens == end)
    level = np.cumsum(step)
    starts = np.cumsum(lengths) - lengths
    filled = starts < len(tokens)
    before = np.zeros(len(lengths), np.int64)
    before[filled] = level[starts[filled]] - step[starts[filled]]
    level -= np.repeat(before, lengths)
    wrong = np.flatnonzero((level < 0) | (level > 1))
    if len(wrong):
        document = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        what = "is an end marker without a begin marker" if level[wrong[0]] < 0 else "are two begin markers in a row"
        raise DataError(
            f"there {what}",
            record=f"document {number + document}",
            kind="bad-mask",
            fix="Fix the chat template: markers must be paired.",
        )
    return np.asarray((level == 1) & (tokens != begin), np.bool_)
