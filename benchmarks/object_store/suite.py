"""Suite of loading from a bucket at 0 and 20 ms with 0, 2 and 8 workers: batches, caches, first batch, processes."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from benchmarks.lib.measure import Measure, Row, alternate, rounds
from benchmarks.object_store import data, server, sides
from benchmarks.object_store.processes import processes
from benchmarks.object_store.sides import IN_FLIGHT, Comparison, available, ours, script, theirs
from benchmarks.prepared.suite import OURS, THEIRS

PEERS = ("streaming", "energon")
LATENCIES, WORKERS, REPEAT = (0, 20), (0, 2, 8), 3
ENERGON_SAMPLES = 2_000
EPOCHS = 5
CACHE = {"FEEDMILL_CACHE_SIZE": "16GB"}

Part = Callable[[int], Iterable[Row]]


def served(part: Part) -> Part:
    """Make a part that runs only if the server can; otherwise it prints what to install."""

    @functools.wraps(part)
    def measured(repeat: int) -> Iterable[Row]:
        if server.missing():
            print(f"not measured: {server.ADVICE}", file=sys.stderr, flush=True)
            return []
        return part(min(repeat, REPEAT))

    return measured


def _beside(
    part: str,
    what: str,
    path: Path,
    sides_of: Callable[[int, int], dict[str, Measure]],
    samples: int,
    repeat: int,
    *,
    whole: bool = True,
) -> Iterable[Row]:
    """Yield the rows of a comparison for each latency and number of workers, with their targets.

    Args:
        path: the data that Feedmill reads.
        sides_of: returns the loaders for a latency and a number of workers; `bare` is added.
        samples: number of samples of the data.
        whole: whether all of the data is read.
    """
    source = path if path.is_dir() else path.parent
    for ms in LATENCIES:
        for workers in WORKERS:
            chosen = {
                **sides_of(ms, workers),
                "bare": partial(ours, ms, "feedmill", "bare", data.url(source), IN_FLIGHT),
            }
            wanted = 2 if ms and workers != 2 else 1.5
            size = data.size(source) if whole else 0
            files = max(1, data.shards(source))
            said = f"{what}, {ms} ms, {workers} workers"
            yield from sides.rows(Comparison(part, said, chosen, samples, size, files, wanted), repeat)


@served
def samples(repeat: int) -> Iterable[Row]:
    """Measure shuffled samples of 15 KB as bytes, in batches of 64."""
    path = data.samples()
    tars = [tar.name for tar in sorted(path.glob("*.tar"))]

    def chosen(ms: int, workers: int) -> dict[str, Measure]:
        found: dict[str, Measure] = {
            "local": partial(ours, ms, "feedmill", "samples", path, workers, "block"),
            "feedmill": partial(ours, ms, "feedmill", "samples", data.url(path), workers, "block"),
        }
        words = {peer: (data.url(data.copied(path, peer)), workers) for peer in _copies()}
        words["webdataset"] = (_http(ms, path), workers, *tars)
        words["s3torch"] = (data.url(path), workers)
        words["energon"] = (data.url(path), workers, min(ENERGON_SAMPLES, data.SAMPLES))
        return found | {peer: partial(theirs, ms, peer, "samples", *words[peer]) for peer in words if available(peer)}

    yield from _beside("bucket-samples", "samples of 15 KB", path, chosen, data.SAMPLES, repeat)


@served
def images(repeat: int) -> Iterable[Row]:
    """Measure photographs of 375 x 500 decoded to one uint8 array of 64."""
    path = data.images()
    tars = [tar.name for tar in sorted(path.glob("*.tar"))]

    def chosen(ms: int, workers: int) -> dict[str, Measure]:
        found: dict[str, Measure] = {
            "local": partial(ours, ms, "feedmill", "images", path, workers),
            "feedmill": partial(ours, ms, "feedmill", "images", data.url(path), workers),
        }
        words = {peer: (data.url(data.copied(path, peer)), workers) for peer in _copies()}
        words["webdataset"] = (_http(ms, path), workers, *tars)
        words["s3torch"] = (data.url(path), workers)
        return found | {peer: partial(theirs, ms, peer, "images", *words[peer]) for peer in words if available(peer)}

    yield from _beside("bucket-images", "JPEGs decoded", path, chosen, data.SAMPLES // 5, repeat)


@served
def tokens(repeat: int) -> Iterable[Row]:
    """Measure windows of 2,049 tokens as int64 tensors, in batches of 64."""
    path = data.tokens() / "a.pbin"

    def chosen(ms: int, workers: int) -> dict[str, Measure]:
        found: dict[str, Measure] = {
            "local": partial(ours, ms, "feedmill", "windows", path, workers),
            "feedmill": partial(ours, ms, "feedmill", "windows", data.url(path), workers),
        }
        words = {peer: (data.url(data.windows(peer)), workers) for peer in _copies()}
        return found | {peer: partial(theirs, ms, peer, "windows", *words[peer]) for peer in words}

    yield from _beside("bucket-tokens", "token windows", path, chosen, data.SAMPLES * 2, repeat)


@served
def robotics(repeat: int) -> Iterable[Row]:
    """Measure VLA Foundry's robotics batches of 32."""
    path = data.robotics()
    tars = [str(tar.relative_to(path)) for tar in sorted(path.rglob("*.tar"))]
    count = data.vla.ROBOTICS

    def chosen(ms: int, workers: int) -> dict[str, Measure]:
        found: dict[str, Measure] = {
            "local": partial(ours, ms, "feedmill", "robotics", path, workers, count),
            "feedmill": partial(ours, ms, "feedmill", "robotics", data.url(path), workers, count),
        }
        if available("webdataset"):
            words = (_http(ms, path), workers, path, *tars)
            found["webdataset"] = partial(theirs, ms, "webdataset", "robotics", *words)
        return found

    yield from _beside("bucket-robotics", "robotics samples", path, chosen, count, repeat)


