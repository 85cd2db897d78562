"""The facts about an on-disk format: a `Format`, which the package of the format has.

Functions are named (``"feedmill.formats.mds.dataset:is_mds"``), so that only the format that is met is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

from feedmill.storage import Store

Family = Literal["samples", "rows", "lines", "tokens", "windows"]
"""What a dataset is made of: samples of parts, rows with columns, lines of several files, documents of tokens, or
documents of tokens that were cut into windows."""
Form = Literal["prepared", "tars", "manifest", "lines", "table", "shards", "tokens", "sequences"]
"""How something becomes a format, see `TargetFormat`."""
SAMPLES: tuple[Family, ...] = ("samples", "rows")
ROWS: tuple[Family, ...] = ("samples", "rows", "lines")
TOKENS: tuple[Family, ...] = ("tokens", "windows")


class Wanted(NamedTuple):
    """What to open.

    Attributes:
        store: the folder.
        name: of one file in it, else empty.
        url: the name that the user gave.
        names: of several files.
        split, split_config, files, token_size: as in `feedmill.open`.
        remarks: what was left aside when it was found.
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
    """A format as it is written.

    Attributes:
        name: as ``convert --to`` and ``tokenize --to`` call it.
        writes: what appears at the destination.
        lacks: what it has no place for.
        form: how samples, rows or documents become it. ``prepared``: a prepared folder of tars; ``tars``: plain ones;
            ``manifest``: tars that a manifest lists; ``lines``: lines of JSON; ``table``: Parquet; ``shards``: shards
            of columns, by `writer`; ``tokens``: token files; ``sequences``: sequences of tokens.
        takes: families of sources that it can be made of.
        shards: pattern of its files in a folder.
        beside: names a tuple of the files beside them.
        writer: of ``shards`` names a `feedmill.formats.columnar.ColumnWriter`, of ``tokens`` a
            `feedmill.formats.tokens.base.TokenFormat`.
        shard_size: bytes of the source in a shard, where none are asked for.
        keeps: facts about a source that it has a place for: ``splits``, ``description`` (the sample type), ``media``
            (media metadata), ``companions`` (files of VLA Foundry's robotics), ``loss`` (masks of tokens).
        options: options of a conversion that do something for it.
        is_file: whether a destination that ends in its name is one file.
        surveyed: whether its columns have types, so that all samples are looked at before any is written.
        ends: of token files: ends of the names of one dataset's files; by the first it is recognised.
        strip: ends that a path to which `ends` are added may have already.
        token_sizes: bytes of a token that it can store.
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
    """A format as it is read, and what it is called where it is written.

    Attributes:
        name: its kind, in messages and reports.
        title: for display.
        family: what it holds.
        open: ``(Wanted) -> Dataset``; none for what is no dataset by itself.
        files: ends of names of files that are of it.
        is_file: ``(store, name) -> bool``, where other formats have files of these ends.
        marks: paths of files one of which is in each folder of it.
        is_folder: ``(store) -> str | None``, the name in the folder that is opened ("" for the folder), where the
            marks do not tell.
        folders: ends of files by which a folder without marks of any format is of it.
        listed: ends of files that can be opened together.
        splits: whether `open` takes a split.
        options: which of ``files`` and ``token_size`` it takes.
        check: how it is checked: ``tars`` are scanned and compared with what an index says, ``lines`` with their
            offsets, ``manifest`` is followed; all else is opened and asked (``open``).
        repair: what can be repaired: ``tars`` of a folder, one ``tar``, ``lines``; else why not and what to do.
        data, beside: kinds of data in a folder that are its own, and ends of names of files beside them, see
            `feedmill.formats.leftovers`.
        scanned: whether a folder is known by its data files alone, which so must be of one kind.
        reuses_target: whether its own reader begins a window of tokens with the last token of the one before.
        targets: as what it is written.
    """

    name: str
    title: str
    family: Family
    open: str = ""
    files: tuple[str, ...] = ()
    is_file: str = ""
    marks: tuple[str, ...] = ()
    is_folder: str = ""
    folders: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    splits: bool = False
    options: tuple[str, ...] = ()
    check: Literal["tars", "lines", "manifest", "open"] = "open"
    repair: Literal["tars", "tar", "lines"] | tuple[str, str] = (
        "only folders of .tar shards, a .tar and a .jsonl can be repaired",
        "Repair the folder of its shards, or bring damaged files back from their origin.",
    )
    data: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    scanned: bool = False
    reuses_target: bool = False
    targets: tuple[TargetFormat, ...] = ()


class Found(NamedTuple):
    """A dataset that is there: its format, its store, for a single file the name in the store, for a list of files
    their names, and what was left aside."""

    format: Format
    store: Store
    name: str = ""
    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the format."""
        return self.format.name

    @property
    def path(self) -> str:
        """The file that it is; empty for a folder or a list."""
        return self.name if self.format.files and not self.format.marks else ""


def named(reference: str) -> Any:
    """Return what ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
