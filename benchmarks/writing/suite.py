"""Suite of writing datasets, compared with webdataset's ShardWriter. README.md has details."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child

PEERS = ("webdataset",)
SAMPLES, PER_SHARD = 10_000, 2_500
MODES = {
    "bytes": "three parts of bytes, 8.7 KB",
    "jpgbytes": "a JPEG as bytes and a class",
    "json": "512 integers as JSON",
    "npz": "12 small arrays as .npz",
    "pth": "three tensors as .pth",
}


def side(name: str, mode: str) -> dict[str, float]:
    """Run one measurement of Feedmill or a peer in a fresh process."""
    mine = name == "feedmill"
    python, env = (sys.executable, dict(os.environ)) if mine else (peers.need(name), peers.environment())
    target = corpus.folder() / f"writing_{name}"
    return child(python, f"writing.peers.{name}", "write", mode, SAMPLES, PER_SHARD, target, env=env)


def writing(repeat: int) -> list[Row]:
    """Measure samples per second for each kind of sample."""
    rows = []
    for mode, what in MODES.items():
        if mode == "pth" and find_spec("feedmill.formats.pth") is None:
            continue
        theirs = partial(side, "webdataset", mode) if peers.python("webdataset") else None
        ours, peer = alternate(repeat, partial(side, "feedmill", mode), theirs)
        rates = ours["samples_s"], peer.get("samples_s", [])
        rows.append(Row("writing", f"write, {what}, samples/s", "/s", *rates, 4, note="ours: synced, hashed, indexed"))
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {"writing": writing}
