"""Find the files of the sources: folders and files, local or remote.

Links to files and folders are followed, as wherever data is read, except to a folder above the link; those that lead
out of their source are named. Hidden files and folders, links without a target, devices, and names that are not UTF-8
(keys, ids and journals are UTF-8) are left out and reported.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import permutations
from operator import attrgetter
from typing import NamedTuple

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tar.strays import is_stray
from feedmill.importing.kinds import JSON, TABLES, divide
from feedmill.jobs.reports import LeftOut
from feedmill.storage import LocalStore, Store, canonical_location, open_store, split_url
from feedmill.storage.base import refuse_non_utf8
from feedmill.storage.staging import TEMPORARY_SUFFIX

MANY = 10_000
"""Number of files from which on workers are sure to be started."""
_JUNK = ("thumbs.db", "ehthumbs.db", "desktop.ini")
_JUNK_LENGTHS = frozenset(map(len, _JUNK))
EXCLUDED = ("excluded by --exclude", "not matched by --include")
"""Reasons that the user gave."""
_STRAY = "made by a system or archiver"


class File(NamedTuple):
    """A file: number of its root, path below it, size in bytes, and version of its content."""

    root: int
    path: str
    size: int
    version: str


class Files(NamedTuple):
    """The files of all sources.

    Attributes:
        roots: paths or URLs of folders.
        prefixes: beginning of keys and ids for each root: empty if there is one, else its name and a slash.
        files: sorted by root and path.
        typed: root and path of each file that is a source itself.
        tables: those of them that are about media.
        links: root and path of links that lead out of their source.
    """

    roots: list[str]
    prefixes: list[str]
    files: list[File]
    typed: frozenset[tuple[int, str]] = frozenset()
    tables: tuple[File, ...] = ()
    links: tuple[tuple[int, str], ...] = ()

    def leading_out(self) -> list[str]:
        """Return the names of links out of their source through which files are read."""
        read = [(file.root, file.path) for file in self.files] if self.links else []
        names = []
        for root, link in sorted(self.links):
            found = [read[at] for name in (link, f"{link}/") if (at := bisect_left(read, (root, name))) < len(read)]
            if (root, link) in found or any(r == root and path.startswith(f"{link}/") for r, path in found):
                names.append(self.prefixes[root] + link)
        return names

    def name(self, file: File) -> str:
        """Return the path of a file with its root's prefix, which is unique and valid in keys and ids."""
        return self.prefixes[file.root] + file.path


def scan(
    sources: Sequence[str],
    out: str,
    left: LeftOut,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    tables: Sequence[str] = (),
    on_many: Callable[[], object] | None = None,
) -> Files:
    """Return the files of all sources. Hidden files and those of the output `out` are left out.

    Args:
        tables: paths or URLs of files that are about media.
        include, exclude: patterns of paths below a source; ``*`` matches slashes, too.
        on_many: called once during the scan if there are `MANY` files or more in local folders.

    Raises:
        NotFound: a source does not exist.
        ConfigError: a source lies in another, so that files would be imported twice; or its name, which becomes a part
            of keys and ids, is not UTF-8.
        StorageError: a source cannot be listed.
    """
    walk = _Walk(canonical_location(out), left, on_many)
    for source in sources:
        walk.source(source)
    typed = list(walk.typed)
    for table in tables:
        walk.source(table)
    named = walk.named(walk.typed)
    if len(sources) + len(tables) > 1:  # one may lie in another
        walk.found = list({(file.root, file.path): file for file in walk.found}.values())
    walk.found.sort(key=attrgetter("path"))
    if len(walk.roots) > 1:
        walk.found.sort(key=attrgetter("root"))  # stable
    about = set(named[len(typed) :])
    own = [file for file in walk.found if (file.root, file.path) in about]
    found = Files(walk.roots, [], [], frozenset(named[: len(typed)]), links=tuple(walk.links))
    found = with_tables(found, own, walk.found, moved={root for root, _ in {*walk.typed} - {*named}})
    if not include and not exclude:
        found = found._replace(files=walk.found)
        _refuse_nested(found)
        return found
    for file in walk.found:
        name = found.name(file)
        if exclude and any(fnmatchcase(file.path, pattern) for pattern in exclude):
            left.add(EXCLUDED[0], name)
        elif include and not any(fnmatchcase(file.path, pattern) for pattern in include):
            left.add(EXCLUDED[1], name)
        else:
            found.files.append(file)
    _refuse_nested(found)
    return found


