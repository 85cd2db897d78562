"""Which files a pattern means, and where what is made of them belongs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from feedmill.curation.patterns import expression
from feedmill.errors import NotFound
from feedmill.formats.documents import DOCUMENTS, attribute_path
from feedmill.storage import Entry, Store, join_url, open_store, real_place, split_url

_WILD = re.compile(r"[*?\[]")


class Input(NamedTuple):
    """A file of documents.

    Attributes:
        path: as the pattern spells it: relative, absolute, or a URL.
        base: the folder that the pattern names literally, below which `path` lies.
        size: in bytes, as stored.
    """

    path: str
    base: str
    size: int

    @property
    def relative(self) -> str:
        return self.path[len(self.base) + 1 :] if self.base else self.path


def find_inputs(patterns: Sequence[str]) -> list[Input]:
    """The files of all patterns, each once, those of the first pattern first, sorted within each.

    A pattern is a path or URL; ``*`` and ``?`` stand for parts of a name and ``**`` for any folders; a folder stands
    for all files below it. Files and folders whose names begin with a dot are left out.

    Raises:
        NotFound: a pattern has no files.
    """
    found: dict[str, Input] = {}
    place = places()
    for given in patterns:
        pattern = join_url(*split_url(given)) if given.startswith("file://") else given
        files = _remote(pattern) if "://" in pattern else _local(pattern)
        if not files:
            raise NotFound("no files match this pattern", file=given, fix="Check the path; quote patterns in a shell.")
        for file in files:
            found.setdefault(place(file.path), file)
    return list(found.values())


def places() -> Callable[[str], str]:
    """A function from the path or URL of a file to the one name of its place, however its folder is spelled or linked.

    A file that is a link has a place of its own. Each folder is looked at once.
    """
    known: dict[str, str] = {}

    def place(path: str) -> str:
        folder, name = split_url(path)
        if folder not in known:
            known[folder] = real_place(folder)
        return f"{known[folder].rstrip('/')}/{name}"

    return place


def _base(pattern: str) -> str:
    """The folders of a pattern before its first wildcard."""
    wild = _WILD.search(pattern)
    literal = pattern[: wild.start()] if wild else pattern
    return literal.rpartition("/")[0]


def _local(pattern: str) -> list[Input]:
    found = []
    # A shell gives names as they are, and they may have brackets.
    wild = bool(_WILD.search(pattern)) and not os.path.exists(pattern)
    above = _base(pattern) if wild else pattern.rpartition("/")[0]
    for path in sorted(glob.glob(pattern if wild else glob.escape(pattern), recursive=True)):
        if os.path.isfile(path):
            found.append(Input(path, above, os.path.getsize(path)))
        elif os.path.isdir(path) and not pattern.endswith("**"):
            base = above if wild else path.rstrip("/")
            for entry in _visible(open_store(path)):
                found.append(Input(f"{path.rstrip('/')}/{entry.path}", base, entry.size))
    return found


def _remote(pattern: str) -> list[Input]:
    base = _base(pattern)
    name = pattern[len(base) + 1 :]
    wild = bool(_WILD.search(pattern))
    store = open_store(base if wild else pattern)
    if not wild:
        folder, file = split_url(pattern)
        above = open_store(folder)
        if file and above.exists(file):
            return [Input(pattern, folder, above.stat(file).size)]
        return [Input(f"{pattern.rstrip('/')}/{e.path}", pattern.rstrip("/"), e.size) for e in _visible(store)]
    matches = re.compile(expression(name)).fullmatch
    return [Input(f"{base}/{e.path}", base, e.size) for e in _visible(store) if matches(e.path)]


def _visible(store: Store) -> Iterator[Entry]:
    """The files of a store, but those whose names, or whose folders' names, begin with a dot."""
    return (entry for entry in store.files() if not entry.path.startswith(".") and "/." not in entry.path)


def attribute_root(path: str, name: str) -> tuple[str, str]:
    """The folder of the attributes `name` of a document file, and the path of its attributes below that folder.

    >>> attribute_root("data/documents/web/0.jsonl.gz", "lengths")
    ('data/attributes/lengths', 'web/0.jsonl.gz')

    Raises:
        ConfigError: no folder of the path is called ``documents``.
    """
    parts = attribute_path(path, name).split("/")
    at = path.split("/").index(DOCUMENTS) + 2
    return "/".join(parts[:at]), "/".join(parts[at:])


def common_folder(files: Iterable[Input]) -> str:
    """The deepest folder that all files lie in: what Dolma takes away from their paths."""
    folders = [file.path.rpartition("/")[0].split("/") for file in files]
    common = folders[0]
    for other in folders[1:]:
        same = 0
        while same < min(len(common), len(other)) and common[same] == other[same]:
            same += 1
        common = common[:same]
    return "/".join(common)
