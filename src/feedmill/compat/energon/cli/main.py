"""Energon's module of its commands: ``prepare_command``, ``info_command``, ..., and `main` with all of them."""

from __future__ import annotations

from typing import Any

from feedmill.compat.energon import commands


def __getattr__(name: str) -> Any:
    if name != "main" and not name.endswith("_command"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(commands, name.removesuffix("_command"))
