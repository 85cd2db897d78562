"""Read conversations as documents: the text of each row, and the characters of it that contribute to the loss."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from feedmill.documents.batch import BadDocument, Record
from feedmill.documents.textpath import checked, load_json
from feedmill.errors import ConfigError
from feedmill.tokens.chat.forms import COLUMNS, FORMS, SIDES, Messages, conversation_of
from feedmill.tokens.chat.learned import learned, rule_for
from feedmill.tokens.chat.render import Rendered, template_of
from feedmill.tokens.chat.settings import find_template, special_tokens
from feedmill.tokens.chat.variables import Variables, checked_variables, row_variables


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
    """

    form: str
    template: str
    with_tools: str | None
    special: tuple[tuple[str, Any], ...]
    rule: str
    today: str | None = None
    side: str = ""
    variables: Variables = ()

    @classmethod
    def of(
        cls, folder: Path, form: str, template: str | None, rule: str, variables: Mapping[str, Any] | None = None
    ) -> ChatSpec:
        """Return the specification for the tokenizer in a folder.

        Raises:
            ConfigError: there is no template, it is invalid, or a value or a variable is unknown.
            MissingExtra: jinja2 is not installed.
        """
        if form not in FORMS:
            raise ConfigError(f"unknown form of conversations {form!r}", fix=f"Use auto or one of {', '.join(FORMS)}.")
        found = find_template(folder, template)
        compiled = [template_of(text, threading.get_ident()) for text in (found.text, found.with_tools) if text]
        rule = rule_for(rule, all(one.has_generation for one in compiled))
        dated = any("strftime_now" in text for text in (found.text, found.with_tools or ""))
        special = tuple(
            (name, tuple(value) if isinstance(value, list) else value) for name, value in special_tokens(folder).items()
        )
        today = date.today().isoformat() if dated else None
        known = checked_variables(variables, [text for text in (found.text, found.with_tools) if text])
        return cls(form, found.text, found.with_tools, special, rule, today, variables=known)


class ChatReader:
    """Reader of conversations, with the interface of `feedmill.documents.textpath.TextReader`.

    The fields of a document are the ranges of characters that contribute to the loss (None for all), and its ``id``.
    """

    columns: tuple[str, ...] = COLUMNS
    """Columns of tables that are read."""

    def __init__(self, spec: ChatSpec) -> None:
        self.spec = spec
        today = None if spec.today is None else date.fromisoformat(spec.today)
        self._template = template_of(spec.template, threading.get_ident(), today)
        self._with_tools = template_of(spec.with_tools or spec.template, threading.get_ident(), today)
        # As in transformers, variables come before special tokens of the same name.
        self._special = {name: list(value) if isinstance(value, tuple) else value for name, value in spec.special}
        self._special |= {"documents": None, **{name: json.loads(text) for name, text in spec.variables}}

    def read(self, block: bytes | memoryview) -> None:
        """Return None: rows are read one by one."""

    def record(self, line: bytes) -> Record:
        """Return the document of one line, with the reason if it has no text."""
        try:
            row = load_json(line)
        except BadDocument as error:
            return Record(None, str(error))
        return self.of_row(row)

    def of_row(self, row: Any) -> Record:
        """Return the document of one row."""
        try:
            # The other side must be valid too: documents of both sides have the same numbers.
            for other in SIDES if self.spec.side else ():
                if other != self.spec.side:
                    self._document(row, other)
            text, spans = self._document(row, self.spec.side)
            return Record(checked(text, "the conversation"), "", (spans, row.get("id")))
        except BadDocument as error:
            return Record(None, str(error))

    def _document(self, row: Any, side: str) -> tuple[str, Any]:
        conversation = conversation_of(row, self.spec.form, side)
        render = partial(self._render, conversation.tools, row_variables(row))
        rendered = render(conversation.messages)
        return rendered.text, learned(conversation, rendered, self.spec.rule, render)

    def _render(
        self,
        tools: list[Any] | None,
        own: Mapping[str, Any],
        messages: Messages,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        template = self._template if tools is None else self._with_tools
        variables: Mapping[str, Any] = {
            **self._special,
            **own,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(**variables)
        except Exception as error:  # a template can raise anything
            raise BadDocument(f"the chat template failed ({type(error).__name__}: {str(error)[:200]})") from None