def _refuse_nested(files: Files) -> None:
    """Raise `ConfigError` if files have two names, because a source lies in another."""
    places = [canonical_location(root).rstrip("/") for root in files.roots]
    for inner, outer in permutations(range(len(places)), 2):
        if not places[inner].startswith(f"{places[outer]}/"):
            continue
        below = places[inner][len(places[outer]) + 1 :]
        paths = {f"{below}/{file.path}" for file in files.files if file.root == inner}
        count = sum(file.root == outer and file.path in paths for file in files.files)
        if count:
            raise ConfigError(
                f"this source lies in another, {files.roots[outer]}:"
                f" {count:,} file{'s' * (count > 1)} would be imported twice",
                file=files.roots[inner],
                kind="listed-twice",
                fix=f"Leave it out, or exclude its files from the other with --exclude '{below}/*'.",
            )


def _prefixes(roots: Sequence[str]) -> list[str]:
    if len(roots) == 1:
        return [""]
    names: list[str] = []
    for root in roots:
        name = canonical_location(root).rstrip("/").rpartition("/")[2].lstrip(".") or "root"
        refuse_non_utf8(name)
        number = 2
        plain = name
        while name in names:
            name, number = f"{plain}-{number}", number + 1
        names.append(name)
    return [f"{name}/" for name in names]


def with_tables(files: Files, tables: Sequence[File], found: Sequence[File], *, moved: Iterable[int] = ()) -> Files:
    """Return the files with more tables. Folders that have nothing but tables are no part of names.

    Args:
        found: all files.
        moved: folders whose files are found in other sources.
    """
    about = {(file.root, file.path) for file in (*files.tables, *tables)}
    idle = {root for root, _ in about}.union(moved) - {
        file.root for file in found if (file.root, file.path) not in about
    }
    roots = [root for root in range(len(files.roots)) if root not in idle]
    prefixes = dict(zip(roots, _prefixes([files.roots[root] for root in roots]), strict=True))
    chosen = [prefixes.get(root, "") for root in range(len(files.roots))]
    return files._replace(prefixes=chosen, tables=(*files.tables, *tables))


