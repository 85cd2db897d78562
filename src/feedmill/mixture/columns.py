"""Find the columns of a dataset's samples, by name, and the row of a file that has the values of each sample.

A name is looked for in the dataset's index (`INDEXED`), then in the files whose rows the samples are, then in those
that these files were made from, as their lineage says: the nearest files that have it count. Several places at the same
distance are an error, which lists them: ``index:tokens``, ``fields:source``, ``attributes/q:q__gopher_v2__words``. In
this form a name can only mean that place.

Names of attributes may lack the tagger: ``quality__words`` is ``quality__gopher_v2__words`` of the set ``quality``, if
no other attribute of the set ends like it. ``max(NAME)`` and others (`feedmill.mixture.columnfiles.SPANS`) are for
attributes with several spans in a document. Fields are those of the first rows of the first files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.mix.names import declared
from feedmill.curation.spans import attribute_name
from feedmill.documents.file import ARROW, PARQUET, TEXT, DocumentFile, in_datasets, kind_of
from feedmill.documents.find import find_documents
from feedmill.documents.lineage.chain import Lineages
from feedmill.documents.lineage.samples import StoredRows
from feedmill.documents.lineage.sidecar import Lineage
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import load
from feedmill.errors import ConfigError, DataError, NotFound, did_you_mean
from feedmill.formats.base import Dataset
from feedmill.formats.costs import INDEXED, LOSS_TOKENS
from feedmill.formats.documents import ATTRIBUTES, DOCUMENTS, read_lines, rows_of
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.rows import TokenRows
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.mixture.columnfiles import FIELDS, INDEX, SPANS, Wanted, table_of, value_of
from feedmill.storage import Store, open_store, split_url
from feedmill.tokens.corpus import main_file

Int64s = npt.NDArray[np.int64]
_SPANS = re.compile(rf"({'|'.join(SPANS)})\((.+)\)")
_OF_TOKENS = ("tokens", LOSS_TOKENS, "bytes")
_LOOKED = 3
"""Files of a level, and rows of samples, in whose first rows names are looked for."""
_ROWS = 100
_SHOWN = 12


class Found(NamedTuple):
    """A column with its place.

    Attributes:
        wanted: the column; its place can be ``index``.
        samples: whether it is read sample by sample, and not from files of documents.
    """

    wanted: Wanted
    samples: bool = False


@dataclass(frozen=True)
class Block:
    """Where the values of consecutive samples are.

    Attributes:
        leaf: number of the file of each sample, int64[n], or that of all.
        rows: row in its file, int64[n].
    """

    leaf: int | Int64s
    rows: Int64s

    def parts(self) -> Iterator[tuple[int, Any, Int64s]]:
        """Yield each file, the samples of the block that are there (an index), and their rows."""
        if isinstance(self.leaf, int):
            yield self.leaf, slice(None), self.rows
            return
        order = np.argsort(self.leaf.astype(np.uint16) if self.leaf.max() < 1 << 16 else self.leaf, kind="stable")
        ordered = self.leaf[order]
        cuts = np.flatnonzero(np.diff(ordered)) + 1
        for part in np.split(order, cuts):
            yield int(self.leaf[part[0]]), part, self.rows[part]


class _Open:
    """A lineage whose runs are ready to be searched."""

    def __init__(self, lineage: Lineage) -> None:
        self.inputs = lineage.inputs
        self._runs, self._ends = lineage.runs, lineage.runs.ends
        self._begins = self._ends - lineage.runs.length

    def origins(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return input and row in it, int64[n] both, of rows, int64[n]."""
        run = np.searchsorted(self._ends, rows, side="right")
        return self._runs.file[run], self._runs.start[run] + rows - self._begins[run]


