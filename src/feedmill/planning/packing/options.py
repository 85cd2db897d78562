"""Options of packing documents into rows, and the names of the ways of packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from feedmill.errors import ConfigError

CONCAT_VERSION = 1
BEST_FIT_VERSION, GIVEN_BUFFER_VERSION = 2, 1
"""Versions of the order of rows: with buffers that end where passes end, and with a given size of all buffers."""

_LONGEST = 2**31 - 2


@dataclass(frozen=True, slots=True)
class Packing:
    """Options of packing documents into rows; see docs/packing.md.

    Attributes:
        seq_len: tokens in a row.
        method: ``best_fit`` for whole documents, ``concat`` for windows over the concatenated documents.
        overlap: windows hold ``seq_len + 1`` tokens, the last of which is the first of the next window. concat only.
        last: handling of an incomplete window at the end: ``drop``, ``keep`` (a shorter row), ``pad``. concat only.
        long: handling of documents longer than `seq_len`: ``split``, ``truncate``, ``drop``. best_fit only.
        buffer: documents that are packed together, across the ends of passes and stages. By default, documents are
            packed together until a pass of a source or a stage ends, at most 2^20 of them. best_fit only.
        pad: the padding token.
        rows: length of the plan in rows; None to use all documents.

    Raises:
        ConfigError: a value is out of range.
    """

    seq_len: int
    method: Method = "best_fit"
    overlap: bool = False
    last: Last = "drop"
    long: Long = "split"
    buffer: int | None = None
    pad: int = 0
    rows: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("method", Method), ("last", Last), ("long", Long)):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} is unknown",
                    kind="bad-recipe",
                    fix=f"Use {' or '.join(get_args(known))}.",
                )
        for name, most in (("seq_len", _LONGEST), ("buffer", _LONGEST), ("rows", 2**63 - 1)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ConfigError(
                    f"{name} {value} is out of range", kind="bad-recipe", fix=f"Give a number from 1 to {most}."
                )
        if self.overlap and self.method != "concat":
            raise ConfigError(
                "only windows overlap", kind="bad-recipe", fix="Use 'method: concat', or remove 'overlap'."
            )

    def order(self) -> str:
        """Return everything that determines which tokens are in which row, for fingerprints."""
        if self.method == "concat":
            overlap = ", overlap" if self.overlap else ""
            return f"concat {self.seq_len:,}{overlap}, last {self.last}, version {CONCAT_VERSION}"
        if self.buffer is None:
            return f"best_fit {self.seq_len:,}, long {self.long}, buffers end with passes, version {BEST_FIT_VERSION}"
        given = f"buffer {self.buffer:,}, version {GIVEN_BUFFER_VERSION}"
        return f"best_fit {self.seq_len:,}, long {self.long}, {given}"


Method = Literal["best_fit", "concat"]
Last = Literal["drop", "keep", "pad"]
Long = Literal["split", "truncate", "drop"]
