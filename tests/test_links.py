"""Links that a dataset brings along: no writing verb follows one, whatever name of ours it has.

Each verb runs calmly once, and every file and folder that it makes, opens for writing or renames to is noted. Then it
runs with a link to a victim in the place of each of them in turn.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import feedmill as fm
from feedmill.cli.app import app
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.jobs.work_folder import FOLDER
from feedmill.storage import LocalStore
from helpers.document_datasets import write_documents, write_tree
from helpers.tars import tar_bytes
from helpers.tokenizer_data import tokenizer_file, write_lines
from helpers.web_archives import archive, pages

STAGED = re.compile(r"\.[0-9a-f]{12}\.feedmill-tmp$")
_noted: set[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _noted is None or (event == "open" and isinstance(arguments[0], int)):  # a file that is open, by its number
        return
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        _noted.add(str(arguments[0]))
    elif event in ("os.mkdir", "os.rename"):
        _noted.add(str(arguments[event == "os.rename"]))


@cache
def listen() -> None:
    """Note what this process does from now on. There is no end of that, and it makes all other tests slower."""
    sys.addaudithook(_note)


def shards(root: Path) -> None:
    for number in range(2):
        files = [(f"k{number}{i}.txt", b"a text") for i in range(3)]
        (root / "d").mkdir(parents=True, exist_ok=True)
        (root / f"d/{number}.tar").write_bytes(tar_bytes(files))


def torn(root: Path) -> None:
    shards(root)
    data = (root / "d/1.tar").read_bytes()
    (root / "d/1.tar").write_bytes(data[:2200])


def prepared(root: Path) -> None:
    for name, keys in (("d", "k"), ("more", "n")):
        made = ({"__key__": f"{keys}{i}", "txt": f"text {i}"} for i in range(6))
        fm.write(str(root / name), made, max_shard_samples=3, sample_type="CrudeWebdataset", progress=False)
    fm.write(str(root / "extra"), ({"__key__": f"k{i}", "cls": i} for i in range(6)), progress=False)


def documents(root: Path) -> None:
    write_tree(root, files=2, rows=3)
    write_lines(root / "a.jsonl", ["one", "two"])
    for k in range(2):
        rows = [{"id": f"d{1000 * k + i}", "attributes": {"a__a__n": [[0, 1, 1.0]]}} for i in range(3 * (k + 1))]
        write_documents(root / f"attributes/a/part-{k}.jsonl.gz", rows)
    out = {"path": "mixed", "max_size_in_bytes": 1}
    stream = {"name": "m", "documents": ["documents/*"], "attributes": ["a"], "output": out}
    (root / "mix.json").write_text(json.dumps({"streams": [stream]}))


def crawl(root: Path) -> None:
    pytest.importorskip("resiliparse")
    archive(root / "c/a.warc.gz", pages(3))


def packed(root: Path) -> None:
    root.mkdir(exist_ok=True)
    with write_pbin(LocalStore(root), "a.pbin", 2) as file:
        file.add(np.arange(30), np.full(10, 3))


def pictures(root: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (root / "d").mkdir(parents=True)
    image.new("RGB", (3, 3)).save(root / "d/a.png")


Make = Callable[[Path], None]
VERBS: dict[str, tuple[Make, list[str]]] = {
    "prepare": (shards, ["prepare", "d", "--split-ratio", "1,0,0"]),
    "prepare again": (prepared, ["prepare", "d", "--split-ratio", "1,1,0", "--rescan"]),
    "prepare jsonl": (documents, ["prepare", "a.jsonl", "--split-ratio", "1,1,0"]),
    "repair": (torn, ["edit", "repair", "d"]),
    "prepare-media": (pictures, ["edit", "prepare-media", "d", "--media-by-extension"]),
    "append": (prepared, ["edit", "append", "d", "more", "--workers", "1"]),
    "delete": (prepared, ["edit", "delete", "d", "--yes", "k1", "--workers", "1"]),
    "add-parts": (prepared, ["edit", "add-parts", "d", "extra", "--workers", "1"]),
    "reshard": (prepared, ["edit", "reshard", "d", "e", "--max-shard-samples", "4", "--workers", "1"]),
    "reshard over it": (
        prepared,
        ["edit", "reshard", "d", "more", "--max-shard-samples", "4", "--workers", "1", "--overwrite"],
    ),
    "convert": (prepared, ["convert", "d", "e", "--to", "mds", "--workers", "1"]),
    "convert to a file": (prepared, ["convert", "d", "e.jsonl", "--to", "jsonl", "--fields", "txt", "--workers", "1"]),
    "tokenize": (documents, ["tokenize", "a.jsonl", "-o", "o", "-t", str(tokenizer_file("tok1k")), "--workers", "1"]),
    "extract": (crawl, ["documents", "extract", "c", "-o", "o", "--workers", "1", "-t", "char_length_v1"]),
    "tag": (documents, ["tag", "documents/*", "--name", "e", "-t", "char_length_v1"]),
    "dedupe": (documents, ["dedupe", "documents", "--workers", "1"]),
    "dedupe --bloom": (documents, ["dedupe", "documents", "--workers", "1", "--bloom", "f.bin", "--items", "100"]),
    "merge": (packed, ["tokens", "merge", "a.pbin", "o.pbin"]),
    "shuffle": (packed, ["tokens", "shuffle", "a.pbin", "o.pbin", "--seed", "1"]),
    "split": (packed, ["tokens", "split", "a.pbin", "o-{part}.pbin", "--chunks", "2"]),
    "filter": (packed, ["filter", "a.pbin", "o.pbin", "--min-length", "1"]),
    "filter lines": (documents, ["filter", "a.jsonl", "o.jsonl", "--min-length", "1"]),
    "decontaminate": (
        documents,
        ["documents", "decontaminate", "documents", "--against", "documents", "--workers", "1"],
    ),
    "neardedupe": (documents, ["dedupe", "--near", "documents", "--workers", "1"]),
    "mix": (documents, ["filter", "mix.json", "--workers", "1"]),
}
GIVEN = ("d", "e", "o", "mixed", "f.bin")
"""Named by the user, who may name a link."""
QUICK = ("prepare", "repair", "append", "delete", "convert to a file", "tag", "tokenize")
"""The others take long, together."""


def run(words: list[str]) -> Result:
    return CliRunner().invoke(app, words, prog_name="feedmill")


def everything(root: Path) -> set[str]:
    return {os.path.relpath(path, root) for path in root.rglob("*")}


def names_of(make: Make, words: list[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a verb makes, opens for writing and renames to, relative to the folder it runs in."""
    global _noted
    make(root)
    monkeypatch.chdir(root)
    listen()
    before, _noted = everything(root), set()
    try:
        done = run(words)
    finally:
        noted, _noted = _noted, None
    assert done.exit_code == 0, done.output
    seen = {os.path.relpath(name, root) for name in noted if os.path.abspath(name).startswith(f"{root}/")}
    found = sorted(name for name in seen | (everything(root) - before) if not STAGED.search(name) and name not in GIVEN)
    assert found
    return found


