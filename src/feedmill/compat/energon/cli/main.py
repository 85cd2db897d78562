"""Energon's module of its commands, as `click` commands: ``prepare_command``, ``info_command``, ..., and `main`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return a command, a command of a group as ``GROUP_NAME_command``, or `main` with all of them."""
    from typer.main import get_command

    from feedmill.compat.energon.cli import app

    command: Any = get_command(app)
    if name == "main":
        return command
    group, _, inner = name.removesuffix("_command").partition("_")
    commands, inner_commands = command.commands, getattr(command.commands.get(group), "commands", {})
    found = commands.get(name.removesuffix("_command").replace("_", "-")) or inner_commands.get(inner)
    if found is None or not name.endswith("_command"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
