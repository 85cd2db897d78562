"""Recognize the format of a path that is opened for reading.

What can be written, converted, checked and repaired is listed where that is done: `converting.table`,
`tokens.outputs`, `indexing.check`, `indexing.repair`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon import INFO, INFO_YAML, META, open_prepared
from feedmill.formats.jsonl import open_jsonl
from feedmill.formats.shardindex import plain_shards
from feedmill.formats.shardlist import (
    COMPRESSED,
    common_top,
    expand_patterns,
    is_pattern,
    refuse_commands,
    refuse_twice,
)
from feedmill.formats.sources import (
    ARROW,
    KINDS,
    PARQUET,
    WIDS,
    WITH_SPLITS,
    Wanted,
    kind_of_folder,
    open_source,
)  # fmt: skip
from feedmill.formats.tokens import dolma, ds, megatron
from feedmill.formats.tokens.base import TokenDataset, refuse_missing
from feedmill.formats.tokens.dolma import open_dolma
from feedmill.formats.tokens.ds import FILE_SEED, open_ds
from feedmill.formats.tokens.megatron import open_megatron
from feedmill.formats.tokens.pbin import open_pbins
from feedmill.formats.vla.dataset import FORMAT as VLA
from feedmill.formats.vla.dataset import open_manifest
from feedmill.formats.vla.manifest import MANIFEST, looks_like_manifest
from feedmill.formats.webdataset import TarDataset
from feedmill.formats.wids import is_wids
from feedmill.jobs.work import settle
from feedmill.storage import Store, is_local_file, is_local_folder, open_store, split_url

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
    ".parquet": PARQUET,
    ".arrow": ARROW,
    **dict.fromkeys(COMPRESSED, TAR),  # refused when opened, with what to do
}
_FOLDERS = {".tar": WEBDATASET, ".pbin": PBIN, ds.SUFFIX: DS, dolma.CSV: DOLMA, ".parquet": PARQUET}
_TOKEN_FILES = {suffix: kind for suffix, kind in _FILES.items() if kind in TOKENS}
_LISTS = {".tar": WEBDATASET, ".parquet": PARQUET, **_TOKEN_FILES}
FILE_ORDERS = ("sorted", "nanotron")
_PACKED_LINES = tuple(kind + packed for kind in (".jsonl", ".json", ".ndjson") for packed in (".gz", ".zst"))
_VERBS_OF_LINES = "convert, tokenize, tag, dedupe, mix, stat"
_ROBOTS = {".hdf5": "HDF5", ".h5": "HDF5", ".tfrecord": "TFRecord (RLDS)", ".zarr": "Zarr"}
SUFFIXES = (*_FILES, *_PACKED_LINES)
"""Ends of the names of files of samples, to tell them from recipes: those that cannot be opened are among them."""
_KNOWN = (
    "Known are folders of .tar shards (prepared or not), .pbin or .ds files; .tar, .jsonl, .pbin, .ds files;"
    " .bin and .idx of Megatron-LM, .npy and .csv.gz of Dolma; .parquet and .arrow files; datasets of Hugging"
    " Face, LeRobot, MosaicML (MDS) and img2dataset."
)


class Found(NamedTuple):
    """A dataset that is there: its kind, its store, for a single file the name in the store, for a list of files
    their names, and what was left aside."""

    kind: str
    store: Store
    name: str = ""
    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def sniff(url: str) -> Found:
    """The kind of dataset at a path or URL.

    Raises:
        NotFound: nothing is there, or nothing that is known; says what was found.
        ConfigError: it is something to be opened in another way.
        DataError: what wrote it was interrupted, and has to be finished first.
    """
    folder = is_local_folder(url)
    if url.endswith((".yaml", ".yml")) and not folder:
        top, name = split_url(url)
        open_store(top).stat(name)
        raise ConfigError(
            "this is a recipe or metadataset, not a dataset",
            file=url,
            kind="is-recipe",
            fix="'feedmill plan' shows what it gives; feedmill.Recipe.load(path) loads it.",
        )
    refuse_commands(url)
    if is_pattern(url):
        return _listed([url])
    if url.endswith((*_FILES, ".json")) and not folder:
        top, name = split_url(url)
        store = open_store(top)
        settle(store, name)
        return Found(_kind_of_file(store, name), store, name)
    store = open_store(url)
    if is_local_file(url):
        raise NotFound(
            "this kind of file is no dataset",
            file=url,
            kind="unknown-format",
            fix=f"Unpack it, or give it to a verb that reads packed lines: {_VERBS_OF_LINES}."
            if url.endswith(_PACKED_LINES)
            else _way([url]) or _KNOWN,
        )
    settle(store)
    if store.exists(INFO) or store.exists(INFO_YAML):
        return Found(ENERGON, store)
    if looks_like_manifest(store, MANIFEST):
        return Found(VLA, store, MANIFEST)
    marked = kind_of_folder(store)
    if marked is not None:
        return Found(marked, store)
    settle(store, indexed=False)
    for suffix, kind in _FOLDERS.items():
        if next(iter(store.files(suffixes=(suffix,))), None) is not None:
            return Found(kind, store, remarks=_left_aside(store) if kind == WEBDATASET else ())
    for entry in store.files(suffixes=COMPRESSED):
        return Found(TAR, store, entry.path)  # refused when opened, with what to do
    if store.exists(MANIFEST) and not store.stat(MANIFEST).size:
        raise NotFound(
            "the manifest is empty: it names no shard",
            file=store.locate(MANIFEST),
            kind="empty-manifest",
            fix="Put the shards there that it is to name, and write it with 'feedmill vla manifest'.",
        )
    inside = [entry.path for entry, _ in zip(store.files(), range(4), strict=False)]
    lines = [name for name in inside if name.endswith((".jsonl", megatron.BIN))]
    lines += [name.removesuffix("index.json") for name in inside if name.endswith("/index.json")]  # MDS, by split
    packed = any(name.endswith(_PACKED_LINES) for name in inside)  # Dolma's documents, mostly
    known = f"Packed lines are read by {_VERBS_OF_LINES}: name the files or their folder." if packed else _KNOWN
    raise NotFound(
        "no dataset was recognised here (" + (f"found {', '.join(inside)} ..." if inside else "it is empty") + ")",
        file=url,
        kind="unknown-format",
        fix=f"Open the {'folder' if lines[0].endswith('/') else 'file'} itself, e.g. {url.rstrip('/')}/{lines[0]}."
        if lines
        else _way(inside) or known,
    )


def _way(paths: Sequence[str]) -> str:
    """How robot data of other formats can be read, where files are of one; else nothing."""
    for mark, name in _ROBOTS.items():
        if any(mark in path.lower() for path in paths):
            return f"{name} is not read. LeRobot's converters make a LeRobot dataset of it, which is."
    return ""


def _left_aside(store: Store) -> tuple[str, ...]:
    return tuple(f"{entry.path}: left out, compressed tars are not read" for entry in store.files(suffixes=COMPRESSED))


def _listed(urls: Sequence[str]) -> Found:
    """Shards that are named one by one or by patterns. Raises `ConfigError`, `NotFound`."""
    files = expand_patterns(urls)
    kinds = sorted({os.path.splitext(url)[1] for url in files})
    if len(kinds) != 1 or kinds[0] not in _LISTS:
        raise ConfigError(
            f"only files of one of {', '.join(_LISTS)} can be opened together, found {', '.join(kinds) or 'none'}",
            file=urls[0] if len(urls) == 1 else None,
            kind="mixed-list",
            fix="Name files of one format, or mix datasets with a recipe.",
        )
    if kinds[0] not in _TOKEN_FILES:  # documents may be repeated: their keys are numbers
        refuse_twice(files)
    top, names = common_top(files)
    return Found(_LISTS[kinds[0]], open_store(top), names=tuple(names))


def _kind_of_file(store: Store, name: str) -> str:
    """The format of a file. Raises `ConfigError` for the index files of other tools."""
    suffix = next((known for known in COMPRESSED if name.endswith(known)), os.path.splitext(name)[1])
    if suffix == ".json":
        if is_wids(store, name):
            return WIDS
        raise NotFound(
            "there is no such file" if not store.exists(name) else "this JSON file is no index of shards",
            file=store.locate(name),
            kind="unknown-format",
            fix="Open the folder that it describes, or check the path.",
        )
    if suffix == megatron.IDX and store.exists(name) and not megatron.is_megatron(store, name):
        raise ConfigError(
            "this is no index of Megatron-LM's tokens: it belongs to the file of lines or shards beside it",
            file=store.locate(name),
            kind="unknown-format",
            fix="Open that file.",
        )
    if suffix == ".jsonl" and looks_like_manifest(store, name):
        return VLA
    return _FILES[suffix]


def open_raw(
    url: str,
    *,
    split: str | None = None,
    split_config: str | None = None,
    files: str | None = None,
    token_size: int | None = None,
) -> tuple[Dataset, Found]:
    """A dataset without decoding: parts are bytes. Raises as `sniff` and the format's own opening do.

    Args:
        split, split_config: for prepared folders.
        files, token_size: for ``.ds``, see `feedmill.open`.
    """
    found = sniff(url)
    found.store.pin_files()
    if found.kind != DS and (files is not None or token_size is not None):
        raise ConfigError(
            f"'files' and 'token_size' are for .ds files, this is {found.kind}", file=url, fix="Leave them out."
        )
    if found.kind == JSONL:
        return open_jsonl(found.store, found.name, url, split), found
    if found.kind == ENERGON:
        return open_prepared(found.store, url, split=split, split_config=split_config), found
    if found.kind in KINDS and (split is None or found.kind in WITH_SPLITS):
        return open_source(found.kind, Wanted(found.store, found.name, url, split, found.names)), found
    if split is not None:
        raise _no_split(found, url, split)
    if found.kind in TOKENS:
        return _open_tokens(found, url, files, token_size), found
    if found.kind == VLA:
        return open_manifest(found.store, found.name, url), found
    return _open_tars(found, url), found


def _no_split(found: Found, url: str, split: str) -> NotFound:
    """The error for a split of what has none; 'prepare' divides the tars of a folder, and no single tar or list."""
    what, fix = "only folders of tars and .jsonl files are divided into splits", "Open it without one."
    if found.kind in TOKENS:
        what = "token files have none"
    elif found.kind == TAR and url.endswith(".tar") and not is_local_folder(url):
        what = "a single tar has none, but the folder that it lies in can"
        fix = f"Open it without one, or run 'feedmill prepare {split_url(url)[0]}' and open that folder."
    elif (
        not found.names
        and (is_local_folder(url) or not url.endswith(tuple(_FILES)))
        and next(found.store.files(suffixes=(".tar",)), None)
    ):
        what = "the folder is not prepared"
        fix = f"Run 'feedmill prepare {url}' to divide it into splits, or open it without one."
    return NotFound(f"there is no split {split!r}: {what}", file=url, kind="no-such-split", fix=fix)


def _open_tars(found: Found, url: str) -> TarDataset:
    """Tars without an index of Energon's."""
    store = found.store
    shards = [found.name] if found.kind == TAR else list(found.names)
    table = plain_shards(store, shards or [entry.path for entry in store.files(suffixes=(".tar",))])
    dataset = TarDataset(store, table, name=url, base=store.url if found.names else None)
    return dataset.opened_as(about={"remarks": list(found.remarks)}) if found.remarks else dataset


