"""The public names of Python, and the function of each verb."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import feedmill as fm

GROUPS = [getattr(fm, name) for name in fm._GROUPS]


def names() -> Iterator[tuple[ModuleType, str]]:
    """Yield every public name with its module: `feedmill` or a group in it."""
    for module in (fm, *GROUPS):
        for name in module.__all__:
            if name not in fm._GROUPS:
                yield module, name


def dotted(verb: str) -> str:
    """Return the function of a verb as users write it: ``fm.tokens.merge``."""
    name = {"import": "import_data"}.get(verb, verb.split()[-1].replace("-", "_"))
    module = next(module for module, other in names() if other == name)
    return f"fm{module.__name__.removeprefix('feedmill')}.{name}"


def face_of(verb: str) -> Any:
    """Return the function of a verb."""
    value: Any = fm
    for name in dotted(verb).split(".")[1:]:
        value = getattr(value, name)
    return value
