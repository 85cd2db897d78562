"""What `Dataset.extents` promises: the bytes that a read will ask a remote store for, known from the index alone."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.formats.base import Dataset
from feedmill.formats.jsonl.splits import LineSplits, Pieces, write_splits
from feedmill.formats.npz.dataset import NpzDataset
from feedmill.formats.offsets import Extents
from feedmill.formats.tokens.pbin import open_pbins, write_pbin
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.formats.unpacked import UnpackedStore
from feedmill.samples.joined import JoinedDataset
from feedmill.samples.open import open as open_dataset
from feedmill.samples.views import SelectedDataset
from feedmill.storage import LocalStore, open_store
from helpers.dataset_kinds import COUNTS, FORMATS, SOURCES, TOKENS, TOTAL, make, opened

COPIED = {
    "arrow": "the file is copied and mapped when it is opened",
    "huggingface": "its Arrow files are copied and mapped when they are opened",
    "documents-packed": "its files are unpacked when they are opened",
}
"""Datasets whose samples ask the store for nothing, and why."""
WASTE = 1.1
CHOICES = [[], [7], [3, 3, 0, 3], list(range(TOTAL)), [TOTAL - 1, 4, 5, 6, 0, 5], list(range(TOTAL))[::-1]]

Bytes = dict[str, int]
"""By file, a bit for each byte."""


class Recorder:
    """Makes folders of this machine look remote, and records every byte that is read of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read: Bytes = {}
        read, copy = LocalStore.read, LocalStore.local_copy

        def recorded(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
            data = read(store, path, offset, length)
            self._add(store, path, offset, len(data))
            return data

        def ranges(store: LocalStore, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
            return [store.read(path, offset, length) for offset, length in zip(offsets, lengths, strict=True)]

        def copied(store: LocalStore, path: str) -> AbstractContextManager[Path]:
            self._add(store, path, 0, store.stat(path).size)
            return copy(store, path)

        patch.setattr(LocalStore, "is_local", False)
        patch.setattr(LocalStore, "descriptors", lambda store, paths: None)
        for name, function in (("read", recorded), ("read_ranges", ranges), ("local_copy", copied)):
            patch.setattr(LocalStore, name, function)

    def _add(self, store: LocalStore, path: str, offset: int, length: int) -> None:
        if not isinstance(store, UnpackedStore):
            add(self.read, store.locate(path), offset, offset + length)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recorder]:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))
    return Recorder(monkeypatch)


def add(found: Bytes, file: str, begin: int, end: int) -> None:
    if begin < end:
        found[file] = found.get(file, 0) | (1 << end) - (1 << begin)


def size(found: Bytes) -> int:
    return sum(bits.bit_count() for bits in found.values())


def covered(extents: Sequence[Extents], sample: int | None = None) -> Bytes:
    """All bytes of the ranges, or those that one sample is in need of."""
    found: Bytes = {}
    for each in extents:
        files = [each.store.locate(path) for path in each.paths]
        rows = zip(*(column.tolist() for column in each[2:6]), strict=True)
        for place, file, begin, end in rows:
            if sample in (None, place):
                add(found, files[file], begin, end)
    return found


def check(dataset: Dataset, indices: list[int], recorder: Recorder) -> None:
    """Check the promise of a dataset for samples that it reads after that."""
    wanted = np.asarray(indices, np.int64)
    extents = dataset.extents(wanted)
    recorder.read.clear()
    again = dataset.extents(wanted)
    alone = [covered(dataset.extents([index])) for index in indices]
    assert not recorder.read  # what they need of the index is kept
    expected = covered(extents)
    assert expected == covered(again)
    assert alone == [covered(extents, place) for place in range(len(indices))]
    assert dataset.is_remote
    for each in extents:
        assert {column.dtype for column in each[2:6]} == {np.dtype(np.int64)}
        assert len({len(column) for column in each[2:6]}) == 1
    dataset.read(wanted)
    assert not [file for file, bits in recorder.read.items() if bits & ~expected.get(file, 0)]
    assert size(expected) <= WASTE * size(recorder.read)
    assert bool(expected) == bool(indices)


@pytest.mark.parametrize("kind", sorted({*FORMATS, *TOKENS, *SOURCES} - COPIED.keys()))
def test_extents_are_what_is_read(kind: str, tmp_path: Path, recorder: Recorder) -> None:
    url = make(tmp_path, kind)
    for indices in CHOICES:
        check(opened(url, kind), indices, recorder)
    for wrong in (TOTAL, -1):
        with pytest.raises(IndexError):
            opened(url, kind).extents([0, wrong])


