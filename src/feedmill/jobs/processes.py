"""Worker processes that start from any program, stop on request, and never outlive the process that started them.

Where the main process has a single thread, as our commands do, workers are forked from it: they start in milliseconds,
with everything that it has imported. Anywhere else they come from a fork server: a helper without threads that imports
`preload` once, so that workers inherit no locks and event loops of the main process.
"""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import connection, parent_process, popen_fork, popen_forkserver
from multiprocessing.context import ForkContext, ForkProcess, ForkServerContext, ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from feedmill.errors import ConfigError, FeedmillError

_GRACE = 3.0  # seconds that a worker has to clean up before it is killed
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_working = False  # in a worker: whether the function is running


@dataclass(slots=True)
class Outcome:
    """What came of a chunk: results in order and, where one item failed, its error in place of the rest."""

    results: list[Any]
    error: Exception | None = None


class Shared:
    """Something that every item needs, sent once to each worker; unpickled when the first item asks for it."""

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data
        self._value: Any = None

    def value(self) -> Any:
        """Return the thing itself."""
        if self._data is not None:
            self._value = pickle.loads(self._data)  # noqa: S301 - our own bytes
            self._data = None
        return self._value


_shared: Shared | None = None


def work(function: Callable[..., Any], items: Sequence[Any]) -> Outcome:
    """In a worker: call `function` on each item, behind what all items share."""
    global _working
    results: list[Any] = []
    try:
        _working = True
        call = function if _shared is None else partial(function, _shared.value())
        for item in items:
            results.append(call(item))
        return Outcome(results)
    except Exception as error:
        return Outcome(results, _portable(error))
    except SystemExit as error:
        if error.code is _STOPPED:
            os._exit(1)
        raise
    finally:
        _working = False


def _portable(error: Exception) -> Exception:
    """Return the error as it can be sent to another process, with the worker's traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    try:
        # Some exceptions pickle and then fail to unpickle, which would look like a dead worker.
        sent: Exception = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        sent = FeedmillError(f"{type(error).__name__}: {error}", kind="worker-error")
    if not isinstance(error, FeedmillError) or error.__cause__ is not None:
        sent.add_note(f"in a worker process:\n{trace}")
    return sent


_STOPPED = object()


def begin(shared: Shared | None = None, environment: Mapping[str, str] | None = None) -> None:
    """In a worker, before all work: Ctrl-C is for the main process to handle; SIGTERM lets the function clean up.

    Args:
        shared: what all items need.
        environment: the main process's. The fork server, and so its children, have the one of when it was started.
    """
    global _shared
    _shared = shared
    if environment is not None and dict(os.environ) != dict(environment):
        os.environ.clear()
        os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    if _working:
        raise SystemExit(_STOPPED)
    os._exit(1)


def _follow_parent() -> None:
    """A main process that is killed cannot say so; its end of a pipe closes, and that wakes us."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)


class _ServedPopen(popen_forkserver.Popen):
    """Its exit code comes over a pipe, once: of two threads that wait for it, both learn it."""

    _reading = threading.Lock()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            with self._reading:
                return super().poll(os.WNOHANG)
        return self.returncode


class _ForkedPopen(popen_fork.Popen):
    """The system tells its exit code once: of two threads that wait for it, both learn it."""

    _reading = threading.Lock()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if flag != os.WNOHANG and self.returncode is None:
            connection.wait([self.sentinel])
        with self._reading:
            # Behind its end of the pipe a process is all but gone, so a call that may wait for it does not for long.
            return self.returncode if self.returncode is not None else super().poll(flag)


class _ServedProcess(ForkServerProcess):
    """A process that may leave the main program's file alone."""

    hide_main = False

    @staticmethod
    def _Popen(process_obj: Any) -> _ServedPopen:
        return _ServedPopen(process_obj)

    def start(self) -> None:
        with _hidden_main() if self.hide_main else contextlib.nullcontext():
            super().start()


class _ForkedProcess(ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> _ForkedPopen:
        return _ForkedPopen(process_obj)

    def start(self) -> None:
        # A signal that comes before the worker says what it does with it would be handled as in the main process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Started:
    """The processes that a context has started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[_ServedProcess | _ForkedProcess] = []

    def stop(self) -> None:
        """End every worker: politely first, then not."""
        for process in self.started:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in self.started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def ended(self) -> bool:
        """Return whether any worker has exited."""
        return any(process.exitcode is not None for process in self.started)

    def death(self) -> str | None:
        """Return the signal that ended a worker which nobody stopped, by name."""
        for process in self.started:
            code = process.exitcode
            if code is not None and code < 0 and -code != signal.SIGTERM:
                return signal.Signals(-code).name
        return None


class Served(_Started, ForkServerContext):
    """Starts processes by the fork server.

    Args:
        hide_main: whether workers do without the main program. By default `multiprocessing` runs the program's file
            again in each worker, to find its classes: slow for a command line, an endless loop for a script that
            does not guard its main part, impossible for one that came over stdin.
        preload: modules that the fork server imports for all workers to share, if it does not run yet.

    Raises:
        ConfigError: workers need the main program, and importing it would run it.
    """

    def __init__(self, hide_main: bool, preload: Sequence[str]) -> None:
        super().__init__()
        if not hide_main:
            _check_guarded()
        self.hide_main = hide_main
        self.set_forkserver_preload([__name__, *preload])

    def Process(self, *args: Any, **kwargs: Any) -> _ServedProcess:  # type: ignore[override]
        process = _ServedProcess(*args, **kwargs)
        process.hide_main = self.hide_main
        self.started.append(process)
        return process


class Forked(_Started, ForkContext):
    """Starts processes as copies of this one."""

    def Process(self, *args: Any, **kwargs: Any) -> _ForkedProcess:  # type: ignore[override]
        process = _ForkedProcess(*args, **kwargs)
        self.started.append(process)
        return process


Context = Served | Forked


def new_context(hide_main: bool, preload: Sequence[str], *, fork: bool = True) -> Context:
    """How to start workers now: by forking, if this process has one thread and it is wanted; else by the fork server,
    see `Served`."""
    if fork and _single():
        for name in preload:
            import_module(name)
        if _single():
            return Forked()
    return Served(hide_main, preload)


def _single() -> bool:
    """Whether this process has no thread but the one that asks, native ones included; False if nobody can tell."""
    for _ in range(25):
        try:
            if len(os.listdir("/proc/self/task")) == 1:
                return True
        except OSError:
            return False
        if threading.active_count() > 1:
            return False
        time.sleep(0.002)  # a thread that was joined a moment ago is still on its way out of the system
    return False


def _check_guarded() -> None:
    """Refuse a main program without a top-level ``if`` on ``__name__``.

    A worker process imports the main program to find what is defined in it. Without a guard the import runs the program
    again, which at best ends in an error of `multiprocessing`, and at worst waits for ever in a rendezvous.
    """
    file = getattr(sys.modules["__main__"], "__file__", None) or ""
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return  # nobody can tell
    tests = [node.test for node in body if isinstance(node, ast.If)]
    if any(isinstance(name, ast.Name) and name.id == "__name__" for test in tests for name in ast.walk(test)):
        return
    raise ConfigError(
        "a function that worker processes need is defined in the main program, which has no"
        ' `if __name__ == "__main__":`: each of them would run the whole program again',
        file=file,
        kind="unguarded-main",
        fix='Put what the program runs below `if __name__ == "__main__":`, move the function into a module, or use'
        " threads.",
    )


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)
