"""Read conversations as documents: the text of each row, and the characters of it that contribute to the loss.

Templates come with tokenizers from elsewhere. They are compiled and rendered in a child process, with limits on the
processor time and the memory of a conversation (`feedmill.jobs.sandbox`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from feedmill.documents.batch import BadDocument, Record
from feedmill.documents.textpath import checked, load_json
from feedmill.errors import ConfigError
from feedmill.jobs.sandbox import Failure, Sandbox
from feedmill.tokens.chat import checks
from feedmill.tokens.chat.answers import Skeletons
from feedmill.tokens.chat.forms import COLUMNS, EACH, FORMS, SIDES, Messages, conversation_of
from feedmill.tokens.chat.learned import learned, rule_for
from feedmill.tokens.chat.mediatexts import Placing
from feedmill.tokens.chat.render import Rendered, Template, prepare_children, variables_of
from feedmill.tokens.chat.values import Notes, as_seen
from feedmill.tokens.chat.variables import Variables, checked_variables, row_variables
from feedmill.tokens.template import CONFIG, family_of, read_settings
from feedmill.tokens.tokenizer import Tokenizer

SECONDS = 30.0
"""Processor time for one conversation. One of a thousand answers, which is rendered up to each, takes 10 to 20."""
MOST_SLOW = 3
"""Conversations in a row that may exceed it; then the template is at fault."""
MEMORY = 1 << 30
"""Bytes of memory for templates and one conversation."""
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
        rule: rule of the loss mask, not ``auto``; see `feedmill.tokens.chat.learned`.
        today: date for templates that ask for it, such as 2026-01-31; None for others.
        variables: further variables of the template; a row's own come before them.
        stops: tokens that end an answer, as text.
        closed: whether an EOS is added to each conversation.
        media: whether samples have media beside the conversation; see `feedmill.tokens.chat.mediatexts`.
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
        compiled = _examined([text for text in (chosen.text, chosen.with_tools) if text])
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


def _examined(texts: Sequence[str]) -> list[_Examined]:
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
        self._sandbox = Sandbox(Conversations(spec).record, SECONDS, memory=MEMORY)
        self._slow = 0
        """Conversations in a row that took too long."""

    def read(self, block: bytes | memoryview) -> None:
        """Return None: rows are read one by one."""

    def records(self, rows: Sequence[Any]) -> Iterator[Record]:
        """Yield the document of each line or row, with the reason if it has no text.

        Raises:
            ConfigError: several conversations in a row took too long.
        """
        for examined in self._sandbox.map(rows):
            slow = isinstance(examined, Failure) and examined.why.startswith(_SLOW)
            self._slow = self._slow + 1 if slow else 0
            if self._slow >= MOST_SLOW:
                raise ConfigError(
                    f"the chat template {_SLOW} {SECONDS:g} s of processor time for {MOST_SLOW} conversations in a row",
                    kind="bad-template",
                    fix="Use another template; for very long conversations, --chat-mask last needs less time.",
                )
            yield Record(None, _reason(examined)) if isinstance(examined, Failure) else examined

    def close(self) -> None:
        """End the child process; the next row starts another."""
        self._sandbox.close()


def _reason(failure: Failure) -> str:
    if failure.why.startswith(MemoryError.__name__):
        return f"the chat template needs more than {MEMORY >> 20:,} MiB of memory for it"
    if failure.why.startswith(_SLOW):
        return f"the chat template {failure.why} of processor time for it"
    return f"the conversation cannot be rendered ({failure.why})"


class Conversations:
    """Renders conversations in this process."""

    def __init__(self, spec: ChatSpec) -> None:
        self.spec = spec
        # As in transformers, variables come before special tokens of the same name.
        self._special = {name: list(value) if isinstance(value, tuple) else value for name, value in spec.special}
        self._special |= {"documents": None, **{name: json.loads(text) for name, text in spec.variables}}
        self._templates: dict[str, tuple[Template, bool]] = {}
        self._placing, self._skeletons = Placing(), Skeletons()

    def record(self, row: Any) -> Record:
        """Return the document of a line or a row, with the reason if it has no text."""
        try:
            row = load_json(row) if isinstance(row, bytes) else row
            if self.spec.form == EACH and isinstance(row, list):  # a part may be the list of messages itself
                row = {"messages": row}
            # The other side must be valid too: documents of both sides have the same numbers.
            for other in SIDES if self.spec.side else ():
                if other != self.spec.side:
                    self._document(row, other)
            text, spans = self._document(row, self.spec.side)
            return Record(checked(text, "the conversation"), "", (*spans, row.get("id")))
        except BadDocument as error:
            return Record(None, str(error))

    def _document(self, row: Any, side: str) -> tuple[str, tuple[Any, bool, tuple[str, ...]]]:
        """Return the text of a conversation, and the fields of its document."""
        conversation = conversation_of(row, self.spec.form, side)
        notes: Notes = set()
        own = row_variables(row)
        given = conversation.messages
        render = partial(self._render, conversation.tools, own)
        if self.spec.media:
            given = self._placing.placed(
                given,
                lambda messages: render(as_seen(messages, set(), objects=False)).text,
                (conversation.tools is None, repr(own)),
            )
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
        unread = checks.unread_keys(conversation, self._template(conversation.tools)[1])
        variant = (repr(conversation.tools), repr(own))
        spans = learned(conversation, rendered, self.spec.rule, render, self.spec.stops, self._skeletons, variant)
        text, answers = rendered.text, spans.answers
        closing = spans.spans is not None and bool(answers) and checks.is_closed(text, answers[-1])
        spec = self.spec
        said = checks.check(conversation, text, spans, unread, notes, stops=spec.stops, closed=spec.closed)
        return text, (spans.spans, closing, said)

    def _template(self, tools: list[Any] | None) -> tuple[Template, bool]:
        """Return the template, and whether it reads tools; compiled once."""
        text = self.spec.template if tools is None or self.spec.with_tools is None else self.spec.with_tools
        if text not in self._templates:
            today = None if self.spec.today is None else date.fromisoformat(self.spec.today)
            self._templates[text] = Template(text, today), "tools" in variables_of(text)
        return self._templates[text]

    def _render(
        self,
        tools: list[Any] | None,
        own: Mapping[str, Any],
        messages: Messages,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        variables: Mapping[str, Any] = {
            **self._special,
            **own,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template(tools)[0].render(**variables)
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
