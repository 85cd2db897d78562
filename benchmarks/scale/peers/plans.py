"""Measure plans, the ledger and packing over datasets of which only the sizes exist, and print the numbers as JSON.

blend SIZE WEIGHTS   a recipe of 1,000 sources with 10^9 documents, 10^12 samples and 4,096 ranks; weights with a common
                     denominator of a million, which are in a table (`round`), or any (`odd`)
sources SIZE         a recipe of 1,000 prepared folders, which are opened
packing SIZE         rows of 4,096 tokens of 10^8 documents
costs SIZE           a global batch dealt to 4,096 ranks by tokens

SIZE is a fraction of these numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.lib.corpus import tar_header
from benchmarks.lib.side import answer
from benchmarks.planning.packing import Lengths
from benchmarks.scale.clock import Clock, now_mb, peak_mb
from benchmarks.scale.data import scaled
from feedmill import Loader, Recipe
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample, Source
from feedmill.planning import ledger

DOCUMENTS, SOURCES, SAMPLES, RANKS, BATCH = 10**9, 1000, 10**12, 4096, 64
MANY = {"round": 1_000_000, "odd": 20}
"""Positions far from each other that are located."""
ROW = 1_000_000


class Sized(Dataset):
    """Samples of which only the number exists."""

    format = "sized"
    splits = {}  # noqa: RUF012

    def __init__(self, name: str, size: int) -> None:
        self.url, self._size = name, size

    def __len__(self) -> int:
        return self._size

    def read_raw(self, indices):
        return [Sample(str(i), b"x", {"txt": (0, 1)}, lambda i=i: self.locate(i)) for i in np.asarray(indices).tolist()]

    def locate(self, index):
        return Source(self.url, f"shard-{index // 10_000:05d}.tar", index % 10_000 * 1024, 1024, index, str(index))

    def find(self, key):
        return int(key)

    def fingerprint(self):
        return str(len(self))

    def describe(self):
        return {}


def blend(size: str, weights: str) -> dict[str, float]:
    """Measure everything that a plan answers."""
    share = float(size)
    sources, samples = scaled(SOURCES, min(1, share * 10)), scaled(SAMPLES, share)
    each = scaled(DOCUMENTS, share) // sources
    numbers = Clock(start_mb=peak_mb())
    shares = np.random.default_rng(0).lognormal(0, 1.5, sources)
    written = np.maximum(shares / shares.sum() * 1e6, 1).round() / 1e6 if weights == "round" else shares
    if weights == "round":
        written[0] += 1 - written.sum()
    members = [{"path": f"source-{n:04d}", "weight": round(w, 12)} for n, w in enumerate(written.tolist())]
    recipe = {"seed": 7, "samples": samples, "blend": members}
    with numbers.step("recipe"):
        read = Recipe.parse(recipe)
    with numbers.step("plan"):
        plan = read.plan(lambda path, **_: Sized(path, each))
    with numbers.step("fingerprint"):
        assert plan.fingerprint
    with numbers.step("report"):
        assert str(plan.report(samples))
    numbers["planned_mb"] = now_mb()
    first = samples // 2
    plan.locate(np.arange(first, first + 10))
    with numbers.step("locate_row"):
        plan.locate(np.arange(first, first + ROW))
    numbers["locate_row_us"] = numbers.pop("locate_row_cpu") / ROW * 1e6
    positions = np.random.default_rng(0).integers(0, samples, MANY[weights])
    with numbers.step("locate"):
        located = plan.locate(positions)
    numbers["locate_far_us"] = numbers.pop("locate_cpu") / len(positions) * 1e6
    within = samples if weights == "round" else samples // 200
    with numbers.step("occurrences"):
        found = plan.positions(int(located.source[0]), int(located.index[0]), within)
    assert len(found) or positions[0] >= within
    numbers["occurrence_us"] = numbers.pop("occurrences_cpu") / max(1, len(found)) * 1e6
    step = samples // (RANKS * BATCH) * 9 // 10
    with numbers.step("trace_rank"):
        one = ledger.batch(plan, step, RANKS * BATCH, rank=RANKS - 1, world_size=RANKS)
        assert len(ledger.entries(plan, one.positions)) == BATCH
    with numbers.step("trace_all"):
        every = ledger.ranks_of(plan, step, RANKS * BATCH, RANKS)
    assert np.array_equal(every[-1], one.positions)
    with numbers.step("trace_step_entries"):
        assert len(ledger.entries(plan, np.concatenate(every))) == RANKS * BATCH
    loader = Loader(plan, BATCH, rank=RANKS - 1, world_size=RANKS, start=step * RANKS * BATCH, output="samples")
    with numbers.step("state"):
        state = json.dumps(loader.state_dict())
    numbers["state_bytes"] = len(state)
    again = Loader(plan, BATCH, rank=RANKS - 1, world_size=RANKS, output="samples")
    with numbers.step("resume"):
        again.load_state_dict(json.loads(state))
        batch = next(iter(again))
    assert [sample.key for sample in batch] == [str(i) for i in plan.locate(one.positions).index]
    again.close()
    numbers["peak_mb"] = peak_mb()
    return numbers


def sources(size: str) -> dict[str, float]:
    """Measure the plan of a recipe whose sources are opened, each of two shards of 50 samples."""
    from feedmill import prepare

    count, numbers = scaled(SOURCES, float(size)), Clock()
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "0000")
        first.mkdir()
        for shard in range(2):
            names = (f"{shard}{n:03d}.txt" for n in range(50))
            body = b"".join(tar_header(name, 100) + b"x" * 100 + bytes(412) for name in names)
            (first / f"{shard}.tar").write_bytes(body + bytes(1024))
        prepare(first, split_ratio="1,0,0", sample_type="CrudeWebdataset", progress=False)
        for number in range(1, count):
            shutil.copytree(first, Path(folder, f"{number:04d}"))
        recipe = {"blend": [{"path": f"{folder}/{n:04d}", "weight": 1 + n % 7} for n in range(count)]}
        Recipe.parse({"blend": recipe["blend"][:2]}).plan()  # not counted: imports
        with numbers.step("sources_read"):
            read = Recipe.parse(recipe)
        with numbers.step("sources_planned"):
            read.plan()
    return numbers


def packing(size: str) -> dict[str, float]:
    """Measure the plan of packed rows, from nothing and from its sidecar."""
    from feedmill.kernels.order.binpack import best_fit_decreasing
    from feedmill.planning.packing.options import Packing
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.planning.plan import Plan

    count = scaled(DOCUMENTS // 10, float(size))
    best_fit_decreasing(np.ones(10, np.int32), 4096)  # not counted: loads the kernels
    lengths = np.random.default_rng(0).lognormal(np.log(300), 1.0, count).astype(np.int64)
    numbers = Clock(start_mb=peak_mb(), lengths_mb=lengths.nbytes / 1e6)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("best_fit", "concat"):
            for turn in ("", "_again"):
                plan = PackedPlan(Plan.over(Lengths(lengths), epochs=1), Packing(4096, name), Path(folder))
                with numbers.step(f"{name}{turn}"):
                    rows = len(plan)
                plan.spans(np.arange(10))
                with numbers.step(f"{name}{turn}_rows"):
                    plan.spans(np.random.default_rng(1).integers(0, rows, 65_536))
            used = sum(os.stat(file).st_size for file in Path(folder).rglob("*") if file.is_file())
            numbers[f"{name}_bytes"] = used - numbers.get("best_fit_bytes", 0)
    numbers["peak_mb"] = peak_mb()
    return numbers


def costs(size: str) -> dict[str, float]:
    """Measure the deal of a global batch by tokens; a rank holds the length of every document."""
    from feedmill.planning.dealing.rules import Balance, Dealing
    from feedmill.planning.plan import Plan

    count, ranks = scaled(DOCUMENTS // 10, float(size)), scaled(RANKS, min(1, float(size) * 100))
    lengths = np.random.default_rng(0).lognormal(np.log(300), 1.0, count).astype(np.int64)
    numbers = Clock(start_mb=peak_mb(), lengths_mb=lengths.nbytes / 1e6)
    plan = Plan.over(Lengths(lengths))
    dealing = Dealing(balance=Balance("tokens"))
    ledger.ranks_of(plan, 1, ranks * BATCH, ranks, dealing=dealing)
    with numbers.step("deal"):
        ledger.ranks_of(plan, 2, ranks * BATCH, ranks, dealing=dealing)
    numbers["peak_mb"] = peak_mb()
    return numbers


if __name__ == "__main__":
    answer(globals())
