"""One suite for every format: length, order, bulk reads, keys, sources, threads, fingerprints; local and remote."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedmill.errors import NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.batches import Parts
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.rows import RowsDataset
from feedmill.formats.sample import Sample
from feedmill.formats.tar.dataset import TarDataset
from feedmill.indexing.prepare import prepare
from feedmill.loading.collate import collate, collate_parts
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore, open_store
from helpers.dataset_kinds import FORMATS, PACKED, PARTS, REMOTE, SOURCES, TOKEN_FILE, TOKENS, TOTAL, make, opened
from helpers.durations import examples
from helpers.tars import make_shards, write_tar


@pytest.fixture(scope="module", params=[*FORMATS, *TOKENS, *SOURCES])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def dataset(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return opened(make(tmp_path_factory.mktemp(kind), kind), kind)


def number(sample: Any) -> int:
    if "input_ids" in sample:
        assert sample["input_ids"].tolist() == [sample["input_ids"][0]] * 3
        return int(sample["input_ids"][0])
    return int(sample["n"] if "n" in sample else sample["json"]["n"])


def test_length_and_stored_order(dataset: Dataset) -> None:
    assert len(dataset) == TOTAL
    assert [number(sample) for sample in dataset] == list(range(TOTAL))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indices=st.lists(st.integers(0, TOTAL - 1), max_size=40))
def test_bulk_reads_give_what_was_asked_in_order(dataset: Dataset, indices: list[int]) -> None:
    assert [number(sample) for sample in dataset.read(np.asarray(indices, np.int64))] == indices


def test_another_process_gets_the_same(dataset: Dataset) -> None:
    sent = pickle.dumps(dataset)
    copy = pickle.loads(sent)
    assert len(sent) < 3000 and copy.fingerprint() == dataset.fingerprint()
    assert [number(sample) for sample in copy] == list(range(TOTAL))


def test_single_and_sliced_access(dataset: Dataset) -> None:
    assert number(dataset[3]) == 3
    assert number(dataset[-1]) == TOTAL - 1
    assert [number(s) for s in dataset[2:9:3]] == [2, 5, 8]
    for wrong in (TOTAL, -TOTAL - 1):
        with pytest.raises(IndexError):
            dataset[wrong]
    for wrong in (TOTAL, -1):
        for indices in ([wrong], [0, wrong]):
            with pytest.raises(IndexError):
                dataset.read(indices)


def test_one_sample_is_as_in_bulk(dataset: Dataset) -> None:
    for one, bulk in zip([dataset[index] for index in range(TOTAL)], dataset[:], strict=True):
        assert type(one) is type(bulk)
        if isinstance(one, Sample):
            assert (one.key, one.source, one.home) == (bulk.key, bulk.source, bulk.home)
            assert {name: one.raw(name) for name in one} == {name: bulk.raw(name) for name in bulk}


@pytest.mark.parametrize("raw", [True, False])
def test_a_batch_of_parts_is_that_of_its_samples(dataset: Dataset, kind: str, raw: bool) -> None:
    given = dataset.opened_as(decode=None) if raw else dataset
    indices = np.asarray([7, 3, *range(TOTAL), 3], np.int64)
    parts = given.read_batch(indices, "parts")
    if raw and isinstance(given, RowsDataset | TarDataset | JsonlDataset):
        assert isinstance(parts, Parts) or given.view is not None or kind == "pax"  # its headers are not plain
    if isinstance(parts, Parts) and (raw or kind != "img2dataset-webdataset"):  # its images are none
        samples = given.read(indices)
        np.testing.assert_equal(collate_parts(parts), collate(samples))
        np.testing.assert_equal(collate_parts(parts.cut(2, 5)), collate(samples[2:5]))
        assert [parts.source(number) for number in range(len(indices))] == [sample.source for sample in samples]
        assert parts.cut(2, 5).source(1) == samples[3].source


def test_keys_find_their_samples(dataset: Dataset) -> None:
    for index in range(TOTAL):
        key = dataset.locate(index).key
        assert dataset.find(key) == index
        assert number(dataset[key]) == index
    for wrong in ("nope", "s99999", "", "-1", "9" * 5000, "007"):
        with pytest.raises(NotFound):
            dataset.find(wrong)


def test_sources_point_at_the_bytes(dataset: Dataset, kind: str) -> None:
    for index, sample in enumerate(dataset.read_raw(range(TOTAL))):
        source = sample.source
        assert source == dataset.locate(index)
        assert source.index == index
        folder, _, name = source.where.rpartition("/")
        block = LocalStore(folder).read(name, source.offset, source.length)
        part = PARTS.get(kind, "text" if "text" in sample else "json")
        assert len(block) == source.length and (kind in PACKED or sample.raw(part) in block)


def test_parts_by_file_name(dataset: Dataset, kind: str) -> None:
    key = dataset.locate(7).key
    if kind in TOKENS:
        assert np.frombuffer(dataset.get(f"{key}.input_ids"), "<u2").tolist() == [7, 7, 7]
        return
    if "n" in dataset[7]:
        assert dataset.get(f"{key}.n") == b"7"
    else:
        assert json.loads(dataset.get(f"{key}.json"))["n"] == 7
    with pytest.raises(NotFound, match="no part 'webm'"):
        dataset.get(f"{key}.webm")


def test_threads_read_the_same(dataset: Dataset) -> None:
    orders = [np.random.default_rng(seed).permutation(TOTAL) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(dataset.read, orders))
    assert [[number(s) for s in samples] for samples in found] == [order.tolist() for order in orders]


def test_fingerprint_is_stable_and_notices_change(dataset: Dataset, kind: str, tmp_path: Path) -> None:
    assert dataset.fingerprint() == opened(dataset.url, kind).fingerprint()
    assert len(dataset.fingerprint()) == 32


@pytest.mark.parametrize("kind", ["prepared", "plain", "jsonl", *TOKENS])
def test_fingerprint_of_other_data_differs(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = make(tmp_path / "a", kind)
    second = make(tmp_path / "b", kind)
    assert opened(first, kind).fingerprint() == opened(second, kind).fingerprint()  # same data, other place
    if kind in TOKENS:
        folder = Path(second) if Path(second).is_dir() else Path(second).parent
        path = folder / TOKEN_FILE[kind.partition("-")[0]]
        data = bytearray(path.read_bytes())
        data[-1 if kind == "flat" else 20] ^= 1  # its header would be invalid otherwise
        path.write_bytes(data)
    elif kind == "jsonl":
        with open(second, "a") as f:
            f.write('{"n": 99}\n')
        prepare(second, progress=False)
    else:
        write_tar(Path(second) / "shards" / "shard_000.tar", [("x.json", b'{"n": 1}')])
        if kind == "prepared":
            prepare(second, progress=False)
    assert opened(first, kind).fingerprint() != opened(second, kind).fingerprint()


def test_describe_has_the_facts(dataset: Dataset) -> None:
    facts = dataset.describe()
    assert facts["samples"] == TOTAL
    assert facts["bytes"] > 0
    assert facts["shards"] >= 1


def test_a_file_cut_after_indexing_is_noticed_when_read(tmp_path: Path) -> None:
    from feedmill.errors import DataError

    root = make_shards(tmp_path, [6])
    prepare(str(root), split_ratio="1,0,0", progress=False)
    shard = root / "shards" / "shard_000.tar"
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"shard_000.tar: .* expected 20,480 bytes, found 3,000.* 'feedmill check'"):
        open_dataset(root)[0]
    (root / ".nv-meta" / "feedmill.shards.json").unlink()  # as Energon prepares
    dataset = open_dataset(root)
    assert dataset[0].key == "s00000"
    with pytest.raises(DataError, match=r"shard_000.tar at byte \d+: the file is truncated .* run 'feedmill check'"):
        dataset[5]


def test_a_file_rewritten_after_indexing_is_noticed_when_read(tmp_path: Path) -> None:
    from feedmill.errors import DataError

    root = make_shards(tmp_path, [6])
    prepare(str(root), split_ratio="1,0,0", progress=False)
    shard = root / "shards" / "shard_000.tar"
    shard.write_bytes(b"#" * shard.stat().st_size)
    with pytest.raises(DataError, match=r"shard_000.tar: this is not the shard that was indexed"):
        open_dataset(root)[0]
    (root / ".nv-meta" / "feedmill.shards.json").unlink()
    with pytest.raises(DataError, match=r"shard_000.tar at byte 0: invalid tar header"):
        open_dataset(root)[0]


@pytest.mark.parametrize("kind", ["prepared", "plain", "jsonl", "documents", "vla", *TOKENS, *REMOTE])
def test_the_same_through_an_object_store(
    kind: str, tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))
    s3_url = f"{s3_bucket}/deep/data"
    local = Path(make(tmp_path, kind))
    top = local if local.is_dir() else local.parent
    remote = open_store(s3_url)
    for path in sorted(top.rglob("*")):
        if path.is_file():
            remote.write_bytes(path.relative_to(top).as_posix(), path.read_bytes())
    url = s3_url if local.is_dir() else f"{s3_url}/{local.name}"
    ours, theirs = opened(str(local), kind), opened(url, kind)
    assert len(theirs) == TOTAL
    order = np.random.default_rng(3).permutation(TOTAL)
    assert [number(s) for s in theirs.read(order)] == order.tolist()
    assert theirs.fingerprint() == ours.fingerprint()
    key = ours.locate(4).key
    assert theirs.find(key) == 4
    assert theirs.locate(4).where.startswith("s3://")
