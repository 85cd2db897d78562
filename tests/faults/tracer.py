"""A program whose system calls that change files below a folder are counted, and one of them made to fail.

The program and all processes and threads that it starts are traced (``ptrace``, with a seccomp filter, so that they
stop at such calls only). Linux on x86-64; `why_not` says what is missing elsewhere.

What can happen at call number `at` (from 1):

- ``kill``: all of the program is killed before the call.
- ``torn``, ``power``: as well, and then what was not synced is lost: bytes, or bytes and names (see `faults.power`).
- ``EIO``: the call fails with it, once.
- ``ENOSPC``: the call fails with it, and so does every later one that needs space: the disk is full.
- ``short``: a write takes half of its bytes, then the disk is full.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from faults.calls import CALLS, SYNCS, Kind, hurrying, stopping

KILLS = ("kill", "torn", "power")
FAULTS = ("kill", "EIO", "ENOSPC", "short", "torn", "power")
PATIENCE = 60.0
_CONT, _GETREGS, _SETREGS, _SEIZE, _GETEVENTMSG, _LISTEN = 7, 12, 13, 0x4206, 0x4201, 0x4208
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000  # fork, vfork, clone, exec, seccomp; and end all with the tracer
_FORK, _VFORK, _CLONE, _EXEC, _SECCOMP, _STOP = 1, 2, 3, 4, 7, 128
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_ANY = 0x40000000  # of waitpid: threads, too
_HERE = -100  # of a folder's descriptor: the current one
_REGISTERS = [
    "r15",
    "r14",
    "r13",
    "r12",
    "rbp",
    "rbx",
    "r11",
    "r10",
    "r9",
    "r8",
    "rax",
    "rcx",
    "rdx",
    "rsi",
    "rdi",
    "orig_rax",
    "rip",
    "cs",
    "eflags",
    "rsp",
    "ss",
    "fs_base",
    "gs_base",
    "ds",
    "es",
    "fs",
    "gs",
]
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")


class Registers(ctypes.Structure):
    """As ``struct user_regs_struct``."""

    _fields_ = [(name, ctypes.c_ulong) for name in _REGISTERS]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


class Call(NamedTuple):
    """One call: its name, its file (relative to the folder) and, where it moves something, where to."""

    name: str
    path: str
    to: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.path}" + (f" -> {self.to}" if self.to else "")


@dataclass
class Ended:
    """How a program ended.

    Attributes:
        status: its exit status; negative for a signal.
        calls: those that were counted, up to the end or the kill.
        struck: the call at which it happened; None where there were fewer.
        hung: whether it had to be ended, as it did not come to an end.
    """

    status: int | None = None
    calls: list[Call] = field(default_factory=list)
    struck: Call | None = None
    hung: bool = False


_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


def _ask(request: int, pid: int, data: Any = None) -> None:
    if _ptrace(request, pid, None, data) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"ptrace {request}")


def hurry() -> None:
    """In a child that is not traced: do without syncs. Raises `OSError`."""
    _install_filter(hurrying())


def _install_filter(steps: bytes) -> None:
    program = _Program(len(steps) // 8, steps)
    if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or _libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def why_not() -> str | None:
    """Why programs cannot be traced here; None where they can."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return f"the tracer is for Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    try:
        ended = trace(lambda: os._exit(7), "/nowhere")
    except OSError as error:
        return f"processes cannot be traced here ({error})"
    return None if ended.status == 7 else f"a traced process ended with {ended.status}"


def trace(
    body: Callable[[], Any],
    folder: str,
    *,
    fault: str | None = None,
    at: int = 0,
    watch: Callable[[Kind, Call], None] | None = None,
) -> Ended:
    """Run `body` in a forked process, which it has to end itself, and count calls below `folder` (a real path).

    Args:
        fault, at: what happens at which call.
        watch: is told of every call before it is made.
    """
    told, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            os.read(told, 1)  # until it is traced
            os.close(told)
            _install_filter(stopping())
            body()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(70)
    os.close(told)
    try:
        _ask(_SEIZE, pid, _OPTIONS)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, _ANY)
        raise
    finally:
        os.close(go)
    return _Trace(pid, folder.rstrip("/"), fault, at, watch).run()


