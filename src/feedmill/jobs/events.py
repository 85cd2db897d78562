"""The record of the units of a run: one place that hears what becomes of each unit, wherever it runs.

`Units` counts the units of one stage by state, and keeps those in progress; of finished units only counts are kept, so
its memory does not grow with their number. Bars show it, and `Events` writes it as JSON lines and as
metrics of Prometheus. Several stages may run at the same time, each with its own record; threads that run stages need
a copy of the context of the thread that opened `Events`.

Each line has ``time`` (seconds since 1970), ``run``, ``stage`` (a name that is unique in the run) and ``event``:

- ``stage-begins``: ``verb``, ``name``, ``engine``, ``units`` (null if unknown), ``part`` and ``parts`` of a job array.
- ``unit-begins``: ``unit`` (its number, from 0; the first of a chunk with ``count``), ``names``, ``attempt``, ``node``,
  ``process``; the last two are null until they are known, and ``unit-place`` tells them then.
- ``unit-ends``: ``unit``, ``count``, ``seconds``, ``node``, ``process``.
- ``unit-retried``: ``unit``, ``why``; it waits again, or with ``beside`` runs twice.
- ``unit-late``: ``unit``, ``seconds`` so far. ``unit-failed``: ``unit``, ``names``, ``why``.
- ``unit-log``: ``unit``, ``names``, ``text`` of a warning.
- ``stage-continues``: ``node``, ``process`` of the run, after a minute without other events, unless a unit that runs in
  the process itself takes longer.
- ``stage-ends``: ``seconds``, ``why`` (null without an error), and the counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import reprlib
import secrets
import socket
import stat
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from feedmill.errors import ConfigError, StorageError
from feedmill.jobs.amounts import human_duration
from feedmill.jobs.engine import current as engine_in_use

if TYPE_CHECKING:
    from feedmill.jobs.processes import Sent


_FACTOR = 10.0
"""A unit is late after this multiple of the median."""
_LEAST = 60.0  # seconds before a unit is late: a new worker may take half a minute to start
_ALONE = 1800.0  # seconds, while too few units have ended for a median
_FEW = 3
_RECENT = 1001  # ended units from which the median is taken
_GAP = 5.0  # seconds that a look adds at most: this process may have been stopped, or its caller busy


@dataclass(slots=True)
class _Unit:
    begin: float
    size: int
    named_at: float = 0.0  # age at which it was named last


class Stragglers:
    """The units in progress, by any key, with their ages, to find those that run far longer than the others.

    The time of a unit is from its submission to its end, so that waiting for a worker counts for all alike, and it is
    divided by the size of the unit where that is known: a file of 10 GB is not late because the others have 10 MB.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._last, self._now = self._clock(), 0.0
        self._units: dict[Any, _Unit] = {}
        self._rates: deque[float] = deque(maxlen=_RECENT)  # seconds per size
        self._median, self._counted = 0.0, -1
        self._ended = 0

    def begin(self, key: Any, size: int = 1) -> None:
        """Note that a unit was submitted."""
        self._units[key] = _Unit(self._now, max(1, size))

    def end(self, key: Any) -> None:
        """Note that a unit has ended."""
        unit = self._units.pop(key, None)
        if unit is not None:
            self._ended += 1
            self._rates.append((self._now - unit.begin) / unit.size)

    def forget(self, key: Any) -> None:
        """Note that a unit is no longer in progress, although it has not ended."""
        self._units.pop(key, None)

    def tick(self) -> None:
        """Let the time pass. Call it at least every few seconds while units are in progress."""
        now = self._clock()
        self._now += min(max(0.0, now - self._last), _GAP)
        self._last = now

    def median(self, size: int = 1) -> float | None:
        """Return the median time in seconds of a unit of this size; None while too few have ended."""
        if self._ended < _FEW:
            return None
        if self._counted < 0 or self._ended - self._counted > len(self._rates) // 8:  # sorting each time is quadratic
            self._median, self._counted = statistics.median(self._rates), self._ended
        return self._median * max(1, size)

    @property
    def now(self) -> float:
        """Seconds that have passed, without those in which this process was stopped."""
        return self._now

    def late(self, factor: float = _FACTOR, least: float = _LEAST) -> list[tuple[Any, float]]:
        """Return the units that are late, each with its age in seconds: `factor` medians and `least` seconds.

        One that was `named` is returned again when its age has doubled.
        """
        found = []
        for key, unit in self._units.items():
            age = self._now - unit.begin
            if age < least or age < 2 * unit.named_at:
                continue
            median = self.median(unit.size)
            if age >= (_ALONE if median is None else factor * median):
                found.append((key, age))
        return found

    def named(self, key: Any) -> None:
        """Note that a warning names this unit."""
        unit = self._units[key]
        unit.named_at = self._now - unit.begin

    def median_text(self, key: Any) -> str:
        """Return the median for messages, as ``" (median 1.5 s)"``; empty if it is unknown."""
        unit = self._units.get(key)
        median = None if unit is None else self.median(unit.size)
        if median is None:
            return ""
        return f" (median {human_duration(median) if median >= 10 else f'{median:.1f} s'})"


