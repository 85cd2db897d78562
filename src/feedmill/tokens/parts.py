"""Write the pieces of a group of files as Dolma's numbered ``.npy`` and ``.csv.gz`` files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.documents.lineage.runs import Runs
from feedmill.documents.lineage.sidecar import Origins, lineage_path
from feedmill.errors import DataError, NotFound
from feedmill.formats.tokens.dolma import CSV, NPY, DolmaWriter, write_dolma
from feedmill.storage import Store, open_store
from feedmill.storage.hashed import hashed_store
from feedmill.tokens.mixing_order import Ring, batches
from feedmill.tokens.spill import read_piece
from feedmill.tokens.token_files import write_lineage


class Document(NamedTuple):
    """A document's tokens and origin, as in a row of the ``.csv.gz``."""

    tokens: npt.NDArray[Any]
    id: Any
    src: str
    loc: int


@dataclass(frozen=True, slots=True)
class GroupFile:
    """One file of a group: its name, size, and pieces with the line where each begins."""

    src: str
    size: int
    pieces: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A group to write.

    Attributes:
        folder, stem: location; the files are ``<folder>/<stem>-<00000><suffix>``.
        ids: whether documents have ids; otherwise ids are generated from a hash of the file's name and the line.
        limit: a file has fewer tokens, unless it is a single longer document.
        exact: whether groups without tokens and overlong documents are handled as Dolma does (see docs).
        marks: folder for the facts of finished groups.
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
    marks: str

    def __str__(self) -> str:
        return self.stem


class Part(NamedTuple):
    """A written file: name without suffix, numbers of documents and tokens, and name -> (bytes, hash) of both files."""

    name: str
    documents: int
    tokens: int
    sizes: dict[str, int]
    hashes: dict[str, str]


def write_group(group: Group) -> list[Part]:
    """Write the files of a group, deterministically, unless its mark is there.

    Each file is published when the next one begins.

    Raises:
        DataError: of kind ``document-too-long``, only with `Group.exact`.
    """
    store, marks = open_store(group.folder), open_store(group.marks)
    written = _finished(store, marks, group.stem)
    if written is None:
        written = _written(group, store)
        marks.write_bytes(group.stem, msgspec.json.encode(written))
    return written


def _finished(store: Store, marks: Store, stem: str) -> list[Part] | None:
    """Return the files of a group that an earlier run has finished; None if one is missing or has another size."""
    try:
        written = msgspec.json.decode(marks.read(stem), type=list[Part])
    except (NotFound, msgspec.MsgspecError):
        return None
    sizes = [item for part in written for item in part.sizes.items()]
    return written if all(store.exists(name) and store.stat(name).size == size for name, size in sizes) else None


def _written(group: Group, store: Store) -> list[Part]:
    chance = random.Random(group.seed)
    mixed = batches(group.ring, lambda n: _documents(group, n), [file.size for file in group.files], chance)
    written: list[Part] = []
    rest = next(mixed, [])
    while rest:
        name = f"{group.stem}-{len(written):05d}"
        view, hashes = hashed_store(store)
        origins = Origins("tokenize")
        numbers = {file.src: origins.number(file.src, file.size) for file in group.files}
        with write_dolma(view, name + NPY, group.dtype) as writer:
            while rest:
                ends = np.cumsum([len(document.tokens) for document in rest])
                count = int(np.searchsorted(ends, group.limit - writer.tokens, side="left"))
                if count == 0 and writer.documents == 0:
                    _check_long(group, rest[0])
                    count = 1
                if count:
                    _add(writer, rest[:count])
                    files = np.array([numbers[document.src] for document in rest[:count]], np.int64)
                    origins.add(Runs.of(files, [document.loc - 1 for document in rest[:count]]))
                rest = rest[count:]
                if rest:
                    chance.shuffle(rest)
                    break
                rest = next(mixed, [])
            store.delete(lineage_path(name + NPY))
        write_lineage(store, name + NPY, origins)
        written.append(_part(store, name, writer.documents, writer.tokens, hashes))
    if group.exact and not written:
        written.append(_zeros(group, store))
    return written


def _check_long(group: Group, document: Document) -> None:
    if group.exact:
        raise DataError(
            f"the document has {len(document.tokens)} tokens, but files have fewer than {group.limit}; Dolma"
            " never terminates",
            file=document.src,
            record=f"line {document.loc}",
            kind="document-too-long",
            fix="Set a larger max_size, or omit --exact to write the document to a separate file.",
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


def _add(writer: DolmaWriter, documents: Sequence[Document]) -> None:
    lengths = np.fromiter((len(document.tokens) for document in documents), np.int64, len(documents))
    tokens = np.concatenate([document.tokens for document in documents])
    writer.add(tokens, lengths, origins=[(d.id, d.src, d.loc) for d in documents])


def _part(store: Store, name: str, documents: int, tokens: int, hashes: dict[str, str]) -> Part:
    names = (name + NPY, name + CSV)
    return Part(name, documents, tokens, {name: store.stat(name).size for name in names}, hashes)


def _zeros(group: Group, store: Store) -> Part:
    """Write the file that Dolma writes for a group without tokens: zeros, of the maximum size of a file."""
    name = f"{group.stem}-{0:05d}"
    with write_dolma(store, name + NPY, group.dtype):
        pass
    with store.write(name + NPY) as file:
        size = group.limit * np.dtype(group.dtype).itemsize
        file.seek(size - 1)  # a sparse file, which takes no space
        file.write(b"\0")
    return _part(store, name, 0, 0, {})
