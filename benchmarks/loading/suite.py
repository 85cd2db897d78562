"""Loaders beside their peers: token windows, raw samples, JPEGs; resuming, and memory over a million samples.

The peers' interpreters are named by ``FEEDMILL_MODALITIES_PYTHON``, ``FEEDMILL_DATATROVE_PYTHON``,
``FEEDMILL_ENERGON_PYTHON`` and ``FEEDMILL_STREAMING_PYTHON`` (webdataset, MosaicML Streaming, LitData).
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import corpus
import energon
import pictures
import reading
from measure import Row, alternate, child, feedmill, run

WORKERS, SAMPLES = 2, 1_000_000
PEERS = {name: f"FEEDMILL_{name.upper()}_PYTHON" for name in ("modalities", "datatrove", "energon", "streaming")}
NOTE = "wall time; (cpu) by the processor time of all processes"


def missing() -> str | None:
    """What to do to have everything measured, or None where it is."""
    names = [name for name in PEERS.values() if not os.environ.get(name)]
    return f"loaders are not measured beside some peers: set {', '.join(names)}." if names else None


def ours(*words: object) -> dict[str, Any]:
    """One measurement of Feedmill, or of a floor without it."""
    return child(sys.executable, "loading_side.py", *words)


def theirs(python: str, *words: object) -> dict[str, Any]:
    """One measurement of a peer."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return child(python, "loading_peers.py", *words, env=environment)


def _beside(
    part: str,
    what: str,
    mine: tuple[object, ...],
    peer: tuple[str, tuple[object, ...]],
    wanted: float | None,
    repeat: int,
) -> Iterable[Row]:
    """Two rows, by wall time and by processor time; none where the peer is not at hand."""
    name, words = peer
    python = os.environ.get(PEERS.get(name, ""))
    if name != "bare" and not python:
        return
    a, b = alternate(repeat, lambda: ours(*mine), lambda: theirs(python, *words) if python else ours(*words))
    yield Row(part, what, "/s", a["rate"], b["rate"], wanted, note=NOTE)
    if not any(map(math.isnan, a["cpu_rate"] + b["cpu_rate"])):
        yield Row(part, f"{what} (cpu)", "/s", a["cpu_rate"], b["cpu_rate"])


def tokens(repeat: int) -> Iterable[Row]:
    """Windows of 2,049 tokens, batches of 64, as torch tensors, in M tokens."""
    folder = reading.tokens(reading.TOKENS // 650)
    single, many = folder / "a.pbin", folder / "ds"
    part, what = "loader-tokens", "token windows, M tokens, beside"
    yield from _beside(
        part,
        f"{what} a bare numpy gather",
        ("feedmill-tokens", single, 0),
        ("bare", ("bare-tokens", single)),
        0.6,
        repeat,
    )
    mine = ("feedmill-tokens", single, WORKERS)
    peer = ("modalities-tokens", single, WORKERS)
    yield from _beside(part, f"{what} Modalities, 2 workers", mine, ("modalities", peer), 5, repeat)
    peer = ("datatrove-tokens", many, WORKERS)
    yield from _beside(part, f"{what} datatrove, 2 workers", mine, ("datatrove", peer), 5, repeat)


def raw(repeat: int) -> Iterable[Row]:
    """Samples of two parts as bytes, in training order, batches of 64."""
    folder = energon.prepared(8)
    for path in (folder / "shards").iterdir():
        corpus.warm(path)
    for workers in (0, WORKERS):
        mine = ("feedmill-raw", folder, workers)
        for name, script, wanted in (("energon", "energon-raw", 10), ("streaming", "webdataset-raw", 4)):
            what = f"raw samples beside {script.partition('-')[0]}, {workers} workers"
            yield from _beside("loader-raw", what, mine, (name, (script, folder, workers)), wanted, repeat)


def jpeg(repeat: int) -> Iterable[Row]:
    """Pictures of 375 x 500 as one uint8 array of 64, 2 workers each."""
    folder = _pictures()
    part, mine = "loader-jpeg", ("feedmill-jpeg", folder, WORKERS)
    what = "JPEGs decoded, beside"
    bare = ("bare", ("bare-jpeg", WORKERS))
    yield from _beside(part, f"{what} simplejpeg on 2 threads", mine, bare, 0.9, repeat)
    yield from _beside(part, f"{what} Energon", mine, ("energon", ("energon-jpeg", folder, WORKERS)), None, repeat)
    yield from _beside(
        part, f"{what} webdataset", mine, ("streaming", ("webdataset-jpeg", folder, WORKERS)), None, repeat
    )
    for name in ("streaming", "litdata"):
        python = os.environ.get(PEERS["streaming"])
        if not python:
            continue
        copied = corpus.folder() / f"pictures_{pictures.COUNT}_{name}"
        if not (copied / "index.json").exists():
            shutil.rmtree(copied, ignore_errors=True)
            theirs(python, f"make-{name}", folder / "shards", copied)
        peer = ("streaming", (f"{name}-jpeg", copied, WORKERS))
        yield from _beside(part, f"{what} {name}", mine, peer, None, repeat)


def _pictures() -> Path:
    """The tars, prepared, with a second description for crude samples."""
    folder = pictures.folder()
    if not (folder / ".nv-meta" / "index.sqlite").exists():
        words = ("--sample-type", "ImageSample", "--field-map", '{"image": "jpg"}')
        run(feedmill("prepare", folder, "--non-interactive", "--split-ratio", "1,0,0", *words))
    (folder / ".nv-meta" / "crude.yaml").write_text(energon.CRUDE)
    for path in (folder / "shards").iterdir():
        corpus.warm(path)
    return folder


def state(repeat: int) -> Iterable[Row]:
    """From a state at position 10^9 of a shuffled blend to the first batch, imports left out."""
    folder = energon.prepared(8)
    found, _ = alternate(repeat, lambda: ours("resume", folder), None)
    note = "recipe parsed, datasets opened, planned, state loaded, one batch read"
    yield Row("loader-state", "resume at position 10^9", "s", found["s"], bound=0.3, note=note)
    yield Row("loader-state", "its state", "bytes", found["bytes"], bound=1024)


def flat(_repeat: int) -> Iterable[Row]:
    """Memory from the first tenth of a million samples to the last, workers included."""
    folder = energon.prepared(8)
    for workers in ("0", "2", "2p"):
        found, _ = alternate(1, lambda workers=workers: ours("flat", folder, workers, SAMPLES), None)
        who = f"{workers[0]} {'processes' if 'p' in workers else 'threads'}"
        what = f"{SAMPLES:,} samples, {who}: growth"
        yield Row("loader-memory", what, "MB", found["mb"], bound=20, note=f"{found['whole_mb'][0]:.0f} MB in all")


PARTS = {
    "loader-tokens": tokens,
    "loader-raw": raw,
    "loader-jpeg": jpeg,
    "loader-state": state,
    "loader-memory": flat,
}
