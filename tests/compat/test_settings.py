"""The tables of peers' settings know every setting of the pinned release, and the pages follow them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from feedmill.compat.settings import PEERS
from feedmill.errors import ConfigError
from feedmill.formats.settings import Fate, Origin, Table, mapped, no_effect, refused

ROOT = Path(__file__).parents[2]
WRITE: dict[str, Any] = runpy.run_path(str(ROOT / "docs/migration/write.py"))
READER = ROOT / "tests/interop/settings.py"
TABLES = [pytest.param(name, table, id=f"{name}: {table.face}") for name in PEERS for table in PEERS[name].tables]


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"tests/golden/settings/{name}.json").read_text())
    return found


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_a_table_has_the_settings_of_the_release(name: str, table: Table) -> None:
    origins = stored(name)[table.face]
    assert [tuple(origin[:4]) for origin in origins] == [origin[:4] for origin in table.origin]
    known = {each for origin in origins for each in origin[4]}
    asked = {each for origin, own in zip(origins, table.origin, strict=True) if own.whole for each in origin[4]}
    assert asked - set(table.settings) == set(), "say in the table what becomes of them"
    assert set(table.settings) - known == set(), "the release has no such settings"


@pytest.mark.parametrize("name", PEERS)
def test_the_release_is_the_pinned_one(name: str) -> None:
    release = PEERS[name].release
    assert stored(name)["release"] == release
    assert set(stored(name)) == {"release", *(table.face for table in PEERS[name].tables)}
    pins = [
        pin
        for peer in tomllib.loads((ROOT / "benchmarks/peers.toml").read_text()).values()
        for pin in peer["requirements"]
    ]
    commits = re.findall("`([0-9a-f]{7,8})`", (ROOT / "docs" / PEERS[name].page).read_text())
    assert release in pins or any(release.partition("@")[2].startswith(commit) for commit in commits)


def test_the_page_has_the_tables() -> None:
    text = WRITE["page"]()
    assert WRITE["PAGE"].read_text() == text, "run: python docs/migration/write.py"
    assert all(f"### Settings: {table.face}\n" in text for peer in PEERS.values() for table in peer.tables)


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_the_names_are_those_in_the_source(name: str, tmp_path: Path) -> None:
    """A release is downloaded; FEEDMILL_PEER_SOURCES names a folder with the checkout of each other peer."""
    spec = importlib.util.spec_from_file_location("settings_reader", READER)
    assert spec is not None and spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    release = PEERS[name].release
    if "==" in release:
        try:
            source = reader.download(release, tmp_path)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{release} cannot be downloaded here: {error}")
    else:
        folder = os.environ.get("FEEDMILL_PEER_SOURCES")
        if not folder:
            pytest.skip(f"FEEDMILL_PEER_SOURCES names no folder with {name}, a checkout of {release}")
        source = Path(folder, name)
    assert reader.text(PEERS[name], source) == reader.golden(name).read_text(), f"run: {READER.name} {name}"


SMALL = Table(
    face="a test",
    origin=(Origin("fields", "none.py"),),
    settings={"weight": mapped("share"), "mode": refused("not done", "plain"), "threads": no_effect("not needed")},
)


def test_what_is_given_is_used_refused_or_noted() -> None:
    taken = SMALL.take({"weight": 3, "mode": "plain", "threads": 2})
    assert taken.used == {"weight": 3}
    assert taken.notes == ["'threads' has no effect: not needed"]
    assert SMALL.names(Fate.REFUSED) == ["mode"]
    for off in (None, False):
        assert SMALL.take({"mode": off}).used == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "odd"}, "x.yaml: 'mode' is unsupported: not done. Remove it."),
        ({"mode": 0}, "x.yaml: 'mode' is unsupported: not done. Remove it."),
        (
            {"wieght": 3},
            r"x.yaml: unknown setting 'wieght' \(did you mean 'weight'\?\). Remove it: it is not a setting of a test.",
        ),
    ],
)
def test_what_cannot_be_is_an_error(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SMALL.take(given, "x.yaml")


def test_other_words_are_noted_if_they_may_occur_and_misspelled_ones_are_errors() -> None:
    table = Table(SMALL.face, SMALL.origin, SMALL.settings, open=True)
    assert table.take({"weight": 3, "layers": 4, "heads": 2}).notes == ["not used: layers, heads"]
    with pytest.raises(ConfigError, match=r"a.yaml:7: unknown setting 'wieght'. Did you mean 'weight'\?"):
        table.take({"layers": 4, "wieght": 3}, lambda name: {"wieght": "a.yaml:7"}.get(name))
