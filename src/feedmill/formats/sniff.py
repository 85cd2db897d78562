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
from feedmill.formats.tokens.ds import FILE_SEED, open_ds
from feedmill.formats.tokens.megatron import open_megatron
from feedmill.formats.tokens.pbin import open_pbins
from feedmill.formats.webdataset import ScannedShards, TarDataset
from feedmill.storage import Store, open_store, split_url

ENERGON, WEBDATASET, TAR, JSONL, PBIN = "energon", "webdataset", "tar", "jsonl", "pbin"
DS, MEGATRON, DOLMA = ds.FORMAT, megatron.FORMAT, dolma.FORMAT
TOKENS = (PBIN, DS, MEGATRON, DOLMA)
_FILES = {
    ".jsonl": JSONL,
    ".tar": TAR,
    ".pbin": PBIN,
    ds.SUFFIX: DS,
    megatron.BIN: MEGATRON,
    megatron.IDX: MEGATRON,
    dolma.NPY: DOLMA,
}
_FOLDERS = {".tar": WEBDATASET, ".pbin": PBIN, ds.SUFFIX: DS, dolma.CSV: DOLMA}
FILE_ORDERS = ("sorted", "nanotron")


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
            return Found(_kind_of_file(store, name), store, name)
    store = open_store(url)
    if store.exists(INFO) or store.exists(INFO_YAML):
        return Found(ENERGON, store)
    for suffix, kind in _FOLDERS.items():
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
        else "Known are folders of .tar shards (prepared or not), .pbin or .ds files; .tar, .jsonl, .pbin, .ds files;"
        " .bin and .idx of Megatron-LM, .npy and .csv.gz of Dolma.",
    )


def _kind_of_file(store: Store, name: str) -> str:
    """The format of a file. Raises `ConfigError` for the index files of other tools."""
    suffix = os.path.splitext(name)[1]
    if suffix == megatron.IDX and store.exists(name) and not megatron.is_megatron(store, name):
        raise ConfigError(
            "this is no index of Megatron-LM's tokens: it belongs to the file of lines or shards beside it",
            file=store.locate(name),
            kind="unknown-format",
            fix="Open that file.",
        )
    return _FILES[suffix]


def open_raw(
    url: str,
    *,
    split: str | None = None,
    split_config: str | None = None,
    files: str | None = None,
    token_size: int | None = None,
) -> tuple[Dataset, Found]:
    """A data set without decoding: parts are bytes. Raises as `sniff` and the format's own opening do.

    Args:
        split, split_config: for prepared folders.
        files, token_size: for ``.ds``, see `feedmill.open`.
    """
    found = sniff(url)
    if found.kind != DS and (files is not None or token_size is not None):
        raise ConfigError(
            f"'files' and 'token_size' are for .ds files, this is {found.kind}", file=url, fix="Leave them out."
        )
    if found.kind == JSONL:
        return open_jsonl(found.store, found.name, url, split), found
    if found.kind == ENERGON:
        return open_prepared(found.store, url, split=split, split_config=split_config), found
    if split is not None:
        raise NotFound(
            f"there is no split {split!r}: "
            + ("token files have none" if found.kind in TOKENS else "the folder is not prepared"),
            file=url,
            kind="no-such-split",
            fix="Open it without one."
            if found.kind in TOKENS
            else f"Run 'feedmill prepare {url}' to divide it into splits, or open it without one.",
        )
    if found.kind in TOKENS:
        return _open_tokens(found, url, files, token_size), found
    shards = [found.name] if found.kind == TAR else [entry.path for entry in found.store.files(suffixes=(".tar",))]
    return TarDataset(found.store, ScannedShards(found.store, shards), name=url), found


def _open_tokens(found: Found, url: str, files: str | None, token_size: int | None) -> Dataset:
    """Token data, each format by its own opening."""
    store, name = found.store, found.name
    if found.kind == PBIN:
        return open_pbins(store, [name] if name else [entry.path for entry in store.files(suffixes=(".pbin",))], url)
    if found.kind == MEGATRON:
        return open_megatron(store, name, url)
    if found.kind == DOLMA:
        return open_dolma(store, name, url)
    if files not in (None, *FILE_ORDERS):
        raise ConfigError(f"files={files!r} is not known", file=url, fix=f"Use {' or '.join(FILE_ORDERS)}.")
    nanotron = files == "nanotron"
    return open_ds(
        store, name, url, recursive=not nanotron, seed=FILE_SEED if nanotron else None, token_size=token_size
    )


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


__all__ = [
    "DOLMA", "DS", "ENERGON", "JSONL", "MEGATRON", "META", "PBIN", "TAR", "TOKENS", "WEBDATASET", "Found", "open_raw",
    "open_together", "sniff",
]  # fmt: skip
