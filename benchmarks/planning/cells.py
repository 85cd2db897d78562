"""Measure mixtures over cells: writing a sidecar, planning a swarm of mixtures, and reading rows of hundreds of cells.

    python -m benchmarks.planning.cells [documents] [mixtures] [cells]

The documents of the swarm are simulated: only their number and their sidecar exist, and reading a length is an error.
Each mixture is a recipe of two stages with a weight per cell and `unit: tokens`; two processes compile it to a plan and
report its shares over the whole run. Rows are read from token files of 100,000 documents, in a mixture of their cells
and in one of the whole dataset, in turns.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.formats.base import Dataset, Indices
from feedmill.formats.cells import CellTable, Rule, cells_path, write_cells
from feedmill.formats.sample import Sample, Source
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.storage import LocalStore

RULE = Rule(("topic", "quality"))
RUN = {0: 80_000_000_000, 1: 20_000_000_000}
"""Tokens of each stage."""
_PIECE = 1 << 20
_READ, _SEQ_LEN, _ROWS = 100_000, 2048, 64


class Simulated(Dataset):
    """Documents of which only the number exists."""

    format = "simulated"

    def __init__(self, url: str, count: int) -> None:
        self.url, self._count = url, count

    def __len__(self) -> int:
        return self._count

    def fingerprint(self) -> str:
        return f"simulated {self._count}"

    @property
    def splits(self) -> Mapping[str, int]:
        return {}

    def _none(self, *_: Any) -> Any:
        raise AssertionError("a token file was read")

    def read_raw(self, indices: Indices) -> list[Sample]:
        return self._none(indices)

    def locate(self, index: int) -> Source:
        return self._none(index)

    def find(self, key: str) -> int:
        return self._none(key)

    def describe(self) -> dict[str, Any]:
        return self._none()

    def total(self, by: str, start: int = 0, stop: int | None = None) -> int | None:
        return self._none(by, start, stop)

    lengths = property(_none)


def processor_time() -> float:
    return sum(os.times()[:4])


def drawn(count: int, cells: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield codes and lengths of documents; the sizes of the cells differ a hundredfold."""
    ends = np.cumsum(np.random.default_rng(0).dirichlet(np.full(cells, 1.0)))
    for first in range(0, count, _PIECE):
        rng, size = np.random.default_rng(first), min(_PIECE, count - first)
        codes = np.minimum(np.searchsorted(ends, rng.random(size)), cells - 1).astype(np.uint16)
        yield codes, np.clip(rng.lognormal(6.5, 1.0, size), 10, 20_000).astype(np.int64)


def written(dataset: Any, cells: int, pieces: list[tuple[np.ndarray, np.ndarray]]) -> CellTable:
    store, path = cells_path(dataset.url, RULE)
    values = [[f"t{number // 10}", number % 10] for number in range(cells)]
    codes, lengths = zip(*pieces, strict=True)
    return write_cells(store, path, RULE, dataset.fingerprint(), len(dataset), values, codes, lengths)


def mixture(table: CellTable, number: int) -> str:
    """Return a recipe: Dirichlet around the natural shares of tokens, in two stages."""
    rng = np.random.default_rng(number)
    natural = np.array([cell.tokens for cell in table.cells], np.float64)
    labels, stages = table.names(), []
    for tokens in RUN.values():
        weights = rng.dirichlet(natural / natural.sum() * len(natural) / 2 + 1e-3)
        named = ", ".join(f'"{label}": {max(weight, 1e-9):.9f}' for label, weight in zip(labels, weights, strict=True))
        stages.append(f"- {{tokens: {tokens}, weights: {{{named}}}}}")
    head = f"seed: {number}\nunit: tokens\nblend:\n  cells: {{of: tokens, by: [topic, quality]}}\nstages:\n"
    return head + "\n".join(stages) + "\n"


