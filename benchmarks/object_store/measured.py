"""Count what every loader must yield: one pass from a cold start. Needs only Python."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BATCH = 64


def one_pass(
    batches: Iterable[Any], use: Callable[[Any], int], began: float, most: int = 0, skip: int = 0
) -> dict[str, float]:
    """Return samples per second from the request for the first batch on, and the seconds until that batch.

    Args:
        batches: the batches of the loader.
        use: checks a batch, and returns the number of its samples.
        began: time when opening began, by `time.perf_counter`, after the imports.
        most: number of samples to stop after; 0 for all.
        skip: number of samples before the clock for the rate starts: those of a first epoch.
    """
    begin = time.perf_counter()
    rate_from, first, samples, counted = begin, 0.0, 0, 0
    for batch in batches:
        count = use(batch)
        first = first or time.perf_counter() - begin
        if samples >= skip:
            counted += count
        samples += count
        if counted == 0:
            rate_from = time.perf_counter()
        if most and samples >= most:
            break
    taken = time.perf_counter() - rate_from
    return {"rate": counted / taken, "first": first, "open": begin - began, "samples": samples}


def use_samples(batch: list[dict[str, Any]]) -> int:
    """Return the number of samples of a batch of raw parts; raises if their bytes are missing."""
    assert sum(len(sample["bin"]) for sample in batch) == 15_000 * len(batch)
    return len(batch)


def use_windows(batch: Any) -> int:
    """Return the number of windows of a batch of int64[n, 2049] tensors."""
    assert batch.shape[1] == 2049 and str(batch.dtype) == "torch.int64"
    return int(batch.shape[0])


def tar_samples(tars: str) -> Iterable[dict[str, bytes]]:
    """Yield the parts of the samples of a folder of tars, in stored order."""
    for shard in sorted(Path(tars).glob("*.tar")):
        with tarfile.open(shard) as tar:
            sample: dict[str, bytes] = {}
            for member in tar:
                key, _, part = member.name.partition(".")
                if sample and sample["__key__"] != key.encode():
                    yield sample
                    sample = {}
                sample["__key__"] = key.encode()
                sample[part] = tar.extractfile(member).read()  # type: ignore[union-attr]
            if sample:
                yield sample


def parts_of(sample: dict[str, bytes]) -> dict[str, bytes]:
    """Return a sample without its key."""
    return {name: content for name, content in sample.items() if name != "__key__"}


def token_windows(path: str, width: int) -> Iterable[Any]:
    """Yield the windows of a ``.pbin`` of 2-byte tokens as uint16[width]; adjacent ones share one token."""
    import numpy as np

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    ids = np.memmap(path, np.uint16, "r", 12, (length // 2,))
    for begin in range(0, len(ids) - width + 1, width - 1):
        yield np.asarray(ids[begin : begin + width])
