"""Samples that are alike become a batch without a `Sample` for each: the same batch, and the same errors."""

from __future__ import annotations

import io
import os
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats.tar.dataset import FEW
from feedmill.jobs import buffers
from feedmill.loading.collate import collate, collate_parts
from helpers.durations import examples
from helpers.tars import write_tar

KIB = 1 << 10


def npy(number: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(4) + number)
    return out.getvalue()


def files(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Samples of 40 KiB and more, the key and content of which say their number."""
    out: list[tuple[str, bytes]] = []
    for number in range(first, first + count):
        content = {"bin": bytes([number % 251]) * (40 * KIB + number), "cls": b"%d" % number, "npy": npy(number)}
        out += [(f"{number:04d}ü.{part}", data) for part, data in [*content.items(), ("json", b'{"n": %d}' % number)]]
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parts")
    write_tar(root / "a.tar", files(30))
    write_tar(root / "b.tar", files(25, 30))
    return root


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def check_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    assert all(same(found[name], wanted[name]) for name in wanted)


@settings(deadline=None, max_examples=examples(40))
@given(raw=st.booleans(), drawn=st.lists(st.integers(0, 54), min_size=FEW, max_size=40))
def test_parts_are_what_collating_gives(folder: Path, raw: bool, drawn: list[int]) -> None:
    plan = fm.Plan.over(fm.open(str(folder), raw=True, **({"decode": None} if raw else {})), shuffle="global")
    parts = plan.read_batch(drawn, "parts")
    assert parts is not None
    samples = plan.read(drawn)
    check_same(collate_parts(parts), collate(samples))
    for number, sample in enumerate(samples):
        assert parts.source(number) == sample.source


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_gives_the_same(folder: Path, workers: int) -> None:
    plan = fm.Plan.over(fm.open(str(folder), raw=True))
    loaders = [fm.Loader(plan, 16, workers=workers, transform=transform) for transform in (None, lambda sample: sample)]
    for found, wanted in zip(*[islice(loader, 12) for loader in loaders], strict=True):
        check_same(found, wanted)


def test_a_view_keeps_its_memory(folder: Path) -> None:
    dataset = fm.open(str(folder), raw=True)
    kept = [dataset.read_batch(range(first, first + 10), "parts") for first in range(0, 50, 10)]
    views = [view for parts in kept if parts is not None for view in parts.views["bin"]]
    del kept
    before = buffers.waiting()
    for number, view in enumerate(views):
        assert view == bytes([number]) * (40 * KIB + number)
    assert len(views) == 50
    del views, view
    assert buffers.waiting() > before  # what nobody looks at any more waits to be used again


@pytest.mark.parametrize("kind", ["lacking", "order", "twice", "pax"])
def test_samples_that_are_not_alike(tmp_path: Path, kind: str) -> None:
    members, form = files(20), tarfile.USTAR_FORMAT
    if kind == "lacking":
        del members[17]
    elif kind == "order":
        members[16:18] = members[17:15:-1]
    elif kind == "twice":
        members = [part for one in members for part in ([one, one] if one[0].endswith("cls") else [one])]
    else:
        members = [("p" * 120 + name, data) for name, data in members]
        form = tarfile.PAX_FORMAT
    write_tar(tmp_path / "a.tar", members, form=form)
    dataset = fm.open(str(tmp_path), raw=True)
    assert dataset.read_batch(range(20), "parts") is None
    found = next(iter(fm.Loader(fm.Plan.over(dataset, shuffle="none", epochs=1), 20)))
    check_same(found, collate(dataset.read(range(20))))


def test_few_samples_typed_ones_and_several_sources(folder: Path) -> None:
    dataset = fm.open(str(folder), raw=True)
    assert dataset.read_batch(range(FEW - 1), "parts") is None
    assert fm.Plan.over([dataset, dataset], weights=[1, 1]).read_batch(range(20), "parts") is None
    viewed = dataset.opened_as(view=lambda samples: samples)
    assert viewed.read_batch(range(20), "parts") is None and dataset.read_batch(range(20), "parts") is not None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_cut_short_while_it_is_read(tmp_path: Path, workers: int) -> None:
    path = write_tar(tmp_path / "a.tar", files(40))
    plan = fm.Plan.over(fm.open(str(path), raw=True), shuffle="none", epochs=1)
    batches = iter(fm.Loader(plan, 10, workers=workers, prefetch=1))
    assert next(batches)["cls"].tolist() == list(range(10))
    os.truncate(path, path.stat().st_size - 60 * KIB)
    with pytest.raises(DataError) as caught:
        list(batches)
    assert caught.value.kind == "truncated" and "position 3" in str(caught.value) and str(path) in str(caught.value)


def test_a_part_that_cannot_be_decoded(tmp_path: Path) -> None:
    members = files(40)
    members[4 * 13 + 1] = (members[4 * 13 + 1][0], b"no number")
    write_tar(tmp_path / "a.tar", members)
    plan = fm.Plan.over(fm.open(str(tmp_path), raw=True), shuffle="none", epochs=1)
    with pytest.raises(DataError, match=r"0013ü\.cls.*position 13"):
        list(fm.Loader(plan, 20))
    loader = fm.Loader(plan, 20, on_error="substitute")
    numbers = [number for batch in loader for number in batch["cls"].tolist()]
    assert loader.failures == 1 and [n for n in range(40) if numbers[n] != n] == [13]


class Handle:
    """Decodes later, and wants to know for its errors what it is of."""

    def __init__(self, name: str, data: bytes) -> None:
        self.said: Any = name

    def came_from(self, *said: Any) -> None:
        self.said = said


def test_handles_are_told_of_which_sample_they_are(folder: Path) -> None:
    dataset = fm.open(str(folder), raw=True, decode=Handle)
    batch = next(iter(fm.Loader(fm.Plan.over(dataset, shuffle="global"), 20)))
    wanted = collate([dataset[key] for key in batch["__key__"]])
    assert [handle.said for handle in batch["bin"]] == [handle.said for handle in wanted["bin"]]


class Reversed(fm.samples.Decoder):
    """A decoder with a call of its own."""

    def __call__(self, name: str, data: bytes) -> Any:
        return data[::-1]


def test_a_decoder_with_a_call_of_its_own_is_called(folder: Path) -> None:
    decoder = Reversed()
    assert decoder.each("json", [b"12"]) == [b"21"] and fm.samples.Decoder().each("json", [b"12"]) == [12]
    plan = fm.Plan.over(fm.open(str(folder), raw=True, decode=decoder), shuffle="none")
    batch = next(iter(fm.Loader(plan, 10)))
    assert batch["cls"] == [str(number).encode()[::-1] for number in range(10)]


def test_each_is_what_calls_give() -> None:
    for decoder in (fm.samples.Decoder(), fm.samples.Decoder(guess_content=True)):
        for name, parts in {
            "json": [b"1", b"NaN0"[:3]],
            "x.txt": [b"a", b""],
            "__k.json": [b"1"],
            "b": [b"\0"],
        }.items():
            assert repr(decoder.each(name, parts)) == repr([decoder(name, part) for part in parts])
        with pytest.raises(DataError, match="'json' cannot be decoded"):
            decoder.each("json", [b"1", b"{"])
