"""Many samples read and parsed in one call are what each is by itself."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.tar import dataset as tar_samples
from feedmill.formats.tar.dataset import (
    ScannedShards,
    TarDataset,
    parse_any,
    parse_plain,
    parse_together,
    read_together,
)
from feedmill.storage.local import LocalStore
from helpers.tars import make_shards, tar_bytes, write_tar

PARTS = st.sampled_from(["txt", "json", "a.b.json", "tar.gz", "ä", "x/y", "", ".", "__x__", "p" * 30])
KEYS = st.sampled_from(
    ["0", "a/b", "a.d/7", "__s", "__x__/1", ".h", "a/.h", "ü", "k" * 60, "f" * 90 + "/1", "a//b", "/"]
)
FORMS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@st.composite
def blocks(draw: st.DrawFn) -> bytes:
    """One sample, or what an index may take for one."""
    key, form = draw(KEYS), draw(FORMS)
    names = draw(st.lists(PARTS, min_size=1, max_size=4))
    files = [(f"{key}.{name}", draw(st.binary(max_size=600))) for name in names]
    if draw(st.integers(0, 5)) == 0:
        files.append((draw(st.sampled_from(["other.txt", "nodot", key])), b"x"))
    tar = tar_bytes(files, form=form)
    data = bytearray(tar.rstrip(b"\0") + bytes(-len(tar.rstrip(b"\0")) % 512))
    if draw(st.integers(0, 4)) == 0:  # damage
        at = draw(st.integers(0, 511))
        data[at] = draw(st.sampled_from([0, 46, 47, 48, 53, 57, 32, 255]))
    return bytes(data)


def alone(block: bytes) -> object:
    return parse_plain(block, {})


@given(st.lists(blocks(), min_size=tar_samples.FEW, max_size=12))
def test_together_is_as_alone(tmp_path_factory: pytest.TempPathFactory, samples: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("x")
    names = ["a.tar", "b.tar"]
    half = len(samples) // 2
    for name, part in zip(names, (samples[:half], samples[half:]), strict=True):
        (folder / name).write_bytes(b"".join(part))
    lengths = np.array([len(block) for block in samples])
    shards = np.array([0] * half + [1] * (len(samples) - half))
    starts = np.concatenate([np.cumsum(lengths[s]) - lengths[s] for s in (slice(0, half), slice(half, None))])
    known: dict[bytes, str] = {}
    found = read_together(LocalStore(folder), names, shards, starts, starts + lengths)
    if (lengths == 0).any():
        assert found is None
        return
    assert found == samples
    for block, parsed in zip(samples, parse_together(found, known), strict=True):
        if parsed is None:  # left to the others, which may know it for plain where the compiled one is stricter
            continue
        key, spans, names_, content = parsed
        want = alone(block)
        assert want is not None and (key, spans, list(names_), content) == (want[0], want[1], list(want[2]), want[3])
        try:
            reference = parse_any(block)
        except DataError:
            continue  # its checksum does not hold, which the short ways do not look at
        assert reference is not None and reference[:2] == (key, spans)


def dataset(folder: Path) -> TarDataset:
    store = LocalStore(folder)
    return TarDataset(
        store, ScannedShards(store, [e.path for e in store.files("", suffixes=(".tar",))]), name=str(folder)
    )


def content(dataset: TarDataset, indices: list[int]) -> list[object]:
    return [(s.key, {name: s.raw(name) for name in s}, s.source) for s in dataset.read_raw(indices)]


@pytest.mark.parametrize(("limit", "value"), [("FEW", 1000), ("_MEMBERS", 1), ("SMALL", 0)])
def test_any_order_and_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    found = dataset(make_shards(tmp_path, [7, 1, 9, 30]))
    wanted = np.random.default_rng(1).integers(0, len(found), 100).tolist()
    together = content(found, wanted)
    monkeypatch.setattr(tar_samples, limit, value)
    assert content(found, wanted) == together == [one for i in wanted for one in content(found, [i])]


def test_small_samples_have_parts_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fm.open(make_shards(tmp_path, [7, 1, 9, 30]), raw=True, decode=None)
    wanted = np.random.default_rng(2).integers(0, len(found), 60).tolist()
    small = found.read_raw(wanted)
    monkeypatch.setattr(tar_samples, "SMALL", 0)
    large = found.read_raw(wanted)
    assert not small[0]._block and large[0]._block
    for one, other in zip(small, large, strict=True):
        assert one == other and one.source == other.source and repr(one) == repr(other)
        again = pickle.loads(pickle.dumps(one))
        assert again == one and again.source == one.source
        kept = one.select("txt".__eq__)
        assert dict(kept) == {"txt": other.raw("txt")} and kept.source == other.select("txt".__eq__).source
        with pytest.raises(NotFound, match="no part 'png'"):
            one.raw("png")


def test_kinds_of_samples_side_by_side(tmp_path: Path) -> None:
    plain = [(f"k{i}.txt", b"%d" % i) for i in range(20)]
    plain[7:7] = [("long" * 40 + ".txt", b"long"), ("k.x.y.json", b"{}"), ("k.x.y.json", b"two")]
    write_tar(tmp_path / "a.tar", plain, form=tarfile.GNU_FORMAT)
    found = content(dataset(tmp_path), list(range(22)))
    assert [one[0] for one in found[6:10]] == ["k6", "long" * 40, "k", "k7"]
    assert found[8][1] == {"x.y.json": b"two"} and len(found[8][2].names) == 2


def test_a_cut_shard_is_told_as_ever(tmp_path: Path) -> None:
    found = dataset(make_shards(tmp_path, [30]))
    path = tmp_path / "shards" / "shard_000.tar"
    path.write_bytes(path.read_bytes()[: 2048 * 20 + 700])  # as it is before anything is read: nothing is open yet
    with pytest.raises(FeedmillError) as caught:
        found.read_raw(list(range(30)))
    assert caught.value.kind == "truncated" and caught.value.file == str(path)


def test_samples_outlive_the_next_batch(tmp_path: Path) -> None:
    found = dataset(make_shards(tmp_path, [40]))
    first = found.read_raw(range(20))
    found.read_raw(range(20, 40))
    assert [sample.raw("txt") for sample in first] == [found.read_raw([i])[0].raw("txt") for i in range(20)]


def test_an_index_that_asks_for_too_much(tmp_path: Path) -> None:
    make_shards(tmp_path, [20])
    store, name = LocalStore(tmp_path), "shards/shard_000.tar"
    begins = np.arange(20) * 2048
    for ends in (begins + (1 << 62), begins + (1 << 40), begins, begins + 100, begins[::-1].copy()):
        assert read_together(store, [name], np.zeros(20, np.int64), begins, ends) is None


def test_what_lies_behind_the_end_of_a_name_is_no_part_of_it() -> None:
    data = bytearray(tar_bytes([("0.txt", b"one"), ("0.json", b"{}")])[:2048])
    data[99] = data[512 * 2 + 50] = ord("x")  # as writers leave it that do not clear their buffer
    parsed = parse_plain(bytes(data), {})
    assert parsed is not None and parsed[:2] == ("0", {"txt": (512, 515), "json": (1536, 1538)})
