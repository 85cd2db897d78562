"""Energon's short form of keyword-only dataclasses with slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, dataclass_transform

__all__ = ["edataclass"]


@dataclass_transform(kw_only_default=True)
def edataclass(cls: Any) -> Any:
    """``@dataclass(kw_only=True, slots=True)``."""
    return dataclass(kw_only=True, slots=True)(cls)
