"""Rooms depend on the rooms below them only, as the table in CONTRIBUTING.md says."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "feedmill"
TABLE = re.findall(r"^\| (\d+) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
LEVEL = {room: int(level) for level, rooms in TABLE for room in re.findall(r"`(\w+)`", rooms)}
MODULES = [path for path in SOURCE.rglob("*.py") if path not in (SOURCE / "__init__.py", SOURCE / "__main__.py")]


def room(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


Imports = list[tuple[ast.Import | ast.ImportFrom, bool]]


@cache
def imports(path: Path) -> Imports:
    """The imports of a module, wherever in it, and whether each is for types alone. No expression has any."""
    found: Imports = []

    def walk(node: ast.AST, typed: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, typed))
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(node, part, ()):
                walk(child, typed or (checking and part == "body"))

    walk(ast.parse(path.read_text()), False)
    return found


def used(path: Path) -> set[str]:
    """The rooms that a module imports."""
    found = set()
    for node, _ in imports(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module:
            names = [f"feedmill.{a.name}" for a in node.names] if node.module == "feedmill" else [node.module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("feedmill.")}
    return found


def test_every_room_is_in_the_table() -> None:
    assert {room(path) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("name", sorted(LEVEL))
def test_rooms_use_only_what_lies_below(name: str) -> None:
    for path in MODULES:
        if room(path) == name:
            above = {other for other in used(path) - {name} if LEVEL[other] >= LEVEL[name]}
            assert not above - ({"cli"} if name == "compat" else set()), f"{path.name} uses {above}"


def imported(path: Path) -> set[str]:
    """The modules of this package that a module imports when it runs, inside functions too; not those of types only."""
    found: set[str] = set()
    for node, typed in imports(path):
        if typed:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
    return found


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_imports_itself_through_others() -> None:
    """A package that its own modules name stands for what it imports, not for itself."""
    uses = {module(path): imported(path) for path in MODULES}
    known = {name: {other for other in found if other in uses and other != name} for name, found in uses.items()}
    for name, found in known.items():
        found -= {other for other in found if name.startswith(f"{other}.")}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        raise AssertionError(f"imports go round: {' -> '.join(error.args[1])}") from None
