"""Read conversations as documents: the text of each row, and the characters of it that contribute to the loss.

Templates come with tokenizers from elsewhere. They are compiled and rendered in a child process, with limits on the
processor time and the memory of a conversation (`feedmill.jobs.sandbox`).

Conversations about media, in the form that a template of a vision-language model reads.

Templates of such models read a content as a list: ``[{"type": "image"}, {"type": "text", "text": ...}]``. Datasets have
texts as well. LLaVA, ShareGPT, LLaMA-Factory and ms-swift mark a medium by ``<image>``, ``<video>`` or ``<audio>`` in
the text. Some templates (LLaVA 1.5) take a text for an empty list, and leave it out without an error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from feedmill.documents.batch import BadDocument, Record
from feedmill.documents.textpath import checked, load_json
from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.sandbox import Failure, Sandbox
from feedmill.structs import decoder_of
from feedmill.tokens.chat import checks
from feedmill.tokens.chat.answers import learned, rule_for
from feedmill.tokens.chat.forms import COLUMNS, EACH, FORMS, SIDES, Messages, conversation_of
from feedmill.tokens.chat.render import Rendered, Template, prepare_children, variables_of
from feedmill.tokens.chat.shapes import Plain, Shape, Skeleton, shape_of, shape_of_plain, skeleton_of
from feedmill.tokens.chat.values import Notes, Variables, as_seen, checked_variables, row_variables
from feedmill.tokens.chat.watched import Watch
from feedmill.tokens.template import CONFIG, family_of, read_settings
from feedmill.tokens.tokenizer import Tokenizer

SECONDS = 30.0
"""Processor time for one conversation. One of a thousand answers, which is rendered up to each, takes 10 to 20."""
MOST_SLOW = 3
"""Conversations in a row that may exceed it; then the template is at fault."""
MEMORY = 1 << 30
"""Bytes of memory for templates and one conversation."""
_KNOWN = 4096
"""Skeletons that are kept."""
_TRUSTED = 2
"""Uses of a skeleton before one is verified; then each whose number is a power of two."""
_SLOW = "took longer than"
_NO_STOP = ("bos_token", "unk_token", "mask_token")
"""Special tokens that do not end an answer, unless they are the EOS too."""


@dataclass(frozen=True, slots=True)
class ChatSpec:
    """How rows of conversations become texts. Each value affects the output.

    Attributes:
        form, side: see `conversation_of`.
        template: the template; `with_tools`: the one for rows with tools, or None for the same.
        special: special tokens by name, for the template.
        rule: rule of the loss mask, not ``auto``; see `feedmill.tokens.chat.answers`.
        today: date for templates that ask for it, such as 2026-01-31; None for others.
        variables: further variables of the template; a row's own come before them.
        stops: tokens that end an answer, as text.
        closed: whether an EOS is added to each conversation.
        media: whether samples have media beside the conversation; see `feedmill.tokens.chat.reader`.
    """

    form: str
    template: str
    with_tools: str | None
    special: tuple[tuple[str, Any], ...]
    rule: str
    today: str | None = None
    side: str = ""
    variables: Variables = ()
    stops: tuple[str, ...] = ()
    closed: bool = False
    media: bool = False

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        form: str,
        template: str | None,
        rule: str,
        variables: Mapping[str, Any] | None = None,
        *,
        closed: bool = False,
        media: bool = False,
    ) -> ChatSpec:
        """Return the specification for a tokenizer.

        Raises:
            ConfigError: there is no template, it is invalid, or a value or a variable is unknown.
            MissingExtra: jinja2 is not installed.
        """
        if form not in (EACH, *FORMS):
            raise ConfigError(f"unknown form of conversations {form!r}", fix=f"Use auto or one of {', '.join(FORMS)}.")
        folder = tokenizer.path.parent
        chosen = find_template(folder, template)
        compiled = _examined(tuple(text for text in (chosen.text, chosen.with_tools) if text))
        rule = rule_for(rule, all(template.has_generation for template in compiled))
        dated = any("strftime_now" in text for text in (chosen.text, chosen.with_tools or ""))
        tokens = special_tokens(folder)
        special = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in tokens.items())
        today = date.today().isoformat() if dated else None
        known = checked_variables(variables, set().union(*(template.variables for template in compiled)))
        last = tokens.get("eos_token")
        no_stop = {tokens.get(name) for name in _NO_STOP} - {last}
        stops = {*tokenizer.special_tokens(), *([last] if last else [])} - no_stop - {""}
        stopping = tuple(sorted(stops))
        return cls(
            form, chosen.text, chosen.with_tools, special, rule, today, "", known, stopping, closed=closed, media=media
        )


class _Examined(NamedTuple):
    """Facts about a template that need no rendering."""

    has_generation: bool
    variables: frozenset[str]


@lru_cache(maxsize=16)
def _examined(texts: tuple[str, ...]) -> list[_Examined]:
    """Return the facts about templates. Raises ConfigError for an invalid one."""
    prepare_children()
    out = []
    with Sandbox(_examine, SECONDS, memory=MEMORY) as box:
        for examined in box.map(texts):
            if isinstance(examined, ConfigError):
                raise examined
            if isinstance(examined, Failure):
                raise ConfigError(
                    f"the chat template cannot be compiled: it {examined.why}",
                    kind="bad-template",
                    fix="Fix the template.",
                )
            out.append(examined)
    return out


def _examine(text: str) -> _Examined | ConfigError:
    try:
        return _Examined(Template(text).has_generation, frozenset(variables_of(text)))
    except ConfigError as error:
        return error


class ChatReader:
    """Reader of conversations, with the interface of `feedmill.documents.batch.RowReader`.

    The fields of a document are the ranges of characters that contribute to the loss (None for all), whether an EOS
    after the text does, what the checks found (`feedmill.tokens.chat.checks`), and its ``id``.
    """

    columns: tuple[str, ...] = COLUMNS
    """Columns of tables that are read."""

    def __init__(self, spec: ChatSpec) -> None:
        self.spec = spec
        prepare_children()
        self._conversations = Conversations(spec)
        self._sandbox = Sandbox(self._conversations.rendered, SECONDS, memory=MEMORY)
        self._slow = 0
        """Conversations in a row that took too long."""

    def read(self, block: bytes | memoryview) -> None:
        """Return None: rows are read one by one."""

    def records(self, rows: Sequence[Any]) -> Iterator[Record]:
        """Yield the document of each line or row, with the reason if it has no text.

        Raises:
            ConfigError: several conversations in a row took too long.
            FeedmillError: a conversation is rendered in another way than its shape.
        """
        waiting: list[Any] = []
        """Documents, and rows that must be rendered."""
        for row in rows:
            found = self._conversations.written(row)
            waiting.append(row if found is None or found is UNKNOWN else found)
            if found is UNKNOWN:  # the rows that follow may have its shape
                yield from self._settled(waiting)
                waiting.clear()
        yield from self._settled(waiting)

    def _settled(self, waiting: Sequence[Any]) -> Iterator[Record]:
        rendered = self._sandbox.map([row for row in waiting if not isinstance(row, Record)])
        for row in waiting:
            if isinstance(row, Record):
                yield row
                continue
            examined = next(rendered)
            if isinstance(examined, FeedmillError):
                raise examined
            slow = isinstance(examined, Failure) and examined.why.startswith(_SLOW)
            self._slow = self._slow + 1 if slow else 0
            if self._slow >= MOST_SLOW:
                raise ConfigError(
                    f"the chat template {_SLOW} {SECONDS:g} s of processor time for {MOST_SLOW} conversations in a row",
                    kind="bad-template",
                    fix="Use another template; for very long conversations, --chat-mask last needs less time.",
                )
            if isinstance(examined, Failure):
                yield Record(None, _reason(examined))
            else:
                record, news = examined
                self._conversations.learn(news)
                yield record

    def close(self) -> None:
        """End the child process; the next row starts another."""
        self._sandbox.close()


def _reason(failure: Failure) -> str:
    if failure.why.startswith(MemoryError.__name__):
        return f"the chat template needs more than {MEMORY >> 20:,} MiB of memory for it"
    if failure.why.startswith(_SLOW):
        return f"the chat template {failure.why} of processor time for it"
    return f"the conversation cannot be rendered ({failure.why})"


_PLAIN = decoder_of(Plain)
UNKNOWN = Record(None)
"""A conversation whose shape was not rendered yet."""
News = list[tuple[Shape, Skeleton | None]]
"""Skeletons of shapes; None for a shape of which each conversation must be rendered."""


class Conversations:
    """Renders conversations in this process, or writes those of known shapes without rendering."""

    def __init__(self, spec: ChatSpec) -> None:
        self.spec = spec
        # As in transformers, variables come before special tokens of the same name.
        self._special = {name: list(value) if isinstance(value, tuple) else value for name, value in spec.special}
        self._special |= {"documents": None, **{name: json.loads(text) for name, text in spec.variables}}
        self._template = cache(self._compiled)
        self._placing = Placing()
        self._shapes: dict[Shape, Skeleton | None] = {}
        self._news: News = []
        self._sides = (spec.side, *(side for side in SIDES if spec.side and side != spec.side))
        """The other side of a pair must be valid too: documents of both sides have the same numbers."""

    def learn(self, news: News) -> None:
        """Add skeletons."""
        if len(self._shapes) + len(news) > _KNOWN:
            self._shapes.clear()
        self._shapes.update(news)

    def written(self, row: Any) -> Record | None:
        """Return the document of a line or a row of a known shape, which is not rendered.

        Returns:
            None if it must be rendered, also now and then to verify its shape; `UNKNOWN` if that is to tell its shape.
        """
        if self.spec.media:
            return None
        if isinstance(row, bytes) and self.spec.form in ("messages", EACH):
            try:
                plain = _PLAIN.decode(row)
                found = shape_of_plain(plain)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                found = None
            if found is not None:
                return self._of_shape(*found, plain.id)
        document: Record | None = None
        try:
            row = self._row(msgspec.json.decode(row) if isinstance(row, bytes) else row)
            for side in self._sides:
                conversation = conversation_of(row, self.spec.form, side)
                found = shape_of(conversation, row_variables(row))
                other = self._of_shape(*found, row.get("id"))
                if other is None or other is UNKNOWN:
                    return other
                document = document or other
        except Exception:  # rendering tells what is wrong
            return None
        return document

    def _of_shape(self, shape: Shape, words: Sequence[str], name: object) -> Record | None:
        skeleton = self._shapes.get(shape, UNKNOWN)
        if skeleton is None:
            return None
        if isinstance(skeleton, Record) or not skeleton.asked:
            return UNKNOWN
        own = skeleton.written(words)
        if own is None:
            return None
        skeleton.uses += 1
        if not skeleton.uses & (skeleton.uses - 1) and skeleton.uses > _TRUSTED:
            return None
        return Record(own[0], "", (own[1], skeleton.closing, skeleton.said, name))

    def rendered(self, row: Any) -> tuple[Record, News] | FeedmillError:
        """Return the document of a line or a row, and skeletons of new shapes; an error if one was wrong."""
        self._news = []
        try:
            return self.record(row), self._news
        except FeedmillError as error:
            return error

    def record(self, row: Any) -> Record:
        """Return the document of a line or a row, with the reason if it has no text.

        Raises:
            FeedmillError: it is rendered in another way than its shape.
        """
        try:
            row = self._row(load_json(row) if isinstance(row, bytes) else row)
            (text, spans), *_ = [self._document(row, side) for side in self._sides]
            return Record(checked(text, "the conversation"), "", (*spans, row.get("id")))
        except BadDocument as error:
            return Record(None, str(error))

    def _row(self, value: Any) -> Any:
        """Return a row; a part may be the list of messages itself."""
        return {"messages": value} if self.spec.form == EACH and isinstance(value, list) else value

    def _document(self, row: Any, side: str) -> tuple[str, tuple[Any, bool, tuple[str, ...]]]:
        """Return the text of a conversation, and the fields of its document."""
        spec = self.spec
        conversation = conversation_of(row, spec.form, side)
        notes: Notes = set()
        own = row_variables(row)
        given = conversation.messages
        render = partial(self._render, conversation.tools, own)
        if spec.media:
            given = self._placing.placed(
                given,
                lambda messages: render(as_seen(messages, set(), objects=False)).text,
                (conversation.tools is None, repr(own)),
            )
        shape, words = shape_of(conversation._replace(messages=given), own)
        conversation = conversation._replace(messages=as_seen(given, notes, objects=False))
        try:
            rendered = render(conversation.messages)
        except BadDocument as error:
            objects = as_seen(given, notes, objects=True)
            if objects == conversation.messages:
                raise
            conversation = conversation._replace(messages=objects)
            try:
                rendered = render(objects)
            except BadDocument:
                raise error from None
        text = rendered.text
        unread = checks.unread_keys(conversation, self._template(conversation.tools is not None)[1])
        learn = partial(learned, rule=spec.rule, render=render, stops=spec.stops)
        asked = self._shapes.get(shape)
        if shape not in self._shapes:
            skeleton = skeleton_of(conversation, shape, spec.stops, render, learn)
        elif asked is not None and not asked.asked:  # a second one: more are likely
            watched = partial(self._render, conversation.tools, own)
            skeleton = replace(asked)
            skeleton.ask(conversation.messages, lambda messages, watch: watched(messages, watch=watch))
        else:
            skeleton = asked
        found = skeleton and skeleton.found(text, words)
        if skeleton is not None and found is None and (other := skeleton.written(words)) is not None:
            raise FeedmillError(
                "the chat template renders a conversation in another way than one of the same shape:"
                f" {text[:200]!r}, not {other[0][:200]!r}",
                kind="verification-failed",
                fix="Report the template.",
            )
        spans = found or learn(conversation, rendered)
        answers = spans.answers
        closing = spans.spans is not None and bool(answers) and checks.is_closed(text, answers[-1])
        remarks = checks.check(conversation, text, spans, unread, notes, stops=spec.stops, closed=spec.closed)
        if skeleton is not None and found is not None and skeleton.said is None:
            skeleton = replace(skeleton, said=remarks, closing=closing)
        if skeleton is not asked or shape not in self._shapes:
            self.learn([(shape, skeleton)])
            self._news.append((shape, skeleton))
        return text, (spans.spans, closing, remarks)

    def _compiled(self, with_tools: bool, watched: bool = False) -> tuple[Template, bool]:
        """Return the template, and whether it reads tools."""
        spec = self.spec
        text = spec.with_tools if with_tools and spec.with_tools is not None else spec.template
        today = None if spec.today is None else date.fromisoformat(spec.today)
        return Template(text, today, watched=watched), not watched and "tools" in variables_of(text)

    def _render(
        self,
        tools: list[Any] | None,
        own: Mapping[str, Any],
        messages: Messages,
        add_generation_prompt: bool = False,
        watch: Watch | None = None,
    ) -> Rendered:
        variables: Mapping[str, Any] = {
            **self._special,
            **own,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            template, _ = self._template(tools is not None, watch is not None)
            return template.render(**variables) if watch is None else template.watch(watch, **variables)
        except MemoryError:
            raise
        except Exception as error:  # a template can raise anything
            raise BadDocument(f"the chat template failed ({type(error).__name__}: {str(error)[:200]})") from None


_FILE, NAMED_TEMPLATES, _JSON = "chat_template.jinja", "additional_chat_templates", "chat_template.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT, TOOLS = "default", "tool_use"


class ChatTemplate(NamedTuple):
    """A template, the one for rows with tools if it differs, and where they were found."""

    text: str
    with_tools: str | None
    where: str


def find_template(folder: Path, asked: str | None = None) -> ChatTemplate:
    """Return the template of a tokenizer's folder.

    Args:
        folder: the folder.
        asked: the name of one of its templates, or the path of a file; None for its default.

    Raises:
        ConfigError: there is none, or it has another name.
    """
    if asked is not None and (os.sep in asked or asked.endswith((".jinja", ".jinja2", ".j2", ".txt"))):
        path = Path(asked)
        if not path.is_file():
            raise ConfigError("the chat template does not exist", file=asked, kind="bad-template")
        return ChatTemplate(_text(path), None, asked)
    named, where = _named(folder)
    if not named:
        raise ConfigError(
            "the tokenizer's files have no chat template",
            file=str(folder),
            kind="bad-template",
            fix=f"Pass --chat-template FILE, or put {_FILE} beside the tokenizer.",
        )
    name = asked or DEFAULT
    if name not in named:
        raise ConfigError(
            f"the tokenizer has no chat template {name!r}",
            file=where,
            kind="bad-template",
            fix=f"Pass --chat-template with one of {', '.join(map(repr, named))}.",
        )
    return ChatTemplate(named[name], named.get(TOOLS) if asked is None else None, where)


def special_tokens(folder: Path) -> dict[str, Any]:
    """Return the special tokens that a template gets as variables, such as ``bos_token``."""
    settings, older = read_settings(folder / CONFIG), read_settings(folder / "special_tokens_map.json")
    tokens: dict[str, Any] = {}
    family = family_of(settings, folder)
    if family is not None:
        tokens |= {"bos_token": family[1].bos, "eos_token": family[1].eos}
    for name in (*_SPECIAL, *(settings.get("model_specific_special_tokens") or {})):
        value = settings.get(name, older.get(name))
        value = (settings.get("model_specific_special_tokens") or {}).get(name, value)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
        elif name in settings and value is None:
            tokens.pop(name, None)
    more = settings.get("additional_special_tokens", older.get("additional_special_tokens")) or []
    texts = [item.get("content") if isinstance(item, dict) else item for item in more]
    return tokens | ({"additional_special_tokens": texts} if texts else {})


def _named(folder: Path) -> tuple[dict[str, str], str]:
    """Return the templates of a folder by name, and the file that has the first."""
    names: dict[str, str] = {}
    where = ""
    for name in (_JSON, CONFIG):  # the later file overrides the earlier one
        value = read_settings(folder / name).get("chat_template")
        if isinstance(value, str):
            value = [{"name": DEFAULT, "template": value}]
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Mapping) and isinstance(item.get("template"), str):
                names[str(item.get("name", DEFAULT))] = item["template"]
                where = str(folder / name)
    if (folder / _FILE).is_file():
        names[DEFAULT], where = _text(folder / _FILE), str(folder / _FILE)
    if (folder / NAMED_TEMPLATES).is_dir():
        for path in sorted((folder / NAMED_TEMPLATES).glob("*.jinja")):
            names[path.stem] = _text(path)
            where = where or str(path)
    return names, where


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template cannot be read ({error})", file=str(path)) from None


_MARK = re.compile(r"\n*<(image|video|audio)>\n*")
"""Line breaks around a mark separate it from the text; templates write what they need there."""
_PROBE = "feedmill-probe-{}-of-a-text"
_KNOWN_WAYS = 4096
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
            if len(self._ways) >= _KNOWN_WAYS:
                self._ways.clear()
            ways: tuple[Callable[[Messages], Messages], ...] = (_marked, _listed, list)
            self._ways[shape] = min(ways, key=lambda way: _lost(way(probed), render))
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
