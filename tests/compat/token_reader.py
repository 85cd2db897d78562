"""Read token files with datatrove or megatron-core, as JSON: run by the interop test in the peer's environment.

    python token_reader.py < requests.json

A request is an object with `tool`, `path` and the tool's own arguments (`options`). datatrove answers with the tokens
of all windows (and positions), megatron-core with the tokens of all sequences and the bounds of documents.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def datatrove(path: str, options: dict[str, Any]) -> dict[str, Any]:
    from datatrove.utils.dataset import DatatroveFolderDataset

    dataset = DatatroveFolderDataset(path, **options)
    samples = [dataset[number] for number in range(len(dataset))]
    return {
        "tokens": [sample["input_ids"].tolist() for sample in samples],
        "positions": [sample["positions"].tolist() for sample in samples if "positions" in sample],
    }


def megatron(path: str, options: dict[str, Any]) -> dict[str, Any]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(path, **options)
    return {
        "tokens": [dataset[number].tolist() for number in range(len(dataset))],
        "documents": dataset.document_indices.tolist(),
        "dtype": str(dataset[0].dtype),
    }


if __name__ == "__main__":
    tools = {"datatrove": datatrove, "megatron": megatron}
    json.dump([tools[each["tool"]](each["path"], each["options"]) for each in json.load(sys.stdin)], sys.stdout)
