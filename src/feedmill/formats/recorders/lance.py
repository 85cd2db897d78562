"""Read Lance tables of robot episodes, through pylance (the extra ``lance``).

Layout: a folder ``x.lance`` with a row for each step, in their order, as LeRobot's tables of frames are: the columns
``episode_index`` and ``frame_index``, perhaps ``timestamp``, and others. Numbers, lists of as many numbers, texts and
bytes are read; images in bytes are decoded on access. The rows of an episode lie together, and ``frame_index`` counts
them. The rate is that of the median difference of ``timestamp``.

pylance reads the ranges, from a bucket with its own client, which knows its credentials by the environment. A batch is
one ``take`` for all columns, and one for each window: each costs some milliseconds.

Lance takes no names with dots (findings/lance_field_names.sh): LeRobot's ``observation.state`` is
``observation_state``.

Not read, named: blob columns (such as videos), nested types, and lists whose lengths differ from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.format import OpenRequest
from feedmill.formats.offsets import Extents, Int64s, hash_words
from feedmill.formats.recorders.dataset import RecorderDataset, Recording, left_out
from feedmill.formats.recorders.tracks import BYTES, IMAGE, TEXT, Blocks, Column, Pieces, Track, corrupt, is_image
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

EPISODE, FRAME, TIME = "episode_index", "frame_index", "timestamp"
_VERSIONS = "_versions/"
_GONE = np.zeros(0, np.int64)


def load_lance() -> Any:
    """Return the lance package. Raises `MissingExtra`."""
    try:
        import lance
    except ImportError:
        raise MissingExtra("Lance tables require pylance", "lance") from None
    return lance


class LanceTable(Recording):
    """One table."""

    def __init__(self, store: Store) -> None:
        self._url = store.url
        self._opened: Any = None
        table = self.table()
        missing = [name for name in (EPISODE, FRAME) if name not in table.schema.names]
        if missing:
            raise DataError(
                f"the table has no column {missing[0]!r}, which says what its rows are steps of",
                file=self._url,
                kind="no-column",
                fix="Only tables of robots' frames are read: open other tables as Parquet.",
            )
        names = [name for name in (EPISODE, FRAME, TIME) if name in table.schema.names]
        with _errors(self._url):
            found = {name: np.asarray(table.to_table(columns=[name]).column(0)) for name in names}
        episodes, frames = found[EPISODE].astype(np.int64), found[FRAME].astype(np.int64).ravel()
        begins = np.flatnonzero(np.concatenate(([True], np.diff(episodes) != 0)))[: len(episodes)]
        self.lengths = np.diff(np.append(begins, len(episodes)))
        self.starts = begins
        numbers = episodes[begins]
        if len(np.unique(numbers)) < len(numbers):
            raise self._wrong("the rows of an episode do not lie together")
        if (frames != np.arange(len(frames)) - np.repeat(begins, self.lengths)).any():
            raise self._wrong(f"{FRAME!r} does not count the rows of an episode from 0")
        self.names = [str(number) for number in numbers.tolist()]
        if TIME in found and len(episodes) > 1:
            steps = np.diff(found[TIME].astype(np.float64).ravel())[np.diff(episodes) == 0]
            between = float(np.median(steps)) if len(steps) else 0.0
            self.fps = round(1 / between, 3) if between > 0 else None
            self.fps = float(round(self.fps)) if self.fps and abs(self.fps / round(self.fps) - 1) < 0.001 else self.fps
        self.columns, apart = {}, dict[str, list[str]]()
        first = (
            self.take(np.zeros(1, np.int64), [f.name for f in table.schema if not _is_blob(f)]) if len(frames) else None
        )
        for field in table.schema:
            if _is_blob(field):
                apart.setdefault("it is a blob, such as a video", []).append(field.name)
                continue
            column = None if first is None else _column(field.type, first.column(field.name)[0].as_py())
            if column is None:
                apart.setdefault(f"the type {field.type}", []).append(field.name)
            else:
                self.columns[field.name] = column
        self.remarks = [left_out(names, why) for why, names in apart.items()]
        self.digest = hash_words([str(table.version), str(len(episodes)), str(table.schema)])
        self._tracks = {name: LanceTrack(name) for name in self.columns}

    def _wrong(self, what: str) -> DataError:
        return DataError(what, file=self._url, kind="bad-index", fix=copy_again("the table", "write it in order"))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def table(self) -> Any:
        """Return the opened table, once for each process."""
        if self._opened is None:
            lance = load_lance()
            with _errors(self._url):
                self._opened = lance.dataset(self._url)
        return self._opened

    def take(self, rows: Int64s, columns: Sequence[str]) -> Any:
        """Return rows as an Arrow table. Raises `DataError`."""
        with _errors(self._url):
            return self.table().take(rows.tolist(), columns=list(columns))

    def track(self, episode: int, column: str) -> tuple[Track, int]:
        return self._tracks[column], int(self.starts[episode])

    def values(self, column: str, found: Any) -> list[Any]:
        """Return the values of a column that was taken. Raises `DataError`."""
        one = self.columns[column]
        if found.null_count:
            raise corrupt(self._url, 0, f"{column!r} has no value in {found.null_count:,} of the rows")
        if one.kind in (TEXT, BYTES, IMAGE):
            values: list[Any] = found.to_pylist()
            return values
        if not one.shape:
            return [np.asarray(value).astype(one.kind).item() for value in found.to_pylist()]
        arrays = [np.asarray(value, one.kind) for value in found.to_pylist()]
        bad = next((array for array in arrays if array.shape != one.shape), None)
        if bad is not None:
            raise corrupt(
                self._url, 0, f"{column!r} has the shape {list(bad.shape)}, and {list(one.shape)} in the first row"
            )
        return arrays


class _errors:
    """In a block, raise what pylance raises for damaged tables as `DataError`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError | ValueError | RuntimeError) and not isinstance(error, DataError):
            what = f"the table cannot be read: {' '.join(str(error).split())[:200]}"
            raise corrupt(self._url, 0, what) from None


