"""Remote files that are copied as a whole: what keeps a copy from being evicted, and until when."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.storage.test_filecache import folder, server, store_of

from feedmill.formats import avvideo, kept
from feedmill.formats.avvideo import Frames
from feedmill.formats.columns import ArrowFile
from feedmill.planning.packing.segments import FOLDER, Segment, Segments
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.local import LocalStore

__all__ = ["folder", "server"]


def test_videos_are_in_use_while_their_decoders_are_open(server, folder, monkeypatch):
    pytest.importorskip("av")
    from tests.helpers.media_files import movie

    monkeypatch.setattr(avvideo, "OPEN_VIDEOS", 1)
    for name in ["a.mkv", "b.mkv"]:  # those of MP4 are read by ranges
        server.objects[f"data/{name}"] = movie("mkv", seconds=1.0)
    videos, files = Frames(store_of(server), 0.02), disk_cache(folder)
    first = videos.at("a.mkv", 0.0)
    assert files.clear() == 0 and [one.kind for one in files.list()] == ["data"]
    videos.at("b.mkv", 0.0)
    assert files.clear() == len(server.objects["data/a.mkv"])
    assert np.array_equal(videos.at("a.mkv", 0.0), first)  # fetched again


def test_arrow_files_are_in_use_as_long_as_they_are_mapped(server, folder, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": list(range(1000))})
    with pyarrow.OSFile(str(tmp_path / "x.arrow"), "wb") as out, pyarrow.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    server.objects["data/x.arrow"] = (tmp_path / "x.arrow").read_bytes()
    file, files = ArrowFile(store_of(server), "x.arrow"), disk_cache(folder)
    assert files.clear() == 0
    del file
    gc.collect()
    assert files.clear() == len(server.objects["data/x.arrow"])


def test_costs_and_packing_plans_in_use_stay_and_make_older_ones_go(folder, tmp_path):
    files = disk_cache(folder)
    (folder / "costs").mkdir(parents=True)
    (folder / "costs" / ("0" * 32)).write_bytes(bytes(100_000))
    files.size = 50_000
    (tmp_path / "source").write_bytes(b"1")
    found = kept.kept_costs(LocalStore(tmp_path), "source", "x", 10, lambda: np.arange(10), keep=True)
    assert found is not None and [one.present < 50_000 for one in files.list()] == [True]

    def make(number: int, first: int) -> Segment:
        return Segment(number, 5, first, 5, 5, 0, np.arange(5_000), np.arange(5, dtype=np.int32))

    plan = Segments(folder / FOLDER / "key", make, 2, lambda: True)
    assert plan.total == 10
    assert files.clear() == 0 and len(files.list()) == 2  # more than the limit, and all in use
    files.close()
    files.trim()
    assert files.used <= 50_000
    assert np.array_equal(plan.get(1).wide, np.arange(5_000))
    assert np.array_equal(Segments(folder / FOLDER / "key", make, 2, lambda: True).get(0).wide, np.arange(5_000))
