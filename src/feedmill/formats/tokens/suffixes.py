"""The files of each token format that tokenizing writes, by their suffixes."""

from __future__ import annotations

from typing import Final

FORMATS: Final[dict[str, tuple[str, ...]]] = {  # the file by which each is recognised first
    "pbin": (".pbin", ".pbin.feedmill.bounds"),
    "ds": (".ds", ".ds.index", ".ds.metadata", ".ds.loss"),
    "megatron": (".idx", ".bin"),
    "dolma": (".npy", ".csv.gz"),
    "vla-text": ("/manifest.jsonl",),  # and the shards beside it
}
