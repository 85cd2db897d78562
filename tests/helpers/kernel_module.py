"""Kernels of a test: a module with them, translated, compiled and loaded."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedmill.kernels import machine as intrinsics
from feedmill.kernels import native
from feedmill.kernels.interface import machine

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
HEAD = """\
import numpy as np
from feedmill.kernels.machine import *
from feedmill.kernels.machine import load64, product, trailing
from feedmill.kernels.native import kernel
"""
_numbers = itertools.count()


def translated(text: str, folder: Path) -> tuple[str, str, Path]:
    """Write a module with these kernels: its name, the kernels in C, and its path."""
    from kernels.translate import Module, translate

    name = f"kernels_of_test_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    used = Module("feedmill.kernels.machine", Path(intrinsics.__file__))
    return name, translate({used.name: used, name: Module(name, path)}), path


def compiled(text: str, folder: Path, patch: pytest.MonkeyPatch, *, checked: bool = False) -> Any:
    """Return a module with these kernels, which can be called while the patch lasts."""
    from kernels.build import CHECKED, build

    name, source, path = translated(text, folder)
    build(folder / name, source=source, work=folder / "work", checked=checked)
    library = ctypes.CDLL(str(folder / name / f"kernels.{CHECKED if checked else machine()}.so"))
    patch.setattr(native, "library", lambda: library)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module
