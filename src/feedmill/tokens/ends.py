"""Which tokens end and begin documents: the values of `eos` and `bos` mean the same in Python, recipes and commands.

    auto                            the token that the tokenizer's own files name
    none (null, false, ~, or None)  no token
    any other text                  a special token, or one that was added to the vocabulary

An ordinary word of the vocabulary is refused, because it also occurs in texts, where it would look like an end.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from feedmill.errors import ConfigError
from feedmill.tokens.tokenizer import Tokenizer

logger = logging.getLogger("feedmill")

AUTO = "auto"
NOTHING = ("none", "null", "false", "~")
"""Texts that mean no token, in any case of letters: what YAML, JSON, Python and command lines write for it."""

Given = str | bool | None
"""Value of the option `eos` or `bos`; of the bools, only False is valid."""


class Ends(NamedTuple):
    """The tokens before and after each document, and their ids; None for no token."""

    bos: str | None
    eos: str | None
    bos_id: int | None
    eos_id: int | None


def ends_of(tokenizer: Tokenizer, bos: Given, eos: Given) -> Ends:
    """Return the tokens that the options `bos` and `eos` stand for.

    Raises:
        ConfigError: a token is not in the vocabulary or is an ordinary word, or the tokenizer's files name none.
    """
    (first, first_id), (last, last_id) = (_end(tokenizer, value, what) for value, what in ((bos, "BOS"), (eos, "EOS")))
    return Ends(first, last, first_id, last_id)


def declare_eos(tokenizer: Tokenizer, token: str) -> None:
    """Let a configuration of another program declare the EOS, which is then ``auto``; an ordinary word is logged.

    Raises:
        ConfigError: the token is not in the vocabulary.
    """
    tokenizer.require(token, "EOS")
    if not tokenizer.is_special(token):
        logger.warning(
            "%s: the EOS %r is an ordinary token of the vocabulary, which texts contain too", tokenizer.path, token
        )
    tokenizer.declared_eos = token


def is_nothing(value: Given) -> bool:
    """Return whether a value stands for no token.

    >>> is_nothing("None"), is_nothing(False), is_nothing("</s>")
    (True, True, False)
    """
    return value is None or value is False or str(value).lower() in NOTHING


def _end(tokenizer: Tokenizer, value: Given, what: str) -> tuple[str | None, int | None]:
    if is_nothing(value):
        return None, None
    option = what.lower()
    if not isinstance(value, str):
        raise ConfigError(
            f"{option} is {value!r}: expected a token as text", kind="bad-option", fix="Pass a token, auto or none."
        )
    declared = tokenizer.declared_eos if what == "EOS" else tokenizer.declared_bos
    if value == AUTO:
        if declared is None:
            raise ConfigError(
                f"the tokenizer's files do not define {'an EOS' if what == 'EOS' else 'a BOS'} token",
                file=str(tokenizer.path),
                kind="unknown-token",
                fix=f"Name one as {option!r} ('--{option} TOKEN' on the command line); 'none' stands for no token."
                f" {_special(tokenizer)}",
            )
        return declared, tokenizer.require(declared, what)
    number = tokenizer.require(value, what)
    if not tokenizer.is_special(value):
        raise ConfigError(
            f"the {what} {value!r} is an ordinary token of the vocabulary, which texts contain too: expected a special"
            " token",
            file=str(tokenizer.path),
            kind="unknown-token",
            fix=f"Pass another token, or none for no {what}; if {value!r} is meant, set {option}_token to it in"
            f" tokenizer_config.json. {_special(tokenizer)}",
        )
    return value, number


def _special(tokenizer: Tokenizer) -> str:
    names = list(tokenizer.special_tokens())
    more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    return f"Special tokens of the tokenizer: {', '.join(names[:20]) or 'none'}{more}."