class _Walk:
    """Collector of files; each folder is one root, however it is spelled."""

    def __init__(self, out: str, left: LeftOut, on_many: Callable[[], object] | None) -> None:
        self.out, self.left, self.on_many = out, left, on_many
        self.roots: list[str] = []
        self.found: list[File] = []
        self.typed: list[tuple[int, str]] = []
        self.links: list[tuple[int, str]] = []
        self._numbers: dict[str, int] = {}

    def source(self, source: str) -> None:
        store = open_store(source)
        if not isinstance(store, LocalStore):
            self._remote(source)
            return
        path = store.root
        if os.path.isdir(path):
            self._folder(path, self._root(path))
        elif os.path.isfile(path):
            folder, name = os.path.split(path)
            status = os.stat(path)
            if self._is_utf8(name):
                self.found.append(File(self._root(folder), name, status.st_size, _version(status)))
                self.typed.append((self.found[-1].root, name))
        else:
            raise _missing(source)

    def named(self, typed: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return root and path of files that are sources; a table that lies in another source is found only there."""
        places = [canonical_location(root).rstrip("/") for root in self.roots]
        there = {(file.root, file.path) for file in self.found} if typed else set()
        out: list[tuple[int, str]] = []
        for root, path in typed:
            place = f"{places[root]}/{path}"
            others = [(n, place[len(top) + 1 :]) for n, top in enumerate(places) if place.startswith(f"{top}/")]
            others = others if divide(path).kind in (*TABLES, JSON) else []
            out.append(next((one for one in others if one[0] != root and one in there), (root, path)))
        gone = {one for one, kept in zip(typed, out, strict=True) if one != kept}
        self.found = [file for file in self.found if (file.root, file.path) not in gone] if gone else self.found
        return out

    def _root(self, folder: str) -> int:
        place = canonical_location(folder)
        if place not in self._numbers:
            self._numbers[place] = len(self.roots)
            self.roots.append(folder)
        return self._numbers[place]

    def _remote(self, source: str) -> None:
        try:
            entries = list(open_store(source).files())
        except NotFound:
            entries = []
        folder = source.rstrip("/")
        if not entries:
            folder, name = split_url(source)
            store = open_store(folder)
            if not name or not store.exists(name):
                raise _missing(source)
            entries = [store.stat(name)]
            self.typed.append((self._root(folder), name))
        root = self._root(folder)
        for entry in entries:
            if is_stray(entry.path):
                self.left.add(_STRAY, entry.path)
            elif entry.path.rpartition("/")[2].startswith("."):
                self.left.add("hidden", entry.path)
            elif not canonical_location(f"{folder}/{entry.path}").startswith(f"{self.out}/"):
                self.found.append(File(root, entry.path, entry.size, entry.version))

    def _folder(self, top: str, root: int) -> None:
        status = os.stat(top)
        todo = [(top, "", frozenset([(status.st_dev, status.st_ino)]))]
        add, new = self.found.append, tuple.__new__  # half the time of File(...), for each of 10^5 files
        while todo:
            folder, relative, parents = todo.pop()
            try:
                with os.scandir(folder) as entries:
                    items = list(entries)
            except OSError as error:
                self.left.add(f"cannot be read ({error.strerror})", relative or top)
                continue
            for item in items:
                name = item.name
                if name[0] != "." and name.isascii() and item.is_file(follow_symlinks=False):  # nearly all
                    try:
                        status = item.stat(follow_symlinks=False)
                    except OSError as error:
                        self.left.add(f"cannot be read ({error.strerror})", relative + name)
                        continue
                    if len(name) not in _JUNK_LENGTHS or name.lower() not in _JUNK:
                        size = status.st_size
                        add(new(File, (root, relative + name, size, f"{status.st_mtime_ns:x}-{size:x}")))
                        continue
                self._other(item, relative, root, parents, todo)
            if self.on_many is not None and len(self.found) >= MANY:
                self.on_many()
                self.on_many = None

    def _other(
        self,
        item: os.DirEntry[str],
        relative: str,
        root: int,
        parents: frozenset[tuple[int, int]],
        todo: list[tuple[str, str, frozenset[tuple[int, int]]]],
    ) -> None:
        """Add a folder, a link, or a file with an unusual name."""
        path = relative + item.name
        if is_stray(path) or is_stray(f"{path}/x"):
            self.left.add(_STRAY, path)
            return
        if item.name.startswith("."):
            if not item.name.endswith(TEMPORARY_SUFFIX):
                self.left.add("hidden", path)
            return
        if not self._is_utf8(path):
            return
        try:
            status = item.stat()
            if item.is_symlink() and not self._is_inside(item.path, root):
                self.links.append((root, path))
            if item.is_dir():
                identity = (status.st_dev, status.st_ino)
                if identity in parents:
                    self.left.add("a link to a folder above it", path)
                elif os.path.realpath(item.path) == self.out:
                    self.left.add("the output folder itself", path)
                else:
                    todo.append((item.path, f"{path}/", parents | {identity}))
            elif item.is_file():
                self.found.append(File(root, path, status.st_size, _version(status)))
            else:
                self.left.add("not a regular file", path)
        except OSError as error:
            self.left.add(
                "a link without a target" if item.is_symlink() else f"cannot be read ({error.strerror})", path
            )

    def _is_inside(self, link: str, root: int) -> bool:
        top = os.path.join(os.path.realpath(self.roots[root]), "")
        return os.path.join(os.path.realpath(link), "").startswith(top)

    def _is_utf8(self, path: str) -> bool:
        try:
            path.encode()
            return True
        except UnicodeEncodeError:
            self.left.add("the name is not UTF-8 (rename it)", path.encode("utf-8", "backslashreplace").decode())
            return False


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _missing(source: str) -> NotFound:
    return NotFound("there is no such file or folder", file=source, kind="not-found", fix="Check the path.")


_SMALL = 1 << 17
"""Local files of fewer bytes are read by one call."""


def read_file(store: Store, path: str, size: int) -> bytes:
    """Return the bytes of a file that a scan found. Raises as `Store.read`.

    Args:
        size: of the file in bytes, as scanned. If it has changed, the file is read to its end all the same.
    """
    if size >= _SMALL or not isinstance(store, LocalStore):
        return store.read(path)
    try:
        descriptor = os.open(f"{store.root}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return store.read(path)  # raises the right error
    try:
        data = os.read(descriptor, size + 1)
        return data if len(data) == size else store.read(path)
    except OSError:
        return store.read(path)
    finally:
        os.close(descriptor)
