"""Rooms depend on the rooms below them only, as the table in CONTRIBUTING.md says, and no modules on one another.

Imports in functions and those for types count, and so does the name of a module in a string; see `tools/house.py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

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
