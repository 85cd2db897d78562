"""Suite of importing files, compared with a script around ShardWriter, with `datasets`, and a bare loop."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import peers
from benchmarks.importing import files
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, child, rounds

PEERS = ("webdataset", "datasets")
KINDS = {"photos": "JPEGs with captions", "texts": "text files of 10 kB"}
BARE = "bare"
WANTED = 3


def side(name: str, kind: str, digests: dict[str, tuple[int, int]]) -> dict[str, float]:
    """Run one import in a fresh process, with the files in the page cache."""
    mine = name in ("feedmill", BARE)
    python, env = (sys.executable, dict(os.environ)) if mine else (peers.need(name), peers.environment())
    source, target = files.make(kind), corpus.folder() / f"import_out_{name}"
    corpus.warm(source)
    shutil.rmtree(target, ignore_errors=True)
    try:
        found: dict[str, Any] = child(python, f"importing.peers.{name}", "run", kind, source, target, env=env)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    digests[name] = (int(found["samples"]), int(found["digest"]))
    return {"seconds": found["seconds"]}


def importing(repeat: int) -> list[Row]:
    """Measure the seconds of an import beside each peer, and check that all have the same samples."""
    rows = []
    for kind, what in KINDS.items():
        digests: dict[str, tuple[int, int]] = {}
        sides = {name: partial(side, name, kind, digests) for name in PEERS if peers.python(name)}
        own = {name: partial(side, name, kind, digests) for name in (BARE, "feedmill")}
        found = rounds(repeat, {**sides, **own})
        if len(set(digests.values())) != 1:
            raise Failed(f"the imports of {kind} have different samples: {digests}")
        count = digests["feedmill"][0]
        for peer in sides or ("",):
            theirs = found[peer]["seconds"] if peer else []
            beside = f", beside {peer}" if peer else ""
            rows.append(
                Row("import", f"import {count:,} {what}{beside}", "s", found["feedmill"]["seconds"], theirs, WANTED)
            )
        floor = f"import {count:,} {what}, beside a loop that reads and writes the bytes"
        rows.append(Row("import", floor, "s", found["feedmill"]["seconds"], found[BARE]["seconds"]))
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {"import": importing}
