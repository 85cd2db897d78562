"""A rank of a training run, for tests that kill it: ``training_rank.py JSON``. Each step leaves one line."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import xxhash

import feedmill as fm


def noisy(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The row with some tokens replaced at random, as a masked language model wants it."""
    tokens = np.array(sample["input_ids"])
    tokens[rng.random(len(tokens)) < 0.2] = int(rng.integers(1000))
    return {"tokens": tokens, "positions": sample["positions"]}


def main(options: dict[str, Any]) -> None:
    plan = fm.Recipe.load(options["recipe"]).plan()
    workers = fm.Workers(options["workers"], processes=options["processes"]) if options["workers"] else 0
    loader = fm.Loader(
        plan,
        options["batch_size"],
        rank=options["rank"],
        world_size=options["world_size"],
        workers=workers,
        transform=noisy,
        remainder="pad",
        deal="contiguous",  # so that the first position says which rows a line is about
    )
    if options["state"] is not None:
        loader.load_state_dict(options["state"])
    with open(options["log"], "w") as log:
        first = loader.position
        for batch in loader:
            own = first + options["rank"] * options["batch_size"]
            rows = zip(batch["tokens"], batch["positions"], batch["__mask__"].tolist(), strict=True)
            digests = [xxhash.xxh3_64_hexdigest(t.tobytes() + p.tobytes()) for t, p, real in rows if real]
            first = loader.position
            print(json.dumps({"first": own, "rows": digests, "state": loader.state_dict()}), file=log, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
