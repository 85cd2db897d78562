"""Energon's smaller modules: hooks of forks, printed samples, the pool and media files, and what is not there."""

from __future__ import annotations

import importlib
import io
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from feedmill.compat.energon.flavors.webdataset.aggregator_pool import AggregatorPool, BaseAggregator
from feedmill.compat.energon.media import MediaMetadataBase, deserialize_media_metadata, serialize_media_metadata
from feedmill.compat.energon.media.extractor import MediaFilterConfig, MediaFilterStrategy
from feedmill.compat.energon.media.filesystem_prepare import prepare_filesystem_dataset

from feedmill.compat.energon.fork_hook import DataclassForkMixin, ForkMixin, WeakCallbacks
from feedmill.compat.energon.modules import INTERNALS
from feedmill.compat.energon.sample_utils import (
    default_get_batch_keys,
    format_sample_compact,
    format_sample_detailed,
)
from feedmill.errors import ConfigError, FeedmillError


def test_callbacks_end_with_their_objects():
    calls = []

    class Owner:
        def method(self, word):
            calls.append(word)

    owner, callbacks = Owner(), WeakCallbacks()
    for _ in range(2):
        callbacks.add_hook(owner.method)
    callbacks.add_hook(lambda word: calls.append(word + "!"), make_persistent=True)
    callbacks.run("a")
    assert calls == ["a", "a!"]
    del owner
    callbacks.run("b")
    assert calls == ["a", "a!", "b!"]


def test_hooks_run_in_parent_and_child():
    seen = []

    class Plain(ForkMixin):
        def __before_fork__(self):
            seen.append("before")

        def __after_in_child_fork__(self):
            seen.append("child")

    @dataclass
    class Fields(DataclassForkMixin):
        number: int = 3

        def __after_in_parent_fork__(self):
            seen.append("parent")

    plain, fields = Plain(), Fields()
    child = os.fork()
    if not child:
        os._exit(0 if seen == ["before", "child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen == ["before", "parent"]
    del plain, fields


def test_printed_samples():
    torch = pytest.importorskip("torch")
    sample = {"a": np.arange(8), "t": torch.zeros(2), "none": np.zeros(0), "long": "x" * 1002, 3: (1, {"b": None})}
    assert (
        format_sample_detailed(sample, "  ")
        .splitlines()[0]
        .startswith("  a: np.ndarray(shape=(8,), dtype=int64, min=0")
    )
    text = format_sample_detailed(sample)
    assert ", ..., np.int64(5)" in text and "(and 2 more characters)" in text and "none: np.ndarray(shape=(0,)" in text
    assert "t: Tensor(shape=torch.Size([2]), dtype=torch.float32, device=cpu, min=0.0, max=0.0" in text
    many = format_sample_detailed({"l": list(range(12)), **{str(n): n for n in range(30)}})
    assert "... and 2 more items" in many and "'...': and 6 more items" in many
    compact = format_sample_compact({"k": [1, (2, [3, [4]])], "t": torch.zeros(1), "s": "y" * 60})
    assert compact.startswith("{k: [1, (2, [...])], t: Tensor(shape=torch.Size([1])") and compact.endswith("yyy...'}")


@pytest.mark.parametrize(
    ("batch", "keys"),
    [
        ({"__key__": ["a"]}, ["a"]),
        ({"keys": ["b"]}, ["b"]),
        ([{"__keys__": ["c"]}], ["c"]),
        ({"x": 1}, None),
        ([], None),
    ],
)
def test_keys_of_a_batch(batch, keys):
    assert default_get_batch_keys(batch) == keys


class Sum(BaseAggregator):
    def __init__(self):
        self.batches = []

    def on_start(self, aggregator_pool):
        assert aggregator_pool.num_workers

    def on_item(self, items, aggregator_pool):
        self.batches.append(items)

    def get_final_result_data(self):
        return sorted(self.batches)


def test_a_pool_collects_what_its_processes_yield():
    pool = AggregatorPool[int, int, list](3, lambda task: range(task), Sum(), batch_size=2)
    for task in (3, 1, 0, 4):
        pool.submit_task(task)
    assert pool.process() == [[0], [0, 1], [0, 1], [2], [2, 3]]
    with pytest.raises(ConfigError, match="must be positive"):
        AggregatorPool(0, range, Sum())


def test_errors_and_deaths_of_a_pool():
    def fails(task):
        raise KeyError(task)
        yield

    def dies(task):
        time.sleep(0.1)
        os._exit(7)
        yield

    for function, kind, words in ((fails, KeyError, "5"), (dies, FeedmillError, "was killed")):
        pool = AggregatorPool(1, function, Sum())
        pool.submit_task(5)
        with pytest.raises(kind, match=words):
            pool.process()


def test_media_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (4, 3)).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    chosen = MediaFilterConfig(strategy=MediaFilterStrategy.EXTENSION)
    metadata = chosen.extract_metadata(tmp_path / "a.png")
    assert metadata == chosen.extract_metadata(buffer.getvalue(), "a.png") and (metadata.width, metadata.height) == (
        4,
        3,
    )
    assert chosen.extract_metadata(b"text", "a.txt") is None
    assert MediaFilterConfig(MediaFilterStrategy.GLOB, ["*.png"]).extract_metadata(b"x", "a.txt") is None
    assert deserialize_media_metadata(*serialize_media_metadata(metadata)) == metadata
    assert serialize_media_metadata(metadata)[0] == "image" and isinstance(metadata, MediaMetadataBase)
    with pytest.raises(ValueError, match="nonsense"):
        deserialize_media_metadata("nonsense", "{}")
    assert prepare_filesystem_dataset(tmp_path, chosen, progress=False) == 1


def test_names_of_files():
    from feedmill.compat.energon.flavors.webdataset import config

    names = (
        config.MAIN_FOLDER_NAME,
        config.INFO_JSON_FILENAME,
        config.INDEX_SQLITE_FILENAME,
        config.INDEX_UUID_FILENAME,
    )
    assert names == (".nv-meta", ".info.json", "index.sqlite", "index.uuid") and Path(config.SPLIT_YAML_FILENAME)


def test_every_inner_name_can_be_imported():
    for module, names in INTERNALS.items():
        found = importlib.import_module(f"feedmill.compat.energon.{module}")
        assert all(getattr(found, name) is not None for name in names) and set(names) <= set(found.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        importlib.import_module("feedmill.compat.energon.cli.main").nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("", "GcDataset", r"call gc.collect\(\) in the loop"),
        ("wrappers.watchdog_dataset", "WatchdogDataset", "give watchdog_timeout_seconds and fail_on_timeout"),
        ("wrappers", "LogSampleDataset", "`feedmill trace` shows"),
        ("flavors.webdataset.indexing", "SqliteIndexWriter", "`feedmill prepare` writes the index"),
        ("av.av_reader", "AVProbeIndex", "AVDecoder finds frames"),
        ("transforms", "MergeTransform", "use torchvision's transforms"),
    ],
)
def test_a_name_that_is_absent_says_what_to_do_instead(module, name, instead):
    full = f"feedmill.compat.energon.{module}".removesuffix(".")
    with pytest.raises(ImportError, match=f"{full} has no {name}: {instead}"):
        getattr(importlib.import_module(full), name)
