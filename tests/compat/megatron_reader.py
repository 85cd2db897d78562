"""Build datasets with megatron-core and print their indices and samples as JSON: run in the peer's environment.

    python megatron_reader.py < requests.json

A request has `config` (of `GPTDatasetConfig`), `sizes` (of train, valid and test), `pad` (of the tokenizer, or null)
and `take`, the samples to show. The answer has for each split its indices, as lists or, where they are long, as a hash.
With `save`, the indices are also written to `save/<split>.npz`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from typing import Any

import numpy as np

LONG = 400


class Tokenizer:
    """What megatron-core asks of a tokenizer."""

    vocab_size, eod, eos = 1000, 0, 0

    def __init__(self, pad: int | None) -> None:
        self.unique_identifiers = {"class": "Tokenizer"}
        if pad is not None:
            self.pad = pad


def shown(index: np.ndarray) -> dict[str, Any]:
    """Return an index as JSON: its numbers if they are few, else the first of them and a hash of all as int64."""
    digest = hashlib.sha256(np.ascontiguousarray(index, "<i8").tobytes()).hexdigest()
    return {"shape": list(index.shape), "head": index.reshape(-1)[:LONG].tolist(), "sha256": digest}


def one(dataset: Any) -> dict[str, Any]:
    names = ("document_index", "sample_index", "shuffle_index")
    return {"samples": len(dataset), **{name: shown(getattr(dataset, name)) for name in names}}


def build(request: dict[str, Any]) -> list[dict[str, Any] | None]:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    # It stores indices beside the data, under a name that does not depend on all settings, and would read them again.
    for blend in [request["config"].get("blend"), *(request["config"].get("blend_per_split") or ())]:
        for prefix in blend[0] if blend else ():
            shutil.rmtree(f"{prefix}/cache", ignore_errors=True)
    config = GPTDatasetConfig(tokenizer=Tokenizer(request.get("pad")), **request["config"])
    if request["config"].get("path_to_cache"):
        import torch

        if not torch.distributed.is_initialized():  # without it, storing a blend fails
            torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    found: list[dict[str, Any] | None] = []
    built = BlendedMegatronDatasetBuilder(GPTDataset, request["sizes"], lambda: True, config).build()
    for number, dataset in enumerate(built):
        if dataset is None:
            found.append(None)
            continue
        several = isinstance(getattr(dataset, "datasets", None), list)
        about: dict[str, Any] = {"datasets": [one(each) for each in (dataset.datasets if several else [dataset])]}
        if several:
            about["dataset_index"] = shown(dataset.dataset_index)
            about["dataset_sample_index"] = shown(dataset.dataset_sample_index)
        take = [index for index in request["take"] if index < len(dataset)]
        about["take"] = [
            {name: np.asarray(value).tolist() for name, value in dataset[index].items() if name != "dataset_id"}
            for index in take
        ]
        if request.get("save"):
            parts = dataset.datasets if several else [dataset]
            np.savez(
                f"{request['save']}/{number}.npz",
                source=dataset.dataset_index if several else np.zeros(len(dataset), np.int64),
                sample=dataset.dataset_sample_index if several else np.arange(len(dataset)),
                **{f"shuffle{k}": part.shuffle_index for k, part in enumerate(parts)},
                **{f"sample{k}": part.sample_index for k, part in enumerate(parts)},
                **{f"document{k}": part.document_index for k, part in enumerate(parts)},
            )
        found.append(about)
    return found


if __name__ == "__main__":
    json.dump([build(request) for request in json.load(sys.stdin)], sys.stdout)
