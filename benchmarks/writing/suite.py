"""Writing datasets beside webdataset's ShardWriter. README.md says what is compared.

The peer's interpreter is named by ``FEEDMILL_WEBDATASET_PYTHON``; that of Energon has webdataset too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import corpus
from measure import Row, alternate, child

PEERS = ("FEEDMILL_WEBDATASET_PYTHON", "FEEDMILL_ENERGON_PYTHON")
SAMPLES, PER_SHARD = 10_000, 2_500
MODES = {
    "bytes": "three parts of bytes, 8.7 KB",
    "jpgbytes": "a JPEG as bytes and a class",
    "json": "512 integers as JSON",
    "npz": "12 small arrays as .npz",
    "pth": "three tensors as .pth",
}


def _python() -> str | None:
    return next((os.environ[name] for name in PEERS if os.environ.get(name)), None)


def missing() -> str | None:
    """What to do to have the peer measured, or None where it is."""
    return None if _python() else f"writing is measured without webdataset: set {PEERS[0]}"


def side(name: str, mode: str) -> dict[str, float]:
    """One measurement of one side in a fresh process."""
    python = sys.executable if name == "feedmill" else _python()
    assert python is not None
    env = dict(os.environ) if name == "feedmill" else {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    target = corpus.folder() / f"writing_{name}"
    return child(python, "writing_side.py", name, mode, SAMPLES, PER_SHARD, target, env=env)


def writing(repeat: int) -> list[Row]:
    """Samples per second for each kind of sample."""
    rows = []
    for mode, what in MODES.items():
        if mode == "pth" and find_spec("feedmill.formats.pth") is None:
            continue
        theirs = partial(side, "webdataset", mode) if _python() else None
        ours, peer = alternate(repeat, partial(side, "feedmill", mode), theirs)
        rates = ours["samples_s"], peer.get("samples_s", [])
        rows.append(Row("writing", f"write, {what}, samples/s", "/s", *rates, 4, note="ours: synced, hashed, indexed"))
    return rows


PARTS: dict[str, Callable[[int], list[Row]]] = {"writing": writing}
