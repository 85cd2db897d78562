"""Datasets whose samples are rows of named values: tables, MDS shards, robot episodes.

A row's parts are its columns. `sample[name]` returns the value: text, numbers, lists and objects as Python or numpy
values; bytes through the decoder. `sample.raw(name)` returns the value as bytes, by one rule for all formats:

    bytes           unchanged
    text            UTF-8
    numpy arrays    a .npy file
    null            no bytes
    others          JSON, with bytes in base64, times in ISO 8601, decimals as text, NaN as Python writes it
"""

from __future__ import annotations

import base64
import io
import json
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError, TrustError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Parts, Want
from feedmill.formats.content import content_of_files
from feedmill.formats.offsets import Extents, Int64s, hash_words, place_of
from feedmill.formats.sample import Decode, Sample, Source, locate, no_such_key, number_of
from feedmill.storage import Store

ANY = "*"
"""Suffix of bytes whose type is detected from their first bytes."""

_NO_KEYS = "rename the column: then keys are row numbers."

INSIDE = "**"
"""Suffix of values that hold bytes to decode anywhere inside, each as a `File`."""

PICKLED = "pkl"
"""Suffix of bytes that are decoded only if the user trusts the data."""

PIXELS = "pixels"
"""Suffix of pictures that come as pixels, uint8[..., H, W, 3]; the image spec of the decoder says their form."""

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n", "png"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"), (b"fLaC", "flac"), (b"ID3", "mp3"), (b"OggS", "ogg"),
)  # fmt: skip


class Lazy:
    """A value that is computed on first access, such as a video frame."""

    __slots__ = ("make", "packed")

    def __init__(self, make: Callable[[], Any], packed: Callable[[], bytes]) -> None:
        self.make, self.packed = make, packed


class Film(Lazy):
    """Frames of a camera, ``[H, W, C]`` each, decoded on first access: the one, or ``[k, H, W, C]``.

    A batch is filled with its frames directly, see `RowSample.decoded_together`.
    """

    __slots__ = ("frames",)

    def __init__(self, frames: Callable[[], Sequence[npt.NDArray[Any]]], packed: Callable[[Any], bytes]) -> None:
        def make() -> npt.NDArray[Any]:
            found = frames()
            return found[0] if len(found) == 1 else np.stack(found)

        super().__init__(make, lambda: packed(make()))
        self.frames = frames


_UNMADE = frozenset((bytes, Lazy, Film))


class File(bytes):
    """Bytes inside another value that are decoded with it.

    Attributes:
        suffix: as in `RowsDataset.suffixes`.
    """

    suffix: str

    def __new__(cls, data: bytes, suffix: str) -> File:
        self = super().__new__(cls, data)
        self.suffix = suffix
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return File, (bytes(self), self.suffix)


