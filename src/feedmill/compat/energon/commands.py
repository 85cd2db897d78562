"""The commands of ``feedmill energon`` as `click` commands, for programs and tests that call Energon's."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return a command by its name with underscores, a command of a group as ``group_command``, or ``main`` itself."""
    from typer.main import get_command

    from feedmill.compat.energon.cli import app

    command: Any = get_command(app)
    if name == "main":
        return command
    group, _, inner = name.partition("_")
    commands, inner_commands = command.commands, getattr(command.commands.get(group), "commands", {})
    found = commands.get(name.replace("_", "-")) or inner_commands.get(inner)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