@served
def captions(repeat: int) -> Iterable[Row]:
    """Measure the training script of ``prepared/``: batches of 32 decoded pictures with captions.

    Energon slows down while it runs, so its shorter run favors it.
    """
    path = data.captions()
    count = {"feedmill": 12_800, "energon": 1_600}

    def chosen(ms: int, workers: int) -> dict[str, Measure]:
        words = ("--workers", workers, "--count")
        found: dict[str, Measure] = {
            "local": partial(script, ms, OURS, "captions", path, *words, count["feedmill"]),
            "feedmill": partial(script, ms, OURS, "captions", data.url(path), *words, count["feedmill"]),
        }
        if available("energon"):
            there = data.url(path).replace("s3://", "msc://bench/")
            found["energon"] = partial(script, ms, THEIRS, "captions", there, *words, count["energon"])
        return found

    yield from _beside("bucket-captions", "captioning samples", path, chosen, 40_000, repeat, whole=False)


@served
def shuffled(repeat: int) -> Iterable[Row]:
    """Measure the global shuffle with whole shards and the cache beside the block shuffle, with the cache and without.

    The cache is on disk in the first comparison on both sides, in the second only on that of the global shuffle.
    """
    path = data.samples()
    for workers in (0, 2):
        words = ("feedmill", "samples", data.url(path), workers)
        found = rounds(
            repeat,
            {
                "global": partial(ours, 0, *words, "global", extra=CACHE),
                "cached": partial(ours, 0, *words, "block", extra=CACHE),
                "block": partial(ours, 0, *words, "block"),
            },
        )
        mine, what = found["global"], f"global shuffle beside the block shuffle, 0 ms, {workers} workers"
        yield Row("bucket-global", what, "/s", mine["rate"], found["block"]["rate"], 0.8, note=sides.traffic(mine))
        yield Row("bucket-global", "  both with the cache on disk", "/s", mine["rate"], found["cached"]["rate"], 0.8)
        share = [mb * 1e6 / data.size(path) for mb in mine["mb"]]
        yield Row("bucket-global", "  bytes fetched / bytes of the data", "x", share, bound=1.1)


@served
def second(repeat: int) -> Iterable[Row]:
    """Measure later epochs, from the cache on disk, beside the same loader on local files, epoch by epoch."""
    path = data.samples()
    for workers in (0, 2):
        words = ("feedmill", "epochs", data.url(path), path, workers, EPOCHS)
        a, _ = alternate(repeat, lambda words=words: ours(20, *words, extra=CACHE), None)
        what = f"later epochs from the cache beside local files, {workers} workers"
        yield Row("bucket-epoch2", what, "/s", a["rate"], a["local"], 0.9, note=sides.traffic(a))


@served
def first(repeat: int) -> Iterable[Row]:
    """Measure the first batch of 64 from a large dataset at 20 ms, with nothing cached."""
    path = data.samples(data.SAMPLES * data.MANY)
    a, _ = alternate(repeat, lambda: ours(20, "feedmill_first", "first", data.url(path), time.perf_counter()), None)
    what = f"first batch of {data.SAMPLES * data.MANY:,} samples, 20 ms"
    note = "interpreter, imports, open, plan, batch"
    yield Row("bucket-first", f"{what}, whole process", "s", a["whole"], bound=0.5, note=note)
    yield Row("bucket-first", f"{what}, from open on", "s", a["opened"], bound=0.5, note=sides.traffic(a))


def _http(ms: int, path: Path) -> str:
    return f"{sides.server().endpoint(ms)}/{data.url(path).removeprefix('s3://')}"


def _copies() -> list[str]:
    """Return the peers that read shards in their own formats."""
    return [peer for peer in ("streaming", "litdata") if available(peer)]


PARTS: dict[str, Part] = {
    "bucket-samples": samples,
    "bucket-global": shuffled,
    "bucket-epoch2": second,
    "bucket-images": images,
    "bucket-tokens": tokens,
    "bucket-robotics": robotics,
    "bucket-captions": captions,
    "bucket-first": first,
    "bucket-processes": served(processes),
}
