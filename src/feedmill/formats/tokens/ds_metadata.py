"""The file ``.ds.metadata`` beside datatrove's token files: tokenizer, token size and number of tokens; see `ds`."""

from __future__ import annotations

from typing import NamedTuple

from feedmill.errors import DataError
from feedmill.storage import Store

METADATA = ".metadata"
TOKEN_SIZES = (2, 4)
_UNKNOWN = "Unknown Tokenizer"
_MAGNITUDES = ["", "k", "M", "G", "T", "P", "E", "Z"]


class DsMetadata(NamedTuple):
    """Content of a ``.metadata`` file: the tokenizer's name ("" if unknown), bytes per token, number of tokens."""

    tokenizer: str
    token_size: int
    tokens: int


def read_metadata(store: Store, path: str) -> DsMetadata | None:
    """Return the metadata of a ``.ds`` file; None if there is none.

    Raises:
        DataError: the metadata is invalid.
    """
    name = path + METADATA
    if not store.exists(name):
        return None
    try:
        lines = store.read(name).decode().split("\n")
        tokenizer, size = lines[0].rsplit("|", 1)
        found = DsMetadata(tokenizer, int(size), int(lines[1]))
        if found.token_size not in TOKEN_SIZES:
            raise ValueError
    except (UnicodeDecodeError, ValueError, IndexError):
        raise DataError(
            "invalid metadata of token data: expected 'tokenizer|token size', with 2 or 4, then a line with the number"
            " of tokens",
            file=store.locate(name),
            kind="bad-metadata",
            fix="Restore it, or delete it: the token size can also be determined from the '.index'.",
        ) from None
    # without a name, datatrove writes "Unknown Tokenizer|2|2"
    return found._replace(tokenizer="") if tokenizer.split("|")[0] == _UNKNOWN else found


def metadata_text(tokenizer: str | None, token_size: int, tokens: int) -> str:
    """Return the text of a ``.metadata`` file."""
    return f"{tokenizer or _UNKNOWN}|{token_size}\n{tokens}\n{human_tokens(tokens)}"


def human_tokens(count: int) -> str:
    """Return a number of tokens in three digits and the prefixes of the metric system.

    >>> human_tokens(0), human_tokens(27_261), human_tokens(999_500), human_tokens(2_000_000_000)
    ('0.00 T', '27.3 kT', '1.00 MT', '2.00 GT')
    """
    exponent = len(str(count)) - 1
    while True:
        step, place = divmod(exponent, 3)
        text = f"{count / 10 ** (3 * step):.{2 - place}f}"
        if float(text) < 10 ** (place + 1):
            return f"{text} {_MAGNITUDES[step]}T"
        exponent += 1  # rounding can add a digit: 999.5 k is 1.00 M
