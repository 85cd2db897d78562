"""Reports of verbs as plain data."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from feedmill.notebooks import Showable


class VerbReport(Showable):
    """Base class of reports, which are dataclasses."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data for ``--json``; the field `seconds` is rounded to milliseconds."""
        return _fields(self)


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
