"""Identify the tokenizers of token data by the manifests next to its files, or by the names in ``.ds.metadata``."""

from __future__ import annotations

import os
from typing import NamedTuple

from feedmill.errors import DataError
from feedmill.formats.base import Dataset
from feedmill.formats.tokens import ds
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.levanter_ledger import LEDGER
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.formats.tokens.windows import WindowDataset


class Identity(NamedTuple):
    """A tokenizer: its name as given, the hash of its model ("" if unknown), and a file that it made."""

    name: str
    hash: str
    file: str

    def differs(self, other: Identity) -> bool:
        """Return whether the two are known to be different: by hash if both have one, otherwise by name."""
        if self.hash and other.hash:
            return self.hash != other.hash
        mine, others = _steps(self.name), _steps(other.name)
        shared = min(len(mine), len(others))
        return mine[-shared:] != others[-shared:]

    def __str__(self) -> str:
        return f"{self.name!r} (hash {self.hash[:8]})" if self.hash else repr(self.name)


def identities(dataset: Dataset) -> list[Identity]:
    """Return the different tokenizers of a dataset; empty if they are unknown or it is not token data."""
    made_with = getattr(dataset, "made_with", None)  # text that is tokenized when it is read
    if made_with is not None:
        name, hash = made_with
        return [Identity(name, hash, dataset.url)]
    documents = dataset.tokens if isinstance(dataset, WindowDataset) else dataset
    if not isinstance(documents, TokenDataset):
        return []
    known_by: list[Identity] = []
    for shard in documents.shards:
        identity = _identity(documents, shard.path)
        if identity is not None and all(identity[:2] != each[:2] for each in known_by):
            known_by.append(identity)
    return known_by


def _identity(dataset: TokenDataset, path: str) -> Identity | None:
    store = dataset.store
    manifest = read_manifest(store, path)
    if manifest is not None and manifest.tokenizer is not None:
        return Identity(manifest.tokenizer.name, manifest.tokenizer.hash, store.locate(path))
    if path == LEDGER:
        name = dataset.about.get("tokenizer")
        return Identity(name, "", store.locate(path)) if name else None
    if not path.endswith(ds.SUFFIX):
        return None
    try:
        metadata = ds.read_metadata(store, path)
    except DataError:
        return None  # invalid metadata was reported at opening
    return Identity(metadata.tokenizer, "", store.locate(path)) if metadata and metadata.tokenizer else None


def _steps(name: str) -> list[str]:
    """Return the components of a name or path: one tokenizer can have several paths, with and without a file."""
    parts = [part for part in name.replace(os.sep, "/").split("/") if part not in ("", ".")]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "tokenizer.json" else parts
