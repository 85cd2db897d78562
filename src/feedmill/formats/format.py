"""Describe an on-disk format: the class `Format`, which each format's package instantiates.

Functions are given by name (``"feedmill.formats.mds.dataset:is_mds"``), so that only the used format is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from feedmill.storage import Store

Family = Literal["samples", "episodes", "rows", "lines", "tokens", "windows"]
"""Content of a dataset: samples of parts, time steps of episodes, rows with columns, lines of several files, documents
of tokens, or documents of tokens divided into windows."""
Form = Literal["prepared", "tars", "manifest", "lines", "table", "shards", "episodes", "tokens", "sequences"]
"""How data is written in a format, see `TargetFormat`."""
SAMPLES: tuple[Family, ...] = ("samples", "episodes", "rows")
ROWS: tuple[Family, ...] = ("samples", "episodes", "rows", "lines")
TOKENS: tuple[Family, ...] = ("tokens", "windows")
ALL_SPLITS = "*"
"""In place of a split: all of the data."""
TRAIN_OR_ALL = "\0train"
"""In place of a split: ``train`` if the dataset has one, everything otherwise, as recipes do without ``split``."""


class OpenRequest(NamedTuple):
    """A request to open a dataset.

    Attributes:
        store: the folder.
        name: name of a single file in it, else empty.
        url: path or URL as the user gave it.
        names: names of several files.
        split, split_config, files, token_size: as in `feedmill.open`.
        remarks: notes about ignored data from the detection.
    """

    store: Store
    name: str
    url: str
    names: tuple[str, ...] = ()
    split: str | None = None
    split_config: str | None = None
    files: str | None = None
    token_size: int | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetFormat:
    """A format as a target of writing.

    Attributes:
        name: name for ``convert --to`` and ``tokenize --to``.
        writes: description of the output.
        lacks: description of data that it cannot store.
        form: how data is written. ``prepared``: a prepared folder of tars; ``tars``: plain tars; ``manifest``: tars
            listed by a manifest; ``lines``: lines of JSON; ``table``: Parquet; ``shards``: shards of columns, by
            `writer`; ``episodes``: episodes of steps; ``tokens``: token files; ``sequences``: sequences of tokens.
        takes: families of sources that can be written in it.
        shards: pattern of its files in a folder.
        beside: name of a tuple of its other files.
        writer: name of a `feedmill.formats.columnar.ColumnWriter` (for ``shards``) or a
            `feedmill.formats.tokens.base.TokenFormat` (for ``tokens``).
        shard_size: default bytes of the source per shard.
        keeps: facts about a source that it can store: ``splits``, ``description`` (the sample type), ``media``
            (media metadata), ``companions`` (files of VLA Foundry's robotics), ``loss`` (masks of tokens).
        options: options of a conversion that apply to it.
        is_file: whether a destination that ends in its name is one file.
        surveyed: whether its columns have types, so that all samples are examined before any is written.
        ends: for token files: suffixes of the files of one dataset; the first identifies it.
        strip: suffixes to remove from a path before adding `ends`.
        token_sizes: supported bytes per token.
    """

    name: str
    writes: str
    lacks: str
    form: Form
    takes: tuple[Family, ...]
    shards: str = ""
    beside: str = ""
    writer: str = ""
    shard_size: int | None = None
    keeps: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_file: bool = False
    surveyed: bool = False
    ends: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    token_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A format as a source, and its targets for writing.

    Attributes:
        name: its kind, in messages and reports.
        title: name for display.
        family: kind of content.
        open: ``(Wanted) -> Dataset``; none for files that are not a dataset on their own.
        files: file name suffixes.
        is_file: ``(store, name) -> bool``, if other formats use the same suffixes.
        marks: paths of files; each folder of the format contains one of them, or one of `later_marks`.
        later_marks: marks that are requested only if no format has any of its `marks`: each costs a request at every
            opening of a remote folder.
        is_folder: ``(store) -> str | None``, the name in the folder to open ("" for the folder), if the marks are not
            sufficient.
        small: paths of small files that are read when such a folder is opened.
        shared: those of them that are read through the cache of remote data, if there is one, once for all processes
            of a machine: they grow with the data.
        folders: file suffixes that identify a folder without marks of any format, if `is_folder` agrees.
        listed: suffixes of files that can be opened together.
        splits: whether `open` accepts a split.
        finds_train: whether it also accepts `TRAIN_OR_ALL`; others are opened twice for that.
        options: which of ``files``, ``token_size`` and ``split_config`` it accepts.
        check: how `check` works: ``tars`` are scanned and compared with the index, ``lines`` with their offsets,
            ``manifest`` is followed; others are opened and verified (``open``).
        repair: what can be repaired: ``tars`` of a folder, one ``tar``, ``lines``; otherwise the reason and a fix.
        data, beside: its kinds of data in a folder, and suffixes of other files in it, see
            `feedmill.formats.unread_files`.
        scanned: whether a folder is identified only by its data files, which must then be of one kind.
        reuses_target: whether its own reader begins a window of tokens with the last token of the previous one.
        flat: for tokens: whether they are in its files as they are, so that other code may map these.
        targets: its targets for writing.
    """

    name: str
    title: str
    family: Family
    open: str = ""
    files: tuple[str, ...] = ()
    is_file: str = ""
    marks: tuple[str, ...] = ()
    later_marks: tuple[str, ...] = ()
    is_folder: str = ""
    small: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    splits: bool = False
    finds_train: bool = False
    options: tuple[str, ...] = ()
    check: Literal["tars", "lines", "manifest", "open"] = "open"
    repair: Literal["tars", "tar", "lines"] | tuple[str, str] = (
        "only folders of .tar shards, a .tar and a .jsonl can be repaired",
        "Repair the folder of its shards, or restore corrupt files from their source.",
    )
    data: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    scanned: bool = False
    reuses_target: bool = False
    flat: bool = True
    targets: tuple[TargetFormat, ...] = ()


class Detected(NamedTuple):
    """A detected dataset: its format and store, the name of a single file or of several files, and remarks."""

    format: Format
    store: Store
    name: str = ""
    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return the name of the format."""
        return self.format.name

    @property
    def path(self) -> str:
        """Return the path of a single file; empty for a folder or a list."""
        return self.name if self.format.files and not self.format.marks else ""


@cache
def named(reference: str) -> Any:
    """Return the object named ``module:attribute``."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
