"""Find web archives for inputs: files, folders and patterns, local or remote.

A folder stands for its files with one of the suffixes `ARCHIVES`. A file that is given by name or matches a pattern may
have any name: its content decides whether it is an archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from feedmill.documents.file import ARCHIVES, DocumentFile
from feedmill.documents.find import is_pattern, matches, stated
from feedmill.errors import NotFound
from feedmill.storage import open_store
from feedmill.storage.base import refuse_non_utf8

KIND = "warc"


def find_archives(pattern: str, *, allow_missing: bool = False) -> list[DocumentFile]:
    """Return the archives of one input, sorted by path.

    Raises:
        NotFound: There are none, unless `allow_missing`.
    """
    files = list(_files(pattern))
    refuse_non_utf8(*(file.name for file in files))
    if not files and not allow_missing:
        if is_pattern(pattern):
            what = "no web archives match this pattern"
        else:
            there = open_store(pattern).is_folder()
            what = "the folder has no web archives" if there else "there is no such file or folder"
        raise NotFound(
            what,
            file=pattern,
            kind="no-documents",
            fix="Check the path; a folder stands for its files named .warc, .warc.gz, .warc.zst or .wet.gz.",
        )
    return files


def _files(pattern: str) -> Iterator[DocumentFile]:
    if is_pattern(pattern):
        for file, is_folder in matches(pattern):
            if is_folder:
                yield from _below(file.name, file.folder, f"{file.path}/")
            else:
                yield _archive(file)
        return
    folder, _, name = pattern.rstrip("/").rpartition("/")
    folder = "/" if not folder and pattern.startswith("/") else folder
    alone = stated(folder, name) if name else None
    if alone is not None:
        yield _archive(alone)
    else:
        yield from _below(pattern, pattern.rstrip("/") or pattern, "")


def _below(url: str, base: str, above: str) -> Iterator[DocumentFile]:
    store = open_store(url or ".")
    if store.is_local and not os.path.isdir(store.locate("")):
        return
    try:
        for entry in store.files(suffixes=ARCHIVES):
            if not entry.path.rpartition("/")[2].startswith("."):
                yield DocumentFile(base, above + entry.path, KIND, entry.size, entry.version)
    except NotFound:
        return


def _archive(file: DocumentFile) -> DocumentFile:
    return DocumentFile(file.folder, file.path, KIND, file.size, file.version)


def stem(path: str) -> str:
    """Return the path of an archive without its suffixes.

    >>> stem("crawl/a.b.warc.gz"), stem("crawl/page")
    ('crawl/a.b', 'crawl/page')
    """
    folder, slash, name = path.rpartition("/")
    for end in sorted(ARCHIVES, key=len, reverse=True):
        if name.endswith(end) and name != end:
            name = name.removesuffix(end)
            break
    return folder + slash + name
