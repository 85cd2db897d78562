"""Rooms depend on the rooms below them only, as the table in CONTRIBUTING.md says, and no modules on one another.

Imports in functions and those for types count, and so does the name of a module in a string; see `tools/house.py`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
assert SPEC is not None and SPEC.loader is not None
house = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(house)


def test_every_room_is_in_the_table() -> None:
    assert {name.split(".")[1] for name in house.modules() if "." in name} - {"__main__"} == set(house.levels())


def test_rooms_use_only_what_lies_below() -> None:
    assert not house.arrows_up()


def test_no_module_imports_itself_through_others() -> None:
    """A package that its own modules name stands for what it imports, not for itself."""
    assert not house.circles()


def on_the_map(folder: Path) -> tuple[set[str], set[str]]:
    """The files and packages in a package, and those that its docstring names."""
    there = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_bytes())) or ""
    return there, {*re.findall(r"`(\w+\.py|\w+/)`", text)}


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in house.modules() if name.count(".") > 1}))
def test_a_room_is_its_own_map(room: str) -> None:
    """The docstring of its package names each file and folder in it, and no others."""
    there, named = on_the_map(house.SOURCE / room)
    unnamed = sorted(there - named)
    assert not unnamed, f"not on the map: {unnamed}"
    assert not {name for name in named if name.endswith(".py")} - there, f"gone: {sorted(named - there)}"


def test_a_package_that_names_some_of_its_files_names_all() -> None:
    """Where names say enough, such as those of taggers, no list is needed; half a list sends readers astray."""
    for init in house.SOURCE.glob("*/*/**/__init__.py"):
        there, named = on_the_map(init.parent)
        files = {name for name in there if name.endswith(".py")}
        assert not named & files or files <= named, f"{init.parent}: not on the map: {sorted(files - named)}"


def test_types_are_read_into_at_one_place() -> None:
    """msgspec's own functions are not safe where several threads first read a class (`feedmill.structs`)."""
    own = re.compile(
        r"msgspec\.convert\(|msgspec\.\w+\.Decoder\([^)]|msgspec\.\w+\.decode\([^#]*\btype=|from msgspec\b"
    )
    found = [
        f"{path.relative_to(house.SOURCE)}:{number}: {line.strip()}"
        for path in house.SOURCE.rglob("*.py")
        if path != house.SOURCE / "structs.py"
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if own.search(line)
    ]
    assert not found
