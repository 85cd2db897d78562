"""Measure the time of packing, and how full the rows are: documents of log-normal length (median 300) in rows of 4,096.

    python -m benchmarks.planning.packing [documents]

If Grain is installed (`peers.toml`), the table also has its first-fit and best-fit packing, on the first documents of
the same lengths. Documents that are longer than a row are truncated to one row for both. Grain packs while it reads, so
its time includes copying tokens; Feedmill's is that of the plan alone. The fill can be compared directly.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import peers
from feedmill.formats.base import Dataset
from feedmill.kernels.order.binpack import best_fit_decreasing
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan

SEQ_LEN = 4096
MEDIAN, SIGMA = 300, 1.0
GRAIN_DOCUMENTS = 100_000
GRAIN_BINS = 64

GRAIN = """
import json, sys, time
import numpy as np
import grain
from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset
path, seq_len, bins = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lengths = np.load(path)
for name, kind in (("first-fit", FirstFitPackIterDataset), ("best-fit", BestFitPackIterDataset)):
    numbers = grain.MapDataset.range(len(lengths))
    source = numbers.map(lambda i: {"ids": np.ones(lengths[i], np.int32)}).to_iter_dataset()
    packed = kind(source, length_struct={"ids": seq_len}, num_packing_bins=bins)
    begin, rows, tokens = time.perf_counter(), 0, 0
    for row in packed:
        rows += 1
        tokens += int(row["ids"].sum())  # every token is a one, and padding is zero
    print(json.dumps([name, time.perf_counter() - begin, rows, tokens]))
"""


class Lengths(Dataset):
    """Documents of which only the lengths exist."""

    format = "lengths"

    def __init__(self, lengths: np.ndarray) -> None:
        self.url, self._lengths = "lengths", lengths

    def __len__(self):
        return len(self._lengths)

    @property
    def lengths(self):
        return self._lengths

    def fingerprint(self):
        return str(len(self))

    read_raw = locate = find = describe = None
    splits = {}  # noqa: RUF012


def timed(label: str, function, *arguments):
    """Call a function, print its seconds, and return its result."""
    begin = time.perf_counter()
    result = function(*arguments)
    print(f"{label:44}{time.perf_counter() - begin:9.3f} s")
    return result


def ours(lengths: np.ndarray, folder: Path) -> None:
    """Plan, plan again from the sidecar, and look rows up."""
    for shuffle in ("none", "block", "global"):
        plan = PackedPlan(Plan.over(Lengths(lengths), epochs=1, shuffle=shuffle), Packing(SEQ_LEN), folder)
        timed(f"best_fit, {len(lengths):,} documents, {shuffle}", len, plan)
        report = plan.report()
        print(f"    {report.total:,} rows, {report.fill:.4%} of the slots filled, {report.left_out:,} tokens dropped")
    again = PackedPlan(plan.documents, plan.packing, folder)
    timed("the same from its sidecar", len, again)
    size = sum(file.stat().st_size for file in again.map.segments.folder.iterdir())
    print(f"    {size / len(lengths):.1f} bytes per document")
    rng = np.random.default_rng(1)
    rows = rng.integers(0, len(again), 65_536)
    documents = rng.integers(0, len(lengths), 65_536)
    windows = PackedPlan(plan.documents, Packing(SEQ_LEN, "concat", overlap=True), folder)
    timed(f"concat, {len(lengths):,} documents, global", len, windows)
    for name, each in (("best_fit", again), ("concat", windows)):
        each.spans(rows[:10])
        timed(f"{name}: spans of 65,536 random rows", each.spans, rows % len(each))
        timed(f"{name}: spans of 65,536 rows in order", each.spans, np.arange(min(65_536, len(each))))
        timed(f"{name}: rows of 65,536 random documents", each.placements, documents)


def beside_grain(lengths: np.ndarray, folder: Path) -> None:
    """Pack the same documents with both."""
    some = np.minimum(lengths[:GRAIN_DOCUMENTS], SEQ_LEN).astype(np.int32)
    begin = time.perf_counter()
    _, rows = best_fit_decreasing(some, SEQ_LEN)
    seconds = time.perf_counter() - begin
    print(f"\n{len(some):,} documents, truncated to {SEQ_LEN:,} tokens, packing only")
    line(f"feedmill best_fit, buffer {len(some):,}", seconds, rows, int(some.sum()), len(some))
    python = peers.python("grain")
    if not python:
        print(f"Grain is missing. {peers.advice(['grain'])}")
        return
    np.save(folder / "lengths.npy", some)
    command = [python, "-c", GRAIN, str(folder / "lengths.npy"), str(SEQ_LEN), str(GRAIN_BINS)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    for text in found.stdout.splitlines():
        name, seconds, rows, tokens = json.loads(text)
        line(f"grain {name}, {GRAIN_BINS} bins", seconds, rows, tokens, len(some))
    if found.returncode:
        print(f"Grain failed: {found.stderr.strip().splitlines()[-1]}")


def line(name: str, seconds: float, rows: int, tokens: int, documents: int) -> None:
    """Return one line of the comparison."""
    each = seconds / documents * 1e6
    print(f"{name:44}{seconds:9.3f} s  {each:7.3f} us/document  {rows:,} rows, {tokens / rows / SEQ_LEN:.4%} filled")


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    lengths = np.random.default_rng(0).lognormal(np.log(MEDIAN), SIGMA, count).astype(np.int64)
    print(f"{int(lengths.sum()):,} tokens in documents of {lengths.min()} to {lengths.max():,}")
    best_fit_decreasing(lengths[:10].astype(np.int32) % SEQ_LEN + 1, SEQ_LEN)  # not counted: compiles the kernels
    with tempfile.TemporaryDirectory() as folder:
        ours(lengths, Path(folder))
        beside_grain(lengths, Path(folder))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
