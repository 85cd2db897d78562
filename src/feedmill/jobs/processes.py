"""Worker processes that start from any program, stop on request, and never outlive the process that started them.

If the main process has a single thread and sent no requests to a store, workers are forked from it. They start in
milliseconds, with all imported modules. Otherwise they come from a fork server: a helper without threads that imports
`preload` once, so that workers inherit no locks and event loops of the main process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import (
    connection,
    forkserver,
    parent_process,
    popen_fork,
    popen_forkserver,
    resource_tracker,
)
from multiprocessing.context import ForkContext, ForkProcess, ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from feedmill.errors import IN_WORKER, FeedmillError, debugging, shortened
from feedmill.jobs.main_program import START_TIMEOUT, MainProgram, check_not_importing
from feedmill.jobs.progress import bytes_read, count_into

logger = logging.getLogger("feedmill")

_GRACE = 3.0  # seconds that a worker has to clean up before it is killed
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_working = False  # in a worker: whether the function is running
_LOGGED = 1000  # texts of warnings that are kept of a chunk
_stopping = False  # in a worker: whether SIGTERM has interrupted the function
_AGAIN = 0.01  # seconds after which it interrupts the function again, if Python ignored it


@dataclass(slots=True)
class Outcome:
    """The results of a chunk, in order; if an item failed, its error replaces the rest.

    `counted` has the bytes that were read for each (`feedmill.jobs.progress`), `logged` the texts of the warnings that
    they logged, each once, and `seconds` is the time that they took.
    """

    results: list[Any]
    error: Exception | None = None
    counted: list[int] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Shared:
    """A value that every item needs, sent once to each worker; unpickled on first access."""

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data
        self._value: Any = None

    def value(self) -> Any:
        """Return the unpickled value."""
        if self._data is not None:
            self._value = pickle.loads(self._data)  # noqa: S301 - our own bytes  # nosec B301
            self._data = None
        return self._value


_shared: Shared | None = None


@dataclass(slots=True)
class Sent:
    """An outcome on its way: pickled until its turn, so that its size is known and those that wait are small.

    `counted`, `logged` and `seconds` are those of the outcome; `why` is its error in words. `node` and `process` are
    those of the worker.
    """

    data: bytes
    counted: list[int]
    logged: list[str]
    seconds: float
    why: str | None
    node: str
    process: int

    @classmethod
    def of(cls, outcome: Outcome) -> Sent:
        """Pickle an outcome."""
        data = pickle.dumps((outcome.results, outcome.error), pickle.HIGHEST_PROTOCOL)
        why = None if outcome.error is None else str(outcome.error)
        return cls(data, outcome.counted, outcome.logged, outcome.seconds, why, socket.gethostname(), os.getpid())

    def outcome(self) -> Outcome:
        """Return the outcome."""
        results, error = pickle.loads(self.data)  # noqa: S301 - our own bytes  # nosec B301
        return Outcome(results, error, self.counted)


def work(function: Callable[..., Any], items: Sequence[Any]) -> Sent:
    """Call `function` on each item in a worker, with the shared value first."""
    global _working
    try:
        _working = True
        return Sent.of(outcome(function, None if _shared is None else _shared.value(), items))
    except SystemExit as error:
        if error.code is _STOPPED:
            os._exit(1)
        raise
    finally:
        _working = False


def outcome(function: Callable[..., Any], shared: Any, items: Sequence[Any]) -> Outcome:
    """Call `function` on each item, with the shared value first unless it is None."""
    found, logged, began = Outcome([]), _Logged(), time.monotonic()
    logger.addFilter(logged)
    try:
        call = function if shared is None else partial(function, shared)
        for item in items:
            before = bytes_read()
            found.results.append(call(item))
            found.counted.append(bytes_read() - before)
    except Exception as error:
        found.error = _portable(error)
    finally:
        logger.removeFilter(logged)
    found.logged, found.seconds = logged.texts, time.monotonic() - began
    return found


class _Logged(logging.Filter):
    """Keeps the texts of warnings; other handlers get them as well, and none is taken for a missing one."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}
        self._more = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and (text := record.getMessage()) not in self._texts:
            if len(self._texts) < _LOGGED:
                self._texts[text] = None
            else:
                self._more += 1
        return True

    @property
    def texts(self) -> list[str]:
        return [*self._texts, *([f"{self._more:,} more warnings of this unit"] if self._more else ())]


