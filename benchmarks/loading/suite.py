"""Suite of loaders: JSON lines, token windows, raw samples, JPEGs, resuming, and memory over a million samples."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.lib import corpus, pictures
from benchmarks.lib.measure import ROOT, Row, alternate, child, feedmill, run
from benchmarks.prepared.suite import CRUDE, prepared
from benchmarks.tokens import reading

WORKERS, SAMPLES, ROWS = 2, 1_000_000, 10_000_000
PEERS = ("modalities", "datatrove", "energon", "streaming", "datasets", "grain")
PYTHONS = {"webdataset": "streaming", "litdata": "streaming"}
"""Peer whose Python environment a peer is measured in, if it has none."""
NOTE = "wall time; (cpu) by the processor time of all processes"


def ours(*words: object) -> dict[str, Any]:
    """Run one measurement of Feedmill, or of a lower bound without it."""
    return child(sys.executable, "loading.peers.feedmill", *words)


def theirs(peer: str, *words: object) -> dict[str, Any]:
    """Run one measurement of a peer."""
    python = peers.need(PYTHONS.get(peer, peer))
    return child(python, f"loading.peers.{peer}", *words, env=peers.environment())


def _beside(
    part: str,
    what: str,
    mine: tuple[object, ...],
    peer: tuple[str, tuple[object, ...]],
    wanted: float | None,
    repeat: int,
) -> Iterable[Row]:
    """Yield two rows, by wall time and by processor time; none if the peer is not installed."""
    name, words = peer
    bare = name == "bare"
    if not bare and peers.python(PYTHONS.get(name, name)) is None:
        return
    a, b = alternate(repeat, lambda: ours(*mine), lambda: ours(*words) if bare else theirs(name, *words))
    yield Row(part, what, "/s", a["rate"], b["rate"], wanted, note=NOTE)
    if not any(map(math.isnan, a["cpu_rate"] + b["cpu_rate"])):
        yield Row(part, f"{what} (cpu)", "/s", a["cpu_rate"], b["cpu_rate"])


def tokens(repeat: int) -> Iterable[Row]:
    """Measure windows of 2,049 tokens as torch tensors, in M tokens: in batches of 64, and in small ones."""
    folder = reading.tokens(reading.TOKENS // 650)
    single, many = folder / "a.pbin", folder / "ds"
    part, what = "loader-tokens", "token windows, M tokens, beside"
    for size in (1, 16, 64):
        mine, of_size = ("tokens", single, 0, size), f", batches of {size}"
        bare, stacked = ("bare-tokens", single, size), ("stacked-tokens", single, size)
        yield from _beside(part, f"{what} a bare numpy copy of rows{of_size}", mine, ("bare", bare), 0.8, repeat)
        yield from _beside(part, f"{what} rows stacked by a script{of_size}", mine, ("bare", stacked), None, repeat)
    mine = ("tokens", single, WORKERS)
    peer = ("tokens", single, WORKERS)
    yield from _beside(part, f"{what} Modalities, 2 workers", mine, ("modalities", peer), 5, repeat)
    peer = ("tokens", many, WORKERS)
    yield from _beside(part, f"{what} datatrove, 2 workers", mine, ("datatrove", peer), 5, repeat)


def raw(repeat: int) -> Iterable[Row]:
    """Measure samples of two parts as bytes, in training order, in batches of 64."""
    folder = prepared(8)
    for path in (folder / "shards").iterdir():
        corpus.warm(path)
    for workers in (0, WORKERS):
        mine = ("raw", folder, workers)
        for name, wanted in (("energon", 10), ("webdataset", 4)):
            what = f"raw samples beside {name}, {workers} workers"
            yield from _beside("loader-raw", what, mine, (name, mine), wanted, repeat)


def local(repeat: int) -> Iterable[Row]:
    """Measure raw samples of local tars without workers: single ones, and shuffled as columns and as samples."""
    folder = prepared(8)
    for path in (folder / "shards").iterdir():
        corpus.warm(path)
    part, one, columns, samples = "loader-local", ("one", folder), ("columns", folder), ("raw", folder, 0)
    yield from _beside(
        part, "columns beside pread and slices", columns, ("bare", ("bare-columns", folder)), 0.7, repeat
    )
    for what, mine, name, make, word, wanted in (
        ("ds[i]", one, "datasets", "make", "one", 1.3),
        ("ds[i]", one, "streaming", "make-raw", "one", 1.3),
        ("columns", columns, "datasets", "make", "columns", 1.2),
        ("columns", columns, "litdata", "make-raw", "samples", 1.2),
        ("columns", columns, "grain", "make", "samples", 1.2),
        ("samples", samples, "litdata", "make-raw", "samples", 1.0),
        ("samples", samples, "grain", "make", "samples", 1.0),
    ):
        if peers.python(PYTHONS.get(name, name)) is None:
            continue
        copied = corpus.folder() / f"raw_8_{name}"
        if not copied.exists():
            theirs(name, make, folder, copied)
        yield from _beside(part, f"{what} beside {name}", mine, (name, (word, copied)), wanted, repeat)
        if (what, name) == ("ds[i]", "streaming"):
            yield from _beside(
                part, "MDS: ds[i] beside streaming", ("one", copied), (name, (word, copied)), 1.0, repeat
            )


def jpeg(repeat: int) -> Iterable[Row]:
    """Measure pictures of 375 x 500 as one uint8 array of 64, with 2 workers each."""
    folder = _pictures()
    part, mine = "loader-jpeg", ("jpeg", folder, WORKERS)
    what = "JPEGs decoded, beside"
    bare = ("bare", ("bare-jpeg", WORKERS))
    yield from _beside(part, f"{what} simplejpeg on 2 threads", mine, bare, 0.9, repeat)
    yield from _beside(part, f"{what} Energon", mine, ("energon", mine), None, repeat)
    yield from _beside(part, f"{what} webdataset", mine, ("webdataset", mine), None, repeat)
    for name in ("streaming", "litdata"):
        if peers.python("streaming") is None:
            continue
        copied = corpus.folder() / f"pictures_{pictures.COUNT}_{name}"
        if not (copied / "index.json").exists():
            shutil.rmtree(copied, ignore_errors=True)
            theirs(name, "make", folder / "shards", copied)
        yield from _beside(part, f"{what} {name}", mine, (name, ("jpeg", copied, WORKERS)), None, repeat)


def _pictures() -> Path:
    """Return the prepared tars, with a second description for crude samples."""
    folder = pictures.folder()
    if not (folder / ".nv-meta" / "index.sqlite").exists():
        words = ("--sample-type", "ImageSample", "--field-map", '{"image": "jpg"}')
        run(feedmill("prepare", folder, "--non-interactive", "--split-ratio", "1,0,0", *words))
    (folder / ".nv-meta" / "crude.yaml").write_text(CRUDE)
    for path in (folder / "shards").iterdir():
        corpus.warm(path)
    return folder


def state(repeat: int) -> Iterable[Row]:
    """Measure the time from a state at position 10^9 of a shuffled blend to the first batch, without imports."""
    folder = prepared(8)
    found, _ = alternate(repeat, lambda: ours("resume", folder), None)
    note = "recipe parsed, datasets opened, planned, state loaded, one batch read"
    yield Row("loader-state", "resume at position 10^9", "s", found["s"], bound=0.3, note=note)
    yield Row("loader-state", "its state", "bytes", found["bytes"], bound=1024)


_COLD = """import sys, feedmill as fm
next(iter(fm.Loader(fm.open(sys.argv[1], raw=True, decode=None), batch_size=16)))"""


def cold(repeat: int) -> Iterable[Row]:
    """Measure a whole process from `import feedmill` to the first batch, by its processor time."""
    folder = prepared(8)
    for what, path in (("a prepared folder", folder), ("one of its tars", next((folder / "shards").glob("*.tar")))):
        mine, numpy = alternate(
            repeat,
            lambda path=path: run([sys.executable, "-c", _COLD, str(path)]),
            lambda: run([sys.executable, "-c", "import numpy"]),
        )
        note = "processor time; 'import numpy' by itself beside it"
        yield Row(
            "loader-cold",
            f"import, open, Loader, first batch of {what}",
            "s",
            mine["cpu_s"],
            numpy["cpu_s"],
            0.52,
            note=note,
        )


def flat(_repeat: int) -> Iterable[Row]:
    """Measure memory from the first tenth of a million samples to the last, including workers."""
    folder = prepared(8)
    for workers in ("0", "2", "2p"):
        found, _ = alternate(1, lambda workers=workers: ours("flat", folder, workers, SAMPLES), None)
        who = f"{workers[0]} {'processes' if 'p' in workers else 'threads'}"
        what = f"{SAMPLES:,} samples, {who}: growth"
        yield Row("loader-memory", what, "MB", found["mb"], bound=20, note=f"{found['whole_mb'][0]:.0f} MB in all")


def lines(repeat: int) -> Iterable[Row]:
    """Measure a JSONL file of many short rows without an index beside one of few: whole processes after the first."""
    part, few, many = "loader-lines", 10_000, ROWS
    env = {**os.environ, "FEEDMILL_CACHE_DIR": str(corpus.folder() / "cache")}
    batch = [sys.executable, "-m", "benchmarks.loading.peers.feedmill", "lines"]
    for what, command, end in (
        ("open and first batch", batch, ""),
        ("info", feedmill("show"), ""),
        ("prepare", feedmill("prepare"), ".prepared"),
    ):

        def side(rows: int, words: Sequence[str] = command, end: str = end) -> dict[str, float]:
            return run([*words, str(_rows(rows, end))], env=env, folder=ROOT)

        shutil.rmtree(env["FEEDMILL_CACHE_DIR"], ignore_errors=True)
        first = side(many)
        ours, theirs = alternate(repeat, partial(side, many), partial(side, few))
        note = f"the first process {first['cpu_s']:.2f} s of processor time, {first['peak_mb']:.0f} MB"
        what = f"JSONL of {many:,} rows beside {few:,}: {what}"
        target = None if end else 0.67  # preparing reads all of it each time
        yield Row(part, f"{what} (cpu)", "s", ours["cpu_s"], theirs["cpu_s"], target, note=note)
        yield Row(part, f"{what}, memory", "MB", ours["peak_mb"], theirs["peak_mb"], 0.67)


def _rows(count: int, end: str = "") -> Path:
    """Return a JSONL file of rows of about 60 bytes; those of other ends are to be prepared."""
    path = corpus.folder() / f"rows_{count}{end}.jsonl"
    if not path.exists():
        with (part := path.with_suffix(".part")).open("wb") as out:
            for low in range(0, count, 100_000):
                numbers = range(low, min(low + 100_000, count))
                text = "the quick brown fox jumps %07d"
                out.write(
                    "".join(f'{{"id": {n}, "text": "{text % (n * 7919 % 9999991)}"}}\n' for n in numbers).encode()
                )
        part.rename(path)
    return path


PARTS = {
    "loader-lines": lines,
    "loader-tokens": tokens,
    "loader-raw": raw,
    "loader-local": local,
    "loader-jpeg": jpeg,
    "loader-state": state,
    "loader-cold": cold,
    "loader-memory": flat,
}