def lateness(stage: str | None, names: Sequence[str], age: float, median: str, where: str = "") -> str:
    """Return the warning for a late unit.

    Args:
        stage: name of the stage, if it has one.
        names: what it works on.
        age: in seconds.
        median: see `Stragglers.median_text`.
        where: as `` on node n1``.
    """
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"{f'{stage}: ' if stage else ''}the unit {shown} has run for {human_duration(age)}{where}{median}"


logger = logging.getLogger("feedmill")

PART = "{part}"
_NAMES = 4
"""Names of units of a chunk that are kept."""
_SLOW = 10.0
"""Seconds from which on a bar names the slowest unit."""
_CHECKPOINTS = 64
"""Ends of units from which the rate is taken."""
_APART = 1.0
"""Seconds between these."""
SIGN = 60.0
"""Seconds without events after which a run says that it is there."""


_UNNAMED: tuple[Any, ...] = (object.__str__, bytes.__str__)
"""Methods of items without a name."""


@dataclass(slots=True)
class Running:
    """A unit, or a chunk of units, that was submitted and has not ended.

    Attributes:
        number: of its first unit among all of the stage.
        count: units in it.
        size: by which it advances the bar.
        names: what it works on, at most four.
        attempt: from 1.
        begun: clock at which a worker began it; None while it waits for one.
        node, process: where it runs; None while that is unknown.
    """

    number: int
    count: int
    size: int
    names: tuple[str, ...]
    attempt: int
    begun: float | None = None
    node: str | None = None
    process: int | None = None

    @property
    def name(self) -> str:
        """What it works on, as text."""
        more = self.count - len(self.names)
        return (", ".join(self.names) or f"unit {self.number}") + (f" and {more} more" if self.names and more else "")

    @property
    def place(self) -> str:
        """Where it runs, as text; empty if that is unknown."""
        if self.node is None:
            return ""
        return f"node {self.node}" + ("" if self.process is None else f", process {self.process}")