def _open_tokens(found: Found, url: str, files: str | None, token_size: int | None) -> Dataset:
    """Token data, each format by its own opening."""
    if found.names:
        return _tokens_together(found, files, token_size)
    store, name = found.store, found.name
    if name:
        refuse_missing(store, name)
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


def _tokens_together(found: Found, files: str | None, token_size: int | None) -> TokenDataset:
    """Token files of one format one after another, in the order of their names here."""
    store = found.store
    if files is not None:
        raise ConfigError("'files' orders the files of a folder, and these are a list", fix="Leave it out.")
    if found.kind == PBIN:
        for name in found.names:
            refuse_missing(store, name)
        return open_pbins(store, list(found.names), store.url)
    opened = [
        _open_tokens(Found(found.kind, store, name), store.locate(name), None, token_size) for name in found.names
    ]
    shards = [shard for dataset in opened if isinstance(dataset, TokenDataset) for shard in dataset.shards]
    about: dict[str, Any] = {}
    for name in dict.fromkeys(name for dataset in opened for name in dataset.about):
        values = [dataset.about[name] for dataset in opened if name in dataset.about]
        alike = all(value == values[0] for value in values)
        about[name] = values[0] if alike else list(dict.fromkeys(map(str, values)))
    return TokenDataset(store, shards, name=store.url, format=found.kind, about=about)


def open_together(urls: Sequence[str], *, files: str | None = None, token_size: int | None = None) -> Dataset:
    """Several files of one format as one dataset, in the order given: ``.tar``, ``.parquet``, or token files (what
    Modalities calls combined), named one by one or by patterns.

    Raises:
        ConfigError: none is given, or they are not all of one format.
    """
    found = _listed(urls)
    found.store.pin_files()
    if found.kind in TOKENS:
        return _tokens_together(found, files, token_size)
    if files is not None or token_size is not None:
        raise ConfigError(f"'files' and 'token_size' are for .ds files, this is {found.kind}", fix="Leave them out.")
    if found.kind == PARQUET:
        return open_source(PARQUET, Wanted(found.store, "", found.store.url, None, found.names))
    return _open_tars(found, found.store.url)


__all__ = [
    "DOLMA", "DS", "ENERGON", "JSONL", "MEGATRON", "META", "PBIN", "SUFFIXES", "TAR", "TOKENS", "VLA", "WEBDATASET",
    "Found", "open_raw", "open_together", "sniff",
]  # fmt: skip
