"""Dry runs where nothing can be written, and in object stores: see `test_dry_runs`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedmill.storage import open_store
from helpers.dry_runs import GOOD, error_of, is_companion, names, run, state

IN_BUCKETS = {
    "import": ["import texts {b}/imported", "import {b}/photos {b}/imported"],
    "prepare": ["prepare {b}/plain --split-ratio 1,1,0"],
    "prepare-media": ["edit prepare-media {b}/coco --media-by-extension"],
    "convert": ["convert {b}/coco {b}/coco_mds --to mds --allow-loss"],
    "reshard": [
        "edit reshard {b}/coco {b}/coco2 --max-shard-samples 2",
        "edit reshard {b}/coco {b}/more --max-shard-samples 3 --overwrite",
    ],
    "append": ["edit append {b}/coco {b}/more"],
    "add-parts": ["edit add-parts {b}/coco {b}/parts"],
    "delete": ["edit delete {b}/coco 000001 --yes"],
    "repair": ["edit repair {b}/damaged"],
    "extract": ["documents extract {b}/crawl -o {b}/pages"],
    "tag": ["tag {b}/web/documents -t char_length_v1 --name lengths"],
    "cells": ["mixture cells {b}/docs.jsonl --by id"],
    "embed": ["documents embed {b}/web/documents --model static"],
    "dedupe": ["dedupe {b}/web/documents", "dedupe --near {b}/web/documents"],
    "decontaminate": ["documents decontaminate {b}/web/documents --against {b}/web/documents"],
    "filter": ["filter {b}/books.pbin {b}/short.pbin --max-length 100", "filter mix.yaml"],
    "run": ["run pipeline.yaml"],
    "tokenize": ["tokenize {b}/docs.jsonl -o {b}/tokens/docs -t tokenizer"],
    "merge": ["tokens merge {b}/books.pbin {b}/news.pbin {b}/all.pbin"],
    "shuffle": ["tokens shuffle {b}/books.pbin {b}/mixed.ds"],
    "split": ["tokens split {b}/books.pbin {b}/{{part}}.pbin --ratio 3,1"],
    "index": ["tokens index {b}/lines.jsonl"],
}
"""Verb -> commands; ``{b}`` is the URL of a bucket with the same files."""
REFUSED = {"add-parts", "delete"}
"""Verbs that do not rewrite datasets in buckets."""


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """Take the privilege to write anywhere from this thread for a block, if it has it."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    if not sys.platform.startswith("linux") or libc.capget(header, sets):
        pytest.skip("the privileges of root cannot be given up here")
    before = sets[0]
    sets[0] = before & ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_a_dry_run_fails_in_a_folder_without_write_permission(root: Path, verb: str) -> None:
    command = GOOD[verb][0] + (" --workers 1" if verb == "tag" else "")  # its processes would have the privilege
    folders = [path for path in (root, *root.rglob("*")) if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    before = state(root)
    try:
        with ordinary():
            with pytest.raises(PermissionError):
                (root / "new").touch()
            dry, done = run(command, "--dry-run", "--json"), run(command, "--json")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert dry.exit_code == done.exit_code == 1, dry.output
    assert {error_of(one.stdout)["kind"] for one in (dry, done)} == {"eacces"}, dry.stdout + done.stdout
    changed = {path for path, what in state(root).items() if what[2] != before.get(path, (0, 0, None))[2]}
    assert not changed


def objects(bucket: str) -> dict[str, Any]:
    """Return size and version of all objects by path."""
    return {entry.path: (entry.size, entry.version) for entry in open_store(bucket).files(hidden=True)}


@pytest.mark.parametrize(
    ("verb", "command"),
    [pytest.param(verb, command, id=command) for verb, listed in IN_BUCKETS.items() for command in listed],
)
def test_a_dry_run_changes_nothing_in_a_bucket(root: Path, s3_bucket: str, verb: str, command: str) -> None:
    store = open_store(s3_bucket)
    needed = ("web", *(word[4:].partition("/")[0] for word in command.split() if word.startswith("{b}/")))
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.relative_to(root).as_posix().startswith(needed):
            store.write_bytes(str(path.relative_to(root)), path.read_bytes())
    for name in ("mix.yaml", "pipeline.yaml"):
        text = (root / name).read_text().replace("web/", f"{s3_bucket}/web/")
        (root / name).write_text(text.replace("path: kept", f"path: {s3_bucket}/kept"))
    command = command.format(b=s3_bucket)
    before, here = objects(s3_bucket), state(root)
    dry = run(command, "--dry-run", "--json")
    assert dry.exit_code in (0, 1), dry.output
    assert objects(s3_bucket) == before and state(root) == here
    done = run(command, "--json")
    assert done.exit_code == dry.exit_code, done.output
    if verb in REFUSED:
        assert error_of(dry.stdout) == error_of(done.stdout) and error_of(done.stdout)["kind"] == "unsupported"
        assert objects(s3_bucket) == before
        return
    planned = json.loads(dry.stdout)["dry_run"]
    outputs = {out["path"].removeprefix(f"{s3_bucket}/"): out for out in planned["outputs"]}
    after = objects(s3_bucket)
    changed = {path for path, what in after.items() if what != before.get(path)}
    assert changed
    main = {path for path in changed if not is_companion(path, outputs)}
    unnamed = {path for path in main if not any(names(out, path) for out in outputs)}
    assert not unnamed, outputs
    for out, facts in outputs.items():
        if not os.path.isabs(out):
            assert any(names(out, path) for path in changed), f"{out} was not written"
            assert facts["replaces"] == any(names(out, path) for path in before), out
    gone = {path for path in before if path not in after and not is_companion(path, dict.fromkeys(before, 0))}
    assert gone == {path.removeprefix(f"{s3_bucket}/") for path in planned["deletes"]}


def test_every_verb_is_tried_in_a_bucket() -> None:
    assert set(IN_BUCKETS) == set(GOOD) - {"propose", "fit"}  # recipes, whose paths depend on the folder
