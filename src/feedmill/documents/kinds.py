"""The kinds of documents: by the names of files, and which of a folder's files are read.

    lines     .jsonl, .json, .ndjson, also with .gz, .gzip, .zst, .zstd: one document a line
    text      .txt: the file is one document
    parquet   .parquet: one document a row
    arrow     .arrow: one document a row; the files of Hugging Face datasets on disk

A folder is read for one kind: where it has documents of another kind too, readable or not (`.csv`, `.txt.gz`), the user
says which. What is no document (`README.md`, `_SUCCESS`) is skipped, named and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from feedmill.documents.file import DocumentFile
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.leftovers import DOCUMENTS as HELD
from feedmill.formats.leftovers import data_kind, is_about
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST

LINES, TEXT, PARQUET, ARROW = "lines", "text", "parquet", "arrow"
KINDS = (LINES, TEXT, PARQUET, ARROW)
LINE_SUFFIXES = tuple(
    name + packed for name in (".jsonl", ".json", ".ndjson") for packed in ("", ".gz", ".gzip", ".zst", ".zstd")
)
_SUFFIXES = {**dict.fromkeys(LINE_SUFFIXES, LINES), ".txt": TEXT, ".parquet": PARQUET, ".arrow": ARROW}
NO_DOCUMENTS = "no-documents"
"""The kind of the error for inputs without documents."""
_UNREADABLE = "unreadable"
_ORDER = (*KINDS, _UNREADABLE)


def kind_of(path: str) -> str | None:
    """The kind of a file by its name; None where that says nothing."""
    return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), None)


def is_hidden(path: str) -> bool:
    """Whether a file is hidden below its folder, or something that Feedmill says about the file beside it."""
    return path.endswith(MANIFEST) or path.startswith(".") or "/." in path


class Sorter:
    """Tells documents from other files.

    Attributes:
        skipped: receives the paths of what is not read.
    """

    def __init__(self, kind: str | None, unnamed: str | None, exact: bool, skipped: list[str]) -> None:
        self.kind, self.unnamed, self.exact, self.skipped = kind, unnamed, exact, skipped

    def name_of(self, path: str) -> str:
        """The kind of a file in a folder, `_UNREADABLE`, or nothing where it is no document."""
        if self.exact:
            return LINES
        found = kind_of(path)
        if found is None and data_kind(path) in HELD:
            return _UNREADABLE
        if found is None and data_kind(path) is None and not is_about(path):
            return self.unnamed or ""
        return found or ""

    def one(self, file: DocumentFile) -> DocumentFile:
        """A file that the user names. Raises ConfigError where it holds no documents."""
        kind = self.name_of(file.path)
        if kind in KINDS:
            return replace(file, kind=kind)
        raise ConfigError(
            "this kind of file is not known to hold documents",
            file=file.name,
            kind="unknown-input",
            fix="Documents are .jsonl, .json or .ndjson (plain, or with .gz, .zst), .parquet, .arrow and .txt.",
        )

    def matched(self, files: Iterable[DocumentFile]) -> Iterator[DocumentFile]:
        """The documents among the files that a wildcard matches, each of its kind."""
        named = [(file, self.name_of(file.path)) for file in files]
        if unreadable := [file.name for file, kind in named if kind == _UNREADABLE]:
            raise _not_documents(unreadable)
        for file, kind in named:
            if kind:
                yield replace(file, kind=kind)
            else:
                self.skipped.append(file.url)

    def folder(self, url: str, files: list[DocumentFile], above: int) -> list[DocumentFile]:
        """The documents of a folder: those of one kind.

        Args:
            above: how many characters of the files' paths are the folder.
        """
        hidden = [is_hidden(file.path[above:]) for file in files]
        if self.exact:
            return [replace(file, kind=LINES) for file, is_not in zip(files, hidden, strict=True) if not is_not]
        named = [
            replace(file, kind="" if is_not else self.name_of(file.path))
            for file, is_not in zip(files, hidden, strict=True)
        ]
        chosen = _of_one_kind(url, named, self.kind)
        self.skipped += [file.url for file in named if file.kind != chosen]
        return [file for file in named if file.kind == chosen]


def _of_one_kind(url: str, files: list[DocumentFile], wanted: str | None) -> str:
    """The kind of a folder's files that is read. Raises where there is none, or the user has to say which."""
    by_kind: dict[str, list[DocumentFile]] = {}
    for file in files:
        by_kind.setdefault(file.kind, []).append(file)
    by_kind.pop("", None)
    readable = [kind for kind in KINDS if kind in by_kind]
    if wanted is None and len(by_kind) > 1:  # a README is no document beside others
        by_kind = {kind: [f for f in some if not is_about(f.path)] for kind, some in by_kind.items()}
        by_kind = {kind: some for kind, some in by_kind.items() if some}
        readable = [kind for kind in KINDS if kind in by_kind]
    if wanted is None and not readable and by_kind.get(_UNREADABLE):
        raise _not_documents([file.name for file in by_kind[_UNREADABLE]])
    if not (by_kind.get(wanted) if wanted is not None else readable):
        there = f"; there are {_counted(by_kind)}" if by_kind else ""
        raise NotFound(
            f"no file of documents {f'of the kind {wanted!r} ' if wanted else ''}is in this folder{there}",
            file=url,
            kind=NO_DOCUMENTS,
            fix="Name a folder of .jsonl, .parquet, .arrow or .txt files.",
        )
    if wanted is None and len(by_kind) > 1:
        raise ConfigError(
            f"the folder has documents of several kinds: {_counted(by_kind)}",
            file=url,
            kind="several-kinds",
            fix="Name the files of one kind, by a pattern such as '*.jsonl'; tokenize reads one kind and skips the"
            f" others with --kind {' or --kind '.join(readable)}.",
        )
    return readable[0] if wanted is None else wanted


def _counted(by_kind: dict[str, list[DocumentFile]]) -> str:
    """Kinds with numbers and an example of each, for people."""
    shown = []
    for kind, files in sorted(by_kind.items(), key=lambda item: _ORDER.index(item[0])):
        number, more = len(files), ", ..." if len(files) > 1 else ""
        shown.append(f"{number:,} {kind} file{'' if number == 1 else 's'} ({files[0].path!r}{more})")
    return ", ".join(shown)


def _not_documents(names: Sequence[str], shown: int = 3) -> ConfigError:
    listed = ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
    one = len(names) == 1
    return ConfigError(
        f"{'this file is' if one else f'these {len(names):,} files are'} not documents: {listed}",
        kind="not-documents",
        fix="Documents are .jsonl, .json or .ndjson (plain, or with .gz, .zst), .parquet, .arrow and .txt: convert the"
        f" {'file' if one else 'files'}, or leave {'it' if one else 'them'} out with a pattern such as '*.jsonl*'.",
    )
