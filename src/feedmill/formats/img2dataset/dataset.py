"""Read folders that img2dataset wrote, in three of its output formats.

Layout; ``00000`` numbers the shards, and a shard is complete once its ``_stats.json`` exists::

    webdataset   00000.tar       000000000.jpg, .txt, .json of each downloaded image
    files        00000/          the same as files
    parquet      00000.parquet   a row for each URL; the image is the column jpg, png or webp, null where it failed
    all          00000_stats.json  {"count": 1000, "successes": 873, ...}
                 00000.parquet   (webdataset, files) one row for each URL, with its status

Only downloaded images are samples. Shards without ``_stats.json`` are incomplete because a download stopped: they are
skipped, and `describe` reports them under ``remarks``. Rejected: a shard whose number of images differs from its
``successes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import DataError, NotFound
from feedmill.formats.arrowtypes.reading import values
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.columns import ParquetFile, damaged
from feedmill.formats.content import content_of_files
from feedmill.formats.costs import bad_cost
from feedmill.formats.energon.costs import MEDIA_COSTS, file_costs
from feedmill.formats.format import OpenRequest
from feedmill.formats.img2dataset import STATS
from feedmill.formats.offsets import Extents, Int64s, hash_words
from feedmill.formats.sample import Sample, Source, no_such_key
from feedmill.formats.tables.dataset import TableDataset, open_columns
from feedmill.formats.tar.dataset import ShardTable, TarDataset
from feedmill.formats.tar.index import plain_shards
from feedmill.kernels.bounds import ranges
from feedmill.kernels.files.tar import sample_name
from feedmill.storage import Entry, Store
from feedmill.storage.reasons import copy_again

IMAGES = ("jpg", "png", "webp")
_AGAIN = copy_again(instead="remove this shard and run img2dataset again in incremental mode")


def finished_shards(store: Store) -> dict[str, int]:
    """Return shard -> number of images for complete shards; empty if img2dataset did not write this folder."""
    out = {}
    for entry in store.files(suffixes=("_stats.json",)):
        match = STATS.fullmatch(entry.path)
        if match:
            out[match[1]] = _successes(store, entry.path)
    return out


def _successes(store: Store, path: str) -> int:
    try:
        return int(orjson.loads(store.read_small(path))["successes"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"invalid statistics ({type(error).__name__} {error})",
            file=store.locate(path),
            kind="bad-index",
            fix=_AGAIN,
        ) from None


def open_img2dataset(store: Store, url: str, table: Callable[[list[str]], ShardTable]) -> Dataset:
    """Open a folder of img2dataset.

    Args:
        table: returns a `ShardTable` for paths of tars.

    Raises:
        DataError: a shard is corrupt, or its number of images differs from its statistics.
        NotFound: no shard is complete.
    """
    shards = finished_shards(store)
    files = list(store.files())
    tars = {e.path.removesuffix(".tar") for e in files if re.fullmatch(r"\d{5,}\.tar", e.path)}
    folders = {e.path.partition("/")[0] for e in files if re.match(r"\d{5,}/", e.path)}
    rows = {e.path.removesuffix(".parquet") for e in files if re.fullmatch(r"\d{5,}\.parquet", e.path)}
    kind, there = next(((k, t) for k, t in (("tar", tars), ("files", folders), ("parquet", rows)) if t), ("", set()))
    whole = {name: count for name, count in shards.items() if count}
    remarks = [f"{name}: skipped, its download is incomplete" for name in sorted(there - set(shards))]
    for name in whole:
        if name not in there:
            path = {"tar": f"{name}.tar", "files": name}.get(kind, f"{name}.parquet")
            raise NotFound("this shard is missing", file=store.locate(path), kind="missing-shard", fix=_AGAIN)
    if not whole:
        raise NotFound("no shard of this download is complete", file=url, kind="no-samples", fix=_AGAIN)
    dataset: Dataset
    if kind == "tar":
        dataset = DownloadedTars(store, table([f"{name}.tar" for name in whole]), name=url)
        counts = dataset.table.counts
    elif kind == "files":
        dataset = DownloadedFiles(store, list(whole), files, name=url)
        counts = dataset.counts
    else:
        dataset = DownloadedRows(store, [f"{name}.parquet" for name in whole], name=url)
        counts = dataset.counts
    _check_counts(store, whole, counts)
    return dataset.opened_as(about={"remarks": remarks}) if remarks else dataset


def _check_counts(store: Store, shards: Mapping[str, int], counts: Int64s) -> None:
    for (name, expected), found in zip(shards.items(), counts.tolist(), strict=True):
        if expected != found:
            raise DataError(
                f"the shard has {found} images, but {name}_stats.json has {expected}",
                file=store.locate(name),
                kind="wrong-count",
                fix=_AGAIN,
            )


class DownloadedTars(TarDataset):
    """The webdataset output."""

    format: ClassVar[str] = "img2dataset"


class DownloadedRows(TableDataset):
    """The parquet output: rows with a downloaded image."""

    format: ClassVar[str] = "img2dataset"

    def __init__(self, store: Store, files: Sequence[str], *, name: str) -> None:
        columns = open_columns(store, files, ParquetFile)
        names = columns[0].schema.names
        image = next((word for word in IMAGES if word in names), None)
        if image is None or "key" not in names:
            raise DataError(
                f"missing column: expected 'key' and {' or '.join(IMAGES)}, found {', '.join(names)}",
                file=store.locate(files[0]),
                kind="no-column",
                fix="Open the file itself to read it as a table.",
            )
        self._present = [
            _present(file, "status" if "status" in names else image, store.locate(path))
            for file, path in zip(columns, files, strict=True)
        ]
        super().__init__(store, files, name=name, columns=columns, key_column="key")

    def _counted(self) -> Int64s:
        return np.asarray([len(rows) for rows in self._present], np.int64)

    def _stored(self, file: int, local: Int64s) -> Int64s:
        return self._present[file][local]

    def _find_costs(self, by: str) -> Int64s | None:
        """Return pixels from the columns that img2dataset writes; an image is one frame."""
        if by == "frames":
            return np.broadcast_to(np.int64(1), (len(self),))
        if by == "pixels" and {"width", "height"} <= set(self.cost_fields):
            width, height = super()._find_costs("width"), super()._find_costs("height")
            assert width is not None and height is not None
            if max(int(side.max(initial=0)) for side in (width, height)) < 1 << 31:
                return width * height
            number = int(np.argmax(np.maximum(width, height)))
            raise bad_cost(by, number, f"{width[number]} x {height[number]}", file=self.url)
        return super()._find_costs(by)


def _present(file: Any, column: str, where: str) -> Int64s:
    """Return the numbers of rows with a downloaded image. Raises `DataError`."""
    present: list[bool] = []
    for block in range(len(file.ends)):
        try:
            column_values = values(file.read(block, [column])[0].column(0))
        except ValueError as error:  # text that is not UTF-8
            raise damaged(where, error, record=f"column {column!r}") from None
        present += [value == "success" if column == "status" else value is not None for value in column_values]
    return np.flatnonzero(np.asarray(present, bool)).astype(np.int64)


class DownloadedFiles(Dataset):
    """The files output: files with the same stem and different suffixes are a sample."""

    format: ClassVar[str] = "img2dataset"

    def __init__(self, store: Store, shards: Sequence[str], files: Sequence[Entry], *, name: str) -> None:
        self.store, self.url = store, name
        self._sizes = {entry.path: entry.size for entry in files}
        groups: dict[str, dict[str, dict[str, str]]] = {shard: {} for shard in shards}
        for path in self._sizes:
            shard, _, rest = path.partition("/")
            found = sample_name(rest) if rest and shard in groups else None
            if found is not None:
                groups[shard].setdefault(found[0], {})[found[1]] = path
        self._samples = [
            (key, parts)
            for shard in shards
            for key, parts in groups[shard].items()
            if not parts.keys().isdisjoint(IMAGES)
        ]
        self.counts = np.asarray([_with_image(groups[shard]) for shard in shards], np.int64)
        self._numbers: dict[str, int] | None = None
        self._known: str | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def read_raw(self, indices: Indices) -> list[Sample]:
        return [self._sample(index) for index in self._inside(indices).tolist()]

    @cached_property
    def _files(self) -> tuple[list[str], Int64s, Int64s]:
        """Return the files of all samples: paths, int64[files] sizes, and int64[samples + 1], the first of each."""
        paths = [path for _, parts in self._samples for path in parts.values()]
        sizes = np.asarray([self._sizes[path] for path in paths], np.int64)
        return paths, sizes, np.cumsum([0, *(len(parts) for _, parts in self._samples)], dtype=np.int64)

    def extents(self, indices: Indices) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        wanted = self._inside(indices)
        paths, sizes, starts = self._files
        counts = starts[wanted + 1] - starts[wanted]
        sample = np.repeat(np.arange(len(wanted)), counts)
        file = ranges(starts[wanted], counts)
        return [Extents(self.store, paths, sample, file, np.zeros(len(file), np.int64), sizes[file])]

    def _sample(self, index: int) -> Sample:
        key, parts = self._samples[index]
        block, spans = b"", {}
        for part, path in parts.items():
            data = self.store.read(path)
            spans[part] = (len(block), len(block) + len(data))
            block += data
        opened = self._opened
        return Sample(key, block, spans, partial(self._source, index), opened.decode, opened.subflavors)

    def _source(self, index: int) -> Source:
        key, parts = self._samples[index]
        first = next(iter(parts.values()))
        length = self.store.stat(first).size
        return Source(self.url, first, 0, length, index, key, tuple(f"{key}.{part}" for part in parts))

    def locate(self, index: int) -> Source:
        return self._source(self._checked(index))

    def find(self, key: str) -> int:
        if self._numbers is None:
            self._numbers = {name: number for number, (name, _) in reversed(list(enumerate(self._samples)))}
        if key not in self._numbers:
            raise no_such_key(self.url, key)
        return self._numbers[key]

    def _find_costs(self, by: str) -> Int64s | None:
        if by == "bytes":
            known: dict[str, int] | None = {entry.path: entry.size for entry in self.store.files()}
        else:
            known = file_costs(self.store, by)
        if known is None:
            return None
        found = [[known.get(path, 0) for path in parts.values()] for _, parts in self._samples]
        number = next((n for n, costs in enumerate(found) if min(costs) < 0), None)
        if number is not None:
            raise bad_cost(by, number, "not in the index", file=self.url)
        return np.asarray([sum(costs) for costs in found], np.int64)

    def costs_advice(self, by: str) -> str:
        if by not in MEDIA_COSTS:
            return super().costs_advice(by)
        return f"Run 'feedmill edit prepare-media {self.url} --media-by-extension'."

    def fingerprint(self) -> str:
        if self._known is None:
            sizes = {entry.path: entry.size for entry in self.store.files()}
            paths = [path for _, parts in self._samples for path in parts.values()]
            words = [f"{path} {sizes.get(path)}" for path in paths]
            self._known = hash_words([*words, content_of_files(self.store, paths)])
        return self._known

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        return {
            "format": self.format,
            "path": self.url,
            "split": None,
            "samples": len(self),
            "shards": len(self.counts),
            "bytes": sum(self.store.stat(path).size for _, parts in self._samples for path in parts.values()),
            "indexed": False,
            **self.about,
        }


def _with_image(group: Mapping[str, Mapping[str, str]]) -> int:
    return sum(not parts.keys().isdisjoint(IMAGES) for parts in group.values())


def open_found(wanted: OpenRequest) -> Dataset:
    """See `open_img2dataset`."""
    return open_img2dataset(wanted.store, wanted.url, lambda shards: plain_shards(wanted.store, shards))
