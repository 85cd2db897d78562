"""Trials of feedmill's verbs, each in a process that is forked from one which has imported all of it.

`Runner` is the test's side: it starts that process (a fresh one, without threads) and asks it. Run as a program, this
is the other side.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import tracer
from faults.power import Unsynced
from faults.tracer import Call

TESTS = str(Path(__file__).parents[1])


@dataclass
class Result:
    """What came of one run of a verb.

    Attributes:
        status: exit status, negative for a signal.
        out, err: what it printed.
        calls, struck, hung: as of `tracer.Ended`; empty for a run that was not traced.
        modules: names of modules that were imported in it.
        lost: whether anything was lost with the power.
    """

    status: int | None
    out: str
    err: str
    calls: list[Call]
    struck: Call | None
    hung: bool
    modules: list[str]
    lost: bool = False


@dataclass
class Failed:
    """A function that raised: a `FeedmillError` (then `kind` is its kind), or anything else (a traceback)."""

    kind: str | None
    text: str


class Runner:
    """The process that forks trials. A context manager.

    Args:
        folder: a folder on the disk where the trials are.
    """

    def __init__(self, folder: Path) -> None:
        paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
        here = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "120"}
        words = [sys.executable, "-c", "from faults.runner import main; main()", str(folder)]
        self._child = subprocess.Popen(words, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._known: set[str] = set()

    def why_not(self) -> str | None:
        """Why it cannot trace here; None where it can."""
        return self._ask("why_not")

    def run(
        self, words: Sequence[str], folder: Path, *, fault: str | None = None, at: int = 0, how: str = "trace"
    ) -> Result:
        """Run a verb in `folder`, whose calls are counted.

        Args:
            how: ``trace``: system calls; ``standin``: Python's; ``plain``: none; ``booted``: none, on a machine that
                has been started again.
        """
        result: Result = self._ask("run", list(map(str, words)), str(folder), fault, at, how)
        if fault is None:
            self._load(result.modules)
        return result

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function of a module gives in a fresh process, or `Failed`."""
        given, modules = self._ask("call", function, args)
        self._load(modules)
        return given

    def _load(self, modules: list[str]) -> None:
        """Have modules imported before the next trials, so that each need not do it."""
        new = [name for name in modules if name not in self._known]
        if new:
            self._known.update(new)
            self._ask("load", new)

    def _ask(self, what: str, *args: Any) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        pickle.dump((what, args), self._child.stdin)
        self._child.stdin.flush()
        given = pickle.load(self._child.stdout)
        if isinstance(given, Failed):
            raise RuntimeError(given.text)
        return given

    def close(self) -> None:
        """End it."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child.wait()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- the other side --------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions until there are none."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    importlib.import_module("feedmill.cli.app")
    gc.freeze()
    scratch = tempfile.mkdtemp(
        prefix="feedmill-faults-", dir=sys.argv[1]
    )  # and no object whose finalizer the forked ones would run
    try:
        while True:
            try:
                what, args = pickle.load(questions)
            except EOFError:
                return
            try:
                given = _ANSWERS[what](scratch, *args)
            except Exception:
                given = Failed(None, traceback.format_exc())
            pickle.dump(given, answers)
            answers.flush()
    finally:
        shutil.rmtree(scratch)


def _load(scratch: str, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(name)
    gc.freeze()


def _run(scratch: str, words: list[str], folder: str, fault: str | None, at: int, how: str) -> Result:
    shown = [os.path.join(scratch, name) for name in ("out", "err", "modules", "calls")]
    for path in shown:
        Path(path).write_bytes(b"")
    folder = os.path.realpath(folder)

    def body() -> None:
        _verb(words, folder, shown, how, (fault, at))

    unsynced = Unsynced(Path(folder), Path(scratch) / "kept") if fault in ("torn", "power") else None
    if how == "trace":
        ended = tracer.trace(body, folder, fault=fault, at=at, watch=unsynced)
    else:
        ended = tracer.Ended(_forked(body))
        if how == "standin":
            from faults import standin

            ended.calls, ended.struck = standin.read(shown[3], at)
    out, err, modules = (Path(path).read_text(errors="replace") for path in shown[:3])
    lost = unsynced is not None and unsynced.lose(names=fault == "power")
    shutil.rmtree(Path(scratch) / "kept", ignore_errors=True)
    return Result(ended.status, out, err, ended.calls, ended.struck, ended.hung, modules.split(), lost)


def _verb(words: list[str], folder: str, shown: list[str], how: str, strike: tuple[str | None, int]) -> None:
    """In a forked process: the whole life of a command."""
    os.setsid()
    os.chdir(folder)
    if how in ("plain", "booted"):
        with contextlib.suppress(OSError, AttributeError):
            tracer.hurry()
    for path, number in zip(shown[:2], (1, 2), strict=True):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    before = set(sys.modules)
    sys.argv = ["feedmill", *words]
    if how == "booted":
        _boot()
    if how == "standin":
        from faults import standin

        standin.install(folder, shown[3], *strike)
    status = 0
    try:
        from feedmill.cli.app import main as feedmill

        feedmill()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    Path(shown[2]).write_text("\n".join(sorted(set(sys.modules) - before)))
    os._exit(status)


def _boot() -> None:
    """Have the system's word for the time since its start be another one."""
    real = builtins.open

    def opened(file: Any, *args: Any, **facts: Any) -> Any:
        return io.StringIO("another\n") if file == "/proc/sys/kernel/random/boot_id" else real(file, *args, **facts)

    builtins.open = opened


def _forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            traceback.print_exc()
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _call(scratch: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    path = os.path.join(scratch, "given")

    def body() -> None:
        from feedmill.errors import FeedmillError

        before = set(sys.modules)
        try:
            given = function(*args)
        except FeedmillError as error:
            given = Failed(error.kind, str(error))
        except BaseException:
            given = Failed(None, traceback.format_exc())
        with open(path, "wb") as file:
            pickle.dump((given, sorted(set(sys.modules) - before)), file)
        os._exit(0)

    status = _forked(body)
    if status:
        return Failed(None, f"the process ended with {status}"), []
    with open(path, "rb") as file:
        return pickle.load(file)


def _why_not(scratch: str) -> str | None:
    return tracer.why_not()


_ANSWERS: dict[str, Callable[..., Any]] = {"run": _run, "call": _call, "load": _load, "why_not": _why_not}
