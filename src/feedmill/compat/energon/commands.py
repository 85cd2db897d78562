"""The commands of ``feedmill energon`` as `click` commands, for programs and tests that call Energon's."""

from __future__ import annotations

from typing import Any

__all__ = ["COMMANDS"]

COMMANDS = ("analyze-debug", "checkpoint", "info", "lint", "mount", "prepare", "prepare-media", "preview")


def __getattr__(name: str) -> Any:
    """Return a command by its name with underscores, a command of a group as ``group_command``, or ``main`` itself."""
    from typer.main import get_command

    from feedmill.compat.energon.cli import app

    command: Any = get_command(app)
    if name == "main":
        return command
    for known in COMMANDS:
        words = known.replace("-", "_")
        if name == words:
            return command.commands[known]
        if name.startswith(f"{words}_") and name.removeprefix(f"{words}_") in getattr(
            command.commands[known], "commands", ()
        ):
            return command.commands[known].commands[name.removeprefix(f"{words}_")]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
