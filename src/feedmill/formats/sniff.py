"""What a path is: the only place that knows all formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon import INFO, INFO_YAML, META, open_prepared
from feedmill.formats.jsonl import open_jsonl
from feedmill.formats.tokens import dolma, ds, megatron
from feedmill.formats.tokens.dolma import open_dolma
from feedmill.formats.tokens.ds import open_ds
from feedmill.formats.tokens.megatron import open_megatron
from feedmill.formats.webdataset import ScannedShards, TarDataset
from feedmill.storage import Store, open_store, split_url

ENERGON, WEBDATASET, TAR, JSONL = "energon", "webdataset", "tar", "jsonl"
DS, MEGATRON, DOLMA = ds.FORMAT, megatron.FORMAT, dolma.FORMAT
_TOKEN_FILES = {ds.SUFFIX: DS, megatron.BIN: MEGATRON, megatron.IDX: MEGATRON, dolma.NPY: DOLMA}


class Found(NamedTuple):
    """A data set that is there: its kind, its store, and for a single file the name in the store."""

    kind: str
    store: Store
    name: str = ""


def sniff(url: str) -> Found:
    """The kind of data set at a path or URL.

    Raises:
        NotFound: nothing is there, or nothing that is known; says what was found.
        ConfigError: it is something to be opened in another way.
    """
    if url.endswith((".yaml", ".yml")):
        raise ConfigError(
            "this is a recipe or metadataset, not a data set",
            file=url,
            kind="is-recipe",
            fix="Load it with feedmill.Recipe.load(path).",
        )
    if url.endswith(tuple(_FILES)):
        folder, name = split_url(url)
        store = open_store(folder)
        if not (store.is_local and os.path.isdir(store.locate(name))):
            return Found(JSONL if url.endswith(".jsonl") else TAR, store, name)
    suffix = os.path.splitext(url)[1]
    if suffix in _TOKEN_FILES:
        folder, name = split_url(url)
        store = open_store(folder)
        if not (store.is_local and os.path.isdir(store.locate(name))):
            return Found(_token_kind(store, name, suffix), store, name)
    store = open_store(url)
    if store.exists(INFO) or store.exists(INFO_YAML):
        return Found(ENERGON, store)
    first = next(iter(store.files(suffixes=(".tar",))), None)
    if first is not None:
        return Found(WEBDATASET, store)
    for suffix, kind in ((ds.SUFFIX, DS), (dolma.CSV, DOLMA)):
        if next(iter(store.files(suffixes=(suffix,))), None) is not None:
            return Found(kind, store)
    inside = [entry.path for entry, _ in zip(store.files(), range(4), strict=False)]
    lines = [name for name in inside if name.endswith((".jsonl", megatron.BIN))]
    raise NotFound(
        "no data set was recognised here (" + (f"found {', '.join(inside)} ..." if inside else "it is empty") + ")",
        file=url,
        kind="unknown-format",
        fix=f"Open the file itself, e.g. {url.rstrip('/')}/{lines[0]}."
        if lines
        else "Known are folders of .tar shards (prepared or not), single .tar files, .jsonl files, and token data: .ds"
        " files and folders of them, .bin and .idx of Megatron-LM, .npy and .csv.gz of Dolma.",
    )


def _token_kind(store: Store, name: str, suffix: str) -> str:
    """The format of a file of tokens. Raises `ConfigError` for the index files of other tools."""
    if suffix == megatron.IDX and store.exists(name) and not megatron.is_megatron(store, name):
        raise ConfigError(
            "this is no index of Megatron-LM's tokens: it belongs to the file of lines or shards beside it",
            file=store.locate(name),
            kind="unknown-format",
            fix="Open that file.",
        )
    return _TOKEN_FILES[suffix]


def open_raw(url: str, *, split: str | None = None, split_config: str | None = None) -> tuple[Dataset, Found]:
    """A data set without decoding: parts are bytes. Raises as `sniff` and the format's own opening do."""
    found = sniff(url)
    if found.kind == JSONL:
        return open_jsonl(found.store, found.name, url, split), found
    if found.kind == ENERGON:
        return open_prepared(found.store, url, split=split, split_config=split_config), found
    tokens = found.kind in _TOKEN_FILES.values()
    if split is not None:
        raise NotFound(
            f"there is no split {split!r}: " + ("token data has none" if tokens else "the folder is not prepared"),
            file=url,
            kind="no-such-split",
            fix="Open it without one."
            if tokens
            else f"Run 'feedmill prepare {url}' to divide it into splits, or open it without one.",
        )
    if found.kind == DS:
        return open_ds(found.store, found.name, url), found
    if found.kind == MEGATRON:
        return open_megatron(found.store, found.name, url), found
    if found.kind == DOLMA:
        return open_dolma(found.store, found.name, url), found
    shards = [found.name] if found.kind == TAR else [entry.path for entry in found.store.files(suffixes=(".tar",))]
    return TarDataset(found.store, ScannedShards(found.store, shards), name=url), found


__all__ = ["DOLMA", "DS", "ENERGON", "JSONL", "MEGATRON", "META", "TAR", "WEBDATASET", "Found", "open_raw", "sniff"]
