"""Measure plans of whole samples with media: processor time, fill, size, a resumed plan, and spread over ranks.

    python -m benchmarks.planning.samples [samples]

The samples are a mixture with a long tail: captions, questions about pictures, pages, several pictures, and video (mean
1,650 tokens, median 770), in rows of 16,384 tokens. Their lengths and media are drawn, as if the cache folder had them.
The cost of a row is attention, 24,576 per token (a dense model of hidden size 2,048), and a vision tower's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.planning.packing import Lengths
from feedmill.formats.base import Dataset
from feedmill.planning.dealing.balancing import balanced
from feedmill.planning.dealing.costs import Costs
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.samples.counted import CountedDataset, SampleLengths

SEQ_LEN = 16384
KINDS = ((0.45, 420, 0.55, 1), (0.25, 900, 0.6, 1), (0.12, 2600, 0.6, 1), (0.1, 2200, 0.8, 6), (0.08, 5200, 0.7, 1))
"""Share, median tokens, spread of their logarithm, and most media, of each kind of samples."""
PER_PATCH, PER_SQUARE = 3_000, 0.2


def drawn(count: int) -> SampleLengths:
    """Return samples of the mixture, as the cache folder has them."""
    rng = np.random.default_rng(0)
    kind = rng.choice(len(KINDS), count, p=[share for share, *_ in KINDS])
    _, median, sigma, most = (np.array(column)[kind] for column in zip(*KINDS, strict=True))
    tokens = np.clip(rng.lognormal(np.log(median), sigma), 100, SEQ_LEN).astype(np.int32)
    media = rng.integers(1, most + 1)
    patches = np.maximum(tokens.astype(np.int64) * 3, 16)
    identity = {"processor": "drawn", "tokenizer": "drawn"}
    return SampleLengths(tokens, (), media, identity, lambda: (patches, patches**2 // media))


def documents(counts: SampleLengths) -> Dataset:
    return CountedDataset(Lengths(counts.tokens), counts, partial(_same, counts))


def _same(counts: SampleLengths, _: Dataset) -> SampleLengths:
    return counts


def processor_time() -> float:
    times = os.times()
    return times.user + times.system


def planned(counts: SampleLengths, folder: Path, **options: int) -> PackedPlan:
    """Plan all samples in one shuffled pass, and print what it took."""
    stream = Plan.over(documents(counts), seed=1, epochs=1)
    begin = processor_time()
    plan = PackedPlan(stream, Packing(SEQ_LEN, long="drop", **options), folder)
    rows = len(plan)
    taken = processor_time() - begin
    tokens, left = plan.map.counts(rows)
    size = sum(file.stat().st_size for file in plan.map.segments.folder.iterdir())
    said = ", ".join(f"{name} {value:,}" for name, value in options.items()) or "tokens alone"
    print(
        f"{said:40}{taken:8.2f} s of processor time, {rows:,} rows, {tokens / (rows * SEQ_LEN):.4%} filled,"
        f" {size / len(counts.tokens):.1f} bytes a sample, {left:,} tokens dropped",
        flush=True,
    )
    return plan


def resumed(plan: PackedPlan, folder: Path) -> None:
    """Find the first row of a plan that an earlier run has made, as a run that resumes does."""
    taken = []
    for _ in range(5):
        stream = Plan.over(documents(plan.sources[0].counts), seed=1, epochs=1)
        begin, wall = processor_time(), time.perf_counter()
        again = PackedPlan(stream, plan.packing, folder)
        again.locate_spans(np.array([len(plan) // 2]))
        taken.append((processor_time() - begin, time.perf_counter() - wall))
    own, wall = np.median(np.array(taken), axis=0)
    print(f"first row of a resumed plan{own:21.2f} s of processor time ({wall:.2f} s)", flush=True)


def spreads(plan: PackedPlan) -> None:
    """Deal rows to ranks by cost, and print the highest cost of a rank over the mean."""
    rows = np.arange(min(len(plan), 120_000))
    for name, options in (
        ("tokens", {}),
        ("attention, linear 24,576", {"linear": 24_576}),
        ("with the vision tower", {"linear": 24_576, "media": PER_PATCH, "media_squares": PER_SQUARE}),
    ):
        costs = Costs(plan, "tokens" if not options else "attention", **options)(rows).astype(np.float64)
        for each in (4, 8):
            cells = []
            for ranks in (8, 32, 128, 512):
                size = ranks * each
                steps = [costs[at : at + size] for at in range(0, min(len(costs) // size, 20) * size, size)]
                found = [sums.max() / sums.mean() for sums in (x[balanced(x, ranks)].sum(1) for x in steps)]
                cells.append(f"{ranks}: {np.mean(found):.4f} (worst {np.max(found):.4f})")
            print(f"{name:28}{each} rows a rank, by ranks  {'  '.join(cells)}", flush=True)


def main(count: int) -> None:
    counts = drawn(count)
    print(f"{count:,} samples, mean {counts.tokens.mean():,.0f} tokens, median {np.median(counts.tokens):,.0f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = planned(counts, folder)
        resumed(plan, folder)
        spreads(plan)
        planned(counts, folder, media=64)
        planned(counts, folder, media=64, patches=65_536)
        for multiple in (16, 32, 128):
            planned(counts, folder, multiple=multiple)


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000)
