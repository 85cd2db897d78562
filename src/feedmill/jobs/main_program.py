"""The main program in worker processes: it is imported there if work is defined in it.

A program that is not guarded by ``if __name__ == "__main__"`` runs again in each worker: it starts workers of its own,
or waits in a rendezvous for ranks that never come. Workers therefore import it themselves, within a time limit and
without the address of the rendezvous, and report what goes wrong to the process that started them.

Work and results are pickled here, which shows whether they need it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.jobs.threads import frame_of

if TYPE_CHECKING:
    from multiprocessing import connection


_FIX = 'Put what the program runs below `if __name__ == "__main__":`, move the function into a module, or use threads.'
START_TIMEOUT = 180.0
"""Seconds that a worker process has to import it, by default."""
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
"""Variables without which torch.distributed raises an error at once instead of waiting for the other ranks."""
_importing: MainProgram | None = None


def _pipe() -> tuple[connection.Connection, connection.Connection]:
    from multiprocessing import connection

    return connection.Pipe(duplex=False)


@dataclass(frozen=True, slots=True)
class MainProgram:
    """The main program of the process that starts workers.

    Args:
        limit: seconds that a worker has to import it.

    Attributes:
        file: its path.
        preparation: how `multiprocessing` imports it.
        report: where workers write, and `failure` reads, why they could not import it.
    """

    limit: float
    file: str = ""
    preparation: Mapping[str, str] = field(default_factory=dict)
    report: tuple[connection.Connection, connection.Connection] = field(default_factory=_pipe)

    @classmethod
    def of_this_process(cls, limit: float) -> MainProgram:
        """Return the main program. Raises ConfigError if it has no guard, so that importing it would run it."""
        file = getattr(sys.modules["__main__"], "__file__", None) or ""
        if not _is_guarded(file):
            raise _unguarded(
                "a function that worker processes need is defined in the main program, which has no"
                ' `if __name__ == "__main__":`: each of them would run the whole program again',
                file,
            )
        from multiprocessing import spawn

        data = spawn.get_preparation_data("worker")
        return cls(limit, file, {name: value for name, value in data.items() if name.startswith("init_main_from_")})

    def load(self) -> None:
        """Import the program in a worker. If that fails or takes too long, report it and end the process."""
        global _importing
        main = threading.get_ident()
        late = threading.Timer(self.limit, lambda: self.end(self._late(frame_of(main))))
        late.daemon = True
        from multiprocessing import current_process, spawn

        process = current_process()
        late.start()
        _importing = self
        process._inheriting = True  # type: ignore[attr-defined]
        try:
            with _without(_MEETING):
                spawn.prepare(dict(self.preparation))
        except BaseException as error:
            self.end(self._failed(error))
        finally:
            late.cancel()
            _importing = None
            del process._inheriting  # type: ignore[attr-defined]

    def failure(self) -> ConfigError | None:
        """Return why workers could not import the program; None if they could."""
        reader, _ = self.report
        return _unguarded(reader.recv_bytes().decode(), self.file) if reader.poll() else None

    def end(self, why: str) -> None:
        """Report a problem and end this worker."""
        self.report[1].send_bytes(why[:2000].encode())  # short enough to be written at once, beside other workers
        os._exit(1)

    def _failed(self, error: BaseException) -> str:
        import traceback

        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.file]
        return (
            "a worker process imported the main program to find a function, and the program"
            f" {f'failed in line {lines[-1]}' if lines else 'failed'}: {type(error).__name__}: {error}."
            " Programs that start a run outside the guard of the main program fail like this"
        )

    def _late(self, frame: FrameType | None) -> str:
        import traceback

        lines = [each.lineno for each in traceback.extract_stack(frame) if each.filename == self.file]
        return (
            "a worker process imported the main program to find a function, and was not finished after"
            f" {self.limit:g} s{f', in line {lines[-1]}' if lines else ''}. Programs that start a run outside the guard"
            " of the main program wait like this"
        )


def check_not_importing() -> None:
    """End a worker that is importing the main program, with a report: the program is about to start its run again."""
    if _importing is not None:
        _importing.end(
            "a worker process imports the main program to find a function, and the program starts its run there again,"
            ' outside `if __name__ == "__main__":`'
        )


def _unguarded(what: str, file: str | None) -> ConfigError:
    return ConfigError(what, file=file or None, kind="unguarded-main", fix=_FIX)


def _is_guarded(file: str) -> bool:
    """Return whether the program has a top-level ``if`` on ``__name__``; True if its source is unavailable."""
    import ast
    from pathlib import Path

    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    tests = [node.test for node in body if isinstance(node, ast.If)]
    return any(isinstance(name, ast.Name) and name.id == "__name__" for test in tests for name in ast.walk(test))


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def needs_main(*sent: Any) -> bool:
    """Return whether workers need the main program: whether something that is sent to them is defined in it."""
    pickler = _Pickler(io.BytesIO())
    _dump(pickler, sent)
    if pickler.needs_main and not os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        raise ConfigError(
            "the function is defined in a notebook, at a prompt or in a program from stdin, from which other processes"
            " cannot import it",
            kind="not-portable",
            fix="Move the function into a module, or use threads.",
        )
    return pickler.needs_main


def pickled(item: Any) -> bytes:
    """Return the bytes of an item. Raises `ConfigError` if other processes cannot have it."""
    out = io.BytesIO()
    _dump(pickle.Pickler(out), item)
    return out.getvalue()


def portable(*sent: Any) -> bool:
    """Return whether the objects can be pickled, and nothing in them is defined in the main program.

    To import a definition from the main program, a worker would run its file again. A script without the guard
    ``if __name__ == "__main__"`` would then start its training again in the worker.
    """
    try:
        return b"__main__" not in pickle.dumps(sent)
    except Exception:  # user objects may raise any error when pickled
        return False


@contextlib.contextmanager
def portable_or(message: str, fix: str) -> Iterator[None]:
    """Raise `ConfigError` with this message and fix if an object that the block pickles cannot be pickled."""
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"{message} ({error})", kind="not-portable", fix=fix) from None


def _dump(pickler: pickle.Pickler, item: Any) -> None:
    fix = "Use functions at the top level of a module, or no processes."
    with portable_or("the work cannot be sent to other processes", fix):
        pickler.dump(item)


class _Pickler(pickle.Pickler):
    """A pickler that detects objects defined in the main program."""

    needs_main = False

    def persistent_id(self, item: Any) -> None:
        if getattr(item, "__module__", None) == "__main__":
            self.needs_main = True
