"""Call a function on untrusted input in a child process, with a limit on time and memory.

Parsers are compiled code: a deeply nested page can keep one busy for hours, exhaust the memory, or crash it, and no
signal handler of Python runs meanwhile. The child is forked, gets many inputs at once, and returns each result as soon
as it has it. It is killed when one takes too long, and a new child does the rest. It ends with its parent.

Processor time counts, so that the results do not depend on what else the machine does. Where the system does not
report it (macOS has no ``/proc``), wall time counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, TypeVar

from feedmill.jobs.progress import still

Item = TypeVar("Item")
Result = TypeVar("Result")

MEMORY = 4 << 30
"""Default of `Sandbox.memory`."""
_PATIENCE = 20
"""How many times its limit an input may take of wall time: a child that sleeps uses no processor."""
_PAGE = resource.getpagesize()
_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_PROC = "/proc"
_OBJECTS = 20_000
"""New objects in a child before it looks for garbage."""


class Failure(NamedTuple):
    """Why there is no result for an input."""

    why: str


class Sandbox(Generic[Item, Result]):
    """A function that is called in a child process; a context manager.

    Args:
        function: must not write files or use threads; results are pickled.
        seconds: limit of processor time for one input.
        prepare: called once in each child, for settings of packages that the parent must not have.
        memory: bytes of address space that a child may have in addition to those of its parent.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        seconds: float,
        prepare: Callable[[], object] | None = None,
        *,
        memory: int = MEMORY,
    ) -> None:
        self._function, self._seconds, self._prepare, self._memory = function, seconds, prepare, memory
        self._child: tuple[int, Connection] | None = None
        self._starter = threading.current_thread()
        """The thread that started the child, which ends with it."""
        self._used = 0.0
        """Processor time of the child up to its last result."""

    def map(self, items: Sequence[Item]) -> Iterator[Result | Failure]:
        """Yield the result for each input, in order."""
        done = 0
        fresh = False
        while done < len(items):
            if self._child is None:
                self._child, self._starter, self._used = self._start(), threading.current_thread(), 0.0
                fresh = True
            connection = self._child[1]
            try:
                connection.send(items[done:])
                while done < len(items):
                    if not self._wait(*self._child):
                        self.close()
                        yield Failure(f"took longer than {self._seconds:g} s")
                        done += 1
                        break
                    result, self._used = connection.recv()
                    done += 1
                    fresh = True
                    yield result
            except (EOFError, OSError):
                self.close()
                if (
                    fresh and self._starter.is_alive()
                ):  # otherwise the child was killed before, or ended with its thread
                    yield Failure("crashed")
                    done += 1

    def _wait(self, process: int, connection: Connection) -> bool:
        """Wait for a result. Return False if the child has used too much time since the last one."""
        deadline = time.monotonic() + _PATIENCE * self._seconds
        left = self._seconds
        while not connection.poll(max(left, 0.01)):
            left = self._seconds - (_processor_seconds(process) - self._used)
            if left <= 0 or time.monotonic() > deadline:
                return False
        return True

    def close(self) -> None:
        """Kill the child."""
        if self._child is None:
            return
        (process, connection), self._child = self._child, None
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, 0)

    def __enter__(self) -> Sandbox[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> tuple[int, Connection]:
        ours, theirs = Pipe()
        parent = os.getpid()
        with still():  # forking needs a process without threads
            process = os.fork()
        if not process:
            with contextlib.suppress(BaseException):
                ours.close()
                _end_with_parent()
                _be_usual()
                if os.getppid() == parent:
                    if self._prepare is not None:
                        self._prepare()
                    _serve(self._function, theirs, self._memory)
            os._exit(0)
        theirs.close()
        return process, ours


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; elsewhere, it ends when it asks for its next input."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _be_usual() -> None:
    """Leave real time, where the parent is in it: an input that never ends would keep its parent from ending it.

    A program is when it has encoded AV1 as root (`findings/pyav_svtav1_realtime.sh`).
    """
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _serve(function: Callable[[Any], Any], connection: Connection, memory: int) -> None:
    limit = _address_space() + memory
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses limits below what is mapped
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the child
    gc.freeze()  # what the parent had is not searched for garbage, and the objects of a tree only now and then
    gc.set_threshold(_OBJECTS)
    while True:
        for item in connection.recv():
            try:
                result = function(item)
            except Exception as error:  # each parser raises its own
                result = Failure(f"{type(error).__name__}: {error}"[:200])
            connection.send((result, time.process_time()))


def _address_space() -> int:
    """Return the bytes of address space of this process; its largest resident size if the system does not report it."""
    try:
        with open(f"{_PROC}/self/statm", encoding="ascii") as sizes:
            return int(sizes.read().split()[0]) * _PAGE
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _processor_seconds(process: int) -> float:
    """Return the processor time of a process; infinity if the system does not report it, so that wall time counts."""
    try:
        with open(f"{_PROC}/{process}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / _TICK
