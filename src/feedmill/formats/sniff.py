"""What a path is: the only place that knows all formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon import INFO, INFO_YAML, META, open_prepared
from feedmill.formats.jsonl import open_jsonl
from feedmill.formats.tokens.pbin import open_pbins
from feedmill.formats.webdataset import ScannedShards, TarDataset
from feedmill.storage import Store, open_store, split_url

ENERGON, WEBDATASET, TAR, JSONL, PBIN = "energon", "webdataset", "tar", "jsonl", "pbin"
_FILES = {".jsonl": JSONL, ".tar": TAR, ".pbin": PBIN}


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
            return Found(_FILES[os.path.splitext(url)[1]], store, name)
    store = open_store(url)
    if store.exists(INFO) or store.exists(INFO_YAML):
        return Found(ENERGON, store)
    first = next(iter(store.files(suffixes=(".tar",))), None)
    if first is not None:
        return Found(WEBDATASET, store)
    if next(iter(store.files(suffixes=(".pbin",))), None) is not None:
        return Found(PBIN, store)
    inside = [entry.path for entry, _ in zip(store.files(), range(4), strict=False)]
    lines = [name for name in inside if name.endswith(".jsonl")]
    raise NotFound(
        "no data set was recognised here (" + (f"found {', '.join(inside)} ..." if inside else "it is empty") + ")",
        file=url,
        kind="unknown-format",
        fix=f"Open the file itself, e.g. {url.rstrip('/')}/{lines[0]}."
        if lines
        else "Known are folders of .tar shards (prepared or not) or .pbin files, and .tar, .jsonl or .pbin files.",
    )


def open_raw(url: str, *, split: str | None = None, split_config: str | None = None) -> tuple[Dataset, Found]:
    """A data set without decoding: parts are bytes. Raises as `sniff` and the format's own opening do."""
    found = sniff(url)
    if found.kind == JSONL:
        return open_jsonl(found.store, found.name, url, split), found
    if found.kind == ENERGON:
        return open_prepared(found.store, url, split=split, split_config=split_config), found
    if split is not None:
        raise NotFound(
            f"there is no split {split!r}: "
            + ("token files have none" if found.kind == PBIN else "the folder is not prepared"),
            file=url,
            kind="no-such-split",
            fix="Open it without one."
            if found.kind == PBIN
            else f"Run 'feedmill prepare {url}' to divide it into splits, or open it without one.",
        )
    if found.kind == PBIN:
        files = [found.name] if found.name else [entry.path for entry in found.store.files(suffixes=(".pbin",))]
        return open_pbins(found.store, files, url), found
    shards = [found.name] if found.kind == TAR else [entry.path for entry in found.store.files(suffixes=(".tar",))]
    return TarDataset(found.store, ScannedShards(found.store, shards), name=url), found


def open_together(urls: Sequence[str]) -> Dataset:
    """Several token files as one data set, in the order given: what Modalities calls combined.

    Raises:
        ConfigError: none is given, or they are not all of one token format.
    """
    kinds = sorted({os.path.splitext(url)[1] for url in urls})
    if kinds != [".pbin"]:
        raise ConfigError(
            f"only .pbin files can be opened together, found {', '.join(kinds) or 'none'}",
            fix="Mix data sets of other formats with a recipe.",
        )
    places = [split_url(url) for url in urls]
    parts = [(folder if "://" in folder else os.path.abspath(folder)).split("/") for folder, _ in places]
    depth = next((i for i, same in enumerate(zip(*parts, strict=False)) if len(set(same)) > 1), min(map(len, parts)))
    if depth < (3 if any("://" in folder for folder, _ in places) else 1):
        raise ConfigError("files of different stores cannot be opened together", fix="Mix them with a recipe.")
    top = "/".join(parts[0][:depth]) or "/"
    paths = ["/".join([*part[depth:], name]) for part, (_, name) in zip(parts, places, strict=True)]
    return open_pbins(open_store(top), paths, top)


__all__ = ["ENERGON", "JSONL", "META", "PBIN", "TAR", "WEBDATASET", "Found", "open_raw", "open_together", "sniff"]
