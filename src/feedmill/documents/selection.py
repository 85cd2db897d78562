"""Select files of documents by their names.

Documents of only one kind are read from a folder. If it also has documents of another kind, readable or not (`.csv`,
`.txt.gz`), the user must choose one. Files that are not documents (`README.md`, `_SUCCESS`) are skipped and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from feedmill.documents.file import DocumentFile
from feedmill.documents.kinds import ARCHIVES, KINDS, LINES, NO_DOCUMENTS, is_hidden, kind_of
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tables import ARROW_SUFFIXES
from feedmill.formats.unread_files import DOCUMENTS as HELD
from feedmill.formats.unread_files import data_kind, is_about

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
    """

    def __init__(self, kind: str | None, unnamed: str | None, exact: bool, skipped: list[str]) -> None:
        self.kind, self.unnamed, self.exact, self.skipped = kind, unnamed, exact, skipped

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
