"""Verbs that write to a bucket or a file system of fsspec: the bytes of a disk."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from feedmill.cli import verbs as cli
from feedmill.cli.app import app
from feedmill.compat.dolma import cli as dolma
from helpers.remote_places import PLACES, Place, cache, compare, local_tree, place, small_parts, source
from helpers.remote_verbs import ELSEWHERE, VERBS, Verb, arrange

__all__ = ["cache", "place", "small_parts", "source"]

FEW = ["reshard", "tokenize"]
FACES = ("dolma tag", "dolma mix", "dolma warc", "dolma tokens", "energon", "megatron", "modalities", "nanotron")
"""What commands begin with that write as a verb above them does."""
CASES = [  # the default run has each verb in a bucket, and two in each other place
    pytest.param(
        name,
        place,
        marks=[pytest.mark.slow] if name not in FEW and (place != "s3" or name.startswith(FACES)) else [],
    )
    for place in PLACES
    for name in (VERBS if place in ("s3", "files") else FEW)
]


@pytest.mark.parametrize(("name", "place"), CASES, indirect=["place"])
def test_the_bytes_are_those_of_a_disk(
    name: str, source: Path, tmp_path: Path, place: Place, small_parts: None
) -> None:
    verb, folder, url = VERBS[name], tmp_path / "out", f"{place.url}/deep/out"
    lines = [(target, arrange(verb, source, target, tmp_path / str(n))) for n, target in enumerate((str(folder), url))]
    before = local_tree(folder)
    for target, words in lines:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{target}: {done.output}{done.exception!r}"
    assert local_tree(folder).keys() - before.keys() or local_tree(folder) != before
    compare(place.tree("deep/out"), local_tree(folder), url, str(folder), verb.files)
    assert not place.unfinished()


def commands() -> Iterator[str]:
    """All commands, and those of other tools."""
    for name, verb in cli.VERBS.items():
        if verb.example:
            yield name
        elif name == "compat dolma":
            yield from (f"compat dolma {command}" for command in dolma.COMMANDS)
        else:
            group = get_command(importlib.import_module(verb.module).app)
            yield from (f"{name} {command}" for command in below(group))


def below(group: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from (f"{name} {word}" for word in below(command))
        else:
            yield name


def test_every_command_has_a_row_or_a_reason() -> None:
    rows = [verb.words.split() for verb in VERBS.values()]
    missing = set()
    for command in commands():
        if any(is_within(command.split(), row) for row in rows):
            assert command not in ELSEWHERE
        else:
            missing.add(command)
    assert missing == set(ELSEWHERE)


def is_within(words: list[str], row: list[str]) -> bool:
    """Whether the words are in a command line, in this order, the first ones of all at the beginning."""
    rest = iter(row)
    return words[0] == row[0] and all(word in rest for word in words)


@pytest.mark.parametrize("words", ["edit delete {out}/tars tars003 --yes", "edit add-parts {out}/tars {src}/more"])
def test_what_changes_shards_in_place_is_refused(
    words: str, source: Path, s3_bucket: str, cache: Path, tmp_path: Path
) -> None:
    words_there = arrange(Verb(words, ("tars",)), source, s3_bucket, tmp_path)
    before = Place(s3_bucket).tree("tars")
    done = CliRunner().invoke(app, words_there)
    assert done.exit_code == 1 and "not supported in an object store" in " ".join(done.output.split())
    assert Place(s3_bucket).tree("tars") == before