class Origins:
    """Finds the files of documents behind the samples of a dataset, and in these the row of each sample.

    Args:
        dataset: the dataset.

    Attributes:
        files: path or URL, number of the first sample, and number of samples of each file of token data; of other
            data path or URL alone, with 0 and 0.
        by_file: whether consecutive samples are consecutive rows of one file after another: those of token files.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        if isinstance(dataset, WindowDataset):
            raise ConfigError(
                "these samples are windows of tokens, which have parts of several documents: cells are of documents",
                file=dataset.url,
                kind="unsupported",
                fix="Open the token data without 'seq_len', and pack its documents ('packing' of a recipe).",
            )
        self._lineages = Lineages()
        self._inputs: dict[str, list[str] | None] = {}
        self._documents: dict[str, DocumentFile | None] = {}
        self._names: dict[str, dict[str, list[str]]] = {}
        self._listed: dict[str, frozenset[str]] = {}
        rows = dataset.rows if isinstance(dataset, TokenRows) else dataset
        self.by_file = isinstance(rows, TokenDataset)
        if isinstance(rows, TokenDataset):
            self.files = [(self._lineages.place(main_file(path)), first, n) for path, first, n in rows.files()]
        else:
            self._stored = StoredRows.of(rows)
            self.files = [(self._lineages.place(path), 0, 0) for path in self._stored.paths]
        self._open = lru_cache(maxsize=4)(self._opened)

    @cached_property
    def by_samples(self) -> bool:
        """Whether samples are rows of no file that can be read by itself, nor have a lineage. Raises as `inputs`."""
        paths = [path for path, _, _ in self.files[:_LOOKED]]
        known = any(self.documents(path) is not None or self.inputs(path) for path in paths)
        return not self.by_file and not known

    def inputs(self, path: str) -> list[str] | None:
        """Return the files that a file was made from; None for a raw one.

        Raises:
            DataError: an input has changed since.
            ConfigError: the rows are sequences of several documents.
        """
        if path not in self._inputs:
            lineage = self._lineages.of(path)
            self._lineages.of.cache_clear()  # runs of many files would fill the memory
            if lineage is not None and lineage.first_last is not None:
                raise ConfigError(
                    "its rows are sequences that have parts of several documents: cells are of documents",
                    file=path,
                    kind="unsupported",
                    fix="Use token files of documents (.pbin, .ds, .bin, .npy), or columns of its index.",
                )
            self._inputs[path] = None if lineage is None else [*map(self._lineages.place, lineage.inputs)]
        return self._inputs[path]

    def _opened(self, path: str) -> _Open:
        lineage = self._lineages.of(path)
        self._lineages.of.cache_clear()
        assert lineage is not None
        return _Open(lineage)

    def documents(self, path: str) -> DocumentFile | None:
        """Return a file of documents, relative to the root of its dataset if it is in one; None for other files."""
        if path not in self._documents:
            found = None
            folder, name = split_url(path)
            if kind_of(path) is not None and open_store(folder).exists(name):
                (found,) = find_documents([path]).files
                with suppress(ConfigError):  # it is in none, so that it has no attributes
                    (found,) = in_datasets([found])
            self._documents[path] = found
        return self._documents[path]

    def sets(self, path: str) -> dict[str, str]:
        """Return the existing attribute files of a file of documents, by the name of the set."""
        file = self.documents(path)
        if file is None or not file.path.startswith(f"{DOCUMENTS}/"):
            return {}
        known = self._attributes(file.store())
        names = sorted({path.split("/")[1] for path in known})
        return {name: below for name in names if (below := file.attributes(name)) in known}

    def _attributes(self, store: Store) -> frozenset[str]:
        """Return the files below ``attributes/``, which are listed once: in an object store each look is a request."""
        if store.url not in self._listed:
            try:
                self._listed[store.url] = frozenset(entry.path for entry in store.files(ATTRIBUTES))
            except NotFound:
                self._listed[store.url] = frozenset()
        return self._listed[store.url]

    def levels(self) -> Iterator[list[str]]:
        """Yield some files of the dataset, then some that these were made from, and so on."""
        level = [path for path, _, _ in self.files]
        level = list(dict.fromkeys([*level[:_LOOKED], *level[-1:]]))
        while level:
            yield level
            inputs = [path for each in level for path in self.inputs(each) or ()]
            level = list(dict.fromkeys(inputs))[:_LOOKED]

    def names_in(self, path: str) -> dict[str, list[str]]:
        """Return the names in the first rows of a file of documents, by place."""
        if path not in self._names:
            self._names[path] = self._looked(path)
        return self._names[path]

    def _looked(self, path: str) -> dict[str, list[str]]:
        file = self.documents(path)
        if file is None:
            return {}
        found = {FIELDS: _fields_of(file)}
        for name, below in self.sets(path).items():
            keys = _keys(read_lines(file.store(), below, json=True), "attributes")
            says = declared(file, name)
            found[f"{ATTRIBUTES}/{name}"] = [*keys, *sorted((says.names if says is not None else set()) - {*keys})]
        return found

    def find(self, column: str) -> Found:
        """Return where a column is.

        Raises:
            ConfigError: there is none of this name (kind ``no-column``), or it fits several places (``ambiguous``), or
                the documents are unknown (``no-lineage``).
        """
        given = _SPANS.fullmatch(column)
        spans, name = (given[1], given[2]) if given else ("", column)
        place, _, rest = name.partition(":")
        if rest and (place in (INDEX, FIELDS) or place.startswith(f"{ATTRIBUTES}/")):
            return self._in_place(Wanted(place, rest, spans))
        fits = [Wanted(INDEX, name)] if self._is_indexed(name) else []
        if fits:
            try:
                _ = self.by_samples
            except ConfigError:  # sequences of several documents: there is only the index
                return Found(fits[0])
        seen: dict[str, list[str]] = {INDEX: [each for each in _OF_TOKENS if isinstance(self.dataset, TokenDataset)]}
        if self.by_samples:
            seen[FIELDS] = self._of_samples()
            fits += [Wanted(FIELDS, name, spans)] if self._sample_has(name) else []
        else:
            for level in self.levels():
                here = dict.fromkeys(
                    Wanted(where, whole, spans)
                    for path in level
                    for where, names in self.names_in(path).items()
                    for whole in _matches(name, where, names)
                )
                for path in level:
                    for where, names in self.names_in(path).items():
                        seen[where] = list(dict.fromkeys([*seen.get(where, []), *names]))
                if here:
                    fits += here
                    break
        if len(fits) > 1:
            raise ConfigError(
                f"the column {name!r} fits {len(fits)} places: {', '.join(map(str, fits))}",
                file=self.dataset.url,
                kind="ambiguous",
                fix=f"Write the place, such as {str(fits[0])!r}.",
            )
        if not fits:
            raise self._missing(name, seen)
        return self._in_place(fits[0])

    def _is_indexed(self, name: str) -> bool:
        if name in _OF_TOKENS and isinstance(self.dataset, TokenDataset):
            return True  # without computing it
        return name in INDEXED and self.dataset.costs(name) is not None

    def _in_place(self, wanted: Wanted) -> Found:
        if wanted.place == INDEX:
            if not self._is_indexed(wanted.name):
                raise self._missing(wanted.name, {INDEX: []})
            return Found(wanted._replace(spans=""))
        if self.by_samples and wanted.set:
            raise self._missing(str(wanted), {FIELDS: self._of_samples()})
        return Found(wanted, self.by_samples)

    def _of_samples(self) -> list[str]:
        """Return the names of parts of the first samples, and of fields in their JSON."""
        names = dict[str, None]()
        for sample in self.dataset.read_raw(np.arange(min(_LOOKED, len(self.dataset)))):
            for part in sample:
                names[part] = None
                if (part == "json" or part.endswith(".json")) and isinstance(sample[part], dict):
                    names |= dict.fromkeys(map(str, sample[part]))
        return list(names)

    def _sample_has(self, name: str) -> bool:
        samples = self.dataset.read_raw(np.arange(min(_ROWS, len(self.dataset))))
        return any(value_of(sample, name) is not None for sample in samples)

    def _missing(self, name: str, seen: dict[str, list[str]]) -> ConfigError:
        raw = [path for path, _, _ in self.files if self.documents(path) is None and not self.inputs(path)]
        if raw and self.by_file:
            return no_lineage(raw[0], name)
        every = [each for names in seen.values() for each in names]
        shown = "; ".join(
            f"{where}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
            for where, names in seen.items()
            if names
        )
        where = "samples" if self.by_samples else "documents"
        return ConfigError(
            f"there is no column {name!r}{did_you_mean(name, every)} in the index, nor in the first {where}",
            file=self.dataset.url,
            kind="no-column",
            fix=f"Found are {shown or 'none'}. Give a column that is rare with its place, such as '{FIELDS}:{name}'.",
        )

    def holds(self, path: str, wanted: Wanted) -> bool:
        """Return whether the rows of a file are asked for a column, not those that it was made from."""
        file = self.documents(path)
        if file is None:
            return False
        if wanted.set:
            return file.path.startswith(f"{DOCUMENTS}/") and file.attributes(wanted.set) in self._attributes(
                file.store()
            )
        return bool(_matches(wanted.name, FIELDS, self.names_in(path).get(FIELDS, []))) or not self.inputs(path)

    def leaves(self, wanted: Wanted) -> dict[str, bool]:
        """Return the nearest files with a column behind all samples.

        Raises:
            ConfigError: a file has no lineage (kind ``no-lineage``).
            DataError: a file has no attributes of this set (kind ``no-such-attribute``).
            NotFound: the documents are not there any more.
        """
        found: dict[str, bool] = {}
        self._walk([path for path, _, _ in self.files], wanted, found)
        return {path: held for path, held in found.items() if held}

    def _walk(self, paths: Sequence[str], wanted: Wanted, found: dict[str, bool]) -> None:
        for path in paths:
            if path in found:
                continue
            found[path] = self.holds(path, wanted)
            if found[path]:
                continue
            inputs = self.inputs(path)
            if inputs is not None:
                self._walk(inputs, wanted, found)
                continue
            file = self.documents(path)
            if file is not None:
                raise DataError(
                    f"there are no attributes {wanted.set!r} for this file, though other documents have them",
                    file=path,
                    kind="no-such-attribute",
                    fix=f"Compute them with 'feedmill tag', --name {wanted.set}.",
                )
            if kind_of(path) is not None:
                raise NotFound(
                    "these documents are not there any more, so that their columns cannot be read",
                    file=path,
                    fix="Restore them, or choose columns of the index.",
                )
            raise no_lineage(path, wanted.name)

    def locate(self, path: str, rows: Int64s, leaves: dict[str, int]) -> Block:
        """Return where the values of rows of a file are.

        Args:
            path: the file.
            rows: int64[n].
            leaves: number of each file that holds the column.
        """
        if path in leaves:
            return Block(leaves[path], rows)
        lineage = self._open(path)
        files, found = lineage.origins(rows)
        return self._located(lineage.inputs, files, found, leaves)

    def locate_samples(self, numbers: Int64s, leaves: dict[str, int]) -> Block:
        """Return where the values of samples, int64[n], of data that is not tokens are; as `locate`."""
        files, rows = self._stored.rows(numbers)
        return self._located([path for path, _, _ in self.files], files, rows, leaves)

    def _located(self, paths: Sequence[str], files: Int64s, rows: Int64s, leaves: dict[str, int]) -> Block:
        numbers = np.flatnonzero(np.bincount(files)).tolist() if len(files) else []
        if len(numbers) == 1:
            return self.locate(self._lineages.place(paths[numbers[0]]), rows, leaves)
        leaf, out = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for number, part, inner in Block(files, rows).parts() if numbers else ():
            block = self.locate(self._lineages.place(paths[number]), inner, leaves)
            leaf[part], out[part] = block.leaf, block.rows
        return Block(leaf, out)


def no_lineage(path: str, name: str) -> ConfigError:
    """Return the error for token files whose documents are unknown."""
    return ConfigError(
        f"the documents of this file are unknown, because it has no lineage; {name!r} is no column of its index",
        file=path,
        kind="no-lineage",
        fix="Write it again with 'feedmill tokenize', which writes its lineage, or choose a column of its index:"
        f" {', '.join(_OF_TOKENS)}.",
    )


def _matches(name: str, place: str, names: Sequence[str]) -> list[str]:
    """Return the whole names that a name can mean in a place."""
    if name in names:
        return [name]
    of_set = place.partition("/")[2]
    if not of_set:
        return []
    head = attribute_name("", of_set, "") + "__"
    if not name.startswith(head):
        return []
    tail = "__" + name[len(head) :]
    return [each for each in names if each.startswith(head) and each.endswith(tail) and len(each) > len(name)]


def _keys(blocks: Iterator[bytes], inside: str = "") -> list[str]:
    """Return the keys of the first rows; of objects, those inside too, as ``object.field``."""
    names: dict[str, None] = {}
    for block in blocks:
        for row in rows_of(block)[:_ROWS]:
            try:
                value = load(row)
            except ValueError:
                continue  # reported when the column is read
            value = value.get(inside) if inside and isinstance(value, dict) else value
            _add_keys(value, "", names, nested=not inside)
        break
    return list(names)


def _add_keys(value: Any, head: str, names: dict[str, None], *, nested: bool) -> None:
    for key, inner in value.items() if isinstance(value, dict) else ():
        names[f"{head}{key}"] = None
        if nested and isinstance(inner, dict) and head.count(".") < 4:
            _add_keys(inner, f"{head}{key}.", names, nested=True)


def _fields_of(file: DocumentFile) -> list[str]:
    if file.kind not in (PARQUET, ARROW):
        return [] if file.kind == TEXT else _keys(read_blocks(file))
    return [each for field in table_of(file).schema for each in _fields_in(field, "")]


def _fields_in(field: Any, head: str) -> list[str]:
    name, kind = f"{head}{field.name}", field.type
    inner = [kind.field(n) for n in range(kind.num_fields)] if str(kind).startswith("struct") else []
    return [name, *(each for one in inner for each in _fields_in(one, f"{name}."))]