class LanceTrack(Track):
    """A column; `LanceDataset` reads several at once."""

    def __init__(self, name: str) -> None:
        self.name, self.paths = name, ()

    def pieces(self, rows: Int64s) -> Pieces:  # noqa: ARG002
        return Pieces(_GONE, _GONE, _GONE, _GONE, _GONE)

    def values(self, rows: Int64s, blocks: Blocks, read: Callable[[int, int, int], bytes]) -> list[Any]:
        raise NotImplementedError(self.name)  # columns are read together


def _is_blob(field: Any) -> bool:
    return any(b"blob" in key and value == b"true" for key, value in (field.metadata or {}).items()) or "blob" in str(
        field.type
    )


def _column(kind: Any, first: Any) -> Column | None:
    from pyarrow import types

    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Column(str(np.dtype(kind.to_pandas_dtype())))
    if types.is_string(kind) or types.is_large_string(kind):
        return Column(TEXT)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return Column(IMAGE if is_image((first or b"")[:16]) else BYTES)
    inner = kind
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    if inner is kind or not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        return None
    try:
        shape = np.asarray(first).shape
    except ValueError:
        return None
    return Column(str(np.dtype(inner.to_pandas_dtype())), shape) if first is not None and shape else None


class LanceDataset(RecorderDataset):
    """The steps of a table."""

    format: ClassVar[str] = "lance"

    def _read(self, needs: Sequence[Any]) -> list[list[Any]]:
        """Return the values of the rows of tracks: one `take` for the columns without windows, one for each window."""
        table = self.recordings[0]
        assert isinstance(table, LanceTable)
        groups: dict[str, list[int]] = {}
        for place, need in enumerate(needs):
            groups.setdefault(need.track.name if need.track.name in self.windows else "", []).append(place)
        out: list[list[Any]] = [[] for _ in needs]
        for places in groups.values():
            rows = np.unique(np.concatenate([needs[place].rows for place in places]))
            columns = list(dict.fromkeys(needs[place].track.name for place in places))
            found = table.take(rows, columns)
            values = {name: table.values(name, found.column(name)) for name in columns}
            for place in places:
                at = np.searchsorted(rows, needs[place].rows).tolist()
                out[place] = [values[needs[place].track.name][number] for number in at]
        return out

    def extents(self, indices: Any) -> Sequence[Extents]:
        self._inside(indices)
        return ()

    def reads(self, path: str) -> bool:
        return path.startswith(("data/", "_")) or path.endswith((".lance", ".manifest", ".txn"))

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        return {**super().describe(), "bytes": sum(entry.size for entry in self.store.files())}


def is_folder(store: Store) -> str | None:
    """Return a mark if a folder is a Lance table."""
    found = next((e for e in store.files() if e.path.startswith(_VERSIONS) and e.path.endswith(".manifest")), None)
    return None if found is None else ""


def open_found(wanted: OpenRequest) -> LanceDataset:
    """Open a table. Raises `DataError`, `MissingExtra`."""
    store = wanted.store
    manifests = sorted(entry.path for entry in store.files(_VERSIONS, suffixes=(".manifest",)))
    return LanceDataset(store, manifests[-1:], [LanceTable(store)], name=wanted.url)
