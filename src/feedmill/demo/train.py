"""A small training program: ``python -m feedmill.demo.train``. One process is one rank.

It loads batches, writes one JSON line for each step (what a training step would consume), and saves the loader's state
every few steps, as a trainer saves checkpoints. It can be killed at any time and restarted with other numbers of
ranks and workers and another batch size.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash

import feedmill
from feedmill.errors import FeedmillError
from feedmill.loading.loader import Loader
from feedmill.samples.sheet import as_image
from feedmill.samples.types import named_fields

CROP = 256


def open_plan(recipe: str) -> Any:
    """Return the plan of a recipe file."""
    return feedmill.Recipe.load(recipe).plan()


def augment(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Return a random crop and mirror of a page, or a random window of a text; deterministic for a position."""
    fields = named_fields(sample) or {}
    image, text = fields.get("image"), fields.get("json")
    out: dict[str, Any] = {"__key__": key_of(sample), "kind": "docs" if image is None else "pages"}
    if image is None:
        words = text["text"].split() if isinstance(text, dict) else []
        start = int(rng.integers(0, max(1, len(words) - 64)))
        return {**out, "text": " ".join(words[start : start + 64])}
    picture = as_image(image)
    assert picture is not None, "the page dataset declares its images"
    pixels = np.asarray(picture)
    top, left = (int(rng.integers(0, size - CROP + 1)) for size in pixels.shape[:2])
    pixels = pixels[top : top + CROP, left : left + CROP]
    return {**out, "image": np.ascontiguousarray(pixels[:, ::-1] if rng.random() < 0.5 else pixels)}


def key_of(sample: Any) -> str:
    """Return the key of a `Sample`, a typed sample or a crude dict."""
    key = getattr(sample, "key", None)
    return str((named_fields(sample) or {}).get("__key__", "") if key is None else key)


def digest(sample: dict[str, Any]) -> str:
    """Return a short hash of a sample as the training step sees it."""
    data = sample["image"].tobytes() if "image" in sample else sample["text"].encode()
    return xxhash.xxh3_64_hexdigest(data)


def train(
    plan: Any,
    *,
    out: Path,
    until: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    save_every: int = 4,
    resume: Path | None = None,
) -> None:
    """Load up to position `until` (or just beyond), logging to ``<out>/rank-R.jsonl``.

    Begins at the newest state in the folder `resume`, or at position 0 without one.
    """
    loader = Loader(
        plan,
        batch_size,
        rank=rank,
        world_size=world_size,
        workers=workers,
        transform=augment,
        output="samples",
        deal="contiguous",  # so that the first position of a line determines the others
    )
    state = newest_state(resume) if resume is not None else None
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    step = 0
    with open(out / f"rank-{rank}.jsonl", "wb") as log:
        while loader.position < until:
            position = loader.position + rank * batch_size
            samples = next(batches)
            keys = [f"{sample['kind']}/{sample['__key__']}" for sample in samples]
            line = {"step": step, "position": position, "keys": keys, "digests": [digest(sample) for sample in samples]}
            log.write(orjson.dumps(line) + b"\n")
            log.flush()
            step += 1
            if step % save_every == 0:
                save_state(out, loader.state_dict(), rank, world_size)
    loader.close()


def save_state(out: Path, state: dict[str, Any], rank: int, world_size: int) -> None:
    """Save this rank's part of a checkpoint atomically."""
    final = out / f"state-{state['position']:012d}-{rank}-of-{world_size}.json"
    temporary = final.with_suffix(".tmp")
    temporary.write_bytes(orjson.dumps(state))
    os.replace(temporary, final)


def newest_state(out: Path) -> dict[str, Any] | None:
    """Return the newest state that all ranks of its run had reached, or None if there is none."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path in out.glob("state-*.json"):
        _, position, _, _, world_size = path.stem.split("-")
        groups.setdefault((position, world_size), []).append(path)
    whole = [paths for (_, world_size), paths in sorted(groups.items()) if len(paths) == int(world_size)]
    if not whole:
        return None
    state: dict[str, Any] = orjson.loads(whole[-1][0].read_bytes())
    return state


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see `train` for the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--resume", type=Path)
    for name, default in (
        ("until", 1000), ("batch-size", 8), ("rank", 0), ("world-size", 1), ("workers", 0), ("save-every", 4)
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args(arguments))
    try:
        train(open_plan(options.pop("recipe")), **options)
    except FeedmillError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
