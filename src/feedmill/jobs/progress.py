"""Signs of life of long work: a bar on a terminal, or a line every ten seconds, with rate and time left.

It also moves while one large file is read: a process counts what it reads of the files it works on (`count_read`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from feedmill.jobs.amounts import human_duration, human_size

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

Style = Literal["bar", "plain", "none"]

_INTERVAL, _LINE_INTERVAL = 0.1, 10.0
_WINDOW = 30.0
"""Seconds over which the rate is averaged."""
_FIRST_RATE = 1.0
"""Seconds before the first rate: earlier ones say little."""
_NARROW, _WIDE = 70, 100
_drawn: list[Progress] = []
"""Those that are currently drawn."""
_chosen: list[Style] = []


def choose(style: Style) -> None:
    """Set how progress is shown in this process. Without a choice, a bar is drawn if stderr is a terminal."""
    _chosen[:] = [style]


def usual() -> Style:
    """Return the style for a command: a bar on a terminal, else lines."""
    return "bar" if _is_terminal() else "plain"


def in_cell() -> bool:
    """Return whether this is a command in a cell of a notebook: its terminal only appends, and cannot answer."""
    return "JPY_PARENT_PID" in os.environ


def _is_terminal() -> bool:
    """Return whether bars can be redrawn."""
    return sys.stderr is not None and sys.stderr.isatty() and not in_cell()


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


class _Stage(Protocol):
    """The record of the units of a stage; see `feedmill.jobs.events.Units`."""

    @property
    def left(self) -> float | None: ...

    def text(self) -> str: ...


class Progress:
    """Progress of one piece of work on stderr, shown during a ``with`` block.

    Args:
        label: the action, e.g. ``"scanning shards"``.
        total: number of steps; None if unknown.
        unit: name of the steps, e.g. ``"shards"``; ``"B"`` for bytes.
        enabled: False to show nothing.
    """

    def __init__(self, label: str, total: int | None, unit: str = "", enabled: bool | None = None) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self._style: Style = "none"
        if enabled is not False and sys.stderr is not None:
            self._style = _chosen[0] if _chosen else "bar" if _is_terminal() else "none"
        self._counted_now: Callable[[], int] | None = None
        self._settled = self._most = 0
        self._note = ""
        self._units: list[_Stage] = []
        self._sizes: Sequence[int] | None = None
        self._steps = 0  # of the sizes
        self._bar: Bar | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._begin = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()
        self._lines = 0

    @property
    def elapsed(self) -> float:
        """Return the seconds since the block began."""
        return time.monotonic() - self._begin

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        if self._style == "bar":
            self._bar = _bar()
            self._bar.add_task(self.label, total=self.total, amount="", rate="", left="", note="")
            self._bar.start()
        if self._style != "none":
            self.draw()
            _drawn.append(self)
        return self

    @property
    def is_shown(self) -> bool:
        """Whether anything is printed."""
        return self._style != "none"

    @property
    def shown(self) -> int:
        """Return the steps that are done; of bytes, with what is read of unfinished files. It never goes back."""
        value = self.done if self._counted_now is None else self.done + max(0, self._counted_now() - self._settled)
        self._most = max(self._most, value if self.total is None else min(value, self.total))
        return self._most

    @contextlib.contextmanager
    def watching(self, counted: Callable[[], int]) -> Iterator[None]:
        """Add the bytes that `counted` returns to what is shown, for the duration of the block.

        Of these, `settle` takes away what belongs to finished steps.
        """
        if self.unit != "B":
            yield
            return
        self._counted_now, self._settled = counted, 0
        try:
            yield
        finally:
            self._counted_now = None

    @contextlib.contextmanager
    def showing(self, units: _Stage | None) -> Iterator[None]:
        """Show the state of the units of a stage beside the rate, for the duration of the block."""
        if units is None:
            yield
            return
        self._units.append(units)
        try:
            yield
        finally:
            self._units.remove(units)

    def settle(self, counted: int) -> None:
        """Say that the next step, which is finished, is the origin of `counted` bytes."""
        self._settled += counted

    def draw(self) -> None:
        """Start a thread that redraws the bar, or prints lines."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._draw, name="feedmill-progress", daemon=True)
        self._thread.start()

    def stop_drawing(self) -> None:
        """End that thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            self._look()
            if self._bar is not None:
                self._refresh()
            elif self.elapsed >= (self._lines + 1) * _LINE_INTERVAL:
                self._lines = int(self.elapsed // _LINE_INTERVAL)
                self._print(self.line())

    def _look(self) -> None:
        """Remember how much is done now, for the rate."""
        now = time.monotonic()
        if not self._seen or now - self._seen[-1][0] >= _FIRST_RATE:
            self._seen.append((now, self.shown))
            while now - self._seen[0][0] > _WINDOW:
                self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Return the steps per second in the last half minute; None in the first second, or if nothing was done."""
        if self.elapsed < _FIRST_RATE:
            return None
        since, before = self._seen[0] if self._seen else (self._begin, 0)
        if len(self._seen) < 2:
            since, before = self._begin, 0
        rate = (self.shown - before) / max(time.monotonic() - since, 1e-9)
        return rate if rate > 0 else None

    def amount(self) -> str:
        """Return how much is done, of how much: ``1.2 GB of 3 GB``."""
        if self.unit == "B":
            return human_size(self.shown) + (f" of {human_size(self.total)}" if self.total else "")
        return f"{self.done:,}" + (f" of {self.total:,}" if self.total is not None else "") + f" {self.unit}".rstrip()

    def speed(self) -> str:
        """Return the rate as text; empty if it is unknown."""
        rate = self.rate
        if rate is None:
            return ""
        if self.unit == "B":
            return f"{human_size(rate)}/s"
        return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"

    def left(self) -> str:
        """Return the time that is left as text; empty if it is unknown."""
        rate = self.rate
        if self.total and self.done >= self.total:
            return f"in {human_duration(self.elapsed)}"
        if not self.total:
            return ""
        # Where bytes of unfinished units are counted, their rate says more than that of the units that have ended.
        if self._counted_now is None and len(self._units) == 1 and (left := self._units[0].left) is not None:
            return f"{human_duration(left)} left"
        return "" if rate is None else f"{human_duration((self.total - self.shown) / rate)} left"

    def note_text(self) -> str:
        """Return what is shown beside the rate."""
        return "; ".join(text for text in (self._note, *(units.text() for units in list(self._units))) if text)

    def line(self) -> str:
        """Return the state as one line of text."""
        share = f" ({self.shown / self.total:.0%})" if self.total else ""
        parts = [self.amount() + share, self.speed(), self.left(), self.note_text()]
        return f"{self.label}: {', '.join(part for part in parts if part)}"

    def _refresh(self) -> None:
        assert self._bar is not None
        self._bar.update(
            self._bar.task_ids[0],
            total=self.total,
            completed=self.shown,
            amount=self.amount(),
            rate=self.speed(),
            left=self.left(),
            note=self.note_text(),
        )
        self._bar.refresh()

    @staticmethod
    def _print(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader of stderr is gone
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def of_sizes(self, sizes: Iterable[int]) -> Self:
        """Let each step advance the bar by a size, in this order: bytes of files, not files."""
        self._sizes, self._steps = list(sizes), 0
        return self

    def size_of(self, number: int) -> int:
        """Return by how much the step with this number advances the bar."""
        return 1 if self._sizes is None else self._sizes[number] if number < len(self._sizes) else 0

    @property
    def steps(self) -> int:
        """Number of steps that were made, in any order."""
        return self._steps

    def finish(self, number: int) -> None:
        """Make the step with this number, before or after others: what is done is shown although it is not next."""
        self._steps += 1
        self.done += self.size_of(number)

    def only(self, numbers: Sequence[int]) -> None:
        """Leave out all steps but these: other processes make them."""
        total = None if self.total is None else sum(self.size_of(number) for number in numbers)
        if self._sizes is not None:
            self._sizes = [self._sizes[number] for number in numbers]
        self._steps = 0
        self.total = None if total is None else self.done + total

    @classmethod
    def of_files(cls, label: str, sizes: Sequence[int], enabled: bool | None = None) -> Self:
        """Return the progress of work on files of these sizes in bytes, one step for each."""
        return cls(label, sum(sizes), "B", enabled).of_sizes(sizes)

    def advance(self, n: int | None = None) -> None:
        """Advance by `n` steps; by default, by one step or the next one of the sizes."""
        if n is None:
            n = self.size_of(self._steps)
            self._steps += 1
        self.done += n

    def note(self, text: str) -> None:
        """Show `text` beside the rate; it replaces the previous text."""
        self._note = text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self in _drawn:
            _drawn.remove(self)
            self.stop_drawing()
        if self._bar is not None:
            self._refresh()
            self._bar.stop()
            self._bar = None
        elif self._lines and kind is None:
            self._print(f"{self.label}: {self.amount()} in {human_duration(self.elapsed)}")


class Steps:
    """The items of one run as steps of a bar, by their numbers in the run.

    Args:
        progress: the bar, whose next steps they are; None for none.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress
        self._first: int | None = None

    def finish(self, number: int, counted: int = 0) -> None:
        """Note that an item is finished, of which `counted` bytes were shown already; see `Progress.watching`."""
        if self.progress is not None:
            first = self._base(self.progress)
            self.progress.settle(counted)
            self.progress.finish(first + number)

    def size_of(self, number: int) -> int:
        """Return the size of an item; 1 if it is unknown."""
        return 1 if self.progress is None else self.progress.size_of(self._base(self.progress) + number)

    def note(self, text: str) -> None:
        """Show `text` beside the rate."""
        if self.progress is not None:
            self.progress.note(text)

    def showing(self, units: _Stage) -> contextlib.AbstractContextManager[None]:
        """Show the state of the units of a stage beside the rate, for the duration of the block."""
        return contextlib.nullcontext() if self.progress is None else self.progress.showing(units)

    def only(self, numbers: Sequence[int]) -> None:
        """Leave out all items but these."""
        if self.progress is not None:
            first = self._base(self.progress)
            self.progress.only([first + number for number in numbers])
            self._first = 0

    def _base(self, progress: Progress) -> int:
        if self._first is None:  # not before the run begins: another may use the bar until then
            self._first = progress.steps
        return self._first


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    wide, narrow = console.width >= _WIDE, console.width < _NARROW
    columns: list[ProgressColumn | str] = [TextColumn("{task.description}")]
    columns += [] if narrow else [BarColumn(40 if wide else 15)]
    columns += [TextColumn("{task.fields[amount]}"), TextColumn("{task.fields[rate]}", style="progress.data.speed")]
    columns += [TextColumn("{task.fields[left]}", style="progress.remaining")]
    columns += [TextColumn("{task.fields[note]}")] if wide else []
    return Bar(
        SpinnerColumn(finished_text=" "),
        *columns,
        console=console,
        auto_refresh=False,  # rich's own thread cannot be paused
    )


_SLOTS = 1024
_count = 0  # bytes that this process has read
_slot: memoryview | None = None


def count_read(size: int) -> None:
    """Count bytes that this process has read."""
    global _count
    _count += size
    if _slot is not None:
        _slot[0] = _count


def bytes_read() -> int:
    """Return the bytes that this process has counted."""
    return _count


def read_since_now() -> Callable[[], int]:
    """Return a function that returns the bytes that this process has counted since this call."""
    before = _count
    return lambda: _count - before


def count_into(path: str) -> None:
    """Let this process, a worker, write its count into the file of a `ReadCounts`."""
    global _slot
    import mmap
    import multiprocessing

    with contextlib.suppress(OSError), open(path, "r+b") as file:  # the run has ended
        shared = memoryview(mmap.mmap(file.fileno(), 8 * _SLOTS)).cast("q")
        number = (multiprocessing.current_process()._identity or (0,))[-1] % _SLOTS
        _slot = shared[number : number + 1]
        _slot[0] = _count


class ReadCounts:
    """Counts of the bytes that the workers of a run read, in a temporary file that all of them map.

    Reading it costs nothing, and a worker that is killed leaves nothing behind.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self) -> None:
        import mmap
        import tempfile

        handle, self.path = tempfile.mkstemp(prefix="feedmill-progress-")
        try:
            with open(handle, "r+b") as file:
                # A hole in the file would kill the process that counts first if the disk is full then.
                file.write(bytes(8 * _SLOTS))
                file.flush()
                shared = mmap.mmap(file.fileno(), 8 * _SLOTS)
        except BaseException:
            self.close()
            raise
        self._counts = memoryview(shared).cast("q")  # no numpy: its threads forbid forking

    def total(self) -> int:
        """Return the bytes that all workers have counted."""
        return sum(self._counts)

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
