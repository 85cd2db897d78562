"""Processes that start warm: `run` and `Popen` of `subprocess`, without the half second of imports that each needs.

A command ``[sys.executable, "-c", program, ...]``, or one with the path of a program, is forked from a process that has
the package imported (`helpers.zygote`), one for each process of pytest. It has its own number, files, folder and
environment, and dies by the same signals. What differs from a cold start: modules are there before the program imports
them, hashes of strings are the same in all, and the parent is another. A command whose options, or whose environment's
variables of Python, have to act when the interpreter starts is started cold; so is one with options of `subprocess`
that a fork cannot give, and any other program.

Tests of how a program starts, of what it imports or how much memory it takes use `subprocess` itself, and so do slow
ones that kill at random moments.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from helpers.zygote import warm

_SERVE = "import sys; sys.path[:1] = [{!r}, '']; from helpers import zygote; sys.path[:2] = ['']; exec(zygote.serve())"
_ALIKE = {"PYTHONPATH"}
_FIRST = {key: value for key, value in os.environ.items() if key.startswith("PYTHON")}
"""As pytest was started: what a test sets while the first process is asked for must not become what all have."""
_lock = threading.Lock()
_server: tuple[int, subprocess.Popen[bytes], socket.socket] | None = None


class Popen(subprocess.Popen):
    """`subprocess.Popen` that forks a warm process where it can."""

    _status = -1

    def __exit__(self, kind: Any, value: Any, place: Any) -> None:
        if kind is not None:  # a test has failed: it would wait for a process that waits for the test
            self.kill()
        super().__exit__(kind, value, place)

    def _execute_child(self, *values: Any) -> None:
        named = dict(zip(list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:], values, strict=True))
        if not _suits(named):
            return super()._execute_child(*values)
        ends = [named[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [number if end == -1 else end for number, end in enumerate(ends)]
        env = {os.fsdecode(key): os.fsdecode(value) for key, value in (named["env"] or os.environ).items()}
        first, *argv = map(os.fsdecode, named["args"][1:])
        request = {
            "script": first != "-c",
            "program": first if first != "-c" else argv.pop(0),
            "argv": argv,
            "env": env,
            "cwd": os.path.abspath(os.fsdecode(named["cwd"] or os.curdir)),
            "session": bool(named["start_new_session"]),
        }
        status, theirs = socket.socketpair()
        try:
            with theirs, tempfile.TemporaryFile() as modules:
                self.pid = _ask(json.dumps(request).encode(), [*files, theirs.fileno(), modules.fileno()])
            self._status = status.detach()
        finally:
            order = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(named[name] for name in order))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status == -1:
            return super()._try_wait(wait_flags)
        ended = select.poll()
        ended.register(self._status, select.POLLIN)
        if wait_flags & os.WNOHANG and not ended.poll(0):
            return 0, 0
        answer = os.read(self._status, 100)
        os.close(self._status)
        if not answer:
            raise ChildProcessError("the process that starts warm ones has ended")
        return self.pid, int(answer)

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        return super()._internal_poll(_deadstate, _waitpid=lambda _, flags: self._try_wait(flags))


def run(
    command: list[Any], *, input: Any = None, capture_output: bool = False, timeout: float | None = None,
    check: bool = False, **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """Run a command to its end; `subprocess.run` with a warm start."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        done = subprocess.CompletedProcess(process.args, process.poll(), out, err)
    if check:
        done.check_returncode()
    return done


def _suits(named: dict[str, Any]) -> bool:
    """Whether a fork can do what is asked of a new process."""
    args, env = named["args"], named["env"]
    if not isinstance(args, list | tuple) or str(args[0]) != sys.executable:
        return False
    if str(args[1]) != "-c" and not str(args[1]).endswith(".py"):
        return False
    more = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
    if any(named[name] for name in more if named[name] is not None) or not named["close_fds"]:
        return False
    special = [
        {key: value for key, value in each.items() if key.startswith("PYTHON") and key not in _ALIKE}
        for each in (os.environ, os.environ if env is None else env)
    ]
    return special[0] == special[1] and hasattr(os, "pidfd_open")


def _ask(request: bytes, files: list[int]) -> int:
    global _server
    with _lock:
        if _server is None or _server[0] != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                words = [sys.executable, "-c", _SERVE.format(str(Path(__file__).parents[1]))]
                env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | _FIRST
                env["OPENBLAS_NUM_THREADS"] = "1"  # it starts threads when numpy is imported
                server = subprocess.Popen(words, stdin=theirs, stdout=subprocess.DEVNULL, env=env)
            _server = os.getpid(), server, ours
            atexit.register(_close, *_server)
        channel = _server[2]
        socket.send_fds(channel, [request], files)
        return int(channel.recv(100))


def _close(process: int, server: subprocess.Popen[bytes], channel: socket.socket) -> None:
    if process == os.getpid():  # not in a process that was forked from this one
        channel.shutdown(socket.SHUT_RDWR)  # which has this end, too
        server.wait()
    channel.close()


__all__ = ["Popen", "run", "warm"]
