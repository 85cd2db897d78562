"""Measure the seconds to write Energon's index.sqlite: with Feedmill's page writer, and with SQLite inserting the rows.

    python -m benchmarks.prepared.sqlite_index [--samples 40000 400000 2000000] [--repeat 3]

Samples have two parts and are in eight shards. "first" includes loading the compiled code. "then" is the best of the
other runs, as in a `prepare` that has scanned its shards with the compiled scanner. "shuffled" has unordered keys.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from feedmill.formats.energon.index import IndexRows, write_index
from feedmill.kernels.files.tar import ShardScan

SHARDS = 8


def scans(samples: int, *, shuffled: bool = False) -> list[tuple[int, ShardScan]]:
    """Return the result of scanning shards of 5 KB images with a JSON part each."""
    keys = [f"{i:09d}" for i in range(samples)]
    if shuffled:
        random.Random(0).shuffle(keys)
    n = samples // SHARDS
    starts = np.arange(n + 1, dtype=np.int64) * 7168
    data = np.stack([starts[:-1] + 512, starts[:-1] + 6656], axis=1).ravel()
    sizes = np.tile(np.array([5321, 178], np.int64), n)
    sample = np.repeat(np.arange(n, dtype=np.int32), 2)
    return [
        (i, ShardScan(keys[i * n : (i + 1) * n], starts, sample, ["jpg", "json"] * n, data, sizes))
        for i in range(SHARDS)
    ]


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[40_000, 400_000, 2_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; a temporary folder otherwise")
    options = parser.parse_args()
    print(f"{'samples':>10}  {'keys':9} {'rows':>7} {'first':>7} {'then':>7} {'sqlite3':>8} {'ratio':>6} {'MB':>7}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "index.sqlite"
        for samples in options.samples:
            for shuffled in (False, True):
                shards = scans(samples, shuffled=shuffled)
                gather = min(seconds(lambda: IndexRows.of(shards)) for _ in range(options.repeat))  # noqa: B023
                rows = IndexRows.of(shards)
                fast = [seconds(lambda: write_index(path, rows, compiled=True)) for _ in range(options.repeat + 1)]  # noqa: B023
                size = os.path.getsize(path) / 1e6
                slow = min(seconds(lambda: write_index(path, rows, compiled=False)) for _ in range(options.repeat))  # noqa: B023
                then = gather + min(fast[1:])
                print(
                    f"{samples:10,}  {'shuffled' if shuffled else 'ascending':9} {gather:7.3f} {fast[0]:7.3f}"
                    f" {then:7.3f} {gather + slow:8.3f} {(gather + slow) / then:6.1f} {size:7.1f}"
                )


if __name__ == "__main__":
    main()
