"""Output of the demo: numbered chapters, aligned rows with seconds, facts for ``--json``."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from feedmill.cli.output import human_size
from feedmill.errors import ConfigError
from feedmill.storage.os_errors import storage_error

_MARK = ".feedmill-demo"
_OURS = ("pages", "docs", "text", "runs")
Result = TypeVar("Result")


class Story:
    """Progress output of the demo in the folder `out`; `facts` collects what ``--json`` prints.

    Raises:
        ConfigError: the folder holds files that are not a demo's.
    """

    def __init__(self, out: Path, *, quiet: bool) -> None:
        try:
            if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
                raise ConfigError(
                    "the folder holds other files: it must be empty or from an earlier demo",
                    file=str(out),
                    fix="Pass another --output.",
                )
            out.mkdir(parents=True, exist_ok=True)
            (out / _MARK).touch()
        except NotADirectoryError:
            raise ConfigError("--output is a file, not a folder", file=str(out), fix="Pass another --output.") from None
        except OSError as error:
            raise storage_error(error, str(out)) from None
        for name in _OURS:
            shutil.rmtree(out / name, ignore_errors=True)
        self.out, self.quiet = out, quiet
        self.recipe = out / "recipe.yaml"
        self.begun, self.chapters = time.monotonic(), 0
        self.facts: dict[str, Any] = {"out": str(out)}

    def say(self, text: str, *, bold: bool = False) -> None:
        """Print one line; with ``--json`` to stderr."""
        typer.secho(text, bold=bold, err=self.quiet)

    def chapter(self, title: str) -> None:
        """Print the title of the next numbered chapter."""
        self.chapters += 1
        self.say(f"\n{self.chapters}  {title}", bold=True)

    def row(self, name: str, text: str, seconds: float | None = None) -> None:
        """Print one aligned row: name, result and seconds."""
        self.say(f"   {name:<14} {text:<66}" + ("" if seconds is None else f" {seconds:6.2f} s"))

    def end(self) -> None:
        """Print the verdict."""
        self.say(f"\nThe first pages that the training saw: {self.facts['sheet']}")
        if self.facts["report"] is not None:
            self.say(f"All of it on one page, to open in a browser: {self.facts['report']}")
            self.say(f"To look further: feedmill serve {self.out}/pages {self.recipe}")
        verdict = (
            "No problems found"
            if self.facts["identical"] and self.facts["rows_identical"]
            else "The streams DIFFER: this is a bug"
        )
        self.say(f"{verdict}; {self.facts['seconds']:.0f} s in all.", bold=True)


def timed(function: Callable[[], Result]) -> tuple[Result, float]:
    """Call `function` and return its result and the elapsed seconds."""
    begun = time.monotonic()
    result = function()
    return result, time.monotonic() - begun


def folder_size(folder: Path) -> str:
    """Return the total size of all files below a folder, for display."""
    return human_size(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