def plant(root: Path, name: str, victim: Path) -> None:
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.copytree(place, victim, dirs_exist_ok=True)
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(victim)


def state(victim: Path) -> list[tuple[str, int, bytes]]:
    paths = [victim, *sorted(victim.rglob("*"))]
    return [(str(path), path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths]


@pytest.mark.parametrize("verb", [v if v in QUICK else pytest.param(v, marks=pytest.mark.slow) for v in VERBS])
def test_no_verb_writes_through_a_link(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, words = VERBS[verb]
    calm = tmp_path / "calm"
    names = names_of(make, words, calm, monkeypatch)
    fresh = tmp_path / "fresh"
    make(fresh)
    for number, name in enumerate(names):
        kinds = [(calm / name).is_dir()] if (calm / name).exists() else [False, True]
        for folder in kinds:
            root, victim = tmp_path / f"at{number}{folder}", tmp_path / f"victim{number}{folder}"
            shutil.copytree(fresh, root, symlinks=True)
            precious = victim / "precious" if folder else victim
            precious.parent.mkdir(exist_ok=True)
            precious.write_bytes(b"mine")
            victim.chmod(0o750 if folder else 0o640)
            plant(root, name, victim)
            before = state(victim)
            monkeypatch.chdir(root)
            done = run(words)
            assert state(victim) == before, f"{verb}: through {name}"
            assert done.exit_code in (0, 1) and isinstance(done.exception, SystemExit | None), (name, done.exception)


def test_what_lies_above_the_dataset_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real/d")
    monkeypatch.chdir(tmp_path)
    assert run(["prepare", "link", "--split-ratio", "1,0,0"]).exit_code == 0
    assert (tmp_path / "real/d/.nv-meta/index.sqlite").exists()


def test_a_link_that_is_named_as_the_output_is_replaced_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path)
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "e.jsonl").symlink_to(tmp_path / "victim")
    monkeypatch.chdir(tmp_path)
    words = VERBS["convert to a file"][1]
    assert run(words).exit_code == 1  # there is a file already
    assert run([*words, "--overwrite"]).exit_code == 0
    assert (tmp_path / "victim").read_bytes() == b"mine" and not (tmp_path / "e.jsonl").is_symlink()


def test_a_linked_folder_of_work_is_refused_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d" / FOLDER).symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    done = run(["edit", "delete", "d", "--yes", "k1"])
    assert done.exit_code == 1 and "this is a link" in done.output and FOLDER in done.output
