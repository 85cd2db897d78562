"""From the pieces of a group of files to Dolma's numbered ``.npy`` and ``.csv.gz`` files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.tokens.dolma import CSV, NPY, DolmaWriter, write_dolma
from feedmill.storage import open_store
from feedmill.tokens.pieces import read_piece
from feedmill.tokens.ring import Ring, batches


class Document(NamedTuple):
    """A document's tokens and where it came from, as in a row of the ``.csv.gz``."""

    tokens: npt.NDArray[Any]
    id: Any
    src: str
    loc: int


@dataclass(frozen=True, slots=True)
class GroupFile:
    """One file of a group: its name, its size, and its pieces with the line at which each begins."""

    src: str
    size: int
    pieces: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The work on one group.

    Attributes:
        folder, stem: the files are ``<folder>/<stem>-<00000><suffix>``.
        ids: whether documents have ids; else they are made of a hash of the file's name and the line.
        limit: a file has fewer tokens than that, unless it is one longer document.
        exact: what is left where there is no token, or a document reaches the limit, is Dolma's (see docs).
    """

    folder: str
    stem: str
    files: tuple[GroupFile, ...]
    dtype: str
    ids: bool
    ring: Ring
    limit: int
    seed: str
    exact: bool


class Part(NamedTuple):
    """A written file: its name without suffix, its documents and tokens, name -> bytes of both files."""

    name: str
    documents: int
    tokens: int
    sizes: dict[str, int]


def write_group(group: Group) -> list[Part]:
    """Write the files of a group; they are the same whenever it is done again.

    Raises:
        DataError: of kind ``document-too-long``, with `Group.exact` only.
    """
    chance = random.Random(group.seed)
    with _Parts(group) as parts:
        opened = batches(group.ring, lambda n: _documents(group, n), [file.size for file in group.files], chance)
        for batch in opened:
            rest = batch
            while rest:
                count = parts.fitting(rest)
                if count == 0 and parts.fresh:
                    _check_long(group, rest[0])
                    count = 1
                parts.add(rest[:count])
                rest = rest[count:]
                if rest:
                    parts.next()
                    chance.shuffle(rest)
    return parts.written


def _check_long(group: Group, document: Document) -> None:
    if group.exact:
        raise DataError(
            f"the document has {len(document.tokens)} tokens and files end before {group.limit}; Dolma never ends here",
            file=document.src,
            record=f"line {document.loc}",
            kind="document-too-long",
            fix="Set a larger max_size, or leave out --exact, which gives it a file of its own.",
        )


def _documents(group: Group, number: int) -> Iterator[Document]:
    file = group.files[number]
    prefix = "" if group.ids else hashlib.sha256(file.src.encode()).hexdigest()
    for path, line in file.pieces:
        for found in read_piece(path):
            begin = 0
            ends = np.cumsum(found.lengths).tolist()
            for end, (key, row) in zip(ends, found.origins or (), strict=True):
                loc = line + row + 1
                yield Document(found.tokens[begin:end], key if group.ids else f"{prefix}-{loc}", file.src, loc)
                begin = end


class _Parts:
    """The files of a group, one open at a time; each appears when the next is begun."""

    def __init__(self, group: Group) -> None:
        self._group, self._store = group, open_store(group.folder)
        self._number, self._stack, self._writer = 0, ExitStack(), None  # type: tuple[int, ExitStack, Any]
        self.written: list[Part] = []

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._stack.__exit__(*error)
        elif self._writer is not None:
            self._close()
        elif self._group.exact:
            self._zeros()

    @property
    def fresh(self) -> bool:
        return self._writer is None or self._writer.documents == 0

    def fitting(self, documents: Sequence[Document]) -> int:
        """How many of the first documents have room in this file."""
        ends = np.cumsum([len(document.tokens) for document in documents])
        tokens = 0 if self._writer is None else self._writer.tokens
        return int(np.searchsorted(ends, self._group.limit - tokens, side="left"))

    def add(self, documents: Sequence[Document]) -> None:
        if not documents:
            return
        writer = self._open()
        lengths = np.fromiter((len(document.tokens) for document in documents), np.int64, len(documents))
        tokens = np.concatenate([document.tokens for document in documents])
        writer.add(tokens, lengths, origins=[(d.id, d.src, d.loc) for d in documents])

    def next(self) -> None:
        if self._writer is not None:
            self._close()
            self._number += 1

    @property
    def _name(self) -> str:
        return f"{self._group.stem}-{self._number:05d}"

    def _open(self) -> DolmaWriter:
        if self._writer is None:
            self._writer = self._stack.enter_context(write_dolma(self._store, self._name + NPY, self._group.dtype))
        return self._writer  # type: ignore[no-any-return]

    def _close(self) -> None:
        self._stack.close()
        self._note(self._writer.documents, self._writer.tokens)
        self._writer = None

    def _zeros(self) -> None:
        """What Dolma leaves for a group without tokens: a file as large as any may be, of zeros."""
        self._open()
        self._stack.close()
        with self._store.write(self._name + NPY) as file:
            size = self._group.limit * np.dtype(self._group.dtype).itemsize
            file.seek(size - 1)  # a hole: it takes no space
            file.write(b"\0")
        self._note(0, 0)

    def _note(self, documents: int, tokens: int) -> None:
        names = (self._name + NPY, self._name + CSV)
        sizes = {name: self._store.stat(name).size for name in names}
        self.written.append(Part(self._name, documents, tokens, sizes))