class _Trace:
    def __init__(
        self, pid: int, folder: str, fault: str | None, at: int, watch: Callable[[Kind, Call], None] | None
    ) -> None:
        self.main, self.folder, self.fault, self.at, self.watch = pid, folder, fault, at, watch
        self.alive, self.ended, self.full = {pid}, Ended(), False

    def run(self) -> Ended:
        """Follow it to its end."""
        deadline = time.monotonic() + PATIENCE
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        try:
            while True:
                pid, status = self._wait(deadline)
                if pid == 0:
                    return self.ended
                self._one(pid, status)
                if pid == self.main and self.ended.status is not None:
                    deadline = min(deadline, time.monotonic() + 5)  # workers follow it
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _wait(self, deadline: float) -> tuple[int, int]:
        while True:
            try:
                return _waitpid()
            except ChildProcessError:
                return 0, 0
            except InterruptedError:
                if time.monotonic() > deadline:
                    self.ended.hung = True
                    self._kill()

    def _one(self, pid: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self.alive.discard(pid)
            if pid == self.main:
                self.ended.status = os.waitstatus_to_exitcode(status)
            return
        event, number = status >> 16, os.WSTOPSIG(status)
        deliver = 0
        with _gone():
            if event == _SECCOMP:
                self._call(pid)
            elif event == _STOP:
                self.alive.add(pid)
            elif event in (_FORK, _VFORK, _CLONE):
                born = ctypes.c_ulong()
                _ask(_GETEVENTMSG, pid, ctypes.byref(born))
                self.alive.add(born.value)
            elif event == 0:
                deliver = number
            _ask(_CONT, pid, deliver)

    def _call(self, pid: int) -> None:
        registers = Registers()
        _ask(_GETREGS, pid, ctypes.byref(registers))
        kind = CALLS.get(registers.orig_rax)
        call = None if kind is None else self._named(pid, kind, registers)
        if kind is None or call is None:
            return
        self.ended.calls.append(call)
        now = len(self.ended.calls) == self.at
        if now:
            self.ended.struck = call
        if now and self.fault in KILLS:
            self._kill()
            return
        if self.watch is not None:
            self.watch(kind, call)
        if now and self.fault == "short" and kind.size is not None:
            name = _ARGUMENTS[kind.size]
            setattr(registers, name, getattr(registers, name) // 2)
            _ask(_SETREGS, pid, ctypes.byref(registers))
            self.full = True
        elif now and self.fault == "EIO":
            _refuse(pid, registers, errno.EIO)
        elif (now and self.fault in ("ENOSPC", "short")) or (self.full and kind.space):
            _refuse(pid, registers, errno.ENOSPC)
            self.full = True
        elif registers.orig_rax in SYNCS:
            _refuse(pid, registers, 0)

    def _named(self, pid: int, kind: Kind, registers: Registers) -> Call | None:
        """The call, where its file lies in the folder."""
        path = self._path(pid, kind.file, kind.argument, registers)
        if path is None:
            return None
        to = "" if kind.to is None else self._path(pid, kind.file, kind.to, registers) or "elsewhere"
        return Call(kind.name, path, to)

    def _path(self, pid: int, how: str, argument: int, registers: Registers) -> str | None:
        value = getattr(registers, _ARGUMENTS[argument])
        try:
            if how == "fd":
                full = os.readlink(f"/proc/{pid}/fd/{ctypes.c_int(value).value}")
            elif how == "path":
                full = os.path.join(os.readlink(f"/proc/{pid}/cwd"), _text(pid, value))
            else:
                name = _text(pid, getattr(registers, _ARGUMENTS[argument + 1]))
                number = ctypes.c_int(value).value
                base = os.readlink(f"/proc/{pid}/cwd" if number == _HERE else f"/proc/{pid}/fd/{number}")
                full = os.path.join(base, name)
        except OSError:
            return None  # the call will fail by itself
        full = os.path.normpath(full)
        if full == self.folder:
            return "."
        return full[len(self.folder) + 1 :] if full.startswith(self.folder + "/") else None

    def _kill(self) -> None:
        for pid in list(self.alive):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                self.alive.discard(pid)


class _gone:
    """Where a process was killed while it was looked at."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, OSError) and error.errno == errno.ESRCH


def _refuse(pid: int, registers: Registers, code: int) -> None:
    """Have a call not be made, and fail with `code`; with 0 as if it were made."""
    registers.orig_rax, registers.rax = ctypes.c_ulong(-1).value, ctypes.c_ulong(-code).value
    _ask(_SETREGS, pid, ctypes.byref(registers))


def _text(pid: int, address: int) -> str:
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        data = b""
        while b"\0" not in data and len(data) < 8192:  # up to the end of a page: the next one may not be there
            at = address + len(data)
            data += os.pread(memory, 4096 - at % 4096, at)
        return os.fsdecode(data.partition(b"\0")[0])
    finally:
        os.close(memory)


def _waitpid() -> tuple[int, int]:
    """As `os.waitpid` for any process or thread, but broken off by signals."""
    status = ctypes.c_int()
    pid = _libc.waitpid(-1, ctypes.byref(status), _ANY)
    if pid == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return pid, status.value
