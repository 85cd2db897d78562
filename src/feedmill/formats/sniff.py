"""Which format a path has, and opening it undecoded; what formats there are says `feedmill.formats.registry`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.documents import LINE_SUFFIXES
from feedmill.formats.format import TOKENS, Found, Wanted, named
from feedmill.formats.registry import ends, formats
from feedmill.formats.tar import COMPRESSED, TAR
from feedmill.formats.tar.names import common_top, expand_patterns, is_pattern, refuse_commands, refuse_twice
from feedmill.formats.vla.manifest import MANIFEST
from feedmill.jobs.work import settle
from feedmill.storage import Store, is_local_file, is_local_folder, open_store, split_url

_PACKED_LINES = tuple(end for end in LINE_SUFFIXES if end.count(".") == 2)
_VERBS_OF_LINES = "convert, tokenize, tag, dedupe, neardedupe, filter, stat"
_ROBOTS = {".hdf5": "HDF5", ".h5": "HDF5", ".tfrecord": "TFRecord (RLDS)", ".zarr": "Zarr"}
_FILES = tuple(ends("files"))
SUFFIXES = (*(end for end in _FILES if end != ".json"), *_PACKED_LINES)
"""Ends of the names of files of samples, to tell them from recipes: those that cannot be opened are among them."""
_KNOWN = f"Known are: {', '.join(dict.fromkeys(format.title for format in formats() if format.open))}."


def sniff(url: str) -> Found:
    """Return the kind of dataset at a path or URL.

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
    if url.endswith(_FILES) and not folder:
        top, name = split_url(url)
        store = open_store(top)
        settle(store, name)
        return _file(store, name)
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
    for format in formats():
        if not (format.marks or format.is_folder) or (format.marks and not any(map(store.exists, format.marks))):
            continue
        inside = named(format.is_folder)(store) if format.is_folder else ""
        if inside is not None:
            return Found(format, store, inside)
    settle(store, indexed=False)
    for format in formats():
        if format.folders and next(iter(store.files(suffixes=format.folders)), None) is not None:
            return Found(format, store, remarks=_left_aside(store) if ".tar" in format.folders else ())
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
    lines = [name for name in inside if name.endswith((".jsonl", ".bin"))]
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
    """Return how robot data of other formats can be read, where files are of one; else nothing."""
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
    known = ends("listed")
    if len(kinds) != 1 or kinds[0] not in known:
        raise ConfigError(
            f"only files of one of {', '.join(known)} can be opened together, found {', '.join(kinds) or 'none'}",
            file=urls[0] if len(urls) == 1 else None,
            kind="mixed-list",
            fix="Name files of one format, or mix datasets with a recipe.",
        )
    format = known[kinds[0]]
    if format.family not in TOKENS:  # documents may be repeated: their keys are numbers
        refuse_twice(files)
    top, names = common_top(files)
    return Found(format, open_store(top), names=tuple(names))


def _file(store: Store, name: str) -> Found:
    """Return a file by the end of its name, and where several formats have such files by its content.

    Raises:
        ConfigError, NotFound: it is an index file of something else.
    """
    candidates = [format for format in formats() if name.endswith(format.files)]
    candidates.sort(key=lambda format: not format.is_file)
    for format in candidates:
        if not format.is_file or named(format.is_file)(store, name):
            return Found(format, store, name)
    raise NotFound(
        "there is no such file" if not store.exists(name) else "this JSON file is no index of shards",
        file=store.locate(name),
        kind="unknown-format",
        fix="Open the folder that it describes, or check the path.",
    )


def open_raw(
    url: str,
    *,
    split: str | None = None,
    split_config: str | None = None,
    files: str | None = None,
    token_size: int | None = None,
) -> tuple[Dataset, Found]:
    """Return a dataset without decoding: parts are bytes. Raises as `sniff` and the format's own opening do.

    Args:
        split, split_config: for prepared folders.
        files, token_size: for ``.ds``, see `feedmill.open`.
    """
    found = sniff(url)
    return open_found(found, url, split=split, split_config=split_config, files=files, token_size=token_size), found


def open_found(
    found: Found,
    url: str,
    *,
    split: str | None = None,
    split_config: str | None = None,
    files: str | None = None,
    token_size: int | None = None,
) -> Dataset:
    """Return what `sniff` found at a URL, opened as by `open_raw`."""
    found.store.pin_files()
    for option, value in (("files", files), ("token_size", token_size)):
        if value is not None and option not in found.format.options:
            raise ConfigError(
                f"'files' and 'token_size' are for .ds files, this is {found.kind}", file=url, fix="Leave them out."
            )
    if split is not None and not found.format.splits:
        raise _no_split(found, url, split)
    wanted = Wanted(found.store, found.name, url, found.names, split, split_config, files, token_size, found.remarks)
    dataset: Dataset = named(found.format.open)(wanted)
    return dataset


def _no_split(found: Found, url: str, split: str) -> NotFound:
    """The error for a split of what has none; 'prepare' divides the tars of a folder, and no single tar or list."""
    what, fix = "only folders of tars and .jsonl files are divided into splits", "Open it without one."
    if found.format.family in TOKENS:
        what = "token files have none"
    elif found.format is TAR and url.endswith(".tar") and not is_local_folder(url):
        what = "a single tar has none, but the folder that it lies in can"
        fix = f"Open it without one, or run 'feedmill prepare {split_url(url)[0]}' and open that folder."
    elif (
        not found.names
        and (is_local_folder(url) or not url.endswith(_FILES))
        and next(found.store.files(suffixes=(".tar",)), None)
    ):
        what = "the folder is not prepared"
        fix = f"Run 'feedmill prepare {url}' to divide it into splits, or open it without one."
    return NotFound(f"there is no split {split!r}: {what}", file=url, kind="no-such-split", fix=fix)


def open_together(urls: Sequence[str], *, files: str | None = None, token_size: int | None = None) -> Dataset:
    """Several files of one format as one dataset, in the order given: ``.tar``, ``.parquet``, or token files (what
    Modalities calls combined), named one by one or by patterns.

    Raises:
        ConfigError: none is given, or they are not all of one format.
    """
    found = _listed(urls)
    return open_found(found, found.store.url, files=files, token_size=token_size)
