"""What to tokenize: files of documents, and the units of work that they are cut into.

lines     .jsonl, .json, .ndjson: one document a line; cut into byte ranges. With .gz or .zst: one unit a file
text      .txt: the file is one document
parquet   .parquet: one document a row; cut into row groups
arrow     .arrow: Hugging Face datasets on disk; one unit a file

A folder is read for one kind. Where it has documents of another kind too, readable or not (`.csv`, `.txt.gz`), the user
says which; what is no document (`README.md`, `_SUCCESS`) is skipped. Whatever is skipped is named and counted.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import orjson

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.leftovers import DOCUMENTS, data_kind, is_about
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST
from feedmill.formats.tokens.suffixes import FORMATS
from feedmill.storage import Store, join_url, open_store, split_url
from feedmill.storage.base import refuse_odd_names
from feedmill.storage.codec import PLAIN, compression

UNIT_BYTES = 8 << 20
_MOST = 1024  # files in one unit of work
_LINES = (".jsonl", ".json", ".ndjson")
_PACKED = ("", ".gz", ".gzip", ".zst", ".zstd")
SUFFIXES = {name + packed: "lines" for name in _LINES for packed in _PACKED} | {
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
KINDS = ("lines", "text", "parquet", "arrow")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of documents: its folder, its path in it, of which kind, and its size and version.

    Attributes:
        rows: of a file of columns only every `rows[1]`-th row, from number `rows[0]` on.
    """

    folder: str
    path: str
    kind: str
    size: int
    version: str
    rows: tuple[int, int] = (0, 1)

    @property
    def url(self) -> str:
        """The whole path, as shown to people."""
        return join_url(self.folder, self.path)

    @property
    def packed(self) -> bool:
        """Whether it is compressed as a whole."""
        return compression(self.path) != PLAIN


