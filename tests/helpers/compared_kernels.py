"""Run tests with each call of a kernel made once more by numba, from the same source, and by each level's library.

    PYTHONPATH=src:tests python -m helpers.compared_kernels [--every] TESTS...

With ``--every``, a kernel that no test calls is an error. It ends with status 0 if all tests passed.
"""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill import kernels
from feedmill.kernels import native
from feedmill.kernels.interface import FOLDER
from feedmill.kernels.native import Kernel
from helpers.kernel_module import ROOT

assert ROOT
from kernels.by_numba import by_numba  # noqa: E402

ADDRESSES = ("feedmill.kernels.files.ranges", "feedmill.kernels.files.tar_many")
"""Modules whose kernels write at addresses: the other sides write the same there once more."""
LEVELS = sorted(path.name.split(".")[1] for path in Path(FOLDER).glob("kernels.*.so"))
_own = Kernel.__call__
called: set[str] = set()


class _AtLevel(Kernel):
    level = ""

    def _library(self) -> ctypes.CDLL:
        return native._loaded(self.level)


@cache
def _others(kernel: Kernel) -> list[tuple[str, Callable[..., Any]]]:
    found: list[tuple[str, Callable[..., Any]]] = [("numba", by_numba(kernel))]
    for level in LEVELS:
        one = _AtLevel(kernel.function, *kernel.types)
        one.level = level
        found.append((level, lambda *args, one=one: _own(one, *args)))
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.tobytes() == other.tobytes()
    return one is None or int(one) == int(other)


def _copied(args: tuple[Any, ...], before: list[Any]) -> list[Any]:
    """Return the arguments as they were; those that shared memory share it again."""
    places: dict[int, Any] = {}
    given = []
    for arg, was in zip(args, before, strict=True):
        if isinstance(arg, np.ndarray) and arg.size:
            shared = places.setdefault(native.address_of(arg), was.copy())
            same = shared.nbytes == was.nbytes
            given.append(shared.view(was.dtype).reshape(was.shape) if same else was.copy())
        else:
            given.append(was)
    return given


def _compare(kernel: Kernel, *args: Any) -> Any:
    name = f"{kernel.__module__}.{kernel.__name__}"
    called.add(name)
    before = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    result = _own(kernel, *args)
    after = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    for side, function in _others(kernel):
        given = list(args) if kernel.__module__ in ADDRESSES else _copied(args, before)
        found = function(*given)
        assert _same(result, found), (name, side, result, found)
        for one, other in zip(after, given, strict=True):
            assert not isinstance(one, np.ndarray) or _same(one, other), (name, side)
    return result


def entries() -> set[str]:
    """Return the names of all kernels that Python can call."""
    found = set()
    for info in pkgutil.walk_packages(kernels.__path__, "feedmill.kernels."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, Kernel) and value.types:
                found.add(f"{value.__module__}.{value.__name__}")
    return found


def main(*options: str) -> int:
    every = "--every" in options
    Kernel.__call__ = _compare  # type: ignore[method-assign]
    status = int(pytest.main([option for option in options if option != "--every"]))
    missing = sorted(entries() - called) if every else []
    print(f"compared {len(called)} kernels; not called: {', '.join(missing) or 'none'}")
    return status or bool(missing) or not called


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
