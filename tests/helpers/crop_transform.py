"""A transform for worker processes of tests; `worker_functions` must do without numpy and its threads."""

from __future__ import annotations

from typing import Any

import numpy as np


def crop(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
    """A line of JSON, its text cut at a random place, and an array."""
    at = int(rng.integers(8))
    return {"id": sample["json"]["id"], "text": sample["json"]["text"][at:], "x": np.arange(at, at + 64)}
