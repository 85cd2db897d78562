"""Ranks that collate rows of text and images until one of their rows kills them: see `helpers.forked_ranks`.

Each leg of a run resumes at the last step that all ranks of the leg before have finished. A rank whose options have
``dies`` ends by SIGKILL while it makes its row of that number. Each step leaves a line: the row and the state after it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash

import feedmill as fm
from helpers.forked_ranks import fork_groups
from helpers.vision_models import qwen3_config, qwen3_processor


def bytes_of(batch: dict[str, Any]) -> str:
    """A digest of all values of a batch: names, types, shapes and bytes."""
    digest = xxhash.xxh3_128()
    for name, value in sorted(batch.items()):
        tensor = isinstance(value, torch.Tensor)
        digest.update(f"{name} {(value.dtype, tuple(value.shape)) if tensor else value}\0".encode())
        digest.update(value.contiguous().numpy().tobytes() if tensor else b"")
    return digest.hexdigest()


def lines_of(leg: str | Path) -> list[list[dict[str, Any]]]:
    """The lines of each rank of a leg; the last of a rank that was killed may be incomplete."""
    logs = sorted(Path(leg).glob("*.jsonl"))
    return [[json.loads(line) for line in log.read_text().split("\n")[:-1]] for log in logs]


def checkpoint(leg: str | Path) -> tuple[int, dict[str, Any] | None]:
    """How many steps all ranks of a leg have finished, and a state after the last of these."""
    lines = lines_of(leg)
    shortest = min(lines, key=len)
    return len(shortest), shortest[-1]["state"] if shortest else None


def main(collate: fm.RowCollator, options: dict[str, Any]) -> None:
    made = itertools.count(1)

    def deadly(rows: Any) -> Any:
        batch = collate(rows)
        if next(made) == options.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    rank, world_size, workers = options["rank"], options["world_size"], options["workers"]
    plan = fm.Recipe.load(options["recipe"]).plan()
    loader = fm.Loader(plan, 1, rank=rank, world_size=world_size, workers=workers, collate=deadly, remainder="drop")
    # A leg whose ranks have finished no step together leaves no state: that of the leg before it still holds.
    state = next((found for leg in reversed(options["before"]) if (found := checkpoint(leg)[1]) is not None), None)
    if state is not None:
        loader.load_state_dict(state)
    if rank == 0:
        print([loader.position], flush=True)
    Path(options["leg"]).mkdir(exist_ok=True)
    with open(Path(options["leg"], f"{rank}.jsonl"), "w") as log:
        for batch in loader:
            print(json.dumps({"row": bytes_of(batch), "state": loader.state_dict()}), file=log, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Made before the ranks are forked, because it imports a model.
    fork_groups(partial(main, fm.tokens.collate_rows(qwen3_processor(), config=qwen3_config())))
