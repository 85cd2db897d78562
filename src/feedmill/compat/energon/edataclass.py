"""Energon's decorator for dataclasses with keyword-only fields and slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, dataclass_transform

__all__ = ["edataclass"]


@dataclass_transform(kw_only_default=True)
def edataclass(cls: Any) -> Any:
    """Apply ``@dataclass(kw_only=True, slots=True)`` to a class."""
    return dataclass(kw_only=True, slots=True)(cls)