class Units(Stragglers):
    """The units of one stage by state, with the age of those in progress. Keys are any that the caller chooses.

    A unit is submitted (`begin`), begun by a worker (`start`), and ends (`end`), or it is lost and waits for another
    attempt (`retry`), or fails for good (`fail`).

    Args:
        name: name of the stage; None for one without a name, of which nothing is written.
        verb: the verb or step whose stage it is.
        engine: name of the engine.
        total: number of units; None if it is unknown.
        size: sum of the sizes of all units; None if it is unknown.
        numbers: number of each unit in the stage, if this process runs only some of them.
        part, parts: of a job array.
        clock: the time in seconds.
        events: where events are written.

    Attributes:
        done, failed: units that have ended.
        retried: attempts that were lost, took too long or failed, after which their units ran again.
        lates: units that were named as late.
        key: name of the stage that is unique in the run.
        ended: whether the stage has ended; why: the error with which it did.
        attempts: attempts that were begun.
    """

    def __init__(
        self,
        name: str | None,
        *,
        verb: str = "",
        engine: str = "local",
        total: int | None = None,
        size: int | None = None,
        numbers: Sequence[int] | None = None,
        part: int | None = None,
        parts: int | None = None,
        clock: Callable[[], float] | None = None,
        events: Events | None = None,
    ) -> None:
        super().__init__(clock)
        self.name, self.verb, self.engine, self.total, self.size = name, verb, engine, total, size
        self.part, self.parts = part, parts
        self.done = self.failed = self.retried = self.lates = self.attempts = 0
        self._numbers, self._events = numbers, events if name is not None else None
        self._begun_at = self._last
        self._open: dict[Any, Running] = {}
        self._queue: deque[Any] = deque()
        self._again: dict[Any, int] = {}
        self._size_done = self._running_units = self._begun = 0
        self._checkpoints: deque[tuple[float, int]] = deque([(self._begun_at, 0)])
        self._lock = threading.RLock()
        self.key = ""
        self.ended = False
        self._ended_at: float | None = None
        self.why: str | None = None
        if self._events is not None:
            self._events.add(self)

    def begin(
        self,
        key: Any,
        size: int = 1,
        *,
        number: int | None = None,
        count: int = 1,
        names: Sequence[str] = (),
    ) -> None:
        """Note that a unit, or a chunk of `count` units, was submitted.

        Args:
            size: by which it advances the bar.
            number: its number in this run; by default, the key.
            names: what it works on.
        """
        with self._lock:
            super().begin(key, size)
            self._close(key)
            first = key if number is None else number
            first = first if self._numbers is None or not isinstance(first, int) else self._numbers[first]
            attempt = self._again.pop(key, 0) + 1
            self._open[key] = Running(first, count, size, tuple(names[:_NAMES]), attempt)
            self._queue.append(key)

    def start(self, key: Any, node: str | None = None, process: int | None = None) -> None:
        """Note that a worker has begun a unit, or where it runs."""
        with self._lock:
            one = self._open.get(key)
            if one is None:
                return
            is_new = one.begun is None
            if not is_new and (node is None or (one.node, one.process) == (node, process)):
                return
            one.node, one.process = node or one.node, process or one.process
            if is_new:
                one.begun = self._last
                self._running_units += one.count
                self._begun += 1
                self.attempts += 1
                self._tell("unit-begins", one, names=one.names, attempt=one.attempt)
            else:
                self._tell("unit-place", one)

    def start_oldest(self, most: int, node: str | None = None) -> None:
        """Note that workers have begun the units that were submitted first, `most` of them at a time."""
        with self._lock:
            while self._queue and self._begun < most:
                key = self._queue.popleft()
                if (one := self._open.get(key)) is not None and one.begun is None:
                    self.start(key, node)

    def end(self, key: Any, seconds: float | None = None, node: str | None = None, process: int | None = None) -> None:
        """Note that a unit has ended.

        Args:
            seconds: that it took in its worker, if that is known.
            node, process: where it ran, if that is known.
        """
        with self._lock:
            super().end(key)
            if (one := self._found(key, node, process)) is None:
                return
            self._close(key)
            self.done += one.count
            self._size_done += one.size
            now = self._last
            if len(self._checkpoints) > 1 and self._checkpoints[-1][0] - self._checkpoints[-2][0] < _APART:
                self._checkpoints.pop()
            self._checkpoints.append((now, self._size_done))
            if len(self._checkpoints) > _CHECKPOINTS:
                self._checkpoints.popleft()
            took = seconds if seconds is not None else now - (now if one.begun is None else one.begun)
            self._tell("unit-ends", one, seconds=round(took, 6))

    def outcome(self, key: Any, sent: Sent) -> None:
        """Note that a worker has sent what a unit gave: its results, or an error for which it has failed."""
        for text in sent.logged:
            self.log(text, key)
        if sent.why is None:
            self.end(key, sent.seconds, sent.node, sent.process)
        else:
            self._found(key, sent.node, sent.process)
            self.fail(key, sent.why)

    def retry(self, key: Any, why: str) -> None:
        """Note that a unit was lost, took too long or failed, and waits for another attempt, to `begin` again.

        One that no worker had begun only waits on.
        """
        with self._lock:
            super().forget(key)
            one = self._close(key)
            if one is not None and one.begun is not None:
                self.retried += 1
                self._again[key] = one.attempt
                self._tell("unit-retried", one, why=why)

    def second(self, key: Any) -> None:
        """Note that a unit is tried once more beside its first attempt, which takes long."""
        with self._lock:
            self.retried += 1
            self.attempts += 1
            if (one := self._open.get(key)) is not None:
                one.attempt += 1
                self._tell("unit-retried", one, why="it takes long, and is tried once more", beside=True)

    def fail(self, key: Any, why: str) -> None:
        """Note that a unit has failed for good, with the error in words."""
        with self._lock:
            super().forget(key)
            one = self._close(key)
            if one is None:
                return
            self.failed += one.count
            self._size_done += one.size
            self._tell("unit-failed", one, names=one.names, why=why)

    def forget(self, key: Any) -> None:
        """Note that a unit is no longer in progress, although it has not ended."""
        with self._lock:
            super().forget(key)
            self._close(key)

    def named(self, key: Any) -> None:
        """Note that a warning names this unit as late."""
        with self._lock:
            super().named(key)
            self.lates += 1
            if (one := self._open.get(key)) is not None:
                begun = self._last if one.begun is None else one.begun
                self._tell("unit-late", one, seconds=round(self._last - begun, 3))

    def log(self, text: str, key: Any = None) -> None:
        """Note a warning of a unit."""
        one = self._open.get(key)
        self._tell("unit-log", one, names=() if one is None else one.names, text=text)

    def tick(self) -> None:
        """Let the time pass. Call it at least every few seconds while units are in progress."""
        super().tick()
        if self._events is not None:
            self._events.go_on(self)

    def close(self, why: BaseException | str | None = None) -> None:
        """Note that the stage has ended, and why if it did not end well."""
        if self.ended:
            return
        self.ended, self._ended_at = True, self._clock()
        self.why = why if why is None or isinstance(why, str) else str(why) or type(why).__name__
        with self._lock:
            left = list(self._open)
            for key in left:
                self.forget(key)
            self._queue.clear()
            facts = {"seconds": round(self.seconds, 3), "why": self.why, **self.counts()}
            self._tell("stage-ends", None, **facts)
        if self._events is not None:
            self._events.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close(None if isinstance(error, GeneratorExit) else error)

    @property
    def running(self) -> int:
        """Units that a worker has begun."""
        return self._running_units

    @property
    def waiting(self) -> int:
        """Units that no worker has begun; of an unknown number of units, those that were submitted."""
        if self.total is None:
            return sum(one.count for one in list(self._open.values()) if one.begun is None)
        return max(0, self.total - self.done - self.failed - self.running)

    def counts(self) -> dict[str, int]:
        """Return the number of units by state."""
        names = ("waiting", "running", "done", "retried", "failed")
        return dict(zip(names, (self.waiting, self.running, self.done, self.retried, self.failed), strict=True))

    @property
    def seconds(self) -> float:
        """Seconds since the stage began."""
        return (self._clock() if self._ended_at is None else self._ended_at) - self._begun_at

    def age(self, one: Running) -> float:
        """Return the seconds since a worker began a unit; 0 if none has."""
        return 0.0 if one.begun is None else max(0.0, self._clock() - one.begun)

    def slowest(self, most: int = 1) -> list[Running]:
        """Return the running units that were begun first."""
        with self._lock:
            running = [one for one in self._open.values() if one.begun is not None]
        return sorted(running, key=lambda one: one.begun or 0.0)[:most]

    def oldest_keys(self, most: int) -> list[Any]:
        """Return the keys of the units that were submitted first."""
        with self._lock:
            return [key for key, _ in zip(self._open, range(most), strict=False)]

    @property
    def rate(self) -> float | None:
        """Size of finished units per second, of the last ones to end; None before the first has ended."""
        first, last = self._checkpoints[0], self._checkpoints[-1]
        if len(self._checkpoints) < 2 or last[0] <= first[0]:
            return None
        return (last[1] - first[1]) / (last[0] - first[0])

    @property
    def left(self) -> float | None:
        """Seconds until the last unit ends, if the others end as the finished ones did; None if unknown."""
        whole = self.size if self.size is not None else self.total
        rate = self.rate
        if whole is None or not rate:
            return None
        return max(0.0, (whole - self._size_done) / rate - (self._clock() - self._checkpoints[-1][0]))

    def text(self) -> str:
        """Return the state in one line, without the finished units, which the bar shows."""
        counts = self.counts()
        parts = [f"{counts[name]:,} {name}" for name in ("running", "waiting", "retried", "failed") if counts[name]]
        text = ", ".join(parts)
        for one in self.slowest():
            if (age := self.age(one)) >= _SLOW:
                where = f" on {one.place}" if one.place else ""
                text += f"; slowest: {one.name}{where} for {human_duration(age)}"
        return text

    def _found(self, key: Any, node: str | None, process: int | None) -> Running | None:
        """Return a unit whose worker has sent something, with its place."""
        self.start(key)
        one = self._open.get(key)
        if one is not None:
            one.node, one.process = node or one.node, process or one.process
        return one

    def _close(self, key: Any) -> Running | None:
        one = self._open.pop(key, None)
        if one is not None and one.begun is not None:
            self._running_units -= one.count
            self._begun -= 1
        return one

    def _tell(self, event: str, one: Running | None, **facts: Any) -> None:
        if self._events is None:
            return
        if one is not None:
            facts = {"unit": one.number, **({"count": one.count} if one.count > 1 else {}), **facts}
            facts |= {"node": one.node, "process": one.process}
        self._events.write(self, event, facts)


