"""The names of ``import feedmill as fm``: each can be imported, is known to type checkers, and stands in the docs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import feedmill as fm
from feedmill import provided
from feedmill.cli import app as cli
from helpers.faces import GROUPS, dotted, face_of, names

ROOT = Path(__file__).parents[1]
DOCS = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
OTHERS = {"demo", *(name for name in cli.VERBS if name.startswith("compat "))}
"""Verbs without a function: the demonstration, and the command lines of other tools."""
VERBS = [name for name in cli.VERBS if name not in OTHERS]


@pytest.mark.parametrize(("module", "name"), [*names()], ids=lambda value: getattr(value, "__name__", value))
def test_the_name_can_be_imported_and_is_described(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    assert value.__name__ == name and value.__doc__
    written = f"fm{module.__name__.removeprefix('feedmill')}.{name}"
    assert not name.islower() or re.search(rf"\b{re.escape(written)}\b", DOCS), "no page names the function"


def test_the_front_is_what_a_screen_holds() -> None:
    assert 40 <= len(fm.__all__) <= 50
    assert not [name for module, name in names() if module is not fm and name in fm.__all__]
    every = [name for _, name in names()]
    assert len(every) == len(set(every)), "a name is in one place"


def test_the_work_of_the_verbs_is_there_as_functions() -> None:
    assert all(callable(face_of(verb)) and f"`{dotted(verb)}`" in DOCS for verb in VERBS)


def test_the_reports_of_the_verbs_are_named() -> None:
    """So that a program can annotate what it gets."""
    for verb in VERBS:
        for report in inspect.signature(face_of(verb)).return_annotation.split(" | "):
            assert not report.endswith("Report") or hasattr(fm.reports, report), report


@pytest.mark.parametrize("module", [fm, *GROUPS], ids=lambda module: module.__name__)
def test_type_checkers_see_the_names_that_are_there(module: ModuleType) -> None:
    """What is imported for them alone, by the same names and from the same modules as at run time."""
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert sorted(seen) == sorted(module.__all__) == dir(module)
    homes = fm._HOME if module is fm else module.HOMES
    groups = dict.fromkeys(fm._GROUPS if module is fm else (), "feedmill")
    assert seen == {name: f"feedmill.{home}" for name, home in homes.items()} | groups


def test_names_are_the_same_after_all_modules_were_imported() -> None:
    """A module of a verb's name in a group's package would take the place of its function."""
    program = """
import pkgutil, importlib, inspect, feedmill as fm
for name in fm._GROUPS:
    group = getattr(fm, name)
    for found in pkgutil.iter_modules(getattr(group, "__path__", [])):
        importlib.import_module(f"feedmill.{name}.{found.name}")
    assert not [each for each in group.__all__ if inspect.ismodule(getattr(group, each))], name
assert not [each for each in fm.__all__ if each not in fm._GROUPS and inspect.ismodule(getattr(fm, each))]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_rooms_use_what_is_registered_of_higher_ones() -> None:
    sources = "".join(path.read_text() for path in Path(fm.__file__).parent.rglob("*.py"))
    asked = set(re.findall(r"\b(?:provided|home_of)\(\"(\w+)\"\)", sources))
    assert asked == set(provided._HOMES)
    assert all(resolve_name(home) for home in provided._HOMES.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "module 'feedmill' has no attribute 'nothing'$"),
        ("merge", "no attribute 'merge'. It is fm.tokens.merge$"),
        ("append", "It is fm.edit.append$"),
        ("stat", "It is fm.documents.stat$"),
        ("CaptioningSample", "It is fm.samples.CaptioningSample$"),
        ("CheckReport", "It is fm.reports.CheckReport$"),
        ("Substitute", "It is fm.loading.Substitute$"),
    ],
)
def test_a_name_that_is_elsewhere_is_an_attribute_error_that_says_where(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(fm, name)
    for group in GROUPS:
        with pytest.raises(AttributeError, match=f"module '{group.__name__}' has no attribute 'nothing'"):
            group.nothing  # noqa: B018