def _portable(error: Exception) -> Exception:
    """Return the error in a form that can be pickled, with the worker's traceback as a note."""
    known = isinstance(error, FeedmillError)
    # The main process raises a known error again, with its message: only its cause is missing there.
    shown = shortened(error).__cause__ if known and not debugging() else shortened(error)
    trace = "" if shown is None else "".join(traceback.format_exception(shown)).rstrip()
    try:
        # Some exceptions can be pickled but not unpickled, which would look like a dead worker.
        sent: Exception = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes  # nosec B301
    except Exception:
        sent = FeedmillError(f"{type(error).__name__}: {error}", kind="worker-error")
    if trace and (not known or error.__cause__ is not None):
        sent.add_note(f"{IN_WORKER}\n{trace}")
    return sent


_STOPPED = object()


def begin(
    shared: Shared | None = None,
    environment: Mapping[str, str] | None = None,
    main: MainProgram | None = None,
    counted: str | None = None,
) -> None:
    """Initialize a worker: Ctrl-C is handled by the main process, and SIGTERM lets the function clean up.

    Args:
        shared: the value that all items need.
        environment: the main process's. Children of the fork server inherit the one from when that was started.
        main: the main program, if the worker must import it.
        counted: the file into which the worker counts bytes, see `feedmill.jobs.progress`.
    """
    global _shared
    _shared = shared
    if counted is not None:
        count_into(counted)
    if environment is not None and dict(os.environ) != dict(environment):
        os.environ.clear()
        os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = partial(_unraisable, sys.unraisablehook)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()
    if main is not None:
        main.load()


def _stop(_number: int, frame: FrameType | None) -> None:
    global _stopping
    if not _working:
        os._exit(1)
    # The pool repeats SIGTERM when another worker has ended, which must not interrupt the function's cleaning up.
    if not _stopping and not _ignored(frame):
        _stopping = True
        raise SystemExit(_STOPPED)


def _unraisable(shown: Callable[[Any], object], ignored: Any) -> None:
    """Stop again where `_stop` interrupted a finalizer or the callback of a weak reference.

    Python ignores what these raise, and the function would continue.
    """
    if not isinstance(ignored.exc_value, SystemExit) or ignored.exc_value.code is not _STOPPED:
        shown(ignored)
        return
    threading.Thread(target=_stop_again, daemon=True).start()


def _stop_again() -> None:
    global _stopping
    time.sleep(_AGAIN)
    _stopping = False
    while not _stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_AGAIN)


def _ignored(frame: FrameType | None) -> bool:
    """Return whether Python would ignore what is raised here, too: on a busy machine signals meet `_unraisable`."""
    while frame is not None and frame.f_code is not _unraisable.__code__:
        frame = frame.f_back
    return frame is not None


def _follow_parent() -> None:
    """Exit when the main process dies: its end of a pipe closes then, which also happens when it is killed."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)


class _ServedPopen(popen_forkserver.Popen):
    """A process whose exit code, sent once over a pipe, reaches every thread that waits for it."""

    _reading = threading.Lock()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            with self._reading:
                return super().poll(os.WNOHANG)
        return self.returncode


class _ForkedPopen(popen_fork.Popen):
    """A process whose exit code, reported once by the system, reaches every thread that waits for it."""

    _reading = threading.Lock()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if flag != os.WNOHANG and self.returncode is None:
            connection.wait([self.sentinel])
        with self._reading:
            # A process whose end of the pipe is closed is about to exit, so a blocking wait is short.
            return self.returncode if self.returncode is not None else super().poll(flag)


class _ServedProcess(ForkServerProcess):
    """A process that starts without importing the main program's file.

    `multiprocessing` runs that file in each worker, to find its classes: slow for a command line, an endless loop for a
    script without a main guard, impossible for a script from stdin. `MainProgram` does it where that is required.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> _ServedPopen:
        return _ServedPopen(process_obj)

    def start(self) -> None:
        # A worker of the server inherits its mask until `begin`, and would print a traceback for Ctrl-C.
        with _hidden_main(), _without_interrupts():
            super().start()


