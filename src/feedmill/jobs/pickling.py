"""Pickle work and results for other processes, and find out whether these need the main program."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any

from feedmill.errors import ConfigError


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
