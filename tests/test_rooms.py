"""Rooms depend on the rooms below them only, as the table in CONTRIBUTING.md says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "feedmill"
TABLE = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
LEVEL = {room: int(level) for level, rooms in TABLE for room in re.findall(r"`(\w+)`", rooms)}
MODULES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


def room(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def used(path: Path) -> set[str]:
    """The rooms that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"feedmill.{a.name}" for a in node.names] if node.module == "feedmill" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("feedmill.")}
    return found - {"__version__"}


def test_every_room_is_in_the_table() -> None:
    assert {room(path) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("name", sorted(LEVEL))
def test_rooms_use_only_what_lies_below(name: str) -> None:
    for path in MODULES:
        if room(path) == name:
            above = {other for other in used(path) - {name} if LEVEL[other] >= LEVEL[name]}
            assert not above - ({"cli"} if name == "compat" else set()), f"{path.name} uses {above}"
