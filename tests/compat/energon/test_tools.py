"""Energon's smaller modules: hooks of forks, printed samples, the frame index, index writer, pool and media files."""

from __future__ import annotations

import io
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from feedmill.compat.energon.flavors.webdataset.aggregator_pool import AggregatorPool, BaseAggregator
from feedmill.compat.energon.flavors.webdataset.indexing import DuplicateSampleKeyError, SqliteIndexWriter
from feedmill.compat.energon.flavors.webdataset.prepare import IndexMediaMetadata, IndexSample, IndexSamplePart
from feedmill.compat.energon.media import MediaMetadataBase, deserialize_media_metadata, serialize_media_metadata
from feedmill.compat.energon.media.extractor import MediaFilterConfig, MediaFilterStrategy
from feedmill.compat.energon.media.filesystem_prepare import prepare_filesystem_dataset

from feedmill.compat.energon.fork_hook import DataclassForkMixin, ForkMixin, WeakCallbacks
from feedmill.compat.energon.sample_utils import (
    default_get_batch_keys,
    format_sample_compact,
    format_sample_detailed,
)
from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.energon.database import open_index


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


def row(key: str, number: int = 0) -> IndexSample:
    return IndexSample(tar_file_id=0, sample_key=key, sample_index=number, byte_offset=512 * number, byte_size=512)


def test_an_index_is_written_row_by_row(tmp_path):
    path = tmp_path / ".nv-meta/index.sqlite"
    with SqliteIndexWriter(path, enable_media_metadata=True) as writer:
        writer.append_samples([row("a"), row("b", 1)])
        for rows in ([row("c"), row("a")], [row("d"), row("d")]):
            with pytest.raises(DuplicateSampleKeyError) as caught:
                writer.append_samples(rows)
            assert caught.value.sample_key == rows[1].sample_key and str(path) in str(caught.value)
        writer.append_parts(
            [
                IndexSamplePart(
                    tar_file_id=0, sample_index=0, part_name="jpg", content_byte_offset=1, content_byte_size=2
                )
            ]
        )
        metadata = IndexMediaMetadata(entry_key="a.jpg", metadata_type="image", metadata_json="{}")
        writer.append_media_metadata_batch([metadata, metadata])
        writer.append_media_filter(strategy="GLOB", patterns="*.jpg")
    with pytest.raises(ValueError, match="is closed"):
        writer.append_samples([])
    writer.close()
    index = open_index(path)
    assert index.execute("SELECT sample_key FROM samples").fetchall() == [("a",), ("b",)]
    assert index.execute("SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql NOT NULL").fetchone() == (3,)
    index.close()
    with SqliteIndexWriter(path, enable_sample_tables=False, enable_media_metadata=True, reset_tables=False) as writer:
        assert writer.db.execute("SELECT count(*) FROM media_metadata").fetchone() == (1,)
    with SqliteIndexWriter(path, enable_media_metadata=True) as writer:
        assert writer.db.execute("SELECT count(*) FROM samples").fetchone() == (0,)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM media_filters").fetchone() == (0,)


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


def test_the_frames_of_a_video():
    av = pytest.importorskip("av")
    from feedmill.compat.energon.av.av_reader import AVProbeIndex

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.codec_context.gop_size = 32, 32, 4
        for _ in range(10):
            out.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        out.mux(stream.encode(None))
    with av.open(io.BytesIO(buffer.getvalue())) as container:
        index = AVProbeIndex(container)
        times = [frame.timestamp for frame in index]
        keys = [number for number, frame in enumerate(index) if frame.is_keyframe]
        assert len(index) == 10 and keys[0] == 0 and len(keys) > 1
        second = keys[1]
        assert index.search_timestamp(times[second]) == second == index.search_timestamp(times[second] + 1)
        assert index.search_timestamp(times[second] - 1) == 0
        assert index.search_timestamp(times[second] - 1, backward=False) == second
        assert index.search_timestamp(times[5], any_frame=True) == 5
        assert index.search_timestamp(times[-1] + 1, backward=False, any_frame=True) == -1
        assert index.search_timestamp(-1) == 0 and next(container.decode(video=0)).pts == times[0]


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
    import importlib

    from feedmill.compat.energon.internals import INTERNALS

    for module, names in INTERNALS.items():
        found = importlib.import_module(f"feedmill.compat.energon.{module}")
        assert all(getattr(found, name) is not None for name in names) and set(names) <= set(found.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        importlib.import_module("feedmill.compat.energon.cli.main").nonsense  # noqa: B018
