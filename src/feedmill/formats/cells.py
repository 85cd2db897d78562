"""Which cell each document of a dataset is in: a sidecar of two bytes a document.

A cell is the documents that have the same values of some columns, such as a topic and a bucket of quality. The values
come from attributes or columns, once; after that, the documents of a cell are found without reading them.

``<folder of the dataset>/.feedmill-cells/<digest of the rule>.cells`` is an array file (`feedmill.formats.arrays`):

    codes    uint16[documents]          number of the document's cell, 65,535 for a document in none
    counts   uint32[cells, blocks + 1]  (uint64 from 2^32 documents on) documents of each cell before each block of
                                        documents, and of the whole dataset
    header   uint8[...]                 JSON, see `CellTable`
    digest   uint8[16]                  xxh3-128 of the header and the counts

A block has a power of two of documents, 4,096 or more, such that the counts take at most a byte a document, and at
most 256 MiB. Finding a document is a binary search in the counts and a scan of one block. All arrays are mapped.

Rejected: an invalid array file, another version, arrays whose shapes contradict the header, and a wrong digest. Codes
are not hashed when a file is opened; `CellTable.verify` reads them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.arrays import read_arrays, stream_arrays
from feedmill.formats.base import Dataset
from feedmill.formats.offsets import hash_words
from feedmill.kernels.order import cells as kernels
from feedmill.storage import Store, is_local_folder, open_store, split_url

VERSION = 1
FOLDER = ".feedmill-cells"
OUTSIDE = kernels.OUTSIDE
"""Code of a document in no cell."""
MOST_CELLS = OUTSIDE
_BLOCK = 4096
_MOST_COUNTS = 256 << 20
_AT_ONCE = 1 << 20

Int64s = npt.NDArray[np.int64]
Value = str | int | float | bool | None


@dataclass(frozen=True)
class Rule:
    """What defines cells, in a form that is the same for the same rule.

    Attributes:
        by: the columns whose values make cells: a name, or a mapping with ``column`` and ``edges`` or ``quantiles``.
        where: column -> what its value must be: a value, a list of values, or a mapping with ``min``, ``max``, ``not``.
            Documents for which this does not hold are in no cell. Without `by`, all others are one cell.
    """

    by: tuple[str | Mapping[str, Any], ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in `by`."""
        return tuple(each if isinstance(each, str) else str(each["column"]) for each in self.by)

    @property
    def text(self) -> str:
        """The rule as JSON with sorted keys. Raises `ConfigError` if it is none: for whole numbers of over 64 bits."""
        try:
            return orjson.dumps(self.json(), option=orjson.OPT_SORT_KEYS).decode()
        except TypeError as error:
            what = f"the rule of these cells cannot be stored: {error}"
            raise ConfigError(what, kind="bad-option", fix="Correct the values in 'by' and 'where'.") from None

    def json(self) -> dict[str, Any]:
        """Return the rule as JSON data; `Rule.of` is the inverse."""
        found: dict[str, Any] = {}
        if self.by:
            found["by"] = [each if isinstance(each, str) else dict(each) for each in self.by]
        if self.where:
            found["where"] = dict(self.where)
        return found

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Rule:
        """Return the rule of JSON data."""
        return cls(tuple(given.get("by", ())), given.get("where", {}))

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        by = ",".join(self.columns)
        where = " and ".join(f"{name}: {_short(value)}" for name, value in sorted(self.where.items()))
        return " where ".join(part for part in (by, where) if part)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        values: its values of the columns of the rule.
        documents: number of its documents.
        tokens: their tokens; None if unknown.
        loss_tokens: their tokens that contribute to the loss; None if unknown.
        digest: hash of the numbers of its documents: equal for equal documents of the same dataset.
    """

    values: tuple[Value, ...]
    documents: int
    tokens: int | None
    loss_tokens: int | None
    digest: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Cell:
        """Return the cell of its entry in the header."""
        tokens, loss_tokens = given.get("tokens"), given.get("loss_tokens")
        return cls(tuple(given["values"]), given["documents"], tokens, loss_tokens, given["digest"])

    def label(self, columns: Sequence[str]) -> str:
        """Return the cell in words, see `label_of`."""
        return label_of(columns, [_value(value) for value in self.values])


def label_of(columns: Sequence[str], values: Sequence[str]) -> str:
    """Return ``topic=code,source=wiki``, without what names lack.

    ``/`` and line ends are ``_``. Spaces and tabs around values are left out: nobody sees them in a file of weights.
    """
    pairs = zip(columns, values, strict=True)
    text = ",".join("{}={}".format(name, value.strip(" \t")) for name, value in pairs)
    return text.replace("/", "_").replace("\n", "_")


def _value(value: Value) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


class CellTable:
    """The cells of a dataset, as the sidecar has them. Nothing of the size of the dataset is held in memory.

    Attributes:
        rule: what defines the cells.
        base: fingerprint of the dataset whose documents these are.
        documents: number of documents of the dataset.
        outside: number of documents in no cell.
        cells: the cells, in the order of their codes.
        facts: what the writer said of how the codes were made: ``columns``, name -> where it was found, and how many
            documents are ``missing`` in it.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path
        self._load()

    def _load(self) -> None:
        where = self.url
        try:
            arrays = read_arrays(self._store, self._path)
            header, counts, codes = arrays["header"], arrays["counts"], arrays["codes"]
            if arrays["digest"].tobytes() != _digest(header, counts):
                raise ValueError("its header or counts do not match their hash")
            found = orjson.loads(header.tobytes())
            if found["version"] != VERSION:
                raise DataError(
                    f"the cells are of version {found['version']!r}, expected {VERSION}",
                    file=where,
                    kind="bad-index",
                    fix="Make them again: delete the file, and run 'feedmill mixture cells'.",
                )
            self.rule, self.base = Rule.of(found["rule"]), str(found["base"])
            self.documents, self._block = int(found["documents"]), int(found["block"])
            self.cells = tuple(
                Cell(
                    tuple(each["values"]),
                    each["documents"],
                    each.get("tokens"),
                    each.get("loss_tokens"),
                    each["digest"],
                )
                for each in found["cells"]
            )
            self.facts: dict[str, Any] = found["facts"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(where, str(error) or type(error).__name__) from None
        self.outside = self.documents - sum(cell.documents for cell in self.cells)
        shape = (len(self.cells), -(-self.documents // self._block) + 1)
        if codes.shape != (self.documents,) or codes.dtype != np.uint16 or counts.shape != shape:
            raise _damaged(
                where, f"{self.documents:,} documents in {len(self.cells):,} cells, but {codes.size:,} codes"
            )
        self._codes, self._counts = codes, counts

    @property
    def url(self) -> str:
        """Where the sidecar lies."""
        return self._store.locate(self._path)

    def __reduce__(self) -> tuple[Any, ...]:
        return CellTable, (self._store, self._path)

    def __len__(self) -> int:
        return len(self.cells)

    def names(self) -> list[str]:
        """Return the label of each cell, see `Cell.label`."""
        return [cell.label(self.rule.columns) for cell in self.cells]

    def of(self, numbers: Int64s | Sequence[int]) -> npt.NDArray[np.uint16]:
        """Return the codes of documents, uint16[n]."""
        found: npt.NDArray[np.uint16] = self._codes[np.asarray(numbers, np.int64)]
        return found

    def codes(self) -> npt.NDArray[np.uint16]:
        """Return all codes, uint16[documents], mapped and read-only."""
        return self._codes

    def select(self, cells: npt.ArrayLike, ordinals: npt.ArrayLike) -> Int64s:
        """Return the numbers of documents by their ordinals in their cells, int64[n].

        Args:
            cells, ordinals: int64[n], the cells, and ordinals from 0.

        Raises:
            IndexError: no such cell, or it has fewer documents.
            DataError: the codes contradict the counts.
        """
        wanted = np.ascontiguousarray(ordinals, np.int64)
        chosen = self._chosen(cells, len(wanted))
        if len(wanted):
            over = (wanted < 0) | (wanted >= self._sizes[chosen])
            if over.any():
                at = int(np.argmax(over))
                size = int(self._sizes[chosen[at]])
                raise IndexError(f"{self.url}: document {int(wanted[at])} of {size} of cell {int(chosen[at])}")
        found = kernels.select(self._codes, self._block, self._counts, chosen, wanted)
        if len(found) and int(found.min()) < 0:
            raise _damaged(self.url, "a cell has fewer codes than its header says")
        return found

    def before(self, cells: npt.ArrayLike, numbers: npt.ArrayLike) -> Int64s:
        """Return how many documents of each cell lie before documents, int64[n].

        Args:
            cells, numbers: int64[n], the cells, and numbers from 0 to that of all documents.

        Raises:
            IndexError: no such cell or document.
        """
        wanted = np.ascontiguousarray(numbers, np.int64)
        chosen = self._chosen(cells, len(wanted))
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) <= self.documents:
            raise IndexError(f"{self.url}: document {int(wanted.max())} of {self.documents}")
        return kernels.before(self._codes, self._block, self._counts, chosen, wanted)

    def rank(self, cells: npt.ArrayLike, numbers: npt.ArrayLike) -> Int64s:
        """Return the inverse of `select`, int64[n]: -1 for a document that is not in the cell. Raises as `before`."""
        wanted = np.asarray(numbers, np.int64)
        chosen = self._chosen(cells, len(wanted))
        ordinals = self.before(chosen, wanted)
        return np.where(self.of(wanted) == chosen, ordinals, -1)

    def _chosen(self, cells: npt.ArrayLike, count: int) -> Int64s:
        chosen = np.ascontiguousarray(np.broadcast_to(np.asarray(cells, np.int64), count))
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self.cells):
            raise IndexError(f"{self.url}: cell {int(chosen.max())} of {len(self.cells)}")
        return chosen

    @property
    def _sizes(self) -> npt.NDArray[Any]:
        sizes: npt.NDArray[Any] = self._counts[:, -1].astype(np.int64)
        return sizes

    def verify(self) -> list[DataError]:
        """Read all codes, and return what contradicts the counts and digests."""
        table, block = np.zeros(self._counts.shape, self._counts.dtype), self._block
        tally = _Tally(len(self.cells), table, block)
        for first in range(0, self.documents, _AT_ONCE):
            bad = tally.add(self._codes[first : first + _AT_ONCE], None)
            if bad >= 0:
                return [_damaged(self.url, f"document {bad} has the code {int(self._codes[bad])}")]
        table[:, -1] = tally.documents
        digests = [_mark(*pair) for pair in zip(tally.documents.tolist(), tally.marks.tolist(), strict=True)]
        if np.array_equal(table, self._counts) and digests == [cell.digest for cell in self.cells]:
            return []
        return [_damaged(self.url, "its codes contradict its counts")]


class _Tally:
    """Counts, totals and digests of cells over consecutive documents."""

    def __init__(self, cells: int, table: npt.NDArray[Any], block: int) -> None:
        self.table, self.block, self.seen = table, block, 0
        self.documents, self.tokens = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        self.marks = np.zeros(cells, np.uint64)

    def add(self, codes: npt.NDArray[np.uint16], lengths: Int64s | None) -> int:
        """Add documents. Return the number of the first one with an invalid code, or -1."""
        units = np.zeros(0, np.int64) if lengths is None else np.ascontiguousarray(lengths, np.int64)
        bad = kernels.tally(codes, self.seen, self.block, units, self.table, self.documents, self.tokens, self.marks)
        first, self.seen = self.seen, self.seen + len(codes)
        return -1 if bad < 0 else first + bad


def _mark(documents: int, mark: int) -> str:
    return f"{documents:x}-{mark:016x}"


def block_of(documents: int, cells: int) -> int:
    """Return the documents per block of a table, see the module's docstring."""
    width = _width(documents)
    block = _BLOCK
    while cells * width > block or (block < documents and cells * width * -(-documents // block) > _MOST_COUNTS):
        block *= 2
    return block


def _width(documents: int) -> int:
    return 4 if documents < 1 << 32 else 8


def write_cells(
    store: Store,
    path: str,
    rule: Rule,
    base: str,
    documents: int,
    cells: Sequence[Sequence[Value]],
    codes: Iterable[npt.NDArray[np.uint16]],
    lengths: Iterable[Int64s] | None = None,
    *,
    loss_tokens: Callable[[], Sequence[int]] | None = None,
    facts: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
) -> CellTable:
    """Write the sidecar of a dataset; it appears when it is complete. Memory: the counts, see `block_of`.

    Args:
        store, path: as `cells_path` returns them.
        rule: what defines the cells.
        base: fingerprint of the dataset.
        documents: number of its documents.
        cells: values of each cell, in the order of the codes.
        codes: pieces, uint16[n] each, of the codes of all documents.
        lengths: pieces of the same sizes, int64[n] each, of tokens of each document; None if they are unknown.
        loss_tokens: returns the loss tokens of each cell; called after the last piece.
        facts: JSON data about how the codes were made; a function is called after the last piece.

    Raises:
        ConfigError: too many cells, two cells with the same values, or none.
        DataError: a code is no cell, or there are more or fewer codes than documents.
    """
    where = store.locate(path)
    labels = [Cell(tuple(values), 0, None, None, "").label(rule.columns) for values in cells]
    if len(set(labels)) < len(labels):
        raise _unnamed(where, cells, labels)
    if not labels or len(labels) > MOST_CELLS:
        raise ConfigError(
            f"these documents have {len(labels):,} cells: expected 1 to {MOST_CELLS:,}",
            file=where,
            kind="bad-option",
            fix="Choose other columns, or fewer edges or quantiles.",
        )
    block = block_of(documents, len(labels))
    blocks = -(-documents // block)
    table = np.zeros((len(labels), blocks + 1), np.uint32 if _width(documents) == 4 else np.uint64)
    tally = _Tally(len(labels), table, block)
    sizes = None if lengths is None else iter(lengths)

    def pieces() -> Iterable[npt.NDArray[np.uint16]]:
        for piece in codes:
            part = np.ascontiguousarray(piece, np.uint16)
            if tally.seen + len(part) > documents:
                raise _miscounted(where, documents, tally.seen + len(part))
            units = None if sizes is None else next(sizes, None)
            if sizes is not None and (units is None or len(units) != len(part)):
                raise _miscounted(where, len(part), 0 if units is None else len(units), "lengths")
            bad = tally.add(part, units)
            if bad >= 0:
                raise DataError(
                    f"the code of document {bad} is {int(part[bad - tally.seen])}, and there are {len(labels):,} cells",
                    file=where,
                    kind="bad-data",
                )
            yield part
        if tally.seen != documents:
            raise _miscounted(where, documents, tally.seen)

    def rest() -> dict[str, npt.NDArray[Any]]:
        table[:, -1] = tally.documents
        losses = None if loss_tokens is None else loss_tokens()
        found = [
            {
                "values": list(values),
                "documents": int(tally.documents[number]),
                **({} if lengths is None else {"tokens": int(tally.tokens[number])}),
                **({} if losses is None else {"loss_tokens": int(losses[number])}),
                "digest": _mark(int(tally.documents[number]), int(tally.marks[number])),
            }
            for number, values in enumerate(cells)
        ]
        header = {
            "version": VERSION,
            "rule": rule.json(),
            "base": base,
            "documents": documents,
            "block": block,
            "cells": found,
            "facts": dict((facts() if callable(facts) else facts) or {}),
        }
        text = np.frombuffer(orjson.dumps(header, option=orjson.OPT_SORT_KEYS), np.uint8)
        return {"counts": table, "header": text, "digest": np.frombuffer(_digest(text, table), np.uint8)}

    with store.build(path) as local, open(local, "wb") as out:  # which can seek, unlike an object of a bucket
        stream_arrays(out, "codes", pieces(), rest, dtype="<u2")
    return CellTable(store, path)


def read_cells(store: Store, path: str) -> CellTable:
    """Return the cells of a sidecar, which is mapped.

    Raises:
        NotFound: it does not exist.
        DataError: it is damaged.
    """
    if not store.exists(path):
        raise NotFound("there are no cells", file=store.locate(path), fix="Run 'feedmill mixture cells'.")
    return CellTable(store, path)


def cells_path(url: str, rule: Rule, split: str | None = None) -> tuple[Store, str]:
    """Return where the sidecar of a dataset and a rule lies: a store, and a path in it.

    Args:
        url: path or URL of the dataset; beside a single file or a prefix, the sidecar lies in its folder.
        rule: what defines the cells.
        split: the split of the dataset whose documents these are, if it has splits.
    """
    folder, name = url, ""
    if not is_local_folder(url) and ("://" not in url or "." in url.rstrip("/").rpartition("/")[2]):
        folder, name = split_url(url)
    digest = hash_words([rule.text, name, split or ""])
    return open_store(folder), f"{FOLDER}/{digest}.cells"


def cells_of(dataset: Dataset, rule: Rule, recipe: str | None = None) -> CellTable:
    """Return the cells of an opened dataset.

    Args:
        dataset: the dataset whose documents are in cells.
        rule: what defines the cells.
        recipe: file of the recipe that uses them, for advice.

    Raises:
        ConfigError: there is no sidecar, or it is of another state of the dataset (kind ``not-prepared``).
        DataError: the sidecar is damaged.
    """
    store, path = cells_path(dataset.url, rule, dataset.split)
    fix = f"Run 'feedmill mixture cells {recipe or dataset.url}'."
    if not store.exists(path):
        raise ConfigError(f"{dataset.url} has no cells by {rule}", kind="not-prepared", fix=fix)
    table = CellTable(store, path)
    if table.documents != len(dataset) or table.base != dataset.fingerprint():
        raise ConfigError(
            f"the cells of {dataset.url} by {rule} were made before its data changed ({table.documents:,} documents"
            f" then, {len(dataset):,} now)",
            kind="not-prepared",
            fix=fix,
        )
    return table


def _digest(header: npt.NDArray[np.uint8], counts: npt.NDArray[Any]) -> bytes:
    found = xxhash.xxh3_128(np.ascontiguousarray(header).data)
    found.update(np.ascontiguousarray(counts).data)
    return found.digest()


def _damaged(where: str, why: str) -> DataError:
    return DataError(
        f"the cells are damaged ({why})",
        file=where,
        kind="bad-index",
        fix="Delete the file, and run 'feedmill mixture cells' again.",
    )


def _unnamed(where: str, cells: Sequence[Sequence[Value]], labels: Sequence[str]) -> ConfigError:
    """Return the error for two cells with one name."""
    first: dict[str, Sequence[Value]] = {}
    label, one, other = next(
        (label, first[label], values)
        for label, values in zip(labels, cells, strict=True)
        if first.setdefault(label, values) is not values
    )
    return ConfigError(
        f"two cells would be named {label!r}: those of the values {list(one)!r} and {list(other)!r}. In names, '/' and"
        " line ends are '_', and a number is its digits",
        file=where,
        kind="bad-option",
        fix="Change one of the values, or choose other columns.",
    )


def _miscounted(where: str, expected: int, found: int, what: str = "codes") -> DataError:
    return DataError(f"expected {expected:,} {what}, found {found:,}", file=where, kind="bad-data")
