"""Megatron-LM's argument syntax (``--json-keys text title``), which typer's options do not have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn


class Arguments(argparse.ArgumentParser):
    """A parser that reports wrong usage like the other commands.

    Args:
        command: name of the command; `help`: its line in the help.
        fail: reports wrong usage, and does not return.
    """

    def __init__(self, command: str, help: str, fail: Callable[[str], NoReturn]) -> None:
        super().__init__(prog=f"feedmill megatron {command}", description=help)
        self._fail = fail

    def error(self, message: str) -> NoReturn:
        """Report wrong usage."""
        self._fail(message)
