"""Find files of documents and their kinds, for every verb that reads documents.

Inputs are paths, URLs and patterns. An input that is the name of an existing file or folder is taken literally. In
patterns, ``*`` and ``?`` match characters within a name, ``[...]`` and ``[!...]`` match one character in or not in a
set, and ``**`` matches any number of folders. Braces are literal.

A folder, given by name or matched by a wildcard, stands for all files below it. If it has ``documents/`` (Dolma's
layout), it stands for the files in there; if Hugging Face `datasets` saved it, for its data files.

Hidden files and folders are skipped unless the pattern has their dot, and so are files that Feedmill writes beside
data. Documents of only one kind are read from a folder. If it also has documents of another kind, readable or not
(`.csv`, `.txt.gz`), the user must choose one. Files that are not documents (`README.md`, `_SUCCESS`) are skipped and
reported.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import orjson

from feedmill.documents.file import (
    ARCHIVES,
    ARROW,
    KINDS,
    LINES,
    NO_DOCUMENTS,
    TEXT,
    DocumentFile,
    in_datasets,
    is_hidden,
    kind_of,
    once,
)
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS
from feedmill.formats.hub_splits import CARDS, splits_among
from feedmill.formats.registry import targets
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.tokens.manifest import LINEAGE
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST
from feedmill.formats.unread_files import DOCUMENTS as HELD
from feedmill.formats.unread_files import data_kind, is_about, listed
from feedmill.storage import Entry, Store, join_url, open_store, refuse_secrets, split_url
from feedmill.storage.base import refuse_non_utf8

_BESIDE = ((".idx", ""), (".split.yaml", ""), (".idx", ".jsonl"))
"""Suffixes of the files beside a JSONL file that is a dataset, each with what replaces it in that file's name."""


