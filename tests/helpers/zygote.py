"""The side of `helpers.warm` that forks: a process without threads that has the package imported.

It takes requests from a socket, each with the files of the new process, and forks. `serve` returns in the forked
process alone, with the program that it is to run: the caller executes it as its own main program, so that errors, exit
handlers and the exit status are those of the interpreter. When a process ends by itself, it reports what it had
imported, and the next ones have that from the beginning.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

FILES = 5
"""Files of a request: the three of every process, where its status goes, and where the names of modules go."""
_SINGLE = ("feedmill", "msgspec", "numpy", "orjson", "pydantic", "typer", "xxhash", "yaml", "zstandard")
"""Packages whose modules start no threads and read nothing that a test changes."""
_APART = ("feedmill.compat", "feedmill.web")  # the first reads variables of the environment when it is imported


def unsynced(file: Any) -> None:
    """Take the place of `os.fsync`, without waiting for the disk. Raises `OSError` if the file is not open."""
    os.fstat(file if isinstance(file, int) else file.fileno())


def serve() -> CodeType:
    """Answer requests until the tests end; return the program in each process that is forked."""
    os.fsync = unsynced
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=os.dup(0))
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    ours: set[int] = set()  # files of processes that run
    while True:
        for key, _ in selector.select():
            if key.fileobj is requests:
                message, files, _, _ = socket.recv_fds(requests, 1 << 20, FILES, socket.MSG_CMSG_CLOEXEC)
                if not message:
                    os._exit(0)
                request = json.loads(message)
                begun, begins = os.pipe()
                pid = os.fork()
                if not pid:
                    if request["session"]:
                        os.setsid()
                    os.close(begun), os.close(begins)
                    selector.close()
                    for file in (requests.detach(), *ours):
                        os.close(file)
                    return _become(request, files)
                os.close(begins)
                os.read(begun, 1)  # as `subprocess` returns when a session has begun: it may be ended as a whole
                os.close(begun)
                for file in files[:3]:
                    os.close(file)
                life = os.pidfd_open(pid)
                ours |= {life, *files[3:]}
                selector.register(life, selectors.EVENT_READ, (pid, *files[3:]))
                requests.sendall(str(pid).encode())
            elif len(key.data) == 3:  # a process has ended
                pid, status, names = key.data
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(status, _status_of(pid))
                os.lseek(names, 0, os.SEEK_SET)
                warm(os.read(names, 1 << 20).decode().split())
                selector.register(status, selectors.EVENT_READ, (pid,))
                _close(selector, key.fd, ours, names)
            else:  # the end has been noticed: until then, the number is taken, as that of any process
                os.waitpid(*key.data, 0)
                _close(selector, key.fd, ours)


def _close(selector: selectors.BaseSelector, file: int, ours: set[int], *others: int) -> None:
    selector.unregister(file)
    for each in (file, *others):
        os.close(each)
        ours.discard(each)


def _status_of(pid: int) -> bytes:
    """The status of a process that has ended, and still exists."""
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert result is not None
    return str(result.si_status << 8 if result.si_code == os.CLD_EXITED else result.si_status).encode()


def warm(names: Iterable[str]) -> None:
    """Import modules that later processes need, but for those that start a thread, such as by importing pyarrow."""
    new = [name for name in names if name not in sys.modules and name not in _THREADED]
    if not _starts_threads(new):
        _import(new)
    else:
        for name in new:
            if name not in sys.modules:
                if _starts_threads([name]):
                    _THREADED.add(name)
                else:
                    _import([name])
    if new:
        gc.collect()
        gc.freeze()


_THREADED: set[str] = set()
"""Modules that start threads when they are imported."""


def _starts_threads(names: list[str]) -> bool:
    """Whether importing modules starts a thread, or ends the process; tried in one of its own."""
    if not names:
        return False
    process = os.fork()
    if not process:
        try:
            _import(names)
            os._exit(len(os.listdir("/proc/self/task")) > 1)
        finally:
            os._exit(2)
    return os.waitpid(process, 0)[1] != 0


def _import(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            import_module(name)


def _become(request: dict[str, Any], files: list[int]) -> CodeType:
    """Make this process look like one that the interpreter has just started."""
    for number in range(3):
        os.dup2(files[number], number)
        os.close(files[number])
    os.close(files[3])
    _open_standard_files()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    before, after = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (os.environ, request["env"]))
    paths = [path for path in sys.path if path and path not in before]
    os.environ.clear()
    os.environ.update(request["env"])
    program, name, folder = request["program"], "-c", ""
    if request["script"]:
        path = os.path.abspath(program)
        program, name, folder = Path(path).read_text(), program, os.path.dirname(path)
        sys.modules["__main__"].__file__ = path
    sys.path[:] = [folder, *filter(None, after), *paths]
    sys.argv[:] = [name, *request["argv"]]
    atexit.register(_report, files[4], os.getpid())
    return compile(program, path if request["script"] else "<string>", "exec")


def _open_standard_files() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        direct = old.write_through and number > 0
        raw = open(number, "wb" if number else "rb", closefd=False, buffering=0 if direct else -1)  # noqa: SIM115
        by_lines = name == "stderr" or raw.isatty()
        whole = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=by_lines, write_through=direct)
        setattr(sys, name, whole)
        setattr(sys, f"__{name}__", whole)


def _report(file: int, process: int) -> None:
    if os.getpid() == process:
        names = [name for name in sys.modules if name.startswith(_SINGLE) and not name.startswith(_APART)]
        os.write(file, " ".join(names).encode())