@dataclass
class Inputs:
    """The files of documents that some inputs stand for, in their order.

    Attributes:
        skipped: paths of files in the folders that are not read.
    """

    files: list[SourceFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work: the documents of `file` that begin in ``[begin, end)``, in bytes or in row groups."""

    file: SourceFile
    begin: int
    end: int
    bytes: int


def together(units: Iterable[Unit], unit_bytes: int = UNIT_BYTES) -> Iterator[tuple[Unit, ...]]:
    """Units in order, those of small whole files with their neighbours: what there is to do for a unit beside reading
    would be most of the work. Parts of a file are alone."""
    group: list[Unit] = []
    room = 0
    for unit, following in pairwise(chain(units, [None])):
        if unit is None:
            return
        whole = unit.begin == 0 and (following is None or following.begin == 0)
        if group and (not whole or unit.bytes > room or len(group) == _MOST):
            yield tuple(group)
            group = []
        if not whole:
            yield (unit,)
            continue
        room = (room if group else unit_bytes) - unit.bytes
        group.append(unit)
    if group:
        yield tuple(group)


def kind_of(path: str) -> str | None:
    """The kind of a file by its name; None where it is none of documents."""
    if path.endswith(MANIFEST):  # what tokenizing left there would be an input of the next run
        return None
    return next((kind for suffix, kind in SUFFIXES.items() if path.endswith(suffix)), None)


def find_files(inputs: Iterable[str | os.PathLike[str] | SourceFile], kind: str | None = None) -> list[SourceFile]:
    """The files of `find_inputs`."""
    return find_inputs(inputs, kind).files


def find_inputs(inputs: Iterable[str | os.PathLike[str] | SourceFile], kind: str | None = None) -> Inputs:
    """The files of documents that paths, folders, URLs and patterns (``*.jsonl``) stand for, in their order.

    A folder gives its files sorted by path; one with ``documents/`` (Dolma's layout) those in there; one that Hugging
    Face `datasets` has saved its own.

    Args:
        kind: which of `KINDS` is read of folders; None where they have documents of one kind only.

    Raises:
        NotFound: there is nothing.
        ConfigError: a file of a kind that holds no documents, a name that is no UTF-8, or a folder with documents of
            several kinds and no `kind`.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"there is no kind of documents {kind!r}", fix=f"Use one of {', '.join(KINDS)}.")
    given = Inputs()
    found = given.files
    for item in inputs:
        if isinstance(item, SourceFile):
            found.append(item)
            continue
        text = os.fspath(item)
        if "://" not in text and not os.path.exists(text) and glob.has_magic(text):
            matches = sorted(m for m in glob.glob(text, recursive=True) if not _ours(m, os.path.exists))
            if not matches:
                raise NotFound("no file matches this pattern", file=text, fix="Check the pattern.")
            for match in matches:
                found += _files(match, kind, given.skipped)
        else:
            found += _files(text, kind, given.skipped)
    refuse_odd_names(*(file.path for file in found), *{file.folder for file in found})
    return given


def _ours(path: str, is_there: Callable[[str], bool]) -> bool:
    """Whether tokenizing has written a file (a manifest, or with one beside it): no documents for the next run."""
    return path.endswith(MANIFEST) or is_there(path + MANIFEST)


def _files(url: str, wanted: str | None, skipped: list[str]) -> list[SourceFile]:
    folder, name = split_url(url)
    kind = kind_of(url)
    if kind is not None and not ("://" not in url and os.path.isdir(url)):
        entry = open_store(folder).stat(name)
        return [SourceFile(folder, name, kind, entry.size, entry.version)]
    if "://" not in url and os.path.isfile(url):
        raise ConfigError(
            "this kind of file is not known to hold documents",
            file=url,
            kind="unknown-input",
            fix=f"Known are {', '.join(sorted({*_LINES, '.txt', '.parquet', '.arrow'}))}, and .gz or .zst of lines.",
        )
    store = open_store(url)
    if store.exists("state.json") and store.exists("dataset_info.json"):
        return _saved(store, url)
    if store.exists("dataset_dict.json"):
        raise ConfigError("this holds several splits", file=url, kind="several-splits", fix="Name the folder of one.")
    entries = list(store.files())
    paths = {entry.path for entry in entries}
    entries = [e for e in entries if not (_ours(e.path, paths.__contains__) or _made_by_us(e.path, paths))]
    inside = [entry for entry in entries if entry.path.startswith("documents/")]
    found = _of_one_kind(
        url, [SourceFile(url, e.path, kind_of(e.path) or "", e.size, e.version) for e in inside or entries], wanted
    )
    kept = {file.path for file in found}
    skipped += [store.locate(e.path) for e in entries if e.path not in kept]
    return found


def _of_one_kind(url: str, files: list[SourceFile], wanted: str | None) -> list[SourceFile]:
    """The files of the kind that is read. Raises where there is none, or the user has to say which."""
    by_kind: dict[str, list[SourceFile]] = {}
    for file in files:
        by_kind.setdefault(file.kind or ("other" if _holds_documents(file.path) else ""), []).append(file)
    by_kind.pop("", None)
    readable = [kind for kind in KINDS if kind in by_kind]
    if wanted is None and len(by_kind) > 1:  # a README is no document beside others
        by_kind = {kind: [f for f in some if not is_about(f.path)] for kind, some in by_kind.items()}
        by_kind = {kind: some for kind, some in by_kind.items() if some}
        readable = [kind for kind in KINDS if kind in by_kind]
    if not (by_kind.get(wanted) if wanted is not None else readable):
        there = f"; there are {_counted(by_kind)}" if by_kind else ""
        raise NotFound(
            f"no file of documents {f'of the kind {wanted!r} ' if wanted else ''}is in this folder{there}",
            file=url,
            fix="Name a folder of .jsonl, .parquet, .arrow or .txt files.",
        )
    if wanted is None and len(by_kind) > 1:
        raise ConfigError(
            f"the folder has documents of several kinds: {_counted(by_kind)}",
            file=url,
            kind="several-kinds",
            fix=f"Read one kind and skip the others with --kind {' or --kind '.join(readable)}, or name files.",
        )
    return by_kind[readable[0] if wanted is None else wanted]


def _counted(by_kind: dict[str, list[SourceFile]]) -> str:
    """Kinds with numbers and an example of each, for people."""
    shown = []
    for kind, files in sorted(by_kind.items()):
        number, more = len(files), ", ..." if len(files) > 1 else ""
        what = "unreadable" if kind == "other" else kind
        shown.append(f"{number:,} {what} file{'' if number == 1 else 's'} ({files[0].path!r}{more})")
    return ", ".join(shown)


def _holds_documents(path: str) -> bool:
    """Whether a file that cannot be read here holds documents, by its name."""
    return not path.rpartition("/")[2].startswith(".") and data_kind(path) in DOCUMENTS


def _made_by_us(path: str, paths: set[str]) -> bool:
    """Whether a file belongs to token files that an earlier run wrote here, or is on its way."""
    if ".feedmill" in path:
        return True
    for main, *others in FORMATS.values():
        for suffix in (main, *others):
            if path.endswith(suffix) and path.removesuffix(suffix) + main + MANIFEST in paths:
                return True
    return False


def _saved(store: Store, url: str) -> list[SourceFile]:
    """The files of a dataset that Hugging Face `datasets` has saved, in its order."""
    try:
        state = orjson.loads(store.read("state.json"))
        names = [entry["filename"] for entry in state["_data_files"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"this is no list of data files ({error})", file=store.locate("state.json")) from None
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ConfigError(
            "the dataset is a selection of the rows of its files",
            file=url,
            kind="selected-rows",
            fix="Save it with the selection applied: ds.flatten_indices().save_to_disk(...)",
        )
    entries = [store.stat(name) for name in names]
    return [SourceFile(url, e.path, "arrow", e.size, e.version) for e in entries]


def cut(files: Sequence[SourceFile], unit_bytes: int = UNIT_BYTES) -> Iterator[Unit]:
    """The units of files, in order. Raises as opening a Parquet file does."""
    for file in files:
        if file.kind == "lines" and not file.packed:
            for begin in range(0, file.size, unit_bytes):
                end = min(begin + unit_bytes, file.size)
                yield Unit(file, begin, end, end - begin)
        elif file.kind == "parquet":
            from feedmill.documents.columns import row_groups

            for begin, end, size in row_groups(file, unit_bytes):
                yield Unit(file, begin, end, size)
        else:
            yield Unit(file, 0, file.size, file.size)
