"""The files of a step's inputs and outputs, with what identifies their content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from feedmill.documents.find import is_pattern, matches, stated
from feedmill.errors import NotFound
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.storage import open_store, split_url
from feedmill.storage.hashed import hash_of


class FileFacts(msgspec.Struct, frozen=True):
    """A file: size in bytes, the store's version of it, and the 128-bit xxh3 of its content in hex.

    `xxh3` is empty for files in object stores, whose version changes with the content, and without hashing.
    """

    size: int
    version: str
    xxh3: str = ""

    def is_same(self, other: FileFacts) -> bool:
        """Return whether both have the same content, as far as is known."""
        if self.xxh3 and other.xxh3:
            return (self.size, self.xxh3) == (other.size, other.xxh3)
        return (self.size, self.version) == (other.size, other.version)


Files = dict[str, FileFacts]


def files_of(places: Iterable[str]) -> Files:
    """Return the files of paths, folders, patterns, and beginnings of names.

    ``tokens/web`` is the beginning of ``tokens/web.pbin``, and of numbered files such as ``tokens/web_00000.pbin``.

    Hidden files are not included, except for the folder ``.nv-meta`` of a prepared dataset, which is its index.
    """
    found: Files = {}
    for place in places:
        found.update(_below(place))
    return dict(sorted(found.items()))


def _below(place: str) -> Files:
    if is_pattern(place):
        found: Files = {}
        for file, is_folder in matches(place):
            if is_folder:
                found.update(_of_folder(file.name))
            else:
                found[file.name] = FileFacts(file.size, file.version)
        return found
    folder, name = split_url(place.rstrip("/"))
    alone = stated(folder, name) if name else None
    if alone is not None:
        return {place: FileFacts(alone.size, alone.version)}
    inside = _of_folder(place)
    return inside or _beginning_with(place, folder, name)


def _of_folder(url: str) -> Files:
    store, base = open_store(url), url.rstrip("/")
    found = {}
    for prefix in ("", ".nv-meta"):
        try:
            for entry in store.files(prefix):
                found[f"{base}/{entry.path}"] = FileFacts(entry.size, entry.version)
        except NotFound as error:
            if error.kind == "dangling-link":
                raise
            continue
    return found


def _beginning_with(place: str, folder: str, name: str) -> Files:
    if not name:
        return {}
    store = open_store(folder)
    try:
        wanted = re.compile(rf"{re.escape(name)}(_\d{{5}})?\.[^/]*")
        entries = [entry for entry in store.files() if wanted.fullmatch(entry.path)]
    except NotFound:
        return {}
    return {place[: len(place) - len(name)] + e.path: FileFacts(e.size, e.version) for e in entries}


def with_hashes(files: Files, *known: Mapping[str, FileFacts]) -> Files:
    """Return the files with hashes, taken from `known` for files that have not changed since."""
    out = dict(files)
    todo = []
    for path, facts in files.items():
        for before in known:
            old = before.get(path)
            if old is not None and old.xxh3 and (old.size, old.version) == (facts.size, facts.version):
                out[path] = old
                break
        else:
            if "://" not in path:
                todo.append(path)
    count = available_cores()
    for path, digest in zip(todo, ordered_map(_hash, todo, workers=count, in_flight=2 * count), strict=True):
        out[path] = FileFacts(files[path].size, files[path].version, digest)
    return out


def _hash(path: str) -> str:
    folder, name = os.path.split(path)
    return hash_of(open_store(folder or "."), name)


def changed(before: Mapping[str, FileFacts], now: Mapping[str, FileFacts]) -> list[str]:
    """Return the paths that are new, missing or different, each with what happened."""
    found = []
    for path in sorted({*before, *now}):
        if path not in now:
            found.append(f"{path} is missing")
        elif path not in before:
            found.append(f"{path} is new")
        elif not before[path].is_same(now[path]):
            found.append(f"{path} has changed")
    return found


def plain(files: Mapping[str, FileFacts]) -> dict[str, Any]:
    """Return the files as plain data."""
    return {path: msgspec.to_builtins(facts) for path, facts in files.items()}
