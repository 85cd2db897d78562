"""Reports of verbs as plain data.

Samples, documents and files that a verb leaves out of its output: counts and names by reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from feedmill.notebooks import Showable


class VerbReport(Showable):
    """Base class of reports, which are dataclasses."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data for ``--json``; the field `seconds` is rounded to milliseconds."""
        return _fields(self)

    def __str__(self) -> str:
        """Return what ``--json`` prints: a line for each fact."""
        import json  # only needed here

        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False, default=str)


def _fields(report: Any) -> dict[str, Any]:
    values = {field.name: plain(getattr(report, field.name)) for field in fields(report)}
    if "seconds" in values:
        values["seconds"] = round(values["seconds"], 3)
    return values


def plain(value: Any) -> Any:
    """Return a value of a report as plain data: what has `as_dict` by it, dataclasses and structs as dicts."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return _fields(value)
    if hasattr(value, "__struct_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


SHOWN = 3
"""Number of examples in messages and in plain data."""


class LeftOut:
    """Inputs that are left out: a count and names for each reason.

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
