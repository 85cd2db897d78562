"""MCAP recordings: what mcap reads, sampled to the steps of a topic; and recordings that are damaged."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, FeedmillError
from feedmill.storage import LocalStore
from helpers.recordings import mcap

reader: Any = pytest.importorskip("mcap.reader")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))


def messages(path: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Log time and content of all messages by topic, as mcap reads them."""
    out: dict[str, list[tuple[int, bytes]]] = {}
    with path.open("rb") as file:
        for _, channel, message in reader.make_reader(file).iter_messages():
            out.setdefault(channel.topic, []).append((message.log_time, message.data))
    return out


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZSTD"])
def test_steps_are_the_last_messages_of_every_topic(compression: str, tmp_path: Path) -> None:
    path = mcap(tmp_path / "x.mcap", compression=compression)
    dataset, expected = fm.open(path, decode=None), messages(path)
    steps = expected["/arm/action"]
    assert len(dataset) == len(steps) == 12 and dataset.fps == 20 and dataset.describe()["steps"] == "/arm/action"
    for step, (time, action) in enumerate(steps):
        row = dataset[step].row
        last = {topic: max(one for one in found if one[0] <= time)[1] for topic, found in expected.items()}
        assert row["log_time"] == time
        assert row["arm.action.n"] == json.loads(action)["n"] and type(row["arm.action.n"]) is int
        assert row["arm.action.q"].tolist() == json.loads(action)["q"] and row["arm.action.on"] is True
        joints = json.loads(last["/joint_states"])
        assert row["joint_states.q"].tolist() == joints["q"] and row["joint_states.q"].dtype == np.float64
        assert row["joint_states.pose.x"] == 0.0 and row["joint_states.pose.frame"] == "base"
        assert row["raw"] == last["/raw"]
        for side in ("left", "right"):
            assert row[f"{side}.image"] == base64.b64decode(json.loads(last[f"/{side}/image"])["data"])
    assert fm.open(path)[3]["left.image"].shape == (16, 24, 3)
    assert dataset.remarks == [
        "'joint_states.names': values of other types than numbers, lists of them, and texts, not read"
    ]
    assert dataset.describe()["notes"] == ["/raw: messages in the encoding 'cdr' are bytes, as stored"]


def test_another_topic_has_the_steps(tmp_path: Path) -> None:
    path = mcap(tmp_path / "x.mcap")
    dataset = fm.open(path, steps="/joint_states", windows={"joint_states.n": [-1, 0], "arm.action.q": [0.0, 0.05]})
    assert dataset.fps == 100 and len(dataset) == 57
    assert dataset.remarks[0] == "3 steps before the first message of every topic: left out"
    assert dataset[0]["joint_states.n"].tolist() == [3, 3] and dataset[9]["joint_states.n"].tolist() == [11, 12]
    assert dataset[9]["arm.action.q"].shape == (2, 2)
    with pytest.raises(ConfigError, match=r"no topic '/joints' \(did you mean"):
        fm.open(path, steps="/joints")
    recipe = {"blend": [{"path": str(path), "windows": {"steps": "/left/image", "frames": {"joint_states.q": [0, 3]}}}]}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    loader = fm.Loader(fm.Recipe.load(tmp_path / "recipe.yaml").plan(), 4, workers=2)
    assert next(iter(loader))["joint_states.q"].shape == (4, 4, 2, 2)
    loader.close()


def test_a_camera_that_starts_late(tmp_path: Path) -> None:
    dataset = fm.open(mcap(tmp_path / "x.mcap", late=4))
    assert len(dataset) == 8 and "4 steps before the first message of every topic: left out" in dataset.remarks
    dataset = fm.open(mcap(tmp_path / "y.mcap", late=9))
    assert len(dataset) == 12 and "left.image" not in dataset.columns
    assert "'/left/image': the topic begins after half of the steps, not read" in dataset.remarks


