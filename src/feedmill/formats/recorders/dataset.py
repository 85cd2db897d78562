"""Datasets of the episodes that recorders wrote: HDF5, Zarr, MCAP, RLDS and Lance.

A file has one or more episodes, and an episode has columns of time steps. A sample is one step: its parts are the
columns, named as in the file with dots for slashes (``observations.images.top``), and ``task`` where the file has a
text for the whole episode. Values are numbers, arrays of the shape of one step, text, or bytes of images, which are
decoded on access. All episodes of a dataset must have the same columns.

A reader opens a file as a `Recording`: its episodes, columns and tracks (`tracks.py`). Reading collects the byte ranges
that steps need in all columns, reads each once, in one round trip, and makes the values. With windows
(`feedmill.formats.episodes`) parts have the steps around the sample: arrays ``[k, ...]``, images and text as lists of
k values, and ``NAME_is_pad``.

Episodes without steps are left out, which `remarks` says. Rejected: files without any step, columns that differ between
episodes in name, type or shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.base import Indices
from feedmill.formats.episodes import PAD, Episodic
from feedmill.formats.offsets import Extents, Int64s, hash_words, read_scattered
from feedmill.formats.recorders.tracks import BYTES, IMAGE, TEXT, Column, Track
from feedmill.formats.rows import ANY, PIXELS, RowsDataset
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

TASK = "task"
CACHE_BYTES = 256 << 20
"""Maximum bytes of decoded chunks cached by an open dataset."""
_INSTRUCTIONS = ("language_instruction", "natural_language_instruction", "instruction", "language", "task")
_THREADS = 16
_AT_ONCE = 256
_COUNTED = 3
_FIRST = np.zeros(1, np.int64)


class Recording(ABC):
    """The episodes of one file or folder.

    Attributes:
        names: of its episodes.
        lengths: int64[episodes], steps of each.
        columns: what its columns are.
        tasks: text for each episode; None for an episode without one.
        fps: steps a second; None if the file does not say.
        remarks: what the file has beyond its steps, and is not read.
        notes: how it is read, where that is unusual.
        splits: split -> numbers of its episodes.
        digest: hash of its index.
    """

    names: Sequence[str]
    lengths: Int64s
    columns: Mapping[str, Column]
    tasks: Sequence[str | None] = ()
    fps: float | None = None
    remarks: Sequence[str] = ()
    notes: Sequence[str] = ()
    splits: Mapping[str, Sequence[int]] = {}
    digest: str = ""

    @abstractmethod
    def track(self, episode: int, column: str) -> tuple[Track, int]:
        """Return the track of a column in an episode, and the row of the episode's first step in it."""

    def verify(self) -> Iterator[FeedmillError]:
        """Yield what is wrong with bytes that reading steps does not compare, such as checksums of whole records."""
        yield from ()


class _Need(NamedTuple):
    """Rows of a track that some samples need.

    Attributes:
        track: the track.
        rows: int64[m], ascending, each once.
        sample: int64[k], positions of the samples.
        at: int64[k], which of `rows` each needs.
    """

    track: Track
    rows: Int64s
    sample: Int64s
    at: Int64s