class _ForkedProcess(ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> _ForkedPopen:
        return _ForkedPopen(process_obj)

    def start(self) -> None:
        # A signal before the worker has set its own handlers would be handled as in the main process.
        with _held(), _blocked(_SIGNALS):
            super().start()


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Return a context in which the first Ctrl-C waits, also one that another thread of this process receives.

    A worker whose start is interrupted has a part of what it needs, and prints a traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if len(came) == 1:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Return a context in which signals wait; processes that it starts inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Return a context in which a fork server that starts does not handle Ctrl-C, which is the main process's."""
    resource_tracker.ensure_running()  # it lets signals through again when it has started
    with _held(), _blocked((signal.SIGINT,)):
        yield


def end_processes(processes: Iterable[BaseProcess]) -> None:
    """End processes that have started: by SIGTERM first, then by SIGKILL."""
    living = [process for process in processes if process.is_alive()]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in living:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


class _Started:
    """The processes that a context has started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[_ServedProcess | _ForkedProcess] = []

    def stop(self) -> None:
        """End every worker."""
        end_processes(process for process in self.started if process.pid is not None)  # None: interrupted in its start

    def ended(self) -> bool:
        """Return whether any worker has exited."""
        return any(process.exitcode is not None for process in self.started)

    def stopped(self) -> list[int]:
        """Return the ids of workers that were stopped (SIGSTOP), where the system says so."""
        found = []
        for process in self.started:
            with contextlib.suppress(OSError), open(f"/proc/{process.pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "Tt":
                    found.append(process.pid or 0)
        return found

    def death(self) -> str | None:
        """Return the name of the signal that ended a worker, unless `stop` did."""
        for process in self.started:
            code = process.exitcode
            if code is not None and code < 0 and -code != signal.SIGTERM:
                return signal.Signals(-code).name
        return None


class Served(_Started, ForkServerContext):
    """A context that starts processes by the fork server.

    Args:
        main: the main program, if workers need its definitions.
        preload: modules that the fork server imports for all workers to share, if it is not running yet.
    """

    def __init__(self, main: MainProgram | None, preload: Sequence[str]) -> None:
        super().__init__()
        self.main = main
        self.set_forkserver_preload([__name__, *preload])

    def Process(self, *args: Any, **kwargs: Any) -> _ServedProcess:  # type: ignore[override]
        """Start a process by the fork server, and remember it in `started`."""
        process = _ServedProcess(*args, **kwargs)
        self.started.append(process)
        return process


class Forked(_Started, ForkContext):
    """A context that starts processes as copies of this one, which have its main program."""

    main = None

    def Process(self, *args: Any, **kwargs: Any) -> _ForkedProcess:  # type: ignore[override]
        """Start a process as a copy of this one, and remember it in `started`."""
        process = _ForkedProcess(*args, **kwargs)
        self.started.append(process)
        return process


Context = Served | Forked


def new_context(
    needs_main: bool, preload: Sequence[str], *, fork: bool = True, start_timeout: float = START_TIMEOUT
) -> Context:
    """Return the context to start workers with: `Forked` if `fork` is set and this process can be forked, else
    `Served`.

    Raises:
        ConfigError: workers need the main program, and importing it would run it.
    """
    check_not_importing()
    if fork and _can_fork():
        for name in preload:
            import_module(name)
        if _can_fork():
            return Forked()
    return Served(MainProgram.of_this_process(start_timeout) if needs_main else None, preload)


def start_server(preload: Sequence[str]) -> None:
    """Start the fork server now if workers will need it, so that its imports take place while this process plans."""
    if not _can_fork():
        forkserver.set_forkserver_preload([__name__, *preload])
        with _without_interrupts():
            forkserver.ensure_running()


def _can_fork() -> bool:
    """Return whether workers may be forked: no thread is lost, and no connection of a store is shared."""
    forking = sys.modules.get("feedmill.storage.remote.forking")  # not imported here: numpy starts threads
    return not (forking is not None and forking.has_requested()) and _single()


_lasting: set[int] = set()
"""Processes of this program whose native threads were waited for once, and did not end."""


def _single() -> bool:
    """Return whether this process has only the calling thread, counting native ones; False if unknown."""
    for _ in range(1 if os.getpid() in _lasting else 25):
        try:
            if len(os.listdir("/proc/self/task")) == 1:
                return True
        except OSError:
            return False
        if threading.active_count() > 1:
            return False
        time.sleep(0.002)  # the system may still list a thread that was just joined
    _lasting.add(os.getpid())
    return False


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)