def is_pictures(value: Any) -> bool:
    """Return whether a value has pixels of pictures in color, uint8[..., H, W, 3]."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim >= 3 and value.shape[-1] == 3


class RowSample(Sample):
    """A `Sample` whose parts are already values."""

    __slots__ = ("_row", "_suffixes")

    def __init__(
        self,
        key: str,
        row: Mapping[str, Any],
        source: Callable[[], Source],
        decode: Decode | None = None,
        subflavors: Mapping[str, Any] | None = None,
        suffixes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(key, b"", dict.fromkeys(row, (0, 0)), source, decode, subflavors)
        self._row = row
        self._suffixes = suffixes or {}

    @property
    def row(self) -> Mapping[str, Any]:
        """Return the stored values: bytes are not decoded, `Lazy` values are not computed."""
        return self._row

    def raw(self, name: str) -> bytes:
        """Return the value of one part as bytes, by the rule in the module's docstring. Raises `NotFound`."""
        if name not in self._row:
            raise self._missing(name)
        try:
            return to_bytes(self._row[name])
        except FeedmillError as error:
            raise locate(error, self.source, f"{self.key}.{name}") from error.__cause__

    def __getitem__(self, name: str) -> Any:
        if self._decode is None:
            return self.raw(name)
        try:
            value = self._row[name]
        except KeyError:
            raise self._missing(name) from None
        if type(value) not in _UNMADE and name not in self._suffixes:
            return value
        values = self._values
        if values is None:
            values = self._values = {}
        if name not in values:
            try:
                values[name] = self._made(name, value)
            except FeedmillError as error:
                raise locate(error, self.source, f"{self.key}.{name}") from error.__cause__
        return values[name]

    def _made(self, name: str, value: Any) -> Any:
        suffix = self._suffixes.get(name, "")
        if isinstance(value, Lazy):
            value = value.make()
            if suffix != PIXELS:
                return value
        if suffix == PIXELS:
            pictures = getattr(self._decode, "pictures", None)  # a function has none: it gets bytes only
            return value if pictures is None or not is_pictures(value) else pictures(value)
        if isinstance(value, list):
            return [self._made(name, item) for item in value]
        if suffix == INSIDE:
            if isinstance(value, dict):
                return {key: self._made(name, item) for key, item in value.items()}
            if isinstance(value, tuple):  # a pair of a map
                return tuple(self._made(name, item) for item in value)
            if not isinstance(value, File):
                return value
            suffix = value.suffix
        if not isinstance(value, bytes):
            return value
        suffix = magic_suffix(value) if suffix == ANY else suffix
        assert self._decode is not None
        made = self._decode(f"{name}.{suffix}" if suffix else name, value)
        if suffix == PICKLED and made is value:
            raise TrustError(
                f"the part {name!r} is pickled, and reading a pickle can run code",
                fix="Open the dataset with trust=True if you trust it, or read the bytes with sample.raw(...).",
            )
        return made

    def decoded_together(self, name: str, samples: Sequence[Sample]) -> Any:
        """Return the frames of a camera of all samples in one array or tensor, each written there once.

        Returns None for other parts, for frames of several sizes, and for frames that cannot be decoded: sample by
        sample, the error names the one.
        """
        films = [sample.film(name) if isinstance(sample, RowSample) else None for sample in samples]
        if films[0] is None or any(film is None or film[0] is not films[0][0] for film in films):
            return None
        room = getattr(films[0][0], "room", None)
        if room is None:
            return None
        out = None
        for number, film in enumerate(films):
            assert film is not None
            try:
                frames = film[1].frames()
            except FeedmillError:
                return None
            if out is None:
                count = len(frames)
                out = room((len(films), count), frames[0].shape) if is_pictures(frames[0]) else None
                if out is None:
                    return None
            if len(frames) != count or not all(out.put(number, at, frame) for at, frame in enumerate(frames)):
                return None
        assert out is not None
        return out.value if count > 1 else out.value[:, 0]

    def film(self, name: str) -> tuple[Decode, Film] | None:
        """Return the decoder and the frames of a camera that are not decoded yet; None for other parts."""
        value = self._row.get(name)
        if not isinstance(value, Film) or self._decode is None or (self._values is not None and name in self._values):
            return None
        return (self._decode, value) if self._suffixes.get(name) == PIXELS else None

    def select(self, keep: Callable[[str], bool]) -> RowSample:
        """Return this sample with only the parts whose name `keep` accepts; its source names only those."""
        row = {name: value for name, value in self._row.items() if keep(name)}
        whole = super().select(keep)
        return RowSample(self.key, row, lambda: whole.source, self._decode, self.subflavors, self._suffixes)

    def __repr__(self) -> str:
        return f"Sample({self.key!r}, {', '.join(self._row)})"


def magic_suffix(data: bytes) -> str:
    """Return the suffix of an image or audio format by its first bytes; empty if unknown."""
    if data[:4] == b"RIFF":
        return "webp" if data[8:12] == b"WEBP" else "wav"
    return next((suffix for magic, suffix in _MAGIC if data.startswith(magic)), "")


