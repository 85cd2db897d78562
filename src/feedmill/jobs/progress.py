"""A progress bar with rate and time left, drawn only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_INTERVAL = 0.1
_drawn: list[Progress] = []
"""Bars that are currently drawn."""


@contextlib.contextmanager
def still() -> Iterator[None]:
    """Return a context in which bars are not drawn and have no threads, for code that needs a single thread."""
    stopped = list(_drawn)
    for one in stopped:
        one.stop_drawing()
    try:
        yield
    finally:
        for one in stopped:
            one.draw()


class Progress:
    """One bar on stderr, shown during a ``with`` block.

    Args:
        label: the action, e.g. ``"scanning shards"``.
        total: number of steps; None if unknown.
        unit: name of the steps, e.g. ``"shards"``.
        enabled: False for no bar; True and None draw one if stderr is a terminal.
    """

    def __init__(self, label: str, total: int | None, unit: str = "", enabled: bool | None = None) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self.enabled = enabled is not False and sys.stderr is not None and sys.stderr.isatty()
        self._bar: Bar | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._begin = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Return the seconds since the block began."""
        return time.monotonic() - self._begin

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        if self.enabled:
            self._bar = _bar(self.unit)
            self._bar.add_task(self.label, total=self.total, note="")
            self._bar.start()
            self.draw()
            _drawn.append(self)
        return self

    def draw(self) -> None:
        """Start a thread that redraws the bar."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._draw, name="feedmill-progress", daemon=True)
        self._thread.start()

    def stop_drawing(self) -> None:
        """End the thread that redraws the bar."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        while self._bar is not None and not self._stopped.wait(_INTERVAL):
            self._bar.refresh()

    def advance(self, n: int = 1) -> None:
        """Advance the bar by `n` steps."""
        self.done += n
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], n)

    def note(self, text: str) -> None:
        """Show `text` beside the rate; it replaces the previous text."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], note=text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            _drawn.remove(self)
            self.stop_drawing()
            self._bar.stop()
            self._bar = None


def _bar(unit: str) -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.1f} {unit}/s".replace(" /", "/") if speed else "", style="progress.data.speed")

    amount: tuple[ProgressColumn | str, ...] = (MofNCompleteColumn(), TextColumn(unit), Rate())
    if unit == "B":
        amount = (DownloadColumn(), TransferSpeedColumn())
    return Bar(
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description}"),
        BarColumn(),
        *amount,
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # rich's own thread cannot be paused
    )
