"""Detect the format of a path, and open it without decoding. The formats are in `feedmill.formats.registry`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.format import ALL_SPLITS, TOKENS, TRAIN_OR_ALL, Detected, Format, OpenRequest, named
from feedmill.formats.hub_splits import FolderSplits, folder_splits, splits_in, unknown_split
from feedmill.formats.registry import ends, formats
from feedmill.formats.tar import COMPRESSED, TAR
from feedmill.formats.tar.names import common_top, expand_patterns, is_pattern, refuse_commands, refuse_twice
from feedmill.jobs.work_folder import has_journal
from feedmill.storage import Store, is_local_file, is_local_folder, open_store, split_url

_VERBS_OF_LINES = "convert, tokenize, tag, dedupe, filter, documents decontaminate, documents stat"
_ROBOTS = {
    "meta_data/info.json": "Version 1 of LeRobot is not supported. Convert it to a LeRobot dataset of version 2 or 3"
    " with LeRobot's converters.",
    ".tfrecord": "Open the folder with features.json, as TensorFlow Datasets writes it, or give the files names that"
    " end in '.tfrecord'.",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILES = tuple(ends("files"))
_RAW = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"),
    *(".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".mp4", ".mkv", ".webm", ".mov", ".avi"),
    *(".txt", ".md", ".rst", ".html", ".htm", ".csv", ".tsv"),
)
"""Suffixes of files that `feedmill import` reads, and that no format has."""
SUFFIXES = tuple(end for end in _FILES if end != ".json")
"""Suffixes of data files, including unsupported ones, to distinguish them from recipes."""
_WITH = {
    "files": "folders of .ds files",
    "token_size": ".ds files and flat token files without a header",
    "split_config": "prepared folders",
}
_FAMILIES = ("rows", "lines")
"""Families whose files of several suffixes can be opened together."""
_KNOWN = f"Supported are: {', '.join(dict.fromkeys(format.title for format in formats() if format.open))}."


def sniff(url: str) -> Detected:
    """Detect the format of the dataset at a path or URL.

    Raises:
        NotFound: there is nothing, or no supported dataset; the error names the files found.
        ConfigError: it must be opened in another way, such as a recipe.
        DataError: the job that wrote it was interrupted and must be finished first.
    """
    folder = is_local_folder(url)
    if url.endswith((".yaml", ".yml")) and not folder:
        top, name = split_url(url)
        open_store(top).stat(name)
        raise ConfigError(
            "this is a recipe or metadataset, not a dataset",
            file=url,
            kind="other-format",
            fix="Inspect it with 'feedmill plan', or load it with feedmill.Recipe.load(path).",
        )
    refuse_commands(url)
    if is_pattern(url):
        return _listed([url])
    if url.endswith(_FILES) and not folder:
        top, name = split_url(url)
        store = open_store(top)
        _settle(store, name)
        return _file(store, name)
    if not folder and is_local_file(url):
        raise NotFound(
            "this kind of file is not a dataset",
            file=url,
            kind="unknown-format",
            fix=_way([url]) or _KNOWN,
        )
    if not folder and _HUB_NAME.fullmatch(url):
        fix = f"Check the path. If this is a dataset of the Hugging Face Hub, open hf://datasets/{url}."
        raise NotFound("there is no such folder", file=os.path.abspath(url), fix=fix)
    store = open_store(url)
    found = by_marks(store)
    if found is not None:
        return found
    _settle(store, indexed=False)  # only an index tells files of an unfinished job from others
    found = _by_files(store)
    if found is not None:
        return found
    raise _nothing(store, url)


def _settle(store: Store, name: str = "", *, indexed: bool = True) -> None:
    """Finish an interrupted publication, see `feedmill.jobs.work.settle`."""
    if store.is_local and has_journal(store, name):
        from feedmill.jobs.work import settle

        settle(store, name, indexed=indexed)


def by_marks(store: Store) -> Detected | None:
    """Return the format of a folder that has its marks, or else its later ones; None if it has none.

    Raises:
        DataError: the job that wrote it was interrupted and must be finished first.
    """
    _settle(store)
    store.preload([path for format in formats() for path in (*format.marks, *format.small)], _shared(store))
    found = next(_marked(store, [(format, format.marks) for format in formats() if format.marks]), None)
    if found is not None:
        return found
    left = [format for format in formats() if format.later_marks or (format.is_folder and not format.marks)]
    store.preload([path for format in left for path in format.later_marks])
    return next(_marked(store, [(format, format.later_marks) for format in left if not format.folders]), None)


def _shared(store: Store) -> list[str]:
    """Return the files of which only the beginning is preloaded, because a cache of remote data has the rest."""
    if store.is_local:
        return []
    from feedmill.storage.cache.settings import data_cache

    return [path for format in formats() for path in format.shared] if data_cache().size else []


def _marked(store: Store, candidates: Iterable[tuple[Format, tuple[str, ...]]]) -> Iterator[Detected]:
    """Yield the formats whose `is_folder` agrees and that have one of their marks, or need none."""
    for format, marks in candidates:
        if marks and not any(map(store.exists, marks)):
            continue
        inside = named(format.is_folder)(store) if format.is_folder else ""
        if inside is not None:
            yield Detected(format, store, inside)


def _by_files(store: Store) -> Detected | None:
    """Return the format of a folder by the suffixes of its files."""
    for format in formats():
        if (
            format.folders
            and next(iter(store.files(suffixes=format.folders)), None) is not None
            and (not format.is_folder or named(format.is_folder)(store) is not None)
        ):
            return Detected(format, store, remarks=_copies(store) if ".tar" in format.folders else ())
    packed_tars = tuple(entry.path for entry in store.files(suffixes=COMPRESSED))
    return Detected(TAR, store, names=packed_tars) if packed_tars else None


def _nothing(store: Store, url: str) -> NotFound:
    """Return the error for a folder without a dataset, which names some of its files and what reads them."""
    from feedmill.formats.vla.manifest import MANIFEST

    if store.exists(MANIFEST) and not store.stat(MANIFEST).size:
        return NotFound(
            "the manifest is empty: it lists no shards",
            file=store.locate(MANIFEST),
            kind="empty-file",
            fix="Add shards to the folder, and write the manifest with 'feedmill compat vla manifest'.",
        )
    from feedmill.formats.tokens.levanter_ledger import LEDGER  # for this error only

    inside = [entry.path for entry, _ in zip(store.files(), range(4), strict=False)]
    of_documents = any(path.startswith(("documents/", "attributes/")) for path in inside)
    lines = [name for name in inside if name.endswith((".jsonl", ".bin")) and not of_documents]
    lines += [name.removesuffix("index.json") for name in inside if name.endswith("/index.json")]  # MDS, by split
    lines += [f"{split}/" for split in ("train", "validation") if store.exists(f"{split}/{LEDGER}")]  # Levanter
    lines += [name.removesuffix("state.json") for name in inside if name.endswith("/state.json")]  # of `datasets`
    known = _KNOWN
    if of_documents:
        known = f"These are documents: use serve, {_VERBS_OF_LINES}, with the files or their folder."
    return NotFound(
        "no dataset found here (" + (f"found {', '.join(inside)} ..." if inside else "it is empty") + ")",
        file=url,
        kind="unknown-format",
        fix=f"Open the {'folder' if lines[0].endswith('/') else 'file'} itself, e.g. {url.rstrip('/')}/{lines[0]}."
        + (" Several files are a 'concat' or a 'blend' in a recipe." if len(lines) > 1 else "")
        if lines
        else (known if of_documents else _way(inside) or known),
    )


def _way(paths: Sequence[str]) -> str:
    """Return a fix for robot data in other forms, and for files as they are; empty for other files."""
    for mark, way in _ROBOTS.items():
        if any(mark in path.lower() for path in paths):
            return way
    return import_way(paths)


def import_way(paths: Iterable[str]) -> str:
    """Return a fix for files as they are, such as images with captions; empty if there are none among these."""
    if any(path.lower().endswith(_RAW) for path in paths):
        return "To make a dataset or documents from these files, use 'feedmill import SRC OUT'."
    return ""


def _copies(store: Store) -> tuple[str, ...]:
    """Return remarks on compressed tars that lie beside the plain tar of the same name, which is read.

    Raises:
        ConfigError: a compressed tar has no plain one. Reading one kind could drop samples, and reading both could
            repeat some: only the user knows.
    """
    packed = [entry.path for entry in store.files(suffixes=COMPRESSED)]
    if not packed:
        return ()
    plain = {entry.path.removesuffix(".tar") for entry in store.files(suffixes=(".tar",))}
    alone = [path for path in packed if path.removesuffix(next(filter(path.endswith, COMPRESSED))) not in plain]
    if alone:
        from feedmill.formats.unread_files import listed

        raise ConfigError(
            f"the folder has {len(plain):,} plain tars, and compressed ones without a plain tar of the same name:"
            f" {listed(alone)}",
            file=store.url,
            kind="mixed-formats",
            fix="Open tars of one kind by a pattern, such as 'FOLDER/*.tar', or decompress the others.",
        )
    return tuple(f"{path}: skipped, the tar of the same name is read" for path in packed)


def _listed(urls: Sequence[str]) -> Detected:
    """Return the dataset of shards given one by one or by patterns. Raises `ConfigError`, `NotFound`."""
    files = expand_patterns(urls)
    known = ends("listed")
    kinds = sorted({next((end for end in known if url.endswith(end)), os.path.splitext(url)[1]) for url in files})
    together = {known[kind].name if kind in known and known[kind].family in _FAMILIES else kind for kind in kinds}
    if len(together) != 1 or kinds[0] not in known:
        firsts = ", ".join(dict.fromkeys(end for format in known.values() for end in format.listed[:2]))
        raise ConfigError(
            f"files cannot be opened together: expected one of {firsts}, found {', '.join(kinds) or 'none'}",
            file=urls[0] if len(urls) == 1 else None,
            kind="mixed-formats",
            fix="Give files of one format. Others are a 'concat' or a 'blend' in a recipe.",
        )
    top, names = common_top(files)
    store = open_store(top)
    format = _detected(store, names[0], "listed") or known[kinds[0]]
    if format.family not in TOKENS:  # token files may be repeated: their keys are numbers
        refuse_twice(files)
    return Detected(format, store, names=tuple(names))


def _file(store: Store, name: str) -> Detected:
    """Detect the format of a file by its suffix, and by its content if several formats share the suffix.

    Raises:
        ConfigError, NotFound: it is the index file of other data, or there is no such file.
    """
    format = _detected(store, name, "files")
    if format is not None:
        return Detected(format, store, name)
    raise NotFound(
        "there is no such file" if not store.exists(name) else "this JSON file is not an index of shards",
        file=store.locate(name),
        kind="unknown-format",
        fix="Open the folder that it describes, or check the path.",
    )


def _detected(store: Store, name: str, attribute: Literal["files", "listed"]) -> Format | None:
    """Return the format of a file by its suffix in this attribute, and by its content if several formats share it."""
    candidates = [format for format in formats() if name.endswith(getattr(format, attribute))]
    candidates.sort(key=lambda format: not format.is_file)
    return next(
        (candidate for candidate in candidates if not candidate.is_file or named(candidate.is_file)(store, name)), None
    )


def format_of_file(store: Store, name: str) -> Format | None:
    """Return the format of a file; None if no format has files of its suffix."""
    return _detected(store, name, "files")


def open_raw(
    url: str,
    *,
    split: str | None = None,
    split_config: str | None = None,
    files: str | None = None,
    token_size: int | None = None,
) -> tuple[Dataset, Detected]:
    """Open a dataset without decoding: parts are bytes. Raises as `sniff` and the format's own `open`.

    Args:
        split, split_config: for prepared folders.
        files, token_size: for ``.ds``, see `feedmill.open`.
    """
    detected = sniff(url)
    return open_found(
        detected, url, split=split, split_config=split_config, files=files, token_size=token_size
    ), detected


def open_found(
    found: Detected,
    url: str,
    *,
    split: str | None = None,
    split_config: str | None = None,
    files: str | None = None,
    token_size: int | None = None,
) -> Dataset:
    """Open the dataset that `sniff` detected at a URL, like `open_raw`. The split `ALL_SPLITS` is all of it."""
    found.store.pin_files()
    for option, value in (("files", files), ("token_size", token_size), ("split_config", split_config)):
        if value is not None and option not in found.format.options:
            raise ConfigError(
                f"{option!r} is only for {_WITH[option]}, this is {found.kind}", file=url, fix="Remove it."
            )
    whole, split = split, None if split == ALL_SPLITS else split
    splits = _splits(found, whole) if files is None else FolderSplits({})
    parts = splits.files
    names = found.names
    if split is not None and not found.format.splits:
        if split == TRAIN_OR_ALL:
            split = "train" if parts else None
        if split is not None and split not in parts:
            raise _no_split(found, url, split, splits)
        names = names if split is None else tuple(parts[split])
    wanted = OpenRequest(found.store, found.name, url, names, split, split_config, files, token_size, found.remarks)
    try:
        if split == TRAIN_OR_ALL and not found.format.finds_train:
            wanted = wanted._replace(split=None)
        dataset: Dataset = named(found.format.open)(wanted)
        if split == TRAIN_OR_ALL and dataset.split is None and "train" in dataset.splits:
            dataset = named(found.format.open)(wanted._replace(split="train"))
    finally:
        found.store.preload(())
    if parts:
        dataset.split = split
        dataset._named = partial(_counts, found, url, parts, token_size)
    if whole != ALL_SPLITS:
        dataset.notes = _notes(found, url, split, splits)
        if split not in (None, TRAIN_OR_ALL, "train") and found.format.splits and not dataset.splits:
            dataset.notes = [*dataset.notes, f"{url}: it has no splits, and {split!r} is all of it"]
    return dataset


def _splits(found: Detected, asked: str | None) -> FolderSplits:
    """Return the splits of a folder that only its card or the names of its files tell; none without."""
    format = found.format
    if format.splits or found.name or found.names or not set(format.folders) & set(format.listed):
        return FolderSplits({})
    try:
        return folder_splits(found.store, format.folders)
    except ConfigError:
        if asked != ALL_SPLITS:
            raise
        return FolderSplits({})


def _counts(found: Detected, url: str, parts: dict[str, list[str]], token_size: int | None) -> dict[str, int]:
    return {split: len(open_found(found, url, split=split, token_size=token_size)) for split in parts}


def _notes(found: Detected, url: str, split: str | None, splits: FolderSplits) -> list[str]:
    """Return notes on splits that were not asked for, and on files that are in no split."""
    if is_pattern(url) and (mixed := splits_in(found.names)):
        return [f"{url}: {FolderSplits(mixed)}, and all files are read"]
    parts = splits.files
    notes = [f"{found.store.url}: {splits.unfit} declares splits of files that are not here"] if splits.unfit else []
    if not parts:
        return notes
    if split is None:
        return [
            *notes,
            f"{found.store.url}: {splits}, and all files are read:"
            f" split={next(iter(parts))!r} reads those of one, split={ALL_SPLITS!r} says that all are meant",
        ]
    known = {path for files in parts.values() for path in files}
    rest = [entry.path for entry in found.store.files(suffixes=found.format.folders) if entry.path not in known]
    if not rest:
        return notes
    from feedmill.formats.unread_files import listed

    unread = f"{listed(rest)} not read: in no split by {splits.told_by}, and {split!r} was opened"
    return [*notes, f"{found.store.url}: {unread}"]


def _no_split(found: Detected, url: str, split: str, splits: FolderSplits) -> NotFound:
    """Return the error for a split of data without splits. 'prepare' only divides the tars of a folder."""
    if splits.files:
        return unknown_split(url, split, splits, f"Name one of these, or '{ALL_SPLITS}' for all files.")
    what, fix = f"this {found.kind} has no splits", "Open it without a split."
    if found.names:
        what = "files that are listed have none, but their folder can have splits"
    if found.format.family in TOKENS:
        what = "token files have no splits"
    elif found.format is TAR and url.endswith(".tar") and not is_local_folder(url):
        what = "a single tar has no splits, but its folder can have some"
        fix = f"Open it without a split, or run 'feedmill prepare {split_url(url)[0]}' and open that folder."
    elif (
        not found.names
        and (is_local_folder(url) or not url.endswith(_FILES))
        and next(found.store.files(suffixes=(".tar",)), None)
    ):
        what = "the folder is not prepared"
        fix = f"Run 'feedmill prepare {url}' to divide it into splits, or open it without a split."
    return NotFound(f"there is no split {split!r}: {what}", file=url, kind="no-such-split", fix=fix)


def open_together(urls: Sequence[str], *, files: str | None = None, token_size: int | None = None) -> Dataset:
    """Open several files of one format as one dataset, in the given order.

    Supported are ``.tar``, ``.npz``, ``.parquet``, Arrow files (also with other suffixes of `ARROW_SUFFIXES`) and token
    files (which Modalities calls combined), given one by one or by patterns.

    Raises:
        ConfigError: no files are given, or they are not of one format.
    """
    found = _listed(urls)
    return open_found(found, found.store.url, files=files, token_size=token_size)
