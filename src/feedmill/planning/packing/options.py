"""Options of packing documents into rows, and the names of the ways of packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from feedmill.errors import ConfigError

CONCAT_VERSION = 1
BEST_FIT_VERSION, GIVEN_BUFFER_VERSION = 2, 1
"""Versions of the order of rows: with buffers that end where passes end, and with a given size of all buffers."""

_LONGEST = 2**31 - 2
FIELDS = ("input_ids", "positions", "cu_seqlens", "tokens", "loss_mask", "group_ids", "member_ids")
"""Fields that rows of tokens have."""


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
        multiple: with samples that have `lengths`: each takes a place of its length rounded up to a multiple.
        media, patches: most images, videos and sounds in a row, and most patches of the vision tower; None for
            any number.
        headroom: tokens of a row that stay free, for samples that are longer than their predicted length.
        refused: handling of samples without a length: ``error``, or ``drop``.
        mismatch: handling of a sample that its row has no room for when it is read, or that the processor refuses:
            ``error``, or ``drop``, which makes its place padding. It does not change which samples a row has.
        values: numeric columns, such as rewards, that rows have for each token. They change no row.
        later: pairs of a number of documents and a `seq_len`, which rows have after that number of documents of the
            stream. No row holds documents from before and after.

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
    multiple: int = 1
    media: int | None = None
    patches: int | None = None
    headroom: int = 0
    refused: Refused = "error"
    mismatch: Mismatch = "error"
    values: tuple[str, ...] = ()
    later: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name, known in (
            ("method", Method),
            ("last", Last),
            ("long", Long),
            ("refused", Refused),
            ("mismatch", Mismatch),
        ):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} is unknown",
                    kind="bad-recipe",
                    fix=f"Use {' or '.join(get_args(known))}.",
                )
        limits = {"seq_len": _LONGEST, "buffer": _LONGEST, "rows": 2**63 - 1, "multiple": self.seq_len}
        for name, most in {**limits, "media": _LONGEST, "patches": _LONGEST, "headroom": self.seq_len - 1}.items():
            value, least = getattr(self, name), 0 if name == "headroom" else 1
            if value is not None and not least <= value <= most:
                raise ConfigError(
                    f"{name} {value} is out of range", kind="bad-recipe", fix=f"Give a number from {least} to {most}."
                )
        if self.seq_len % self.multiple or self.capacity < self.multiple:
            raise ConfigError(
                f"rows of {self.seq_len:,} tokens with a headroom of {self.headroom:,} do not hold whole multiples of"
                f" {self.multiple:,}",
                kind="bad-recipe",
                fix="Give a seq_len that is a multiple of 'multiple', and a smaller headroom.",
            )
        if self.method == "concat" and self.of_samples:
            raise ConfigError(
                f"windows have no {', '.join(map(repr, self.of_samples))}: they cut documents anywhere",
                kind="bad-recipe",
                fix="Use 'method: best_fit'.",
            )
        taken = [name for name in self.values if name in FIELDS]
        if taken or len(set(self.values)) < len(self.values):
            raise ConfigError(
                f"rows cannot have the columns {', '.join(self.values)}: each needs a name of its own",
                kind="bad-recipe",
                fix=f"Rename or remove {taken[0]!r}." if taken else "Name each column once.",
            )
        if self.overlap and self.method != "concat":
            raise ConfigError(
                "only windows overlap", kind="bad-recipe", fix="Use 'method: concat', or remove 'overlap'."
            )

        for (start, seq_len), (after, width) in pairwise(((0, self.seq_len), *self.later)):
            if after <= start or width == seq_len:
                raise ConfigError(
                    f"rows of {width:,} tokens after {after:,} documents follow rows of {seq_len:,} after {start:,}",
                    kind="bad-recipe",
                    fix="Give growing numbers of documents, each with another seq_len than before.",
                )
            replace(self, seq_len=width, later=())  # has the same limits

    @property
    def phases(self) -> list[tuple[int, Packing]]:
        """Return the document at which each width begins, and the packing with this width alone."""
        return [(start, replace(self, seq_len=width, later=())) for start, width in ((0, self.seq_len), *self.later)]

    @property
    def of_samples(self) -> list[str]:
        """Return the options that were given and that only samples with lengths have."""
        names = {"multiple": 1, "media": None, "patches": None, "headroom": 0, "refused": "error", "mismatch": "error"}
        return [name for name, default in names.items() if getattr(self, name) != default]

    @property
    def capacity(self) -> int:
        """Return the tokens of a row that are planned: without the headroom, in whole multiples."""
        return (self.seq_len - self.headroom) // self.multiple * self.multiple

    @property
    def limits(self) -> dict[str, int]:
        """Return what a row takes a limited amount of, besides tokens."""
        return {name: value for name in ("media", "patches") if (value := getattr(self, name)) is not None}

    def order(self) -> str:
        """Return everything that determines which tokens are in which row, for fingerprints."""
        return with_later(self.first_order(), self.later)

    def first_order(self) -> str:
        """Return `order` of a packing without `later`."""
        if self.method == "concat":
            overlap = ", overlap" if self.overlap else ""
            return f"concat {self.seq_len:,}{overlap}, last {self.last}, version {CONCAT_VERSION}"
        more = "".join(f", {name} {getattr(self, name)}" for name in self.of_samples if name != "mismatch")
        if self.buffer is None:
            given = f"buffers end with passes, version {BEST_FIT_VERSION}"
        else:
            given = f"buffer {self.buffer:,}, version {GIVEN_BUFFER_VERSION}"
        return f"best_fit {self.seq_len:,}, long {self.long}{more}, {given}"


def with_later(order: str, later: Sequence[Sequence[int]]) -> str:
    """Return the text of an order of rows, with the other widths that follow; see `Packing.later`."""
    return order + "".join(f", {width:,} from document {start:,}" for start, width in later)


Method = Literal["best_fit", "concat"]
Last = Literal["drop", "keep", "pad"]
Long = Literal["split", "truncate", "drop"]
Refused = Literal["error", "drop"]
Mismatch = Literal["error", "drop"]