def planned(folder: str, count: int, texts: list[str]) -> tuple[int, float]:
    """Plan mixtures in this process; return the positions of all plans, and the memory in MB."""
    dataset = Simulated(f"{folder}/tokens", count)
    positions = 0
    for text in texts:
        plan = Recipe.parse(text, base=folder).plan(lambda *_, **__: dataset)
        assert plan.length is not None and plan.report(plan.length).total == plan.length
        positions += plan.length
    return positions, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def swarm(folder: Path, count: int, mixtures: int, cells: int) -> None:
    (folder / "tokens").mkdir()
    dataset = Simulated(str(folder / "tokens"), count)
    pieces = list(drawn(count, cells)) if count <= 1 << 24 else None
    if pieces is None:  # the same million again and again: drawing them would take longer than writing
        one = next(drawn(_PIECE, cells))
        sizes = [min(_PIECE, count - first) for first in range(0, count, _PIECE)]
        pieces = [(one[0][:size], one[1][:size]) for size in sizes]
    begin = processor_time()
    table = written(dataset, cells, pieces)
    taken = processor_time() - begin
    print(f"{count:,} documents in {cells} cells written: {count / taken / 1e6:.0f} million per processor second")
    texts = [mixture(table, number) for number in range(mixtures)]
    begin, wall = processor_time(), time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(partial(planned, str(folder), count), (texts[::2], texts[1::2])))
    wall, taken = time.perf_counter() - wall, processor_time() - begin
    most = max(memory for _, memory in found)
    print(
        f"{mixtures} mixtures of 2 stages planned by 2 processes: {taken:.1f} s of processor time, {wall:.1f} s,"
        f" {most:.0f} MB each at most, load {os.getloadavg()[0]:.1f}"
    )


def reading(folder: Path, cells: int) -> None:
    """Compare rows of a mixture of all cells with rows of the same documents without cells."""
    from feedmill.formats.tokens.pbin import write_pbin
    from feedmill.samples.open import open as open_dataset

    rng = np.random.default_rng(1)
    pieces = list(drawn(_READ, cells))
    with write_pbin(LocalStore(folder), "read.pbin", 2) as writer:
        lengths = np.concatenate([lengths for _, lengths in pieces])
        for first in range(0, _READ, 10_000):
            part = lengths[first : first + 10_000]
            writer.add(rng.integers(0, 50_000, int(part.sum()), dtype=np.uint16), part)
    dataset = open_dataset(str(folder / "read.pbin"))
    written(dataset, cells, pieces)
    pack = "pack: {seq_len: 2048, buffer: 4096}\nsamples: 95_000\n"
    blend = "blend:\n  cells: {of: read.pbin, by: [topic, quality]}\n"
    plans = {
        f"{cells} cells": Recipe.parse(blend + pack, base=str(folder)).plan(),
        "no cells": Recipe.parse("source: read.pbin\n" + pack, base=str(folder)).plan(),
    }
    for plan in plans.values():
        rows_of(plan, 100)  # packs, and reads the file once
    rates: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(7):
        for name, plan in plans.items():
            begin = processor_time()
            rows_of(plan, 100)
            rates[name].append(100 * _ROWS * _SEQ_LEN / (processor_time() - begin) / 1e6)
    for name, found in rates.items():
        print(f"{name}: {np.median(found):.0f} million tokens per processor second (medians of 7 alternating runs)")


def rows_of(plan: Plan, batches: int) -> None:
    for batch in range(batches):
        plan.read_batch(np.arange(batch * _ROWS, (batch + 1) * _ROWS), "columns")


def main(count: int, mixtures: int, cells: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["FEEDMILL_CACHE_DIR"] = f"{name}/cache"
        swarm(Path(name), count, mixtures, cells)
        reading(Path(name), cells)


if __name__ == "__main__":
    given = [int(float(word)) for word in sys.argv[1:]]
    main(*(given + [100_000_000, 840, 200][len(given) :]))
