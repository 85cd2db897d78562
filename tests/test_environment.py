"""What is said about Pythons and packages is true: `constraints.txt`, `pyproject.toml` and what is installed agree."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
PINS = dict(
    line.split(";")[0].strip().split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line
)
specifiers = pytest.importorskip("packaging.specifiers")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_this_python_is_one_that_is_named() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_runs_on_the_first_release_of_each_python(python: str) -> None:
    """Debian 12 has 3.11.2: a pin that needs 3.11.5 makes `make` fail there."""
    refused = []
    pins = {plain(name): version for name, version in PINS.items()}
    for found in distributions():
        wanted = found.metadata["Requires-Python"]
        pinned = pins.get(plain(found.name)) == found.version
        if pinned and wanted and not specifiers.SpecifierSet(wanted).contains(f"{python}.0"):
            refused.append(f"{found.name}=={found.version} needs Python {wanted}")
    assert not refused


def test_every_requirement_is_pinned() -> None:
    named = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    wanted = {plain(re.split(r"[\[<>=;~! ]", line)[0]) for line in named} - {"feedmill"}
    assert wanted <= {plain(name) for name in PINS}


def test_pins_lie_within_what_the_project_asks_for() -> None:
    for line in PROJECT["dependencies"]:
        name, bounds = re.fullmatch(r"([\w.-]+)([^;]*)(?:;.*)?", line).groups()  # type: ignore[union-attr]
        pin = next(version for other, version in PINS.items() if plain(other) == plain(name))
        assert specifiers.SpecifierSet(bounds.strip()).contains(pin), line
