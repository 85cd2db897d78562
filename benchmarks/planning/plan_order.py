"""Measure the time to compute an order: microseconds per position of a plan over 4 sources with 10^9 samples in total.

The sources are blended by weights with a table and without one, and in stages. The second table has microseconds per
batch of 64, for the last of 4,096 ranks and for a single rank, with 4, 100 and 1,000 sources.

    python -m benchmarks.planning.plan_order

If they are installed (`peers.toml`), the same run shows Grain's global shuffle and mix, one index per call as its
loader requests them, and MosaicML's py1e order, which is computed as a whole.
"""

from __future__ import annotations

import json
import subprocess
import time
import tracemalloc

import numpy as np

from benchmarks import peers
from feedmill.planning.dealing.dealer import Dealer
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.dealing.rules import Dealing
from feedmill.planning.nodes import Blend, BlockShuffle, Leaf, Node, Repeat, Shuffle, StagedBlend
from feedmill.planning.permutation import derive, permute, unpermute

SIZES = (400_000_000, 300_000_000, 200_000_000, 100_000_000)
WEIGHTS = (0.5, 0.25, 0.15, 0.1)
LONG_WEIGHTS = ("0.4999999999", "0.2500000001", 0.15, 0.1)
STAGES = ((30_000_000, WEIGHTS), (100_000_000, (0.1, 0.2, 0.3, 0.4)), (None, (0.4, 0, 0.3, 0.3)))
MANY = 65_536
BATCH, RANKS, BATCHES = 64, 4096, 4096


GRAIN = """
import json, sys, time
import numpy as np
import grain
sizes, weights = json.loads(sys.argv[1]), json.loads(sys.argv[2])
streams = [grain.MapDataset.range(size).shuffle(seed=number) for number, size in enumerate(sizes)]
for name, dataset in (
    ("Grain shuffle of 10^9", grain.MapDataset.range(10**9).shuffle(seed=7)),
    ("Grain mix of 4 shuffled", grain.MapDataset.mix(streams, weights=weights)),
):
    indices = np.random.default_rng(0).integers(0, 10**8, 20_000).tolist()
    begin = time.perf_counter()
    for index in indices:
        dataset[index]
    print(json.dumps([name, (time.perf_counter() - begin) / len(indices) * 1e6, "us/index"]))
"""

STREAMING = """
import json, resource, sys, time, types
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")  # it wants torchvision, the order does not
import numpy as np
from streaming.base.shuffle.py1e import get_shuffle_py1e
count = 10_000_000
begin = time.perf_counter()
get_shuffle_py1e(np.full(count // 5000, 5000), 2, 7, 0, 1 << 18)
taken = time.perf_counter() - begin
print(json.dumps(["py1e of 10^7, all of it", taken / count * 1e6, "us/sample"]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(json.dumps(["py1e of 10^7, memory", peak, "MB at most"]))
"""


def build(shuffle: str, mix: str = "table") -> Node:
    """Return four sources, each shuffled and repeated, in one blend."""
    streams = []
    for number, size in enumerate(SIZES):
        key = derive(7, "shuffle", f"source {number}")
        leaf = Leaf(number, size)
        streams.append(Repeat(BlockShuffle(leaf, key) if shuffle == "block" else Shuffle(leaf, key)))
    if mix == "stages":
        return StagedBlend(streams, STAGES)
    return Blend(streams, WEIGHTS if mix == "table" else LONG_WEIGHTS)


def microseconds(function, *arguments, repeats: int = 30) -> float:
    """Return microseconds per position: the best of `repeats` calls on `MANY` positions."""
    function(*arguments)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        function(*arguments)
        best = min(best, time.perf_counter() - begin)
    return best / MANY * 1e6


class Plan:
    """A blend of equal sources with 10^9 samples in total."""

    seed = 7

    def __init__(self, sources: int) -> None:
        streams = [
            Repeat(BlockShuffle(Leaf(n, 10**9 // sources), derive(7, "shuffle", str(n)))) for n in range(sources)
        ]
        self.sources = range(sources)
        self.locate_ahead = Blend(streams, [1] * sources).locate


def batch_cost(plan: Plan, rank: int, world_size: int) -> float:
    """Return the processor microseconds per batch: the best of five runs."""
    best = float("inf")
    for _ in range(5):
        dealer = Dealer(plan, Grid(0, None, BATCH, rank, world_size, "drop"), Dealing())
        begin = time.process_time()
        for _ in dealer.ahead(range(BATCHES)):
            pass
        best = min(best, time.process_time() - begin)
    return best / BATCHES * 1e6


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    scattered = rng.integers(0, 10**9, MANY)
    print(f"permute    10^9, one key      {microseconds(permute, scattered, 10**9, 5):.4f} us/position")
    print(f"unpermute  10^9, one key      {microseconds(unpermute, scattered, 10**9, 5):.4f} us/position")
    for shuffle, mix in (("block", "table"), ("block", "lines"), ("block", "stages"), ("global", "table")):
        tracemalloc.start()
        begin = time.perf_counter()
        node = build(shuffle, mix)
        built = (time.perf_counter() - begin) * 1e3
        memory = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"build      {shuffle:6} {mix:6}              {built:.2f} ms, {memory:.2f} MB at most")
        for name, positions in (
            ("in order", np.arange(10**8, 10**8 + MANY)),
            ("scattered", scattered),
            ("epochs", rng.integers(0, 10**11, MANY)),
        ):
            located = node.locate(positions)
            forward, back = microseconds(node.locate, positions), microseconds(node.positions, located)
            print(f"locate     {shuffle:6} {mix:6} {name:9}    {forward:.4f} us/position;  positions {back:.4f}")
    for sources in (4, 100, 1000):
        plan = Plan(sources)
        one, last = batch_cost(plan, 0, 1), batch_cost(plan, RANKS - 1, RANKS)
        print(
            f"batch of {BATCH}  {sources:5,} sources   one rank {one:8.1f} us"
            f"   rank 4095 of 4096 {last:8.1f} us   {last / one:.2f}"
        )
    peer("grain", GRAIN, json.dumps(SIZES), json.dumps(WEIGHTS))
    peer("streaming", STREAMING)


def peer(name: str, program: str, *arguments: str) -> None:
    """Print the result of a peer's program, or how to install the peer."""
    python = peers.python(name)
    if not python:
        print(f"not measured: {peers.table()[name]['is']}. {peers.advice([name])}")
        return
    done = subprocess.run([python, "-c", program, *arguments], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        print(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no result'}")
    for what, value, unit in map(json.loads, lines):
        print(f"{what:34} {value:.4f} {unit}")


if __name__ == "__main__":
    main()
