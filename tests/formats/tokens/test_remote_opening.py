"""Token files in buckets: how many requests opening takes, and when their content is hashed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.formats import content
from feedmill.formats.tokens.pbin import _AT_ONCE, open_pbins, write_pbin
from feedmill.storage import LocalStore
from feedmill.storage.remote.object_store import RemoteStore
from helpers.range_server import RangeServer, range_server

DOCUMENTS, LENGTH = 40_000, 5  # the index and the bounds are larger than what is read of them at once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    with write_pbin(LocalStore(path), "a.pbin", 2) as writer:
        writer.add(rng.integers(0, 50_000, DOCUMENTS * LENGTH, dtype=np.uint16), np.full(DOCUMENTS, LENGTH, np.int64))
    return path


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RangeServer]:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    with range_server() as running:
        for path in folder.iterdir():
            running.objects[f"data/{path.name}"] = path.read_bytes()
        for name, value in running.options.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", str(value).lower())
        yield running


def test_a_file_is_opened_with_few_requests_and_none_is_repeated(server: RangeServer, folder: Path) -> None:
    dataset = fm.open("s3://bkt/data/a.pbin", seq_len=64)
    asked = list(zip(server.keys, server.asked, strict=True))
    assert len(asked) <= 6 and len(set(asked)) == len(asked)
    assert len(dataset) == len(fm.open(folder / "a.pbin", seq_len=64))


def test_content_is_hashed_for_the_first_state_and_not_before(
    server: RangeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    hash_of = content._hash_of
    monkeypatch.setattr(content, "_hash_of", lambda size, blocks: hashed.append(size) or hash_of(size, blocks))
    plan = fm.Plan.over(fm.open("s3://bkt/data/a.pbin", seq_len=64), shuffle="block", epochs=1)
    loader = fm.Loader(plan, 64)
    batches = [batch["input_ids"] for batch in loader]
    assert len(batches) > 1 and not hashed
    state, before = loader.state_dict(), len(server.asked)
    assert hashed == [(folder / "a.pbin").stat().st_size]
    assert loader.state_dict() == state and len(server.asked) == before
    local = fm.Plan.over(fm.open(folder / "a.pbin", seq_len=64), shuffle="block", epochs=1)
    again = fm.Loader(local, 64)
    assert all(np.array_equal(a, b["input_ids"]) for a, b in zip(batches, again, strict=True))
    assert state["plan"] == again.state_dict()["plan"]


def test_local_content_is_hashed_before_it_can_be_rewritten(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.pbin"
    path.write_bytes((folder / "a.pbin").read_bytes())

    def loader() -> fm.Loader:
        return fm.Loader(fm.Plan.over(fm.open(path, seq_len=64), shuffle="block", epochs=1), 64)

    before = loader().state_dict()["plan"]
    running = loader()
    data = bytearray(path.read_bytes())
    data[12:1012] = bytes(1000)
    with path.open("r+b") as file:
        file.write(data)
    assert running.state_dict()["plan"] == before != loader().state_dict()["plan"]


def test_many_files_are_opened_together(server: RangeServer, folder: Path) -> None:
    names = [f"{number:03}.pbin" for number in range(_AT_ONCE + 8)]
    for name in names:
        for file in folder.iterdir():
            server.objects[f"many/{name}{file.name.removeprefix('a.pbin')}"] = file.read_bytes()
    store = RemoteStore("s3://bkt/many", **server.options)
    server.expect(9)
    opened = open_pbins(store, names, store.url)
    assert len(opened) == DOCUMENTS * len(names)
    assert server.peak > 8 and len(server.asked) <= 6 * len(names)
    expected = open_pbins(LocalStore(folder), ["a.pbin"], "x")[0]["input_ids"]
    assert np.array_equal(opened[(len(names) - 1) * DOCUMENTS]["input_ids"], expected)