def to_bytes(value: Any) -> bytes:
    """Return a value as bytes, by the rule in the module's docstring."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if value is None:
        return b""
    if isinstance(value, Lazy):
        return value.packed()
    if isinstance(value, np.ndarray):
        out = io.BytesIO()
        np.lib.format.write_array(out, value, allow_pickle=False)
        return out.getvalue()
    return json.dumps(value, default=_as_json, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Lazy):
        return _as_json(value.packed())
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class RowsDataset(Dataset):
    """Dataset whose samples are rows of files; each file has consecutive samples.

    Args:
        store: the folder.
        name: path or URL as the user gave it.
        base: the folder in sources of samples, if it is not `name`.
        files: paths of the files in the store.
        counts: int64[files], rows per file.

    Attributes:
        suffixes: part -> the suffix by which its bytes are decoded; `ANY` to detect it from the bytes.
    """

    suffixes: Mapping[str, str]

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        files: Sequence[str],
        counts: Int64s,
        split: str | None = None,
        base: str | None = None,
    ) -> None:
        self._base = name if base is None else base
        self.store, self.url, self.split, self.files = store, name, split, list(files)
        self.counts = np.asarray(counts, np.int64)
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self._starts = self._ends - self.counts
        self.suffixes = {}
        self._known: dict[int, str] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @abstractmethod
    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        """Return the values of rows of one file, in the requested order. `local`: int64[n], row numbers in the file."""

    @abstractmethod
    def _extent(self, file: int, local: int) -> tuple[int, int]:
        """Return offset and length of the smallest known byte range that contains a row."""

    def _stored(self, file: int, local: Int64s) -> Int64s:  # noqa: ARG002
        """Return the row numbers in a file, int64[n], ascending, of its samples."""
        return local

    @property
    def row_files(self) -> Sequence[str]:
        return [self.store.locate(path) for path in self.files]

    @property
    def shard_bounds(self) -> Int64s:
        return np.concatenate(([0], self._ends))

    def stored_rows(self, indices: Indices) -> tuple[Int64s, Int64s]:
        files, rows = (np.empty(len(indices), np.int64) for _ in range(2))
        for number, places, local in self._by_file(indices):
            files[places], rows[places] = number, self._stored(number, local)
        return files, rows

    def samples_of_row(self, file: int, row: int) -> list[int]:
        stored = self._stored(file, np.arange(int(self.counts[file])))
        place = int(np.searchsorted(stored, row))
        return [int(self._starts[file]) + place] if place < len(stored) and stored[place] == row else []

    def _key(self, file: int, local: int) -> str:
        """Return the key of a row: its number in the dataset, unless the format has a better one."""
        return str(int(self._starts[file]) + local)

    def _load(self, files: Sequence[int]) -> None:
        """Load the index data of several files at once, because each is a request to a remote store."""

    def _ranges(self, file: int, local: Int64s) -> tuple[Int64s, Int64s, Int64s] | None:  # noqa: ARG002
        """Return the byte ranges of a file that `_rows` will read, whose index has been loaded; None if unknown.

        Returns:
            int64[m] each: which one of `local` the range is for, its begin, and its end.
        """
        return None

    def _by_file(self, indices: Indices) -> list[tuple[int, Int64s, Int64s]]:
        """Return for each file its number, and int64[n] positions in `indices` and row numbers in the file."""
        wanted = self._inside(indices)
        file = np.searchsorted(self._ends, wanted, side="right")
        order = np.argsort(file, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(file[order])) + 1) if len(order) else []
        numbers = [int(file[places[0]]) for places in groups]
        return [(n, places, wanted[places] - self._starts[n]) for n, places in zip(numbers, groups, strict=True)]

    def _wrong_keys(self, keys_of: Callable[[int], Sequence[str]], column: str) -> Iterator[FeedmillError]:
        """Yield an error for a file whose keys cannot be read, and for keys that are empty or occurred before.

        Args:
            keys_of: function that reads the keys of a file, given by its number, from their column.
        """
        seen: dict[str, int] = {}
        for file in range(len(self.files)):
            try:
                keys = keys_of(file)
            except FeedmillError as error:
                yield error
                continue
            where = self.store.locate(self.files[file])
            if empty := sum(not key for key in keys):
                what = f"{empty:,} rows have an empty key in the column {column!r}"
                yield DataError(what, file=where, kind="missing-field", fix=f"Give each row a key, or {_NO_KEYS}")
            for key in keys:
                before = len(seen)
                other = seen.setdefault(key, file)
                if key and len(seen) == before:
                    what = "the key occurs twice" if other == file else f"the key also occurs in {self.files[other]!r}"
                    fix = f"Keys must be unique in a dataset. Rename one of the two, or {_NO_KEYS}"
                    yield DataError(what, file=where, record=key, kind="duplicate-key", fix=fix)

    def read_raw(self, indices: Indices) -> list[Sample]:
        groups = self._by_file(indices)
        out: list[Sample] = [None] * sum(len(places) for _, places, _ in groups)  # type: ignore[list-item]
        for number, places, local in groups:
            for place, at, row in zip(places.tolist(), local.tolist(), self._rows(number, local), strict=True):
                out[place] = self._sample(number, at, row)
        return out

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        if want != "parts" or self.view is not None or self.decode is not None or not len(indices):
            return super().read_batch(indices, want)
        found: list[tuple[int, int, dict[str, Any]]] = [(0, 0, {})] * len(indices)
        for number, places, local in self._by_file(indices):
            for place, at, row in zip(places.tolist(), local.tolist(), self._rows(number, local), strict=True):
                found[place] = number, at, row
        names = found[0][2].keys()
        if "__key__" in names or any(row.keys() != names for _, _, row in found):
            return None
        keys = [self._key(number, at) for number, at, _ in found]
        views = {name: [to_bytes(row[name]) for _, _, row in found] for name in names}
        return Parts(keys, views, None, lambda number: self._source(*found[number][:2], tuple(names)))

    def _read_one(self, index: int) -> Sample:
        file, local = place_of(self._ends, index)
        return self._sample(file, local, self._row(file, local))

    def _row(self, file: int, local: int) -> dict[str, Any]:
        """Return the one row of `_rows`; a format overrides it to be faster."""
        return self._rows(file, np.asarray([local], np.int64))[0]

    def extents(self, indices: Indices) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        groups = self._by_file(indices)
        self._load([number for number, _, _ in groups])
        pieces = [(np.zeros(0, np.int64),) * 4]
        for number, places, local in groups:
            found = self._ranges(number, local)
            if found is None:
                return ()
            which, begins, ends = found
            pieces.append((places[which], np.full(len(which), number, np.int64), begins, ends))
        sample, file, begins, ends = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return [Extents(self.store, self.files, sample, file, begins, ends)]

    def _sample(self, file: int, local: int, row: dict[str, Any]) -> Sample:
        source = partial(self._source, file, local, tuple(row))
        opened = self._opened
        return RowSample(self._key(file, local), row, source, opened.decode, opened.subflavors, self.suffixes)

    def _source(self, file: int, local: int, names: tuple[str, ...]) -> Source:
        offset, length = self._extent(file, local)
        key = self._key(file, local)
        index = int(self._starts[file]) + local
        return Source(self._base, self.files[file], offset, length, index, key, tuple(f"{key}.{n}" for n in names))

    def locate(self, index: int) -> Source:
        return self.read_raw([self._checked(index)])[0].source

    def find(self, key: str) -> int:
        number = number_of(key, len(self))
        if number is None:
            raise no_such_key(self.url, key)
        return number

    def fingerprint(self) -> str:
        return self._fingerprint(len(self.files))

    def fingerprint_of_first(self, count: int) -> str | None:
        files = int(np.searchsorted(self._ends, count)) + 1
        if count < 1 or files > len(self.files) or self._ends[files - 1] != count:
            return None  # the dataset did not grow by whole files
        return self._fingerprint(files)

    def _fingerprint(self, files: int) -> str:
        known = self._known.get(files)
        if known is None:
            words = [f"{self.files[n]} {self.counts[n]} {self._file_hash(n)}" for n in range(files)]
            known = self._known[files] = hash_words([*words, content_of_files(self.store, self.files[:files])])
        return known

    @abstractmethod
    def _file_hash(self, file: int) -> str:
        """Return a hash of a file's index, which the fingerprint combines with hashes of some blocks of its bytes."""

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        return {
            "format": self.format,
            "path": self.url,
            "split": self.split,
            "samples": len(self),
            "shards": len(self.files),
            "bytes": sum(self.store.stat(path).size for path in self.files),
            "indexed": True,
            **self.about,
        }


class BlockCache:
    """Cache of the most recently read blocks, up to a number of bytes; a single block may be larger.

    Safe to use from several threads: if several need the same block, one loads it and the others wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._blocks: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._blocks

    def get(self, key: Hashable, make: Callable[[], tuple[Any, int]]) -> Any:
        """Return the block of this key. If it is not cached, `make` returns it and its size in bytes."""
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return self._blocks[key][0]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._blocks:
                    return self._blocks[key][0]
            block, size = make()
            with self._lock:
                self._blocks[key] = block, size
                self._bytes += size
                while self._bytes > self.limit and len(self._blocks) > 1:
                    _, (_, freed) = self._blocks.popitem(last=False)
                    self._bytes -= freed
                self._making.pop(key, None)
            return block
