"""Run one measurement of Feedmill's loader, or of a lower bound without it (bare-...), and print it as JSON.

tokens FILE WORKERS BATCH    windows of 2,049 tokens in random order, torch tensors
bare-tokens FILE BATCH    the same windows copied by numpy, row by row, and as one fancy index
stacked-tokens FILE BATCH    the same windows as small training scripts read them: the file mapped for each batch, one
                          tensor for each row, stacked
raw FOLDER WORKERS        parts as bytes in training order, batches of 64
columns FOLDER            the same without workers, as lists of bytes by part
one PATH                  single samples at random, with the bytes of all parts
bare-columns FOLDER       ranges of tars at random by `pread`, cut into two parts
jpeg FOLDER WORKERS       pictures decoded, as one uint8 array per batch
bare-jpeg THREADS         simplejpeg on this number of threads, from bytes in memory
lines FILE                open a JSONL file, and read the first batch
resume FOLDER             from a state at position 10^9 to the first batch, without imports
flat FOLDER WORKERS SAMPLES    memory over this number of samples; WORKERS may be `2p` for processes
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.lib import pictures
from benchmarks.lib.rates import memory_mb, rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import singles

BATCH, SEQ_LEN, SECONDS = 64, 2048, 3.0


def tokens(path: str, workers: str, batch: str = str(BATCH)) -> dict[str, float]:
    """Measure token windows through a loader."""
    import feedmill as fm

    plan = fm.Plan.over(fm.open(path, seq_len=SEQ_LEN), shuffle="global")
    loader = fm.Loader(plan, int(batch), rank=0, world_size=1, workers=int(workers), output="torch")
    return rate(_counted(batch["input_ids"] for batch in loader), SECONDS)


def _counted(batches: Iterable[Any]) -> Iterator[float]:
    """Yield the M tokens of every 64 rows: asking for the time after each small batch would take as long as it."""
    done, rows = 0, 0
    for batch in batches:
        done, rows = done + batch.numel(), rows + len(batch)
        if rows >= BATCH:
            yield done / 1e6
            done, rows = 0, 0


def _mapped(path: str) -> Any:
    return np.memmap(path, np.uint16, "r", 8, min((os.path.getsize(path) - 8) // 2, 200_000_000))


def bare_tokens(path: str, batch: str = str(BATCH)) -> dict[str, float]:
    """Measure token windows through numpy alone, in the faster of two ways."""
    import torch

    tokens, size = np.asarray(_mapped(path)), int(batch)
    rng, width = np.random.default_rng(0), SEQ_LEN + 1

    def rows() -> Iterator[Any]:
        while True:  # as in a training loop, a batch is kept until the next one exists
            starts = rng.integers(0, len(tokens) - width, size).tolist()
            out = np.empty((size, width), np.int64)
            for row, start in zip(out, starts, strict=True):
                row[:] = tokens[start : start + width]
            batch = torch.from_numpy(out)
            yield batch

    def fancy() -> Iterator[Any]:
        while True:
            starts = rng.integers(0, len(tokens) - width, size)
            batch = torch.from_numpy(tokens[starts[:, None] + np.arange(width)].astype(np.int64))
            yield batch

    return max((rate(_counted(way()), SECONDS) for way in (rows, fancy)), key=lambda found: found["rate"])


def stacked_tokens(path: str, batch: str = str(BATCH)) -> dict[str, float]:
    """Measure token windows as small training scripts read them."""
    import torch

    width = SEQ_LEN + 1

    def batches() -> Iterator[Any]:
        while True:
            tokens = _mapped(path)
            starts = torch.randint(len(tokens) - width, (int(batch),))
            rows = [torch.from_numpy(tokens[start : start + width].astype(np.int64)) for start in starts]
            yield torch.stack(rows)

    return rate(_counted(batches()), SECONDS)


def raw(folder: str, workers: str) -> dict[str, float]:
    """Measure the parts of samples as bytes."""
    import feedmill as fm

    dataset = fm.open(folder, raw=True, decode=None)
    plan = fm.Plan.over(dataset, shuffle="block")
    loader = fm.Loader(plan, BATCH, rank=0, world_size=1, workers=int(workers), output="samples")

    def use(batch: list[Any]) -> int:
        assert sum(len(sample[part]) for sample in batch for part in sample)
        return len(batch)

    return rate(map(use, loader), SECONDS)


def columns(folder: str) -> dict[str, float]:
    """Measure the parts of samples as lists of bytes."""
    import feedmill as fm

    plan = fm.Plan.over(fm.open(folder, raw=True, decode=None), shuffle="block")
    loader = fm.Loader(plan, BATCH, rank=0, world_size=1, output="numpy")
    return rate((len(batch["__key__"]) for batch in loader), SECONDS)


def one(path: str) -> dict[str, float]:
    """Measure single samples."""
    import feedmill as fm

    dataset = fm.open(path, raw=True, decode=None)

    def get(number: int) -> list[bytes]:
        sample = dataset[number]
        return [sample.raw(part) for part in sample]

    return rate(singles(get, len(dataset)), SECONDS)


def lines(path: str) -> dict[str, float]:
    """Open a JSONL file, and read the first shuffled batch."""
    import feedmill as fm

    for batch in fm.Loader(fm.Plan.over(fm.open(path), shuffle="global"), BATCH, rank=0, world_size=1):
        return {"samples": len(batch)}
    return {}


def bare_columns(folder: str) -> dict[str, float]:
    """Measure reading the same bytes, each range cut into two parts, without a loader."""
    import feedmill as fm

    dataset = fm.open(folder, raw=True, decode=None)
    sources = [dataset.locate(number) for number in range(len(dataset))]  # a part of them would stay in the cache
    files = {path: os.open(path, os.O_RDONLY) for path in {source.where for source in sources}}
    ranges = [(files[source.where], source.length, source.offset) for source in sources]
    rng = np.random.default_rng(0)

    def batches() -> Iterator[int]:
        while True:
            blocks = [os.pread(*ranges[at]) for at in rng.integers(0, len(ranges), BATCH).tolist()]
            kept = [(block[512:-1536], block[-1024:-512]) for block in blocks]
            yield len(kept)

    return rate(batches(), SECONDS)


def jpeg(folder: str, workers: str) -> dict[str, float]:
    """Measure pictures in one array per batch."""
    import feedmill as fm

    plan = fm.Plan.over(fm.open(folder, raw=True), shuffle="block")
    loader = fm.Loader(plan, BATCH, rank=0, world_size=1, workers=int(workers))

    def use(batch: dict[str, Any]) -> int:
        assert batch["jpg"].shape[1:] == (375, 500, 3)
        return len(batch["jpg"])

    return rate(map(use, loader), 2 * SECONDS)


def bare_jpeg(threads: str) -> dict[str, float]:
    """Measure decoding alone."""
    from concurrent.futures import ThreadPoolExecutor

    import simplejpeg

    data = pictures.jpegs()

    def decode(at: int) -> int:
        for picture in data[at : at + BATCH]:
            simplejpeg.decode_jpeg(picture)
        return BATCH

    def batches() -> Iterator[int]:
        with ThreadPoolExecutor(int(threads)) as pool:
            running = [pool.submit(decode, 0) for _ in range(4)]
            for at in itertools.count(0, BATCH):
                yield running.pop(0).result()
                running.append(pool.submit(decode, at % (len(data) - BATCH)))

    return rate(batches(), 2 * SECONDS)


def resume(folder: str) -> dict[str, float]:
    """Return the bytes of a state, and the seconds from it to the first batch, including opening and planning."""
    import feedmill as fm

    Loader, Recipe = fm.Loader, fm.Recipe  # not counted: imports
    entry = {"path": folder, "weight": 1, "shuffle": "global"}
    recipe = {"seed": 1, "blend": [entry, {**entry, "name": "again", "weight": 2}]}
    loader = Loader(Recipe.parse(recipe).plan(), BATCH, rank=0, world_size=8, output="samples")
    next(iter(loader))
    state = json.dumps({**loader.state_dict(), "position": 10**9})
    begun = time.perf_counter()
    loader = Loader(Recipe.parse(recipe).plan(), BATCH, rank=3, world_size=8, output="samples")
    loader.load_state_dict(json.loads(state))
    next(iter(loader))
    return {"s": time.perf_counter() - begun, "bytes": len(state)}


def flat(folder: str, workers: str, samples: str) -> dict[str, float]:
    """Return the growth in MB of this process and its workers from the first tenth of the samples to the end."""
    import feedmill as fm

    how = fm.Workers(int(workers.rstrip("p")), processes=workers.endswith("p"))
    plan = fm.Plan.over(fm.open(folder, raw=True, decode=None), shuffle="block")
    loader = fm.Loader(plan, 256, rank=0, world_size=1, workers=how, output="samples")
    wanted, seen, first = int(samples), 0, 0.0
    begun = time.perf_counter()
    for batch in loader:
        seen += len(batch)
        if not first and seen >= wanted // 10:
            first = memory_mb()
        if seen >= wanted:
            break
    end = memory_mb()
    loader.close()
    return {"mb": end - first, "whole_mb": end, "per_s": seen / (time.perf_counter() - begun)}


if __name__ == "__main__":
    answer(globals())