class Events:
    """Where the events of the units of a run are written; a context manager for the verbs that are called in it.

    Args:
        file: path of a file of JSON lines, to which events are appended. ``{part}`` is replaced by the number of the
            part of a job array.
        metrics: path of a file in Prometheus' text format, replaced as a whole every ten seconds, for the textfile
            collector of its node exporter; ``{part}`` as above.
        verb: the verb that is run, unless `of_step` says otherwise.
        clock: seconds since 1970.

    Attributes:
        file: path of the file; in the block, that of this part.

    Raises:
        ConfigError: nothing is given, or a file is an URL.
        StorageError: the file of events cannot be written.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        metrics: str | os.PathLike[str] | None = None,
        *,
        verb: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if file is None and metrics is None:
            raise ConfigError("no place for events is given", kind="missing-option", fix="Give a file, or metrics.")
        for path in (file, metrics):
            if path is not None and "://" in os.fspath(path):
                raise ConfigError(
                    f"events cannot be appended to {os.fspath(path)!r}: expected a path of this machine",
                    kind="bad-option",
                    fix="Give a local file, and copy it afterwards.",
                )
        self.file, self._metrics = file, metrics
        self.verb, self.run = verb, f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._clock, self._lock = clock, threading.Lock()
        self._handle: int | None = None
        self._unwritten, self._stages, self._looked, self._written = 0, 0, float("-inf"), 0.0
        self._shown: dict[str, Units] = {}
        self._token: Token[tuple[int, Events] | None] | None = None

    def __enter__(self) -> Self:
        engine = engine_in_use()
        part = str(getattr(engine, "part", None) or "finish") if getattr(engine, "name", "") == "part" else None
        self.file = _placed(self.file, part)
        self._metrics = _placed(self._metrics, part)
        if self.file is not None:
            try:
                os.makedirs(os.path.dirname(self.file) or ".", exist_ok=True)
                self._handle = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                end = os.lseek(self._handle, 0, os.SEEK_END) if stat.S_ISREG(os.fstat(self._handle).st_mode) else 0
                if end and os.pread(self._handle, 1, end - 1) != b"\n":  # half a line, of a run that was killed
                    os.write(self._handle, b"\n")
            except OSError as error:
                raise StorageError(f"events cannot be written: {error.strerror}", file=str(self.file)) from None
        self._token = _current.set((os.getpid(), self))
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        self.refresh(now=True)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._unwritten:
            logger.warning("%s: %s events could not be written", self.file, f"{self._unwritten:,}")

    def add(self, units: Units) -> None:
        """Note that a stage begins."""
        with self._lock:
            self._stages += 1
            units.key = f"{self._stages}-{units.name}"
            self._shown[units.key] = units
            if len(self._shown) > _KEPT_STAGES:  # of those that have ended, metrics show the last
                ended = next((key for key, one in self._shown.items() if one.ended), None)
                if ended is not None:
                    del self._shown[ended]
        facts: dict[str, Any] = {"verb": units.verb, "name": units.name, "engine": units.engine, "units": units.total}
        facts |= _here()
        facts |= {} if units.part is None else {"part": units.part, "parts": units.parts}
        self.write(units, "stage-begins", facts)

    def remove(self, units: Units) -> None:
        """Note that a stage has ended; metrics show it until the run ends."""
        del units
        self.refresh(now=True)

    def write(self, units: Units, event: str, facts: dict[str, Any]) -> None:
        """Append one event."""
        self.refresh()
        if self._handle is None:
            return
        import orjson

        self._written = self._clock()
        line = {"time": round(self._written, 3), "run": self.run, "stage": units.key, "event": event, **facts}
        data = orjson.dumps(line) + b"\n"
        with self._lock:
            try:
                whole = os.write(self._handle, data) == len(data)
            except OSError as error:
                whole = False
                if not self._unwritten:
                    logger.warning("%s: events cannot be written (%s)", self.file, error.strerror)
            self._unwritten += not whole

    def go_on(self, units: Units) -> None:
        """Let the time pass while units of a stage are in progress."""
        if self._handle is not None and self._clock() - self._written >= SIGN:
            self.write(units, "stage-continues", _here())
        else:
            self.refresh()

    def refresh(self, *, now: bool = False) -> None:
        """Replace the file of metrics if it is older than ten seconds."""
        if self._metrics is None:
            return
        time_now = self._clock()
        if not now and time_now - self._looked < _EVERY:
            return
        self._looked = time_now
        try:
            replace_text(self._metrics, prometheus(list(self._shown.values())))
        except OSError as error:
            logger.warning("%s: metrics cannot be written (%s)", self._metrics, error.strerror)
            self._metrics = None


def _here() -> dict[str, Any]:
    return {"node": socket.gethostname(), "process": os.getpid()}


_KEPT_STAGES = 64
_LATEST = 1e11
"""Seconds since 1970 that are a time."""
_EVERY = 10.0
_current: ContextVar[tuple[int, Events] | None] = ContextVar("feedmill-events", default=None)
"""The events of this process; forked workers have none of their own."""
_step: ContextVar[str] = ContextVar("feedmill-step", default="")


def current() -> Events | None:
    """Return where events are written; None if they are not."""
    found = _current.get()
    return found[1] if found is not None and found[0] == os.getpid() else None


@contextlib.contextmanager
def of_step(name: str) -> Iterator[None]:
    """Name the stages in a block by the step of a pipeline, or by a verb."""
    token = _step.set(name)
    try:
        yield
    finally:
        _step.reset(token)


def name_of(item: Any) -> str:
    """Return an item's name for messages: its own, that of its file, or that of an element of a tuple or list."""
    name = _own_name(item)
    if name is not None:
        return name[:200]
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    return short.repr(tuple(item) if isinstance(item, tuple) else item)  # `Repr` makes all of a `NamedTuple`'s text


