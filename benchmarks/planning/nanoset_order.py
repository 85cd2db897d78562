"""Measure the orders of other tools in Feedmill: seconds, and peak memory above the start, on one core.

    python -m benchmarks.planning.nanoset_order [SAMPLES ...]

For comparison: Nanotron's index of 10^8 samples of 4 folders takes 19.0 s and 4.0 GB (1.6 GB of it permanently), and
Modalities' shuffled sampler of 10^8 samples 9.5 s and 4.2 GB, measured on 2 cores of an AMD EPYC at 2.6 GHz.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

import numpy as np

from feedmill.planning.nodes import Leaf, Node, Repeat
from feedmill.planning.orders import ModalitiesSampler, Nanoset

SHARES = (0.4, 0.3, 0.2, 0.1)
WEIGHTS = (0.3, 0.3, 0.3, 0.1)
MANY = 65_536


def nanoset(samples: int) -> Node:
    """Create three epochs over four folders."""
    sizes = [int(share * samples) for share in SHARES]
    return Repeat(Nanoset([Leaf(i, size) for i, size in enumerate(sizes)], WEIGHTS), 3)


def sampler(samples: int) -> Node:
    """Create one shuffled pass for 8 ranks."""
    return ModalitiesSampler(Leaf(0, samples), 8, shuffle=True)


def timed(function, *arguments) -> tuple[float, object]:
    """Return the seconds of a call, and its result."""
    begin = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - begin, result


def megabytes() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(name: str, samples: int) -> None:
    """Print the row of one order. It runs in a separate process, so that its memory can be measured."""
    make = {"nanoset": nanoset, "modalities": sampler}[name]
    make(2_000_000).locate(np.arange(10))  # not counted: loads the compiled kernels
    start = megabytes()
    node = make(samples)
    positions = np.random.default_rng(0).integers(0, node.length, MANY)
    first, located = timed(node.locate, positions)
    forward_memory = megabytes() - start
    forward = min(timed(node.locate, positions)[0] for _ in range(10)) / MANY * 1e6
    first_back, (found, _) = timed(node.positions, located)
    assert np.array_equal(found, positions)
    back = min(timed(node.positions, located)[0] for _ in range(10)) / MANY * 1e6
    print(
        f"{name:10} {samples:>13,}  first answer {first:6.2f} s {forward_memory:6.0f} MB, then {forward:.3f} us each;"
        f"  backwards {first_back:6.2f} s {megabytes() - start:6.0f} MB, then {back:.3f} us each",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    spawn = multiprocessing.get_context("spawn")
    for name in ("nanoset", "modalities"):
        for samples in [int(float(word)) for word in sys.argv[1:]] or [10**6, 10**7, 10**8]:
            process = spawn.Process(target=measure, args=(name, samples))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