@dataclass
class DocumentFiles:
    """Files of documents found for some inputs.

    Attributes:
        files: The files, in the order of the inputs.
        skipped: Paths of files in the folders that are not read.
        missing: Inputs without files, if that is allowed.
        notes: Messages about folders whose card or names tell splits, such as a test: all of their files are read.
    """

    files: list[DocumentFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_documents(
    inputs: Iterable[str | os.PathLike[str]],
    *,
    kind: str | None = None,
    unnamed: str | None = LINES,
    exact: bool = False,
    folders: bool = True,
    allow_missing: bool = False,
    id: str | None = None,
) -> DocumentFiles:
    """Return the files of documents of all inputs, in the order of the inputs and sorted by path within each.

    Args:
        inputs: See the module docstring. A file that several inputs contain is returned for each of them; see
            `feedmill.documents.file.once`.
        kind: The kind of documents to read in folders, one of `KINDS`; None if each folder has only one kind.
        unnamed: The kind of files whose names do not show a kind; None if they are not documents.
        exact: Read all files as lines regardless of their names, as Dolma does.
        folders: Whether a folder that a wildcard matches stands for its files. If False, files are in the order of
            Dolma's deduplication and mixing, folder by folder.
        allow_missing: Report inputs without files in `DocumentFiles.missing` instead of raising.
        id: The field to read ids from, or ``auto``; see `DocumentFile`.

    Raises:
        NotFound: An input has no files, or no files of documents.
        ConfigError: A file given by name is not documents, a name is not valid UTF-8, or a folder has documents of
            several kinds and `kind` is not given.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"unknown kind of documents {kind!r}", fix=f"Use one of {', '.join(KINDS)}.")
    documents = DocumentFiles()
    selection = Selection(kind, unnamed, exact, documents.skipped, documents.notes)
    for item in inputs:
        given = os.fspath(item)
        pattern = join_url(*split_url(given)) if given.startswith("file:") else given
        files: list[DocumentFile] = []
        before = len(documents.skipped)
        with _without_any(allow_missing):
            files = list(_files(pattern, selection, folders))
        if not files and not allow_missing:
            raise _none(given, is_pattern(pattern), documents.skipped[before:])
        if not files:
            documents.missing.append(given)
        documents.files += files
    refuse_non_utf8(*(file.name for file in documents.files))
    if id == "":
        raise ConfigError("--id is empty", kind="bad-option", fix="Pass a field, or generate ids with --id auto.")
    if id is not None and id != "id":
        documents.files = [file if file.kind == TEXT else replace(file, id=id) for file in documents.files]
    return documents


def _none(given: str, wild: bool, skipped: list[str]) -> NotFound:
    if skipped:
        return NotFound(
            f"no documents match this pattern, but {listed(skipped)}",
            file=given,
            kind=NO_DOCUMENTS,
            fix="Use .jsonl, .parquet, .arrow or .txt files.",
        )
    if not wild:
        from feedmill.storage.codec import missing_file

        folder, name = split_url(given)
        return missing_file(open_store(folder), name, "file or folder", file=given, kind=NO_DOCUMENTS)
    return NotFound(
        "no files match this pattern",
        file=given,
        kind=NO_DOCUMENTS,
        fix="Check the path; quote patterns in a shell.",
    )


def find_in_datasets(
    patterns: Sequence[str],
    warnings: list[str],
    documents: str = DOCUMENTS,
    *,
    exact: bool = False,
    allow_missing: bool = False,
    id: str | None = None,
) -> list[DocumentFile]:
    """Return the files of all patterns, relative to the roots of their datasets, each file once.

    Args:
        documents: Name of the folder that contains documents.
        patterns, warnings, exact, allow_missing, id: See `find_once`.

    Raises:
        NotFound, ConfigError: As in `find_once` and `feedmill.documents.file.in_datasets`.
    """
    return in_datasets(find_once(patterns, warnings, exact=exact, allow_missing=allow_missing, id=id), documents)


def find_once(
    patterns: Sequence[str],
    warnings: list[str],
    *,
    exact: bool = False,
    allow_missing: bool = False,
    id: str | None = None,
) -> list[DocumentFile]:
    """Return the files of all patterns, each file once.

    Args:
        patterns: Inputs of `find_documents`.
        warnings: Receives a line for skipped files, and one for each pattern without files.
        exact: Find the same files as Dolma's deduplication and mixing, except hidden files.
        allow_missing, id: See `find_documents`.

    Raises:
        NotFound, ConfigError: As in `find_documents`, or there is no file.
    """
    found = find_documents(patterns, exact=exact, folders=not exact, allow_missing=allow_missing, id=id)
    if not found.files:
        raise NotFound(
            f"no document file matches {', '.join(patterns) or 'an empty list of patterns'}",
            kind=NO_DOCUMENTS,
            fix="Pass files, folders or patterns such as 'data/documents/**/*.jsonl.gz'.",
        )
    warnings += [f"no file matches {pattern}" for pattern in found.missing]
    warnings += skipped_warnings(found)
    return once(found.files)


def skipped_warnings(found: DocumentFiles) -> list[str]:
    """Return warnings about splits, and skipped files but hidden ones, attributes and embeddings beside documents."""
    known = (f"/{ATTRIBUTES}/", "/embeddings/")
    paths = [path for path in found.skipped if "/." not in path and not any(each in path for each in known)]
    return found.notes + ([f"{listed(paths)} skipped: no documents"] if paths else [])


@contextlib.contextmanager
def _without_any(allow: bool) -> Iterator[None]:
    """Ignore, if `allow` is set, the error for a folder without documents inside the block."""
    try:
        yield
    except NotFound as error:
        if not allow or error.kind != NO_DOCUMENTS:
            raise


def _files(pattern: str, selection: Selection, folders: bool) -> Iterator[DocumentFile]:
    """Yield the files of one input."""
    if is_pattern(pattern):
        found = matches(pattern)
        if not folders:
            found.sort(key=lambda match: match[0].path.split("/"))
        paths = {file.name for file, is_folder in found if not is_folder}
        is_there = paths.__contains__ if "://" in pattern else os.path.exists
        alone = [file for file, is_folder in found if not is_folder and not _is_ours(file.name, is_there)]
        singles = {file.path: file for file in selection.matched(alone)}
        for file, is_folder in found:
            if is_folder and folders:
                with _without_any(True):
                    yield from _below(file.name, file.folder, file.path, selection)
            elif not is_folder and file.path in singles:
                yield singles[file.path]
        return
    if not pattern:
        return
    folder, _, name = pattern.rpartition("/")
    folder = "/" if not folder and pattern.startswith("/") else folder
    named = stated(folder, name) if name else None
    if named is not None:
        yield selection.one(named)
    else:
        yield from _below(pattern.rstrip("/") or pattern, pattern.rstrip("/") or pattern, "", selection)


def _below(url: str, base: str, above: str, selection: Selection) -> list[DocumentFile]:
    """Return the documents of a folder.

    Args:
        url: The folder.
        base, above: The two parts of `url`: a folder, and the path below it.
    """
    store = open_store(url or ".")
    if store.is_local and not os.path.isdir(store.locate("")):
        return []
    prefix = f"{above}/" if above else ""
    if not selection.exact and (saved := _saved(store, url)) is not None:
        return [DocumentFile(base, prefix + e.path, ARROW, e.size, e.version) for e in saved]
    try:
        entries = list(store.files())
    except NotFound as error:
        if error.kind == "dangling-link":
            raise
        return []
    paths = {entry.path for entry in entries}
    entries = [e for e in entries if not (_is_ours(e.path, paths.__contains__) or _is_of_tokens(e.path, paths))]
    inside = [entry for entry in entries if entry.path.startswith(f"{DOCUMENTS}/")]
    if inside and not selection.exact:
        selection.skipped += [store.locate(e.path) for e in entries if not e.path.startswith(f"{DOCUMENTS}/")]
        entries = inside
    files = [DocumentFile(base, prefix + e.path, "", e.size, e.version) for e in entries]
    files = selection.folder(url, files, len(prefix))
    if not selection.exact:
        selection.notes += _splits(url, store, [file.path[len(prefix) :] for file in files], paths)
    return files


def _splits(url: str, store: Store, documents: Sequence[str], paths: set[str]) -> list[str]:
    """Return a message if a folder has splits."""
    try:
        splits = splits_among(store, documents, [card for card in CARDS if card in paths])
    except ConfigError as error:  # all documents are read anyway
        return [str(error)]
    unfit = [f"{url}: {splits.unfit} declares splits of files that are not here"] if splits.unfit else []
    return [*unfit, f"{url}: {splits}, and all files are read"] if splits.files else unfit


def _is_ours(path: str, is_there: Callable[[str], bool]) -> bool:
    """Return whether a file is Feedmill's output and not documents: a manifest, an index, or a file with a manifest."""
    return (
        path.endswith((MANIFEST, LINEAGE))
        or is_there(path + MANIFEST)
        or any(path.endswith(end) and is_there(path.removesuffix(end) + data) for end, data in _BESIDE)
    )


def _is_of_tokens(path: str, paths: set[str]) -> bool:
    """Return whether a file belongs to token files that an earlier run wrote here, or that are being written."""
    if ".feedmill" in path:
        return True
    return any(
        path.endswith(end) and path.removesuffix(end) + target.ends[0] + MANIFEST in paths
        for target in targets().values()
        for end in target.ends
    )


def _saved(store: Store, url: str) -> list[Entry] | None:
    """Return the files of a dataset that Hugging Face `datasets` saved, in its order; None for any other folder."""
    if store.exists("dataset_dict.json"):
        raise ConfigError(
            "the folder contains several splits", file=url, kind="ambiguous", fix="Use the folder of one split."
        )
    if not (store.exists("state.json") and store.exists("dataset_info.json")):
        return None
    try:
        state = orjson.loads(store.read("state.json"))
        names = [entry["filename"] for entry in state["_data_files"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"the list of data files is invalid: {error}", file=store.locate("state.json")) from None
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ConfigError(
            "the dataset is a selection of the rows of its files, which is not supported",
            file=url,
            kind="unsupported",
            fix="Apply the selection and save the dataset again: ds.flatten_indices().save_to_disk(...)",
        )
    return [store.stat(name) for name in names]


_SHOWN = 3
"""Number of files that an error names."""
_UNREADABLE = "unreadable"
_ORDER = (*KINDS, _UNREADABLE)
_KNOWN = (
    "Documents are .jsonl, .json or .ndjson (plain, or with .gz, .zst, .bz2, .xz), .parquet, .txt and"
    f" {', '.join(ARROW_SUFFIXES)}"
)


class Selection:
    """Filter that separates documents from other files.

    Args:
        kind, unnamed, exact: See `feedmill.documents.find.find_documents`.
        skipped: Receives the paths of files that are not read.
        notes: Receives messages about folders with splits.
    """

    def __init__(
        self, kind: str | None, unnamed: str | None, exact: bool, skipped: list[str], notes: list[str]
    ) -> None:
        self.kind, self.unnamed, self.exact, self.skipped, self.notes = kind, unnamed, exact, skipped, notes

    def name_of(self, path: str) -> str:
        """Return the kind of a file in a folder, `_UNREADABLE`, or an empty string if it is not a document."""
        if self.exact:
            return LINES
        found = kind_of(path)
        if found is None and data_kind(path) in HELD:
            return _UNREADABLE
        if found is None and data_kind(path) is None and not is_about(path):
            return self.unnamed or ""
        return found or ""

    def one(self, file: DocumentFile) -> DocumentFile:
        """Return a file given by name, with its kind. Raises ConfigError if it is not a file of documents."""
        kind = self.name_of(file.path)
        if kind in KINDS:
            return replace(file, kind=kind)
        raise ConfigError(
            "unsupported file type for documents",
            file=file.name,
            kind="no-documents",
            fix="Make documents of its pages: 'feedmill documents extract'."
            if file.path.endswith(ARCHIVES)
            else f"{_KNOWN}.",
        )

    def matched(self, files: Iterable[DocumentFile]) -> Iterator[DocumentFile]:
        """Yield the documents among the files that a wildcard matches, each with its kind."""
        named = [(file, self.name_of(file.path)) for file in files]
        if unreadable := [file.name for file, kind in named if kind == _UNREADABLE]:
            raise _not_documents(unreadable)
        for file, kind in named:
            if kind:
                yield replace(file, kind=kind)
            else:
                self.skipped.append(file.place)

    def folder(self, url: str, files: list[DocumentFile], above: int) -> list[DocumentFile]:
        """Return the documents of a folder, all of one kind.

        Args:
            url: The folder, for errors.
            files: All files of the folder.
            above: Number of leading characters of the files' paths that are the folder.
        """
        hidden = [is_hidden(file.path[above:]) for file in files]
        if self.exact:
            return [replace(file, kind=LINES) for file, is_not in zip(files, hidden, strict=True) if not is_not]
        named = [
            replace(file, kind="" if is_not else self.name_of(file.path))
            for file, is_not in zip(files, hidden, strict=True)
        ]
        chosen = _of_one_kind(url, named, self.kind)
        self.skipped += [file.place for file in named if file.kind != chosen]
        return [file for file in named if file.kind == chosen]


def _of_one_kind(url: str, files: list[DocumentFile], wanted: str | None) -> str:
    """Return the kind of documents to read in a folder. Raises if there are none, or if the user must choose."""
    by_kind: dict[str, list[DocumentFile]] = {}
    for file in files:
        by_kind.setdefault(file.kind, []).append(file)
    by_kind.pop("", None)
    readable = [kind for kind in KINDS if kind in by_kind]
    if wanted is None and len(by_kind) > 1:  # a README beside documents is not a document
        by_kind = {kind: [f for f in group if not is_about(f.path)] for kind, group in by_kind.items()}
        by_kind = {kind: group for kind, group in by_kind.items() if group}
        readable = [kind for kind in KINDS if kind in by_kind]
    if wanted is None and not readable and by_kind.get(_UNREADABLE):
        raise _not_documents([file.name for file in by_kind[_UNREADABLE]])
    if not (by_kind.get(wanted) if wanted is not None else readable):
        there = f": found {_counted(by_kind)}" if by_kind else ""
        raise NotFound(
            f"no documents {f'of the kind {wanted!r} ' if wanted else ''}in this folder{there}",
            file=url,
            kind=NO_DOCUMENTS,
            fix="Use a folder of .jsonl, .parquet, .arrow or .txt files.",
        )
    if wanted is None and len(by_kind) > 1:
        raise ConfigError(
            f"the folder has documents of several kinds: {_counted(by_kind)}",
            file=url,
            kind="mixed-formats",
            fix="Select the files of one kind with a pattern such as '*.jsonl'. In tokenize, choose one kind with"
            f" --kind {' or --kind '.join(readable)}.",
        )
    return readable[0] if wanted is None else wanted


def _counted(by_kind: dict[str, list[DocumentFile]]) -> str:
    """Return the kinds with their numbers of files and an example, for display."""
    shown = []
    for kind, files in sorted(by_kind.items(), key=lambda item: _ORDER.index(item[0])):
        number, more = len(files), ", ..." if len(files) > 1 else ""
        shown.append(f"{number:,} {kind} file{'' if number == 1 else 's'} ({files[0].path!r}{more})")
    return ", ".join(shown)


def _not_documents(names: Sequence[str]) -> ConfigError:
    listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    one = len(names) == 1
    out = "the file, or exclude it" if one else "the files, or exclude them"
    return ConfigError(
        f"{'this file is' if one else f'these {len(names):,} files are'} not documents: {listed}",
        kind="no-documents",
        fix=f"{_KNOWN}. Convert {out} with a pattern such as '*.jsonl*'.",
    )


_MAGIC = re.compile(r"[*?\[]")
_PIECES = re.compile(r"\*\*/?|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[")
Match = tuple[DocumentFile, bool]
"""A file or folder that a wildcard matches, and whether it is a folder."""


def is_pattern(path: str) -> bool:
    """Return whether an input is a pattern. The name of an existing file or folder is never a pattern."""
    return bool(_MAGIC.search(path)) and ("://" in path or not os.path.exists(path))


def matches(pattern: str) -> list[Match]:
    """Return what a pattern matches, sorted by path."""
    return _remote(pattern) if "://" in pattern else _local(pattern)


def expression(pattern: str) -> str:
    """Return a pattern as a regular expression over whole paths."""
    out = []
    for piece in _PIECES.findall(pattern):
        if piece == "**/":
            out.append(r"(?:[^/]+/)*")
        elif piece == "**":
            out.append(r".*")
        elif piece == "*":
            out.append(r"[^/]*")
        elif piece == "?":
            out.append(r"[^/]")
        elif piece.startswith("[") and len(piece) > 1:
            inside = re.sub(r"([\[&~|\\])", r"\\\1", piece[1:-1].removeprefix("!"))
            out.append("[" + ("^" if piece[1] == "!" else "") + inside + "]")
        else:
            out.append(re.escape(piece))
    return "".join(out)


def listed_by_datatrove(paths: Iterable[str], pattern: str, recursive: bool = True) -> list[str]:
    """Return the files of a folder that datatrove lists for a pattern, by the rules of fsspec's ``glob``.

    Args:
        paths: the files, relative to the folder.
        pattern: ``*`` stops at ``/``, ``**`` does not; without a wildcard, the end of a name in the folder itself.
        recursive: without it, ``**`` stands for the folder before it.

    Raises:
        ConfigError: the pattern is invalid.
    """
    whole = (pattern if glob.has_magic(pattern) else f"*{pattern}").removeprefix("./").rstrip("/")
    try:
        if any("**" in part and part != "**" for part in whole.split("/")):
            raise re.error("'**' must be a whole name between slashes")
        fits = re.compile(expression(whole))
    except re.error as error:
        raise ConfigError(f"invalid pattern {pattern!r}: {error}", kind="bad-pattern", fix="Change it.") from None
    before, stars, _ = whole.partition("**")
    deepest = before.count("/") if stars and not recursive else None
    return [path for path in paths if fits.fullmatch(path) and (deepest is None or path.count("/") <= deepest)]


def stated(folder: str, path: str) -> DocumentFile | None:
    """Return a file with its size and version; None if it does not exist."""
    store = open_store(folder or ".")
    if store.is_local and not os.path.isfile(store.locate(path)):
        return None
    try:
        entry = store.stat(path)
    except NotFound:
        return None
    return DocumentFile(folder, path, "", entry.size, entry.version)


def _base(pattern: str) -> str:
    """Return the folders of a pattern before its first wildcard. Names of existing local folders are not wildcards."""
    parts = pattern.split("/")[:-1]
    count = 0
    while count < len(parts):
        if _MAGIC.search(parts[count]) and ("://" in pattern or not os.path.isdir("/".join(parts[: count + 1]))):
            break
        count += 1
    base = "/".join(parts[:count])
    return "/" if not base and pattern.startswith("/") else base


def _local(pattern: str) -> list[Match]:
    base = _base(pattern)
    cut = len(base.rstrip("/")) + 1 if base else 0
    matched: list[Match] = []
    above = _folders_from(base)
    for path in sorted(glob.glob(glob.escape(pattern[:cut]) + pattern[cut:], recursive=True)):
        below = path[cut:]
        is_folder = os.path.isdir(path)
        if above(below.rstrip("/") if is_folder else below.rpartition("/")[0]) is None:
            continue  # the same files match without the link
        if is_folder:
            if not pattern.endswith("**"):
                matched.append((DocumentFile(base, below.rstrip("/"), "", 0, ""), True))
        elif (file := stated(base, below)) is not None:
            matched.append((file, False))
    return matched


def _folders_from(base: str) -> Callable[[str], frozenset[tuple[int, int]] | None]:
    """Return a function from a path below `base` to the identities of its folders; None if a link leads to one above.

    Without it, glob follows such a link forty times.
    """

    @cache
    def folders(below: str) -> frozenset[tuple[int, int]] | None:
        above = folders(below.rpartition("/")[0]) if below else frozenset()
        status = os.stat(os.path.join(base, below) or ".")
        identity = status.st_dev, status.st_ino
        return None if above is None or identity in above else above | {identity}

    return folders


def _remote(pattern: str) -> list[Match]:
    refuse_secrets(pattern)  # the query of a URL looks like a wildcard
    base = _base(pattern)
    name = pattern[len(base) + 1 :]
    wanted = re.compile(expression(name))
    dots = name.startswith(".") or "/." in name
    try:
        entries = [entry for entry in open_store(base).files() if dots or not is_hidden(entry.path)]
    except NotFound:
        return []
    matched: dict[str, Match] = {}
    for entry in entries:
        if wanted.fullmatch(entry.path):
            matched[entry.path] = DocumentFile(base, entry.path, "", entry.size, entry.version), False
            continue
        folder = next((folder for folder in _above(entry.path) if wanted.fullmatch(folder)), None)
        if folder is not None:
            matched[folder] = DocumentFile(base, folder, "", 0, ""), True
    return [matched[path] for path in sorted(matched)]


def _above(path: str) -> Iterator[str]:
    """Yield the folders of a path, the outermost first."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
