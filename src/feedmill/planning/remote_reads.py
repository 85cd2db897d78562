"""Estimate the requests and bytes with which a plan is read from remote stores, from the index alone."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.planning.nodes.shuffle import DEFAULT_BLOCK, DEFAULT_WINDOW, BlockShuffle
from feedmill.samples.text import human_size
from feedmill.storage.fetching.lanes import SMALL
from feedmill.storage.fetching.ranges import OFFSET_BITS, TARGET, requests_for
from feedmill.storage.fetching.read_ahead import budget_from_environment, most_from_environment, parts, widened

if TYPE_CHECKING:
    from feedmill.formats.offsets import Extents
    from feedmill.planning.nodes.base import Node
    from feedmill.planning.plan import Plan

WINDOW, _LONGEST = DEFAULT_BLOCK * DEFAULT_WINDOW, 1 << 16
"""Positions of a window for a source that has no block shuffle, and of one for all sources at most."""
_LATENCY, _RATE = 0.02, 200e6
"""Assumptions about a server: seconds of latency, and bytes per second."""
_AT_ONCE = 64
_SMALL_BLOCK = 1 << 20
"""Bytes of a block of the block shuffle below which larger blocks are advised."""
_SCATTERED = 4
"""Samples per request below which latency takes longer than transfer."""


def window_of(plan: Any) -> int:
    """Return the number of positions that a loader of one rank requests together: a window of each remote source."""
    remote = {number for number, source in enumerate(getattr(plan, "sources", ())) if source.is_remote}
    node = getattr(plan, "node", None)
    spans = [WINDOW] * len(remote) if node is None else _spans(node, remote, WINDOW)
    return min(_LONGEST, max(WINDOW, sum(spans)))


def is_scattered(plan: Any) -> bool:
    """Return whether the plan reads samples from anywhere in its datasets one after the other, or may do so."""

    def scatters(node: Node) -> bool:
        return node.scatters or any(map(scatters, node.children))

    node = getattr(plan, "node", None)
    return node is None or scatters(node)


def _spans(node: Node, remote: Set[int], above: int) -> list[int]:
    """Return for each remote leaf below a node the positions of a window of the shuffle nearest to it."""
    if isinstance(node, BlockShuffle):
        above = node.block * node.window
    if not node.children:
        return [above] if not remote.isdisjoint(node.leaves) else []
    return [span for child in node.children for span in _spans(child, remote, above)]


def remote_reads(plan: Plan, samples: int | None) -> dict[str, Any] | None:
    """Return how a loader of one rank reads samples from remote stores; None if the plan has no remote data.

    The ranges of one window in the middle are merged as the loader merges them, and counted for all samples. A window
    that is too large for the memory of reading ahead is requested in parts.

    Args:
        samples: number of samples; None for an endless plan, whose figures are those of a window.

    Returns:
        ``samples`` (the number of samples read), ``requests``, ``bytes`` fetched, ``seconds`` at 20 ms of latency and
        200 MB/s, and ``advice``, a sentence or None.
    """
    if not plan.is_remote or samples == 0:
        return None
    window = window_of(plan)
    count = min(window, samples or window)
    middle = 0 if samples is None else (samples - count) // 2 // window * window
    read_extents = plan.extents(np.arange(middle, middle + count, dtype=np.int64))
    sizes = np.zeros(count, np.int64)
    for extents in read_extents:
        np.add.at(sizes, extents.sample, extents.ends - extents.begins)
    budget = widened(budget_from_environment(), most_from_environment(), int(sizes.sum()))
    cached = plan.cache is not None and plan.cache.size > 0
    whole = cached or not budget
    pieces, most = ([(0, count)], int(sizes.sum()) * 2) if whole else (list(parts(sizes, budget)), budget // 2)
    per = [_merged(extents, low, high, most) for extents in read_extents for low, high in pieces]
    scale = (samples or count) / count
    requests, fetched, wanted = (round(sum(column) * scale) for column in zip(*per, strict=True)) if per else (0, 0, 0)
    seconds = max(fetched / _RATE, requests * _LATENCY / _AT_ONCE)
    return {
        "samples": samples or count,
        "requests": requests,
        "bytes": fetched,
        "seconds": round(seconds, 1),
        "advice": _advice(cached, samples or count, requests, fetched, wanted) or _larger(plan, requests, sizes),
    }


def _merged(extents: Extents, low: int, high: int, most: int) -> tuple[int, int, int]:
    """Return the number of requests for the samples low to high, the bytes that they fetch, and those of the ranges.

    As in `ReadAhead`, gaps are not bridged if that takes more than `most` bytes.
    """
    filled = (extents.ends > extents.begins) & (extents.sample >= low) & (extents.sample < high)
    if not filled.any():
        return 0, 0, 0
    begins, ends = extents.begins[filled], extents.ends[filled]
    _, file = np.unique(extents.file[filled], return_inverse=True)
    base = file.astype(np.int64) << OFFSET_BITS
    order = np.argsort(base + begins, kind="stable")
    ranges = (base + begins)[order], (base + ends)[order]
    requests = requests_for(*ranges, SMALL)
    if requests.size > most:
        requests = requests_for(*ranges, 0)
    return len(requests.begins), requests.size, int((ends - begins).sum())


def _larger(plan: Plan, requests: int, sizes: npt.NDArray[np.int64]) -> str | None:
    """Return advice to shuffle larger blocks if those of the plan are too small for requests of their size."""
    mean = max(1, int(sizes.mean()))
    blocks = _blocks(plan.node)
    if not blocks or max(blocks) * mean >= _SMALL_BLOCK or requests <= len(blocks):
        return None
    better = 1 << (TARGET // mean).bit_length() - 1
    return (
        f"a block of the shuffle has {human_size(max(blocks) * mean)}, and is a request:"
        f" 'shuffle: {{kind: block, block: {better}}}' needs fewer"
    )


def _blocks(node: Node) -> list[int]:
    """Return the samples per block of the block shuffles below a node, which are at most all of theirs."""
    own = [min(node.block, node.length)] if isinstance(node, BlockShuffle) else []
    return own + [block for child in node.children for block in _blocks(child)]


def _advice(cached: bool, samples: int, requests: int, fetched: int, wanted: int) -> str | None:
    small = wanted / max(samples, 1) < SMALL
    if not small or (requests * _SCATTERED < samples and fetched < 2 * wanted):
        return None
    if cached:
        return "the samples are small and scattered: the cache fetches whole shards if it has room for all of them"
    return (
        "the samples are small and scattered: use 'shuffle: block', or give the recipe a 'cache' with room for all"
        " data, which then fetches whole shards"
    )
