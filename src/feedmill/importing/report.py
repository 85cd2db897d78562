"""The result of an import, and the files and rows that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedmill.notebooks import Showable

SHOWN = 3
"""Number of examples in messages and in plain data."""


class LeftOut:
    """Inputs that are not imported: a count and names for each reason.

    Attributes:
        counts: reason -> number of files, rows or samples.
        names: reason -> their names. All files are named; of the rows of a table, only the first ones.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.names: dict[str, list[str]] = {}

    def add(self, reason: str, name: str, *, most: int | None = None) -> None:
        """Count one input, and record its name unless the reason has `most` names already."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        names = self.names.setdefault(reason, [])
        if most is None or len(names) < most:
            names.append(name)

    def merge(self, counts: Mapping[str, int], names: Mapping[str, list[str]]) -> None:
        """Add what a unit of work left out."""
        for reason, count in counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            self.names.setdefault(reason, []).extend(names.get(reason, ()))

    def __len__(self) -> int:
        return sum(self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        """Return each reason with its count and the first names."""
        return {
            reason: {"count": count, "examples": self.names[reason][:SHOWN]} for reason, count in self.counts.items()
        }

    def lines(self) -> list[str]:
        """Return one line for each reason.

        >>> left = LeftOut()
        >>> left.add("empty file", "a.txt")
        >>> left.lines()
        ['1 x empty file (a.txt)']
        """
        return [f"{count:,} x {reason} ({self._examples(reason)})" for reason, count in self.counts.items()]

    def _examples(self, reason: str) -> str:
        shown = ", ".join(self.names[reason][:SHOWN])
        return shown + (", ..." if self.counts[reason] > SHOWN else "")


@dataclass(slots=True)
class ImportReport(Showable):
    """The result of `import_data`.

    Attributes:
        path: the output.
        type: what the files were imported as: one of `feedmill.importing.recognition.TYPES`.
        recognized: what was recognized, one line each.
        samples: documents or samples written; with `dry_run`, the samples expected, or None for documents.
        files, input_bytes: files that were read, and their size.
        outputs, bytes: files written, and their size; of a dry run, 0.
        splits: split -> number of samples.
        sample_type: class of the samples; None for documents.
        left_out: what is not imported, with reasons.
        reused: number of outputs that an interrupted run had finished.
        dry_run: whether nothing was written.
        seconds: wall time.
    """

    path: str
    type: str
    recognized: list[str] = field(default_factory=list)
    samples: int | None = None
    files: int = 0
    input_bytes: int = 0
    outputs: int = 0
    bytes: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    sample_type: str | None = None
    left_out: LeftOut = field(default_factory=LeftOut)
    reused: int = 0
    dry_run: bool = False
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "left_out": self.left_out.as_dict()}