def _own_name(item: Any) -> str | None:
    if isinstance(item, str | os.PathLike) or type(item).__str__ not in _UNNAMED:
        return str(item)
    if type(item) is list:
        name = _own_name(item[0]) if item else None
        return name if name is None or len(item) == 1 else f"{name} and {len(item) - 1} more"
    for part in item if type(item) is tuple else (getattr(item, "file", None), getattr(item, "path", None)):
        name = None if part is None else _own_name(part)
        if name is not None:
            return name
    return None


def units_of(
    name: str | None,
    *,
    total: int | None = None,
    size: int | None = None,
    numbers: Sequence[int] | None = None,
    clock: Callable[[], float] | None = None,
) -> Units:
    """Return the record of a stage that begins now, on the engine and with the events that are in use."""
    events, engine = current(), engine_in_use()
    return Units(
        name,
        verb=_step.get() or ("" if events is None else events.verb),
        engine="local" if engine is None else engine.name,
        total=total,
        size=size,
        numbers=numbers,
        part=getattr(engine, "part", None),
        parts=getattr(engine, "parts", None),
        clock=clock,
        events=events,
    )


def is_event(value: Any) -> bool:
    """Return whether a value, which was read from a line, is an event."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in ("run", "stage", "event"))
        and isinstance(time_of := value.get("time"), int | float)
        and not isinstance(time_of, bool)
        and 0 <= time_of < _LATEST
    )


def _placed(path: str | os.PathLike[str] | None, part: str | None) -> str | None:
    if path is None:
        return None
    text = os.fspath(path)
    if part is not None and PART not in text:
        raise ConfigError(
            f"all parts of the job array would write {text}",
            kind="bad-option",
            fix="Put {part} into the name, such as events-{part}.jsonl.",
        )
    return os.path.abspath(text.replace(PART, part or "0"))


_HELP = {
    "waiting": ("gauge", "Units that no worker has begun"),
    "running": ("gauge", "Units that a worker has begun"),
    "done": ("counter", "Units that have ended"),
    "retried": ("counter", "Attempts after which their unit ran again"),
    "failed": ("counter", "Units that have failed for good"),
}


def prometheus(stages: Sequence[Units]) -> str:
    """Return the state of stages in the text format of Prometheus, labeled with verb, stage, engine and part."""
    labels = [
        {"verb": one.verb, "stage": one.key, "engine": one.engine, "part": "" if one.part is None else str(one.part)}
        for one in stages
    ]
    counts = [one.counts() for one in stages]
    text = "".join(
        series(f"feedmill_units_{name}", kind, help_text, list(zip(labels, [c[name] for c in counts], strict=True)))
        for name, (kind, help_text) in _HELP.items()
    )
    figures: list[tuple[str, str, list[float | None]]] = [
        ("stage_seconds", "Seconds since the stage began", [one.seconds for one in stages]),
        ("stage_left_seconds", "Seconds until the last unit ends, estimated", [one.left for one in stages]),
        ("slowest_unit_seconds", "Age of the unit that has run longest", [_age(one) for one in stages]),
    ]
    for name, help_text, values in figures:
        known = [(label, round(value, 3)) for label, value in zip(labels, values, strict=True) if value is not None]
        text += series(f"feedmill_{name}", "gauge", help_text, known)
    return text


def series(name: str, kind: str, help_text: str, values: Iterable[tuple[Mapping[str, str], float]]) -> str:
    """Return one metric in the text format of Prometheus, with its values by labels; empty without values."""
    lines = [f"{_whole(name, kind)}{{{_labels(labels)}}} {value}" for labels, value in values]
    if not lines:
        return ""
    return (
        "\n".join([f"# HELP {_whole(name, kind)} {help_text}.", f"# TYPE {_whole(name, kind)} {kind}", *lines]) + "\n"
    )


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file as a whole, which others read meanwhile. Raises `OSError`."""
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def _whole(name: str, kind: str) -> str:
    return name + ("_total" if kind == "counter" else "")


def _labels(labels: Mapping[str, str]) -> str:
    marked = {"\\": r"\\", "\n": r"\n", '"': r"\""}
    return ",".join(f'{name}="{"".join(marked.get(c, c) for c in value)}"' for name, value in labels.items())


def _age(units: Units) -> float:
    return max(map(units.age, units.slowest()), default=0.0)