def test_requests_to_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mcap(tmp_path / "x.mcap", 60)
    asked: list[tuple[str, int, int]] = []
    read = LocalStore.read

    def counted(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = read(store, path, offset, length)
        asked.append((path, offset, len(data)))
        return data

    monkeypatch.setattr(LocalStore, "is_local", False)
    monkeypatch.setattr(LocalStore, "descriptors", lambda store, paths: None)
    monkeypatch.setattr(LocalStore, "read", counted)
    monkeypatch.setattr(
        LocalStore, "read_ranges", lambda s, p, a, b: [s.read(p, *each) for each in zip(a, b, strict=True)]
    )
    dataset = fm.open(path, decode=None)
    asked.clear()
    dataset[30]
    first = sum(size for *_, size in asked)
    assert 1 <= len(asked) <= 6 and first < 6 * 2500  # the chunks of its messages
    dataset[30]
    assert sum(size for *_, size in asked) == first  # which are cached
    asked.clear()
    fm.open(path)
    assert not [one for one in asked if one[0] == "x.mcap"]


def wrong(path: Path, words: str, kind: str, index: int | None = None) -> None:
    with pytest.raises(FeedmillError, match=words) as found:
        dataset = fm.open(path)
        if index is not None:
            dataset[index]
    assert found.value.kind == kind and found.value.fix


def test_damaged_recordings(tmp_path: Path) -> None:
    path = mcap(tmp_path / "x.mcap", compression="NONE")
    whole = path.read_bytes()
    at = whole.index(b'"base"')
    path.write_bytes(whole[:at] + b"'" + whole[at + 1 :])
    wrong(path, r"checksum \(CRC-32\) differs", "bad-data")
    at = whole.rindex(b'"base"')
    path.write_bytes(whole[:at] + b"'" + whole[at + 1 :])
    wrong(path, r"checksum \(CRC-32\) differs", "bad-data", 11)
    assert len(fm.open(path).verify()) == 1
    path.write_bytes(whole[: len(whole) // 2])
    wrong(path, "no footer, as its recording did not end.*mcap recover", "truncated")
    at = whole.rindex(b"/joint_states")
    path.write_bytes(whole[:at] + b"_" + whole[at + 1 :])
    wrong(path, "checksum .* of the summary", "bad-data")
    at = whole.index(b"\x07", whole.index(b"base"))  # the index of messages has no checksum
    while any(whole[at + 3 : at + 9]):  # its length has two bytes
        at = whole.index(b"\x07", at + 1)
    path.write_bytes(whole[: at + 15] + bytes([whole[at + 15] ^ 64]) + whole[at + 16 :])  # the time of a message
    wrong(path, "messages are not those of the index", "bad-data", 0)
    path.write_bytes(b"hello")
    wrong(path, "holds text", "other-format")
    path.write_bytes(b"")
    wrong(path, "empty", "empty-file")


def test_recordings_without_chunks(tmp_path: Path) -> None:
    writer: Any = pytest.importorskip("mcap.writer")
    for name, options in (
        ("a", {"use_chunking": False}),
        ("b", {"use_summary_offsets": False, "use_statistics": False}),
    ):
        with (tmp_path / f"{name}.mcap").open("wb") as file:
            out = writer.Writer(file, **options)
            out.start()
            channel = out.register_channel("/a", "json", 0)
            out.add_message(channel, 5, b'{"x": 1}', 5)
            out.finish()
    wrong(tmp_path / "a.mcap", "its messages are not in chunks", "unsupported")
    assert fm.open(tmp_path / "b.mcap")[0]["a.x"] == 1.0


def test_messages_that_the_index_lacks(tmp_path: Path) -> None:
    path = mcap(tmp_path / "x.mcap", chunk_size=500)
    data = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<Q", data, len(data) - 28)
    at = start
    while data[at] != 8:  # the index of the first chunk
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    places = int.from_bytes(data[at + 41 : at + 45], "little")
    struct.pack_into("<Q", data, at + 45 + places, 0)
    struct.pack_into("<I", data, len(data) - 12, 0)  # no checksum of the summary
    path.write_bytes(data)
    wrong(path, r"its index has \d+ messages, and it says that it has 108", "unsupported")


def test_messages_that_differ_from_the_first(tmp_path: Path) -> None:
    writer: Any = pytest.importorskip("mcap.writer")
    for name, second in (("a", b'{"x": [1, 2, 3]}'), ("b", b"{}"), ("c", b'{"x": "text"}')):
        with (tmp_path / f"{name}.mcap").open("wb") as file:
            out = writer.Writer(file)
            out.start()
            channel = out.register_channel("/a", "json", 0)
            for time, data in enumerate((b'{"x": [1, 2]}', second)):
                out.add_message(channel, time, data, time)
            out.finish()
        assert fm.open(tmp_path / f"{name}.mcap")[0]["a.x"].tolist() == [1, 2]
        wrong(tmp_path / f"{name}.mcap", "a message of '/a' cannot be read", "bad-data", 1)
    schema = b'{"properties": {"x": {"type": "integer"}}}'
    for name, first, second in (
        ("d", b'{"x": 1}', b'{"x": 18446744073709551611}'),
        ("e", b'{"x": true}', b'{"x": 5}'),
        ("f", b'{"x": {"y": 1}, "x.y": 2}', b"{}"),
    ):
        with (tmp_path / f"{name}.mcap").open("wb") as file:
            out = writer.Writer(file)
            out.start()
            channel = out.register_channel("/a", "json", out.register_schema("x", "jsonschema", schema))
            for time, data in enumerate((first, second)):
                out.add_message(channel, time, data, time)
            out.finish()
        words = "two values would be the column 'a.x.y'" if name == "f" else "a message of '/a' cannot be read"
        wrong(tmp_path / f"{name}.mcap", words, "bad-data", 1)


def test_recordings_become_a_lerobot_dataset(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        mcap(source / f"{number}.mcap", 8 + number)
    with pytest.raises(ConfigError, match=r"cannot store bytes.*'raw'"):
        fm.convert(source, tmp_path / "out", "lerobot", progress=False, workers=1)
    fm.convert(source, tmp_path / "out", "lerobot", allow_loss=True, progress=False, workers=1)
    back = fm.open(tmp_path / "out")
    assert (
        len(back) == 17
        and back.fps == 20
        and set(back.describe()["cameras"])
        == {
            "observation.images.left_image",
            "observation.images.right_image",
        }
    )
    assert np.array_equal(back[9]["observation.images.left_image"], fm.open(source)[9]["left.image"])
