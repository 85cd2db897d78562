"""The names of ``import feedmill as fm``: each can be imported, is known to type checkers, and stands in the docs."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

import feedmill as fm
from feedmill import provided
from feedmill.cli import app as cli
from feedmill.cli.verbs import function_of

ROOT = Path(__file__).parents[1]
DOCS = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
OTHERS = {"demo", *(name for name in cli.VERBS if name.startswith("compat "))}
"""Verbs without a function: the demonstration, and the command lines of other tools."""
RENAMED = {"import": "import_data"}
"""Verbs whose names are keywords of Python, and their functions."""
VERBS = [RENAMED.get(name, function_of(name)) for name in cli.VERBS if name not in OTHERS]


@pytest.mark.parametrize("name", fm.__all__)
def test_the_name_can_be_imported_and_is_described(name: str) -> None:
    value = getattr(fm, name)
    assert value.__name__ == name and value.__doc__
    assert not name.islower() or re.search(rf"\bfm\.{name}\b", DOCS), "no page names the function"


def test_the_work_of_the_verbs_is_there_as_functions() -> None:
    assert set(VERBS) <= set(fm.__all__)
    assert all(f"`fm.{name}`" in DOCS for name in VERBS)


def test_type_checkers_see_the_names_that_are_there() -> None:
    """What is imported for them alone, by the same names and from the same modules as at run time."""
    tree = ast.parse(Path(fm.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert sorted(seen) == sorted(fm.__all__) == fm.__dir__()
    assert seen == {name: f"feedmill.{home}" for name, home in fm._HOME.items()}


def test_rooms_use_what_is_registered_of_higher_ones() -> None:
    sources = "".join(path.read_text() for path in Path(fm.__file__).parent.rglob("*.py"))
    asked = set(re.findall(r"\b(?:provided|home_of)\(\"(\w+)\"\)", sources))
    assert asked == set(provided._HOMES)
    assert all(resolve_name(home) for home in provided._HOMES.values())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fm.nothing  # noqa: B018
