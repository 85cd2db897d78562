"""`show` over a stand-in for an opened dataset; the real formats are tested in their own rooms."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import DataError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.sample import Sample, Source
from helpers.recordings import robomimic
from helpers.robots import write_robot


@dataclasses.dataclass(kw_only=True)
class Captioned:
    __key__: str
    image: Any
    caption: str


class FakeDataset(Dataset):
    format = "fake"
    url = "coco"

    def __init__(self, count: int = 4) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int) -> Source:
        return Source(self.url, "s0.tar", 1024 * index, 1024, index, f"{index:04d}")

    def read_raw(self, indices: Indices) -> list[Sample]:
        return [
            Sample(f"{i:04d}", b"JJJ{}", {"jpg": (0, 3), "json": (3, 5)}, lambda i=i: self.locate(i), self.decode)
            for i in indices
        ]

    def find(self, key: str) -> int:
        return int(key)

    def fingerprint(self) -> str:
        return "f"

    @property
    def splits(self) -> Mapping[str, int]:
        return {"train": 3, "val": 1}

    def describe(self) -> dict[str, Any]:
        splits = {"train": {"samples": 3, "shards": 1}, "val": {"samples": 1, "shards": 1}}
        return {
            "format": "webdataset", "path": "coco", "samples": 4, "shards": 2, "bytes": 4096, "splits": splits,
            "sample_type": "CaptioningSample", "field_map": {"image": "jpg"}, "subflavors": None, "indexed": True,
        }  # fmt: skip


def decode(name: str, data: bytes) -> Any:
    if name == "jpg":
        return np.full((8, 6, 3), 200, np.uint8)
    return json.loads(data)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[Dataset], dict[str, Any]]:
    """Make `feedmill.samples.open.open` give this dataset; returns the arguments that it is called with."""

    def install(dataset: Dataset) -> dict[str, Any]:
        calls: dict[str, Any] = {}
        module = ModuleType("feedmill.samples.open")
        module.open = lambda path, **options: calls.update(path=path, **options) or dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "feedmill.samples.open", module)
        return calls

    return install


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_info_for_people_and_programs(opened: Any) -> None:
    calls = opened(FakeDataset())
    done = run("show", "coco", "--split", "val", "--dataset-config", "d.yaml", "--trust")
    assert done.exit_code == 0, done.output
    for text in ("webdataset", "4.1 kB", "CaptioningSample", "image: jpg", "75.0 %", "0000 (jpg 3 B, json 2 B)"):
        assert text in done.output
    wanted = {"path": "coco", "split": "val", "dataset_config": "d.yaml", "split_config": None, "trust": True}
    assert calls == wanted
    document = json.loads(run("show", "coco", "--json").stdout)
    assert document["splits"]["train"] == {"samples": 3, "shards": 1}
    assert document["first_sample"] == {"key": "0000", "parts": {"jpg": 3, "json": 2}}


def test_info_of_episodes(tmp_path: Path) -> None:
    """The rate, the cameras, and the bytes of videos; splits that share their files have no shards."""
    pytest.importorskip("av")
    robot = write_robot(tmp_path / "r", fps=20, lengths=(4, 5), cameras={"front": (16, 24)}, video=True)
    done = run("show", str(robot.path))
    assert done.exit_code == 0 and "2, 20 steps a second" in done.output and "front" in done.output
    stored = sum(path.stat().st_size for part in ("data", "videos") for path in (robot.path / part).rglob("*.*"))
    assert json.loads(run("show", str(robot.path), "--json").stdout)["bytes"] == stored
    recording = pytest.importorskip("h5py") and robomimic(tmp_path / "demo.hdf5")
    text = run("show", str(recording)).output
    assert "3, 20 steps a second" in text and "share" in text and text.count("shards") == 1


def test_info_of_an_empty_data_set(opened: Any) -> None:
    opened(FakeDataset(0))
    assert json.loads(run("show", "coco", "--count", "0", "--json").stdout)["first_sample"] is None


def test_preview_of_plain_samples(opened: Any) -> None:
    opened(FakeDataset().opened_as(decode=decode))
    done = run("show", "coco", "-n", "2", "--start", "1")
    assert done.exit_code == 0, done.output
    assert "0001   sample 1   s0.tar at byte 1,024, 1,024 bytes" in done.output
    assert "image 6 x 8, 3 channels, uint8" in done.output and "0003" not in done.output


def test_preview_of_typed_crude_and_jsonl_samples(opened: Any) -> None:
    views: list[tuple[Any, dict[str, str]]] = [
        (lambda s: Captioned(__key__=s.key, image=np.zeros((3, 8, 6), np.float32), caption="a cat"),
         {"image": "image 6 x 8, 3 channels, float32", "caption": "a cat"}),
        (lambda s: {"__key__": s.key, "__subflavors__": {}, "txt": "hello"}, {"txt": "hello"}),
        (lambda s: {"__key__": s.key, "json": {"id": 1}}, {"json": '{"id": 1}'}),
    ]  # fmt: skip
    for view, parts in views:
        opened(FakeDataset().opened_as(view=lambda raw, view=view: [view(s) for s in raw]))
        document = json.loads(run("show", "coco", "--json", "-n", "1").stdout)
        source = {"file": "s0.tar", "offset": 0, "length": 1024, "index": 0}
        assert document["shown"] == [{"key": "0000", "source": source, "parts": parts}]


def test_a_part_that_can_not_be_decoded_is_told_and_the_rest_is_shown(opened: Any) -> None:
    def failing(name: str, data: bytes) -> Any:
        if name == "jpg":
            raise DataError("no image")
        return json.loads(data)

    opened(FakeDataset().opened_as(decode=failing))
    document = json.loads(run("show", "coco", "--json", "-n", "1").stdout)
    parts = document["shown"][0]["parts"]
    assert parts == {"jpg": "(not decoded: coco/s0.tar '0000.jpg' at byte 0: no image)", "json": "{}"}


def test_preview_beyond_the_end(opened: Any) -> None:
    opened(FakeDataset())
    done = run("show", "coco", "--start", "4")
    assert done.exit_code == 1
    assert done.stderr == "error: coco: there is no sample 4: the dataset has 4 samples. Sample numbers start at 0.\n"


def test_contact_sheet(opened: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    opened(FakeDataset().opened_as(decode=decode))
    done = run("show", "coco", "-n", "4", "--sheet", str(tmp_path / "sheet.png"))
    assert done.exit_code == 0, done.output
    with image.open(io.BytesIO((tmp_path / "sheet.png").read_bytes())) as sheet:
        assert sheet.format == "PNG" and sheet.width > 400
    opened(FakeDataset().opened_as(view=lambda raw: [{"txt": "no image"} for _ in raw]))
    assert "none of these samples has an image" in run("show", "coco", "--sheet", str(tmp_path / "b.png")).stderr


def test_preview_of_an_empty_split(tmp_path: Path) -> None:
    folder = tmp_path / "words"
    fm.write(folder, ({"__key__": f"{n}", "txt": f"word {n}"} for n in range(4)), progress=False)
    fm.prepare(folder, split_ratio="1,0,0", progress=False)
    done = run("show", str(folder), "--split", "test")
    assert done.exit_code == 1
    assert "the split 'test' is empty (samples: train 4, val 0, test 0)" in done.stderr
