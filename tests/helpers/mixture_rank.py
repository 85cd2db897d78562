"""One rank of a run whose recipe and data change, as a program that tests kill; see `loading/test_mixture_kills.py`.

Its argument is JSON: the arguments of `steps` and ``log``, where a line with the samples and the state is written after
each step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import feedmill as fm


def augmented(sample: Any, rng: np.random.Generator) -> str:
    """The sample's text or tokens, and a random number that depends on the seed and the position."""
    text = sample["json"]["text"] if "json" in sample else sample["input_ids"].tolist()
    return f"{text} {rng.integers(10**9)}"


def steps(
    recipe: str,
    rank: int,
    world_size: int,
    batch_size: int,
    workers: int,
    processes: bool,
    state: dict[str, Any] | None,
    flags: dict[str, bool],
) -> Iterator[dict[str, Any]]:
    """What a rank sees at each step, with the state after it; at the end one more without samples."""
    loader = fm.Loader(
        fm.Recipe.load(recipe).plan(),
        batch_size,
        rank=rank,
        world_size=world_size,
        workers=fm.Workers(workers, processes=True) if processes else workers,
        transform=augmented,
        collate=list,
        remainder="ragged",
    )
    if state is not None:
        loader.load_state_dict(state, **flags)
    try:
        for batch in loader:
            yield {"seen": batch, "state": loader.state_dict()}
        yield {"seen": [], "state": loader.state_dict(), "end": True}
    finally:
        loader.close()


def main() -> None:
    given = json.loads(sys.argv[1])
    pause = given.pop("pause")
    with open(given.pop("log"), "w") as log:
        for line in steps(**given):
            log.write(json.dumps(line) + "\n")
            log.flush()
            time.sleep(pause)


if __name__ == "__main__":
    main()
