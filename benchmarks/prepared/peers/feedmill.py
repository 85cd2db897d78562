"""Run one measurement of Feedmill, and print it as a line of JSON.

python -m benchmarks.prepared.peers.feedmill order FOLDER --shuffle block --count 60000
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import feedmill as fm  # noqa: E402

WARM = 200
"""Samples before the clock starts."""


def batches(options: argparse.Namespace) -> Iterator[list[Any]]:
    """Yield the batches of one loader without workers."""
    if options.images:
        dataset = fm.open(options.path, decode=fm.samples.Decoder(image=options.images))
    else:
        dataset = fm.open(options.path, dataset_config="crude.yaml", decode=None)
    plan = fm.Plan.over(dataset, shuffle=options.shuffle)
    return iter(fm.Loader(plan, options.batch, workers=options.workers, output="samples"))


def use(batch: list[Any], images: str | None) -> int:
    """Read what a training step reads: the bytes of every part, or the picture and its caption."""
    if images:
        return sum(sample.image.shape[-1] + len(sample.caption) for sample in batch)
    return sum(len(sample[part]) for sample in batch for part in sample)


def order(options: argparse.Namespace) -> dict[str, Any]:
    """Return samples per second after the first ones."""
    steps = batches(options)
    taken = 0
    while taken < WARM:
        batch = next(steps)
        taken += len(batch)
        use(batch, options.images)
    taken, begin = 0, time.perf_counter()
    while taken < options.count:
        batch = next(steps)
        use(batch, options.images)
        taken += len(batch)
    return {"per_s": taken / (time.perf_counter() - begin), "samples": taken}


def windows(options: argparse.Namespace) -> dict[str, Any]:
    """Return samples per second of each window, and the growth of the resident memory since the first window."""
    steps = batches(options)
    rates, memory = [], []
    for _ in range(options.windows):
        taken, begin = 0, time.perf_counter()
        while taken < options.count:
            batch = next(steps)
            use(batch, None)
            taken += len(batch)
        rates.append(taken / (time.perf_counter() - begin))
        memory.append(resident_mb())
    return {"per_s": rates, "memory_mb": memory}


def keys(options: argparse.Namespace) -> dict[str, Any]:
    """Return parts per second by random file names, and the time to open the dataset and read the first part."""
    names = json.loads(Path(options.names).read_text())
    open_dataset = fm.open  # not counted: imports for opening
    begin = time.perf_counter()
    dataset = open_dataset(options.path, raw=True)
    dataset.get(names[0])
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    total = sum(len(dataset.get(name)) for name in names)
    return {"per_s": len(names) / (time.perf_counter() - begin), "open": opened, "bytes": total}


def first(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds from the first line of this program to the first decoded sample, including imports."""
    if options.recipe:
        plan = fm.Recipe.load(options.recipe).plan()
    else:
        plan = fm.Plan.over(fm.open(options.path))
    (sample,) = next(iter(fm.Loader(plan, 1, output="samples")))
    return {"first": time.perf_counter() - BEGIN, "shape": list(sample.image.shape), "caption": len(sample.caption)}


def steps(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of the steps of `prepare`, one after the other; in the command the first three overlap."""
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    import xxhash

    from feedmill.formats.energon.index import IndexRows, write_index
    from feedmill.indexing.prepare_tars import find_shards
    from feedmill.indexing.scanning import scan_all
    from feedmill.storage.cache.mapped import mapped

    times = {"imports": time.perf_counter() - BEGIN}
    store = fm.open_store(options.path)
    entries = find_shards(store)

    def step(name: str, action: Any) -> Any:
        begin = time.perf_counter()
        result = action()
        times[name] = time.perf_counter() - begin
        return result

    def hashed(entry: Any) -> str:
        with mapped(store, entry.path) as data:
            return str(xxhash.xxh3_128_hexdigest(memoryview(data)))

    with ThreadPoolExecutor(4) as pool, tempfile.TemporaryDirectory(dir=options.path) as folder:
        step("hash", lambda: list(pool.map(hashed, entries)))
        found = step("scan", lambda: list(scan_all(store, entries, digest=False, rescan=True)))
        rows = step("gather rows", lambda: IndexRows.of((i, shard.scan) for i, shard in enumerate(found)))
        target = Path(folder) / "index.sqlite"
        step("database, own writer", lambda: write_index(target, rows, compiled=True))
        step("database, SQLite itself", lambda: write_index(target, rows, compiled=False))
    return times


def resident_mb() -> float:
    """Return the resident memory of this process in megabytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("order", "windows", "keys", "first", "steps"))
    parser.add_argument("path")
    parser.add_argument("--shuffle", default="none")
    parser.add_argument("--images", help="decode pictures, as this image spec says")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--names")
    parser.add_argument("--recipe")
    options = parser.parse_args()
    print(json.dumps(globals()[options.what](options)))


if __name__ == "__main__":
    main()
