"""Small token files in Megatron-LM's format, and runs over them as recipes and as megatron-core's configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feedmill.formats.tokens.megatron import write_megatron
from feedmill.storage import LocalStore

SETS = {"a": (300, 41), "b": (900, 23), "c": (57, 97)}
"""Documents of each dataset, and an upper bound of their tokens."""


def write_sets(root: Path, times: int = 1) -> None:
    """Write the datasets ``a``, ``b`` and ``c``; documents end with the token 0, and some have no tokens."""
    root.mkdir(parents=True, exist_ok=True)
    for name, (documents, longest) in SETS.items():
        lengths = (np.arange(documents * times, dtype=np.int64) * 7919 + 31) % longest
        tokens = (np.arange(int(lengths.sum()), dtype=np.int64) * 31 + ord(name)) % 997 + 1
        tokens[np.cumsum(lengths)[lengths > 0] - 1] = 0
        with write_megatron(LocalStore(root), f"{name}_text_document", "<u2") as writer:
            writer.add(tokens, lengths)


RUNS: dict[str, dict[str, Any]] = {
    "a last epoch apart": {
        "sources": ["a"],
        "split": "949,30,21",
        "samples": [1000, 20, 5],
        "seq_len": 16,
        "seed": 1234,
    },
    "a last epoch shuffled with the others": {
        "sources": ["b"],
        "split": "90,5,5",
        "samples": [1050, 40, 40],
        "seq_len": 16,
        "seed": 7,
        "options": {"add_extra_token_to_sequence": False},
    },
    "one epoch, a partial sample": {
        "sources": ["b"],
        "split": "80,15,5",
        "samples": [None, None, None],
        "seq_len": 33,
        "seed": 42,
        "options": {"drop_last_partial_validation_sequence": False},
    },
    "a blend by weight": {
        "sources": ["a", "b", "c"],
        "weights": [0.3, 0.5, 0.2],
        "split": "969,20,11",
        "samples": [700, 30, 12],
        "seq_len": 16,
        "seed": 1234,
    },
    "a blend by size": {
        "sources": ["c", "b", "a"],
        "split": "7,2,1",
        "samples": [500, 100, 10_000],
        "seq_len": 24,
        "seed": 3,
    },
    "an exhaustive blend": {
        "sources": ["a", "c", "b"],
        "split": "1,1,1",
        "samples": [None, None, None],
        "seq_len": 10,
        "seed": 99,
    },
    "blends per split": {
        "sources": ["b", "a"],
        "weights": [30.0, 70.0],
        "split": None,
        "samples": [300, 60, 7],
        "seq_len": 12,
        "seed": 5,
    },
}
PARTS = ("train", "valid", "test")


def core_request(run: dict[str, Any], root: Path, **more: Any) -> dict[str, Any]:
    """Return the request of a run for ``megatron_reader.py``."""
    prefixes = [str(root / f"{name}_text_document") for name in run["sources"]]
    blend = [prefixes, run.get("weights")]
    config: dict[str, Any] = {
        "random_seed": run["seed"],
        "sequence_length": run["seq_len"],
        "split": run["split"],
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False),
        **run.get("options", {}),
    }
    config["blend" if run["split"] else "blend_per_split"] = blend if run["split"] else [blend] * 3
    return {"config": config, "sizes": run["samples"], "take": [], **more}


def recipe(run: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the recipe of one part of a run, relative to the folder of the datasets."""
    options = run.get("options", {})
    order: dict[str, Any] = {"kind": "megatron", "seq_len": run["seq_len"], "part": part}
    if run["split"]:
        order["split"] = run["split"]
    names = {
        "add_extra_token_to_sequence": "extra_token",
        "drop_last_partial_validation_sequence": "drop_last_partial",
    }
    order |= {ours: options[theirs] for theirs, ours in names.items() if theirs in options}
    data: dict[str, Any] = {"seed": run["seed"], "order": order}
    samples = run["samples"][PARTS.index(part)]
    if samples is not None:
        data["samples"] = samples
    members: list[dict[str, Any]] = [{"path": f"{name}_text_document.bin"} for name in run["sources"]]
    for member, weight in zip(members, run.get("weights", ()), strict=False):
        member["weight"] = weight
    if len(members) == 1:
        data["source"] = members[0]
    else:
        data["blend"] = members
    return data