@pytest.mark.parametrize("kind", COPIED)
def test_files_that_were_copied_have_none(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(make(tmp_path, kind), kind)
    recorder = Recorder(monkeypatch)
    assert dataset.extents([0, 1]) == () and len(dataset.read([0, 1])) == 2 and not recorder.read


@pytest.mark.parametrize("kind", [*FORMATS, *TOKENS, *SOURCES])
def test_local_datasets_have_none(kind: str, tmp_path: Path) -> None:
    assert opened(make(tmp_path, kind), kind).extents([0, 1]) == ()


@pytest.mark.parametrize("kind", ["mds-gz", "parquet", "lerobot-v3"])
def test_what_is_cached_is_not_asked_for_again(kind: str, tmp_path: Path, recorder: Recorder) -> None:
    dataset = opened(make(tmp_path, kind), kind)
    dataset.read([0, 1])
    assert not covered(dataset.extents([0, 1])) and covered(dataset.extents([TOTAL - 1]))
    check(dataset, [0, TOTAL - 1, 1, TOTAL - 1], recorder)


@pytest.mark.parametrize("kind", ["prepared", "pbin", "ds", "mds", "npz", "parquet", "lerobot-v2"])
def test_the_index_of_all_files_is_asked_for_at_once(
    kind: str, tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(_npz(tmp_path)) if kind == "npz" else make(tmp_path, kind)
    dataset = opened(url, kind)
    together, first, lock = threading.Barrier(len(COUNTS), timeout=300), [len(COUNTS)], threading.Lock()
    read = LocalStore.read

    def waiting(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with lock:
            first[0] -= 1
        if first[0] >= 0:
            together.wait()
        return read(store, path, offset, length)

    monkeypatch.setattr(LocalStore, "read", waiting)
    assert covered(dataset.extents(range(TOTAL)))


def _npz(root: Path, save: Callable[..., None] = np.savez) -> Path:
    """Files with all kinds of arrays: keys, text with offsets, arrays with shapes, numbers in Fortran order."""
    forms = {"__key__": "text", "text": "text", "grid": "array:<i4"}
    for file, (high, count) in enumerate(zip(np.cumsum(COUNTS).tolist(), COUNTS, strict=True)):
        numbers = range(high - count, high)
        texts = [f"text {n} " * (n + 1) for n in numbers]
        keys = [f"k{n:03d}" for n in numbers]
        arrays = {"n": np.arange(numbers.start, high), "wide": np.asfortranarray(np.ones((count, 7)))}
        arrays["__columns__"] = np.frombuffer(json.dumps({**forms, "n": "", "wide": ""}).encode(), np.uint8)
        for name, values in (("__key__", keys), ("text", texts)):
            arrays[name] = np.frombuffer("".join(values).encode(), np.uint8)
            arrays[f"{name}.offsets"] = np.cumsum([0, *map(len, values)])
        arrays["grid"] = np.arange(2 * sum(numbers), dtype="<i4")
        arrays["grid.shapes"] = np.asarray([(2, n) for n in numbers])
        arrays["grid.offsets"] = np.cumsum([0, *(2 * n for n in numbers)])
        save(root / f"{file}.npz", **arrays)
    return root


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_archive(save: Callable[..., None], tmp_path: Path, recorder: Recorder) -> None:
    local = NpzDataset(LocalStore(_npz(tmp_path, save)), [f"{n}.npz" for n in range(len(COUNTS))], name="x")
    for indices in CHOICES:
        dataset = opened(str(tmp_path), "npz")
        check(dataset, indices, recorder)
        for ours, theirs in zip(dataset.read_raw(indices), local.read_raw(indices), strict=True):
            assert {part: ours.raw(part) for part in ours} == {part: theirs.raw(part) for part in theirs}


def test_a_row_group_in_pieces(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    url = make(tmp_path, "parquet")
    expected = [dict(sample.row) for sample in opened(url, "parquet").read_raw(range(TOTAL))]
    monkeypatch.setattr("feedmill.formats.columns._PIECE", 7)
    dataset = opened(url, "parquet")
    check(dataset, list(range(TOTAL)), recorder)
    assert [dict(sample.row) for sample in dataset.read_raw(range(TOTAL))] == expected


@pytest.mark.parametrize("kind", ["prepared", "jsonl", "documents", "pbin", "mds", "parquet", "arrow"])
def test_extents_of_an_object_store(kind: str, tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))
    path = Path(make(_folder(tmp_path, "data"), kind))
    remote = open_store(s3_bucket)
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            remote.write_bytes(file.relative_to(tmp_path / "data").as_posix(), file.read_bytes())
    theirs = covered(opened(s3_bucket + str(path).removeprefix(str(tmp_path / "data")), kind).extents([3, 1, 17]))
    ours = opened(str(path), kind)
    Recorder(monkeypatch)
    expected = covered(ours.extents([3, 1, 17]))
    assert {name.removeprefix(str(tmp_path / "data")): bits for name, bits in expected.items()} == {
        name.removeprefix(s3_bucket): bits for name, bits in theirs.items()
    }
    assert bool(theirs) == (kind not in COPIED)


def test_excluded_samples_and_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tars").mkdir()
    (tmp_path / "lines").mkdir()
    folder, lines = make(tmp_path / "tars", "prepared"), make(tmp_path / "lines", "jsonl")
    split = Path(folder, ".nv-meta/split.yaml")
    listed = "[shards/shard_000.tar/s00001, shards/shard_002.tar/s00006]"
    split.write_text(split.read_text().replace("exclude: []", f"exclude: {listed}"))
    last = int(np.fromfile(f"{lines}.idx", "<i8")[TOTAL - 1])
    parts = {"train": Pieces([(2, 5), (9, TOTAL)]), "val": Pieces([(0, 2)])}
    write_splits(LocalStore(tmp_path / "lines"), "lines.jsonl", LineSplits(TOTAL, last, parts))
    datasets = [open_dataset(url, split="train") for url in (folder, lines)]
    assert [len(dataset) for dataset in datasets] == [TOTAL - 2, TOTAL - 6]
    recorder = Recorder(monkeypatch)  # behind the opening, which copies the index of keys
    for dataset in datasets:
        for indices in ([], [3, 0, 3, len(dataset) - 1], list(range(len(dataset)))):
            check(dataset, indices, recorder)


@pytest.mark.parametrize("options", [{}, {"positions": True}, {"boundaries": True, "eos": 3}])
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(("width", "stride"), [(2, 2), (4, 3), (3, 5), (17, 2)])
def test_windows(
    width: int, stride: int, across: bool, tail: str, options: dict[str, Any], tmp_path: Path, recorder: Recorder
) -> None:
    make(tmp_path, "pbin")
    make_tokens_without_documents(tmp_path)
    pad = 0 if tail == "pad" else None
    for picked in (slice(None), slice(None, None, -3)):
        tokens = open_pbins(LocalStore(tmp_path), [f"{n}.pbin" for n in (0, "none", 1, 2, 3)], "x")
        dataset = WindowDataset(tokens, width=width, stride=stride, across=across, tail=tail, pad=pad, **options)
        check(dataset, list(range(len(dataset)))[picked], recorder)


def make_tokens_without_documents(root: Path) -> None:
    with write_pbin(LocalStore(root), "none.pbin", 2):
        pass


def test_documents_of_no_tokens_are_not_asked_for(tmp_path: Path, recorder: Recorder) -> None:
    with write_pbin(LocalStore(tmp_path), "0.pbin", 2) as out:
        out.add(np.arange(5), np.array([2, 0, 3, 0]))
    dataset = opened(str(tmp_path / "0.pbin"), "pbin")
    assert [size(covered(dataset.extents([n]))) for n in range(4)] == [4, 0, 6, 0]


def test_selected_samples(tmp_path: Path, recorder: Recorder) -> None:
    whole = opened(make(tmp_path, "mds"), "mds")
    numbers = np.arange(1, TOTAL, 3)
    for indices in ([], [2, 2, 0], list(range(len(numbers)))):
        check(SelectedDataset(whole, numbers, "some"), indices, recorder)
        assert covered(SelectedDataset(whole, numbers, "some").extents(indices)) == covered(
            whole.extents(numbers[indices])
        )


def test_joined_samples(tmp_path: Path, recorder: Recorder) -> None:
    left, right = (opened(make(_folder(tmp_path, name), "prepared"), "prepared") for name in "ab")
    rows = np.array([[4, 4], [7, -1], [0, 0], [12, 12]])
    for indices in ([], [3, 0, 3], [1], [0, 1, 2, 3]):
        check(JoinedDataset([left, right], rows), indices, recorder)


def _folder(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name


@pytest.mark.parametrize("kind", sorted({*FORMATS, *TOKENS, *SOURCES} - COPIED.keys()))
def test_many_indices_are_not_looped_over(kind: str, tmp_path: Path, recorder: Recorder) -> None:
    dataset = opened(make(tmp_path, kind), kind)
    few, many = np.arange(TOTAL), np.arange(100 * TOTAL) % TOTAL
    dataset.extents(few)

    def calls(indices: Any) -> int:
        seen = 0

        def count(*_: Any) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(count)
        try:
            dataset.extents(indices)
        finally:
            sys.setprofile(None)
        return seen

    assert calls(many) <= calls(few) + 10