class RecorderDataset(Episodic, RowsDataset):
    """The steps of episodes in recordings.

    Args:
        recordings: the opened files.
        files: their paths.
        split: name of a split; None for all episodes.

    Raises:
        DataError: there are no steps, or columns differ between files.
        NotFound: there is no such split.
    """

    format: ClassVar[str] = "recorder"

    def __init__(
        self,
        store: Store,
        files: Sequence[str],
        recordings: Sequence[Recording],
        *,
        name: str,
        base: str | None = None,
        split: str | None = None,
    ) -> None:
        self.recordings = list(recordings)
        self.columns = _common(store, files, self.recordings)
        self.names = list(self.columns)
        self._splits = _splits(self.recordings)
        lengths = np.concatenate([np.zeros(0, np.int64), *(one.lengths for one in self.recordings)])
        owners = np.repeat(np.arange(len(files)), [len(one.lengths) for one in self.recordings])
        if not lengths.sum():
            raise DataError(
                f"there are no steps: {len(lengths):,} episodes are empty" if len(lengths) else "there are no episodes",
                file=name,
                kind="no-samples",
                fix="Check the path, or record the episodes again.",
            )
        if split is not None and split not in self._splits:
            have = ", ".join(map(repr, self._splits)) or "none"
            raise NotFound(f"there is no split {split!r}", file=name, kind="no-such-split", fix=f"Splits are: {have}.")
        chosen = np.arange(len(lengths)) if split is None else np.asarray(self._splits[split], np.int64)
        chosen = chosen[lengths[chosen] > 0]
        kept = np.unique(owners[chosen])
        self._places = [int(number) for number in kept]  # of the files in `recordings`
        first = np.concatenate(([0], np.cumsum([len(one.lengths) for one in self.recordings])))
        self._owner, self._local = owners[chosen], chosen - first[owners[chosen]]
        self._all_lengths = lengths
        self._numbers: Int64s = chosen
        self._lengths: Int64s = lengths[chosen]
        self._episode_starts: Int64s = np.cumsum(self._lengths) - self._lengths
        counts = np.bincount(owners[chosen], lengths[chosen], len(files)).astype(np.int64)[kept]
        super().__init__(store, name=name, files=[files[n] for n in kept], counts=counts, split=split, base=base)
        self.suffixes = {column: ANY for column, found in self.columns.items() if found.kind == IMAGE}
        self.suffixes |= {column: PIXELS for column, found in self.columns.items() if is_pixels(found)}
        self._has_tasks = any(task is not None for one in self.recordings for task in one.tasks)
        rates = {one.fps for one in self.recordings}
        self._fps = rates.pop() if len(rates) == 1 else None

    @property
    def episode_starts(self) -> Int64s:
        return self._episode_starts

    @property
    def episode_lengths(self) -> Int64s:
        return np.asarray(self._lengths, np.int64)

    @property
    def episode_numbers(self) -> Int64s:
        return self._numbers

    @property
    def task_part(self) -> str:
        texts = [
            name for name, one in self.columns.items() if one.kind == TEXT and name.rpartition(".")[2] in _INSTRUCTIONS
        ]
        return TASK if self._has_tasks else texts[0] if texts else ""

    def task_texts(self) -> Sequence[str]:
        """See `Episodic`. Reads the column of texts, if it is one of the steps."""
        if self._has_tasks:
            return list(dict.fromkeys(self._task(at) or "" for at in range(len(self._lengths))))
        texts: dict[str, None] = {}
        for start, length in zip(self._episode_starts.tolist(), self._lengths.tolist(), strict=True):
            needs, _ = self._needs(np.arange(start, start + length), [self.task_part] if self.task_part else [])
            texts.update(dict.fromkeys(text for values in self._read(list(needs.values())) for text in values))
        return list(texts)

    @property
    def fps(self) -> float | None:
        return self._fps

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            name: {"dtype": IMAGE if is_pixels(one) else one.kind, "shape": list(one.shape) or [1]}
            for name, one in self.columns.items()
        }

    @property
    def texts(self) -> Sequence[str]:
        return [TASK] if self._has_tasks else []

    def text_values(self, name: str) -> list[str | None]:  # noqa: ARG002 - there is one
        return [task for at, length in enumerate(self._lengths.tolist()) for task in [self._task(at)] * length]

    def _task(self, episode: int) -> str | None:
        tasks = self.recordings[int(self._owner[episode])].tasks
        return tasks[int(self._local[episode])] if tasks else None

    def numbers(self, names: Sequence[str], steps: Int64s) -> dict[str, npt.NDArray[Any]]:
        for name in names:
            if self.columns[name].kind in (IMAGE, TEXT, BYTES) or self.columns[name].kind.startswith("list:"):
                raise DataError(
                    f"column {name!r} is not numbers of one shape: it holds {self.columns[name]}",
                    file=self.url,
                    record=name,
                    kind="bad-data",
                    fix="Leave the column out.",
                )
        plain = self.with_offsets({})
        needs, _ = plain._needs(steps, names)
        out: dict[str, npt.NDArray[Any]] = {}
        for ((name, _), need), values in zip(needs.items(), self._read(list(needs.values())), strict=True):
            found = np.asarray(values, self.columns[name].kind).reshape(len(values), -1)
            if name not in out:
                out[name] = np.empty((len(steps), found.shape[1]), found.dtype)
            out[name][need.sample] = found[need.at]
        return {name: out[name] if name in out else np.zeros((0, 0)) for name in names}

    def columns_of(self, file: int, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        return self.numbers(names, np.arange(int(self._starts[file]), int(self._ends[file])))

    def values_of(self, name: str) -> list[Any]:
        needs, _ = self.with_offsets({})._needs(np.arange(len(self)), [name])
        found: list[Any] = [None] * len(self)
        for need, values in zip(needs.values(), self._read(list(needs.values())), strict=True):
            for sample, at in zip(need.sample.tolist(), need.at.tolist(), strict=True):
                found[sample] = values[at]
        return found

    @property
    def remarks(self) -> Sequence[str]:
        empty = int((self._all_lengths == 0).sum())
        found = [f"{empty:,} of {len(self._all_lengths):,} episodes have no steps: left out"] if empty else []
        rates = sorted({one.fps or 0 for one in self.recordings})
        if len(rates) > 1:
            found.append(
                f"files have different rates ({', '.join(f'{rate:g}' for rate in rates)} a second): none holds"
            )
        return [*found, *self._counted(remark for one in self.recordings for remark in one.remarks)]

    def _counted(self, words: Iterable[str]) -> list[str]:
        alone = len(self.recordings) == 1
        return [one if alone else f"{one} (in {count:,} of the files)" for one, count in Counter(words).items()]

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        samples = local + int(self._starts[file])
        needs, pads = self._needs(samples)
        found = self._read(list(needs.values()))
        picked: dict[str, list[list[Any]]] = {name: [[] for _ in range(len(samples))] for name in self.columns}
        for ((name, _), need), values in zip(needs.items(), found, strict=True):
            several = picked[name]
            for sample, at in zip(need.sample.tolist(), need.at.tolist(), strict=True):
                several[sample].append(values[at])
        out: list[dict[str, Any]] = [{} for _ in range(len(samples))]
        for name, of_samples in picked.items():
            windowed = name in self.windows
            for row, several in zip(out, of_samples, strict=True):
                row[name] = self._window_of(name, several) if windowed else several[0]
        for name, pad in pads.items():
            for row, outside in zip(out, pad, strict=True):
                row[name + PAD] = outside
        if self._has_tasks:
            for row, at in zip(out, self.episodes_of(samples).tolist(), strict=True):
                row[TASK] = self._task(at)
        return out

    def _window_of(self, name: str, several: list[Any]) -> Any:
        """Return the values of a window: an array, or a list of images or texts."""
        column = self.columns[name]
        return (
            several
            if column.kind in (IMAGE, TEXT, BYTES) or column.kind.startswith("list:")
            else np.asarray(several, column.kind)
        )

    def _needs(
        self, samples: Int64s, columns: Iterable[str] | None = None
    ) -> tuple[dict[tuple[str, int], _Need], dict[str, Any]]:
        """Return the rows that samples need, by column and episode, and which steps of windows lie outside of it."""
        out: dict[tuple[str, int], _Need] = {}
        pads: dict[str, Any] = {}
        if len(samples) == 1 and not self.windows:  # sorting one row by its episode takes longer than reading it
            episode = bisect_right(self._episode_starts.data, int(samples[0])) - 1
            one, local = self.recordings[int(self._owner[episode])], int(self._local[episode])
            step = int(samples[0]) - int(self._episode_starts[episode])
            for name in self.columns if columns is None else columns:
                track, start = one.track(local, name)
                out[name, episode] = _Need(track, np.asarray([step + start], np.int64), _FIRST, _FIRST)
            return out, pads
        single = samples[:, None]
        shared: dict[str, tuple[Int64s, list[Int64s]]] = {}
        for name in self.columns if columns is None else columns:
            offsets = self.windows.get(name)
            if offsets is None:
                wanted = single
            else:
                wanted, pads[name] = self.window(samples, offsets)
            kind = "" if offsets is None else name
            if kind not in shared:
                episodes = self.episodes_of(samples)
                order = np.argsort(episodes, kind="stable")
                shared[kind] = episodes, np.split(order, np.flatnonzero(np.diff(episodes[order])) + 1)
            episodes, groups = shared[kind]
            for places in groups:
                episode = int(episodes[places[0]])
                track, start = self.recordings[int(self._owner[episode])].track(int(self._local[episode]), name)
                steps = wanted[places] - int(self._episode_starts[episode]) + start
                rows, at = np.unique(steps, return_inverse=True)
                out[name, episode] = _Need(track, rows, np.repeat(places, steps.shape[1]), at.ravel())
        return out, pads

    def _read(self, needs: Sequence[_Need]) -> list[list[Any]]:
        """Return the values of the rows of tracks. Each range is read once, and all in one round trip."""
        pieces = [need.track.pieces(need.rows) for need in needs]
        ranges: dict[str, dict[tuple[int, int], int]] = {}
        for need, found in zip(needs, pieces, strict=True):
            for file, begin, end in zip(found.file.tolist(), found.begin.tolist(), found.end.tolist(), strict=True):
                ranges.setdefault(need.track.paths[file], {})[begin, end] = 0
        files = []
        for path, wanted in ranges.items():
            places = np.asarray(sorted(wanted), np.int64)
            files.append((path, places[:, 0], places[:, 1]))
        blocks: dict[tuple[str, int, int], bytes] = {}
        for (path, begins, ends), found_bytes in zip(files, read_scattered(self.store, files), strict=True):
            for begin, end, block in zip(begins.tolist(), ends.tolist(), found_bytes, strict=True):
                blocks[path, begin, end] = block
        out = []
        for need, found in zip(needs, pieces, strict=True):
            paths = need.track.paths
            zipped = zip(
                found.piece.tolist(), found.file.tolist(), found.begin.tolist(), found.end.tolist(), strict=True
            )
            own = {piece: blocks[paths[file], begin, end] for piece, file, begin, end in zipped}
            out.append(need.track.values(need.rows, own, partial(self._range, paths)))
        return out

    def _range(self, paths: Sequence[str], file: int, begin: int, end: int) -> bytes:
        return self.store.read(paths[file], begin, end - begin)

    def extents(self, indices: Indices) -> Sequence[Extents]:
        wanted = self._inside(indices)
        if self.store.is_local or not len(wanted):
            return ()
        numbers: dict[str, int] = {}
        columns: list[tuple[Int64s, Int64s, Int64s, Int64s]] = [(np.zeros(0, np.int64),) * 4]
        for need in self._needs(wanted)[0].values():
            found = need.track.pieces(need.rows)
            files = np.asarray([numbers.setdefault(path, len(numbers)) for path in need.track.paths], np.int64)
            order = np.argsort(found.row, kind="stable")  # the ranges of each row, for every sample that needs it
            low = np.searchsorted(found.row[order], need.at)
            counts = np.searchsorted(found.row[order], need.at, side="right") - low
            which = order[np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
            sample = np.repeat(need.sample, counts)
            columns.append((sample, files[found.file[which]], found.begin[which], found.end[which]))
        sample, file, begin, end = (np.concatenate(column) for column in zip(*columns, strict=True))
        return [Extents(self.store, list(numbers), sample, file, begin, end)]

    def _extent(self, file: int, local: int) -> tuple[int, int]:
        needs, _ = self._needs(np.asarray([int(self._starts[file]) + local], np.int64))
        path, spans = self.files[file], []
        for need in needs.values():
            found = need.track.pieces(need.rows)
            inside = np.asarray([need.track.paths[n] == path for n in found.file.tolist()], bool)
            spans += list(zip(found.begin[inside].tolist(), found.end[inside].tolist(), strict=True))
        if not spans:
            return 0, self.store.stat(path).size if self.store.exists(path) else 0
        first = min(begin for begin, _ in spans)
        return first, max(end for _, end in spans) - first

    def _key(self, file: int, local: int) -> str:
        return self.key_of(int(self._starts[file]) + local)

    def _file_hash(self, file: int) -> str:
        return self.recordings[self._places[file]].digest

    def fingerprint(self) -> str:
        found = super().fingerprint()
        if self.split is None and not self.windows:
            return found
        windows = [f"{name} {offsets.tolist()}" for name, offsets in sorted(self.windows.items())]
        return hash_words([found, "" if self.split is None else str(self._numbers.tolist()), *windows])

    def fingerprint_of_first(self, count: int) -> str | None:
        return None if self.split is not None or self.windows else super().fingerprint_of_first(count)

    @property
    def splits(self) -> Mapping[str, int]:
        return {name: int(self._all_lengths[episodes].sum()) for name, episodes in self._splits.items()}

    def _find_costs(self, by: str) -> Int64s | None:
        cameras = [name for name, one in self.features.items() if one["dtype"] == IMAGE]
        if by == "frames" and cameras:
            count = sum(len(self.windows.get(name, (0,))) for name in cameras)
            return np.broadcast_to(np.int64(count), (len(self),))
        return super()._find_costs(by)

    def reads(self, path: str) -> bool:
        """Return whether a file of the folder is read."""
        return path in self.files

    def verify(self) -> Sequence[FeedmillError]:
        """Read every step once, and compare checksums that reading does not."""
        findings: list[FeedmillError] = []
        for one in self.recordings:
            findings += one.verify()
        for start, length in zip(self._episode_starts.tolist(), self._lengths.tolist(), strict=True):
            for low in range(start, start + length, _AT_ONCE):
                try:
                    self.read_raw(range(low, min(low + _AT_ONCE, start + length)))
                except FeedmillError as error:
                    findings.append(error)
                    break  # of this episode; the same chunk would be named again
        return findings

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`; ``columns`` maps each column to its type."""
        found = {
            **super().describe(),
            "episodes": len(self._lengths),
            "fps": self._fps,
            "cameras": [name for name, one in self.features.items() if one["dtype"] == IMAGE],
            "columns": {name: str(column) for name, column in self.columns.items()},
        }
        if self._splits:
            found["splits"] = {name: {"samples": count} for name, count in self.splits.items()}
        notes = self._counted(note for one in self.recordings for note in one.notes)
        found |= {"notes": notes} if notes else {}
        return {**found, "remarks": list(self.remarks)} if self.remarks else found


def is_pixels(column: Column) -> bool:
    """Return whether a column has the pixels of a picture, uint8[H, W, 1, 3 or 4]."""
    return column.kind == "uint8" and len(column.shape) == 3 and column.shape[2] in (1, 3, 4) and column.shape[0] > 4


def _common(store: Store, files: Sequence[str], recordings: Sequence[Recording]) -> dict[str, Column]:
    """Return the columns of all files. Raises `DataError` if they differ."""
    filled = [(path, one) for path, one in zip(files, recordings, strict=True) if one.lengths.sum()]
    if not filled:
        return {}
    (first, model), *others = filled
    for path, one in others:
        if dict(one.columns) != dict(model.columns):
            raise different(store.locate(path), one.columns, first, model.columns)
    return dict(sorted(model.columns.items()))


def different(file: str, found: Mapping[str, Column], other: str, expected: Mapping[str, Column]) -> DataError:
    """Return the error for an episode or a file whose columns differ from those of another."""
    name = next(n for n in [*expected, *found] if found.get(n) != expected.get(n))
    have, there = (str(columns.get(name, "missing")) for columns in (found, expected))
    return DataError(
        f"its columns differ from those of {other!r}: {name!r} is {have} here and {there} there",
        file=file,
        kind="other-columns",
        fix="Episodes of one dataset must have the same columns: move these files apart, and mix them with a recipe.",
    )


def _splits(recordings: Sequence[Recording]) -> dict[str, list[int]]:
    """Return split -> numbers of its episodes in all files."""
    out: dict[str, list[int]] = {}
    first = 0
    for one in recordings:
        for name, episodes in one.splits.items():
            out.setdefault(name, []).extend(first + number for number in episodes)
        first += len(one.lengths)
    return out


def open_recordings(store: Store, files: Sequence[str], opener: Any) -> list[Recording]:
    """Open files, several at a time where the store is remote. Raises as the opener."""
    workers = 0 if store.is_local else _THREADS
    return list(ordered_map(opener, files, workers=workers, in_flight=4 * _THREADS))


def columns_of(episodes: Mapping[str, Mapping[str, Column]], file: str) -> dict[str, Column]:
    """Return the columns that the episodes of a file have. Raises `DataError` if they differ."""
    names = list(episodes)
    for _, name in pairwise(names):
        if dict(episodes[name]) != dict(episodes[names[0]]):
            error = different(file, episodes[name], names[0], episodes[names[0]])
            error.record = name
            raise error
    return dict(episodes[names[0]]) if names else {}


def left_out(names: Sequence[str], why: str) -> str:
    """Return a remark on columns that are not read."""
    shown = ", ".join(map(repr, names[:_COUNTED])) + (f" and {len(names) - _COUNTED} more" * (len(names) > _COUNTED))
    return f"{shown}: {why}, not read"
