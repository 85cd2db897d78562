"""Cells of documents: of columns of the index, and of attributes and fields through lineage beside a plain loop."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child
from feedmill.documents.lineage.sidecar import Origins, Runs, lineage_path
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.storage import open_store

FILES, DOCUMENTS, INDEXED = 20, 10_000, 100_000_000
_KEYS = [f"quality__gopher_v2__{name}" for name in "abcdefghijklmnop"]


def data() -> Path:
    """Return a folder with documents, attributes of 17 kinds, and a token file with its lineage; made once."""
    root = corpus.folder() / "cells"
    if (root / "whole").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    draw, store = random.Random(0), open_store(str(root / "tokens"))
    origins = Origins("tokenize")
    for number in range(FILES):
        documents = root / f"documents/{number:02}.jsonl"
        attributes = root / f"attributes/quality/{number:02}.jsonl"
        for path in (documents, attributes):
            path.parent.mkdir(parents=True, exist_ok=True)
        with documents.open("w") as texts, attributes.open("w") as scores:
            for row in range(DOCUMENTS):
                name, text = f"{number}-{row}", "water and stone " * draw.randrange(10, 60)
                meta = {"topic": draw.choice(["code", "math", "news", "law"]), "url": f"https://example.org/{row}"}
                document = {"id": name, "text": text, "source": draw.choice(["wiki", "web"]), "metadata": meta}
                texts.write(json.dumps(document) + "\n")
                spans = {key: [[0, len(text), round(draw.random(), 5)]] for key in _KEYS}
                spans["quality__score"] = [[0, len(text), round(draw.random(), 5)]]
                scores.write(json.dumps({"id": name, "attributes": spans}) + "\n")
        origins.number(str(documents), documents.stat().st_size)
        origins.add(Runs.whole(number, DOCUMENTS))
    lengths = np.random.default_rng(0).integers(1, 9, FILES * DOCUMENTS)
    with write_pbin(store, "x.pbin", 2) as writer:
        writer.add(np.zeros(int(lengths.sum()), np.uint16), lengths)
    store.write_bytes(lineage_path("x.pbin"), origins.encoded(store.locate("x.pbin"), store.stat("x.pbin").size))
    (root / "whole").touch()
    return root


def _side(python: str, mode: str, *arguments: Any) -> dict[str, float]:
    found: dict[str, float] = child(python, "curation.peers.cells", mode, *arguments)
    return found


def cells(repeat: int) -> list[Row]:
    """Processor time of both, on one process."""
    import sys

    root, here = data(), sys.executable
    ours, theirs = alternate(repeat, lambda: _side(here, "feedmill", root), lambda: _side(here, "loop", root))
    again, _ = alternate(1, lambda: _side(here, "again", root), None)
    index, _ = alternate(min(repeat, 3), lambda: _side(here, "index", INDEXED), None)
    note = "documents a second of processor time; the loop checks ids alone, knows no lineage and keeps nothing"
    return [
        Row(
            "cells",
            "attributes and fields through lineage; a loop with orjson",
            "/s",
            ours["rate"],
            theirs["rate"],
            note=note,
        ),
        Row("cells", "the same with other quantiles: nothing is read again", "/s", again["rate"], note=note),
        Row("cells", f"edges of an index column of {INDEXED:,} documents", "/s", index["rate"], note=note),
        Row("cells", "peak memory of that", "MB", index["memory"], bound=1000),
    ]


PARTS = {"cells": cells}
