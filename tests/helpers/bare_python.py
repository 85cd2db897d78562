"""A Python that has Feedmill without its extras, simulated: what only extras (or these tests) need cannot be imported.

What a bare install has follows from ``pyproject.toml`` and the metadata of what is installed, so a new extra, or a new
requirement of one, is left out here without a word.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_FINDER = """
import sys

class Missing:
    names = frozenset({names})

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.names:
            raise ModuleNotFoundError(f"No module named {{name!r}} (left out: a bare install has it not)", name=name)
        return None

sys.meta_path.insert(0, Missing)
"""


def extras() -> dict[str, list[Requirement]]:
    """What each extra of users asks for, but for those that stand for others."""
    found = {name: list(map(Requirement, lines)) for name, lines in PROJECT["optional-dependencies"].items()}
    found.pop("docs")
    return {name: wanted for name, wanted in found.items() if not any(one.name == "feedmill" for one in wanted)}


@functools.cache
def left_out() -> set[str]:
    """Top-level modules that are installed here, and would not be by ``pip install feedmill``."""
    kept: set[str] = {"feedmill", "pip", "setuptools"}
    todo = [Requirement(line) for line in PROJECT["dependencies"]]
    while todo:
        wanted = todo.pop()
        name = _plain(wanted.name)
        if name in kept or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        kept.add(name)
        try:
            todo += map(Requirement, distribution(wanted.name).requires or [])
        except PackageNotFoundError:
            continue
    return {  # this walks over the lists of all installed files, which takes its second
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier() and not any(_plain(owner) in kept for owner in owners)
    }


def environment(folder: Path) -> dict[str, str]:
    """Variables with which a Python, and every Python that it starts, is a bare one; `folder` is written to."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_FINDER.format(names=sorted(left_out())))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
