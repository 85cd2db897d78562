"""Golden data of VLA Foundry and WebDataset: see tests/golden/vla/README.md."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1] / "golden" / "vla"


def expected(folder: str) -> Any:
    """What the peers' own code gave for a folder."""
    name = "cases.json" if folder in ("order", "selection") else "expected.json"
    return json.loads((ROOT / folder / name).read_text())


def facts(value: Any) -> dict[str, Any]:
    """A decoded value in the words of the expectations (tensors from arrays)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return {
            "data_sha256": hashlib.sha256(data).hexdigest(),
            "dtype": str(value.dtype).removeprefix("torch."),
            "kind": "tensor",
            "shape": list(value.shape),
        }
    if isinstance(value, np.ndarray):
        return {
            "data_sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
            "dtype": value.dtype.name,
            "kind": "tensor",
            "shape": list(value.shape),
        }
    if isinstance(value, dict):
        return {"items": {name: facts(item) for name, item in value.items()}, "kind": "dict"}
    if isinstance(value, list | tuple):
        return {"items": [facts(item) for item in value], "kind": type(value).__name__}
    return {"kind": type(value).__name__, "value": repr(value) if isinstance(value, np.generic) else value}
