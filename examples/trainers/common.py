"""The samples, the model and the log of the examples in this folder: a linear model that learns the length of texts.

Every sample of the recipe must have a part `json` with a text field "text" and a number "id".
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import feedmill as fm

BUCKETS = 64


def encode(sample: fm.Sample, rng: np.random.Generator) -> dict[str, Any]:
    """Return the counts of byte pairs in a random piece of the text, the target, and the id of the sample."""
    text = sample["json"]["text"].encode()
    begin = int(rng.integers(max(1, len(text) - 64)))
    piece = np.frombuffer(text[begin : begin + 64].ljust(2), np.uint8).astype(np.int64)
    counts = np.bincount((piece[1:] * 31 + piece[:-1]) % BUCKETS, minlength=BUCKETS)
    return {"x": counts.astype(np.float32), "y": np.float32(np.log1p(len(text))), "id": sample["json"]["id"]}


def piece_of(sample: fm.Sample, rng: np.random.Generator, length: int) -> np.ndarray:
    """Return the bytes of the text from a random place, repeated to a length, as tokens int64[length]."""
    text = np.frombuffer(sample["json"]["text"].encode(), np.uint8)
    return np.resize(np.roll(text, -int(rng.integers(len(text)))), length).astype(np.int64)


def checksums(tokens: np.ndarray) -> np.ndarray:
    """Return a number for each row of tokens, int64[n]."""
    return np.array([zlib.crc32(row.astype(np.int64).tobytes()) for row in np.asarray(tokens)], np.int64)


def with_line(source: str, before: str, line: str) -> str:
    """Return the published source of a trainer with a line before another one, which it must have once.

    Raises:
        RuntimeError: the source has not one such place.
    """
    if source.count(before) != 1:
        raise RuntimeError(f"the source has {source.count(before)} times {before.strip()!r}: expected 1")
    return source.replace(before, line + before)


def options(description: str | None) -> argparse.Namespace:
    """Return the options that all examples have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, default=100, help="total number of steps, including those of earlier runs")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("run"), help="where checkpoints are written")
    parser.add_argument(
        "--losses", type=Path, default=Path("log"), help="where the losses and ids of batches are written"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each batch")
    return parser.parse_args()


class Log:
    """The loss and the samples of each batch of this rank, one line of JSON for each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._pause = options.pause
        options.losses.mkdir(parents=True, exist_ok=True)
        self._file = open(options.losses / f"{os.environ.get('RANK', '0')}.jsonl", "w")  # noqa: SIM115

    def __call__(self, step: int, loss: float, batch: dict[str, Any]) -> None:
        """Add a line: the step that the batch belongs to, its mean loss before the step, and the ids of its samples."""
        self._file.write(json.dumps({"step": step, "loss": loss, "ids": np.asarray(batch["id"]).tolist()}) + "\n")
        self._file.flush()
        time.sleep(self._pause)
