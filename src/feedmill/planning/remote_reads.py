"""Estimate the requests and bytes with which a plan is read from remote stores, from the index alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.planning.nodes.shuffle import DEFAULT_BLOCK, DEFAULT_WINDOW
from feedmill.storage.fetching.lanes import SMALL
from feedmill.storage.fetching.ranges import OFFSET_BITS, requests_for

if TYPE_CHECKING:
    from feedmill.formats.extents import Extents
    from feedmill.planning.plan import Plan

_WINDOW = DEFAULT_BLOCK * DEFAULT_WINDOW
_LATENCY, _RATE = 0.02, 200e6
"""Assumptions about a server: seconds of latency, and bytes per second."""
_AT_ONCE = 64
_SCATTERED = 4
"""Samples per request below which latency takes longer than transfer."""


def remote_reads(plan: Plan, samples: int | None) -> dict[str, Any] | None:
    """Return how a loader of one rank reads samples from remote stores; None if the plan has no remote data.

    The ranges of one window in the middle are merged as the loader merges them, and counted for all samples.

    Args:
        samples: number of samples; None for an endless plan, whose figures are those of a window.

    Returns:
        ``samples`` (the number of samples read), ``requests``, ``bytes`` fetched, ``seconds`` at 20 ms of latency and
        200
            MB/s, and ``advice``, a sentence or None.
    """
    if not plan.is_remote or samples == 0:
        return None
    count = min(_WINDOW, samples or _WINDOW)
    middle = 0 if samples is None else (samples - count) // 2 // _WINDOW * _WINDOW
    found = plan.extents(np.arange(middle, middle + count, dtype=np.int64))
    per = [_merged(extents) for extents in found]
    scale = (samples or count) / count
    requests, fetched, wanted = (round(sum(column) * scale) for column in zip(*per, strict=True)) if per else (0, 0, 0)
    seconds = max(fetched / _RATE, requests * _LATENCY / _AT_ONCE)
    return {
        "samples": samples or count,
        "requests": requests,
        "bytes": fetched,
        "seconds": round(seconds, 1),
        "advice": _advice(plan, samples or count, requests, fetched, wanted),
    }


def _merged(extents: Extents) -> tuple[int, int, int]:
    """Return the number of requests, the bytes that they fetch, and the bytes of the ranges."""
    filled = extents.ends > extents.begins
    if not filled.any():
        return 0, 0, 0
    begins, ends = extents.begins[filled], extents.ends[filled]
    _, file = np.unique(extents.file[filled], return_inverse=True)
    base = file.astype(np.int64) << OFFSET_BITS
    order = np.argsort(base + begins, kind="stable")
    requests = requests_for((base + begins)[order], (base + ends)[order], SMALL)
    return len(requests.begins), requests.size, int((ends - begins).sum())


def _advice(plan: Plan, samples: int, requests: int, fetched: int, wanted: int) -> str | None:
    small = wanted / max(samples, 1) < SMALL
    if not small or (requests * _SCATTERED < samples and fetched < 2 * wanted):
        return None
    cached = plan.cache is not None and plan.cache.size > 0
    if cached:
        return "the samples are small and scattered: the cache fetches whole shards if it has room for all of them"
    return (
        "the samples are small and scattered: use 'shuffle: block', or give the recipe a 'cache' with room for all"
        " data, which then fetches whole shards"
    )
