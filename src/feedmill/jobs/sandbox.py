"""Call a function on untrusted input in a child process, with a limit on time and memory.

Parsers are compiled code: a deeply nested page can keep one busy for hours, exhaust the memory, or crash it, and no
signal handler of Python runs meanwhile. The child is forked, gets many inputs at once, and returns each result as soon
as it has it. It is killed when one takes too long, and a new child does the rest. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, TypeVar

from feedmill.jobs.progress import still

Item = TypeVar("Item")
Result = TypeVar("Result")

MEMORY = 4 << 30
"""Bytes of address space that a child may have in addition to those of its parent."""
_PAGE = resource.getpagesize()
_PR_SET_PDEATHSIG = 1


class Failure(NamedTuple):
    """Why there is no result for an input."""

    why: str


class Sandbox(Generic[Item, Result]):
    """A function that is called in a child process; a context manager.

    Args:
        function: must not write files or use threads; results are pickled.
        seconds: limit for one input.
    """

    def __init__(self, function: Callable[[Item], Result], seconds: float) -> None:
        self._function, self._seconds = function, seconds
        self._child: tuple[int, Connection] | None = None

    def map(self, items: Sequence[Item]) -> Iterator[Result | Failure]:
        """Yield the result for each input, in order."""
        done = 0
        while done < len(items):
            if self._child is None:
                self._child = self._start()
            connection = self._child[1]
            try:
                connection.send(items[done:])
                while done < len(items):
                    if not connection.poll(self._seconds):
                        self.close()
                        yield Failure(f"took longer than {self._seconds:g} s")
                        done += 1
                        break
                    result = connection.recv()
                    done += 1
                    yield result
            except (EOFError, OSError):
                self.close()
                yield Failure("crashed")
                done += 1

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
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == parent:
                    _serve(self._function, theirs)
            os._exit(0)
        theirs.close()
        return process, ours


def _serve(function: Callable[[Any], Any], connection: Connection) -> None:
    with open("/proc/self/statm", encoding="ascii") as sizes:
        limit = int(sizes.read().split()[0]) * _PAGE + MEMORY
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the child
    while True:
        for item in connection.recv():
            try:
                result = function(item)
            except Exception as error:  # each parser raises its own
                result = Failure(f"{type(error).__name__}: {error}"[:200])
            connection.send(result)
