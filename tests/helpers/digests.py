"""Digests of decoded values, by the rules of the golden data's README, and the way to its cases."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parents[1] / "golden" / "energon"


@cache
def expected(case: str) -> dict[str, Any]:
    """The ``expected.json`` of one golden case."""
    return json.loads((GOLDEN / case / "expected.json").read_text("utf-8"))


def digest(value: Any) -> Any:
    """What the golden data says of a value: type, and hash or the value itself."""
    kind = {"t": type(value).__name__}
    if kind["t"] == "AVDecoder":  # what Energon's own digest has of it
        return {"t": "bytes"} | {name: fact for name, fact in digest(value.stream.read()).items() if name != "t"}
    if isinstance(value, str):
        raw = value.encode("utf-8")
        return kind | {"len": len(value), "sha256_utf8": hashlib.sha256(raw).hexdigest()}
    if isinstance(value, bytes):
        return kind | {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, dict):
        return kind | {"v": {key: digest(item) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return kind | {"v": [digest(item) for item in value]}
    if hasattr(value, "dtype"):
        array = np.ascontiguousarray(value)
        name = "ndarray" if isinstance(value, np.ndarray) else "tensor"
        hashed = hashlib.sha256(array.tobytes()).hexdigest()
        return {"t": name, "dtype": str(array.dtype), "shape": list(array.shape), "sha256": hashed}
    return kind | {"v": value}


def golden_digest(entry: Any) -> Any:
    """A golden digest, without the shown text of strings, and with undecoded audio and video as their bytes."""
    if not isinstance(entry, dict):
        return entry
    if entry["t"] == "str":
        return {key: entry[key] for key in ("t", "len", "sha256_utf8")}
    if entry["t"] == "AVDecoder":
        return {"t": "bytes", "len": entry["stream_len"], "sha256": entry["stream_sha256"]}
    if entry["t"] in ("list", "tuple"):
        return entry | {"v": [golden_digest(item) for item in entry["v"]]}
    if entry["t"] == "dict":
        return entry | {"v": {key: golden_digest(item) for key, item in entry["v"].items()}}
    return entry
