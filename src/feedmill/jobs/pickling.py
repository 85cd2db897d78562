"""Pickle the work of units for processes, and find out whether these need the main program."""

from __future__ import annotations

import io
import os
import pickle
import sys
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


def _dump(pickler: pickle.Pickler, item: Any) -> None:
    try:
        pickler.dump(item)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the work cannot be sent to other processes ({error})",
            kind="not-portable",
            fix="Use functions at the top level of a module, or no processes.",
        ) from None


class _Pickler(pickle.Pickler):
    """A pickler that detects objects defined in the main program."""

    needs_main = False

    def persistent_id(self, item: Any) -> None:
        if getattr(item, "__module__", None) == "__main__":
            self.needs_main = True
