"""RLDS datasets: what protocol buffers hold, by ranges; and records that are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import FeedmillError
from feedmill.formats.recorders.rlds import _integers
from feedmill.storage import LocalStore
from helpers.recordings import example_class, picture, rlds, tf_record

pytest.importorskip("google.protobuf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))


def made(tmp_path: Path, **options: Any) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return rlds(folder, **options)


def episodes(folder: Path) -> list[Any]:
    """The episodes as protocol buffers parse them, without checksums."""
    out, example = [], example_class()
    for path in sorted(folder.glob("*tfrecord*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            out.append(example.FromString(data[at + 12 : at + 12 + length]).features.feature)
            at += 16 + length
    return out


@pytest.mark.parametrize("described", [True, False])
def test_steps_are_those_of_protocol_buffers(described: bool, tmp_path: Path) -> None:
    folder = made(tmp_path, described=described)
    dataset, index = fm.open(folder, decode=None), 0
    for episode in episodes(folder):
        count = len(episode["steps/is_first"].int64_list.value)
        for step in range(count):
            row = dataset[index].row
            action = np.asarray(episode["steps/action"].float_list.value, np.float32).reshape(count, 7)
            state = np.asarray(episode["steps/observation/state"].float_list.value, np.float32)
            shape = (count, 2, 3) if described else (count, 6)
            assert np.array_equal(row["action"], action[step]) and row["action"].dtype == np.float32
            assert np.array_equal(row["observation.state"], state.reshape(shape)[step])
            assert row["observation.image"] == episode["steps/observation/image"].bytes_list.value[step]
            assert row["language_instruction"].encode() == episode["steps/language_instruction"].bytes_list.value[step]
            assert row["n"] == episode["steps/n"].int64_list.value[step]
            assert row["is_first"] == (step == 0) and type(row["is_first"]) is (bool if described else int)
            assert row["big"].tolist() == episode["steps/big"].int64_list.value[2 * step : 2 * step + 2]
            index += 1
    assert index == len(dataset) == 15 and dataset.episode_lengths.tolist() == [5, 1, 9]
    assert dataset.remarks == [
        "'episode_metadata/file_path': it belongs to the episode as a whole, not read (in 2 of the files)"
    ]
    assert fm.open(folder)[4]["observation.image"].shape == (16, 24, 3)


def test_splits_windows_and_tasks(tmp_path: Path) -> None:
    folder = made(tmp_path)
    rlds(folder, [3, 2], split="val")
    dataset = fm.open(folder, split="val", windows={"action": [-1, 1], "n": [0, 1]})
    assert dataset.splits == {"train": 15, "val": 5} and len(dataset) == 5
    assert dataset[2]["n"].tolist() == [2, 2] and dataset[2]["n"].dtype == np.int32
    assert dataset[3]["action"].shape == (3, 7) and dataset[3]["action_is_pad"].tolist() == [True, False, False]
    assert dataset.task_part == "language_instruction" and dataset.task_texts() == ["task 0 ü", "task 1 ü"]
    assert not fm.check(folder).findings


def test_a_step_of_a_bucket_costs_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path, lengths=(40, 40))
    fm.open(folder)
    asked: list[int] = []
    read = LocalStore.read

    def counted(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = read(store, path, offset, length)
        asked.append(len(data))
        return data

    monkeypatch.setattr(LocalStore, "is_local", False)
    monkeypatch.setattr(LocalStore, "descriptors", lambda store, paths: None)
    monkeypatch.setattr(LocalStore, "read", counted)
    monkeypatch.setattr(
        LocalStore, "read_ranges", lambda s, p, a, b: [s.read(p, *each) for each in zip(a, b, strict=True)]
    )
    dataset = fm.open(folder, decode=None)
    asked.clear()
    first = dataset[50].row
    dataset[51]
    asked.clear()
    second = dataset[60].row
    assert len(asked) == 4 and sum(asked) == 13 * 4 + len(second["observation.image"]) + len(
        second["language_instruction"].encode()
    )
    assert first.keys() == second.keys()


def wrong(path: Path, words: str, kind: str, index: int | None = None) -> None:
    with pytest.raises(FeedmillError, match=words) as found:
        dataset = fm.open(path)
        if index is not None:
            dataset[index]
    assert found.value.kind == kind and found.value.fix


def test_damaged_records(tmp_path: Path) -> None:
    folder = made(tmp_path)
    path = folder / "demo-train.tfrecord-00000-of-00002"
    whole = path.read_bytes()
    at = len(whole) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    wrong(folder, r"checksum \(CRC-32C\) of the record 0 differs", "bad-data")
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    wrong(folder, "not a record of TFRecord", "bad-data")
    path.write_bytes(whole[:-9])
    wrong(folder, "truncated: the record", "truncated")
    path.write_bytes(picture(0))
    wrong(folder, "holds a JPEG image", "other-format")
    path.write_bytes(b"")
    wrong(folder, "empty", "empty-file")


def test_a_record_that_changes_later_is_found_by_check(tmp_path: Path) -> None:
    folder = made(tmp_path)
    dataset = fm.open(folder)
    path = folder / "demo-train.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xd8\xff") + 20
    data[at] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    assert any("checksum" in str(error) or error.kind == "changed" for error in dataset.verify())


def test_episodes_that_do_not_fit(tmp_path: Path) -> None:
    example = example_class()

    def write(**features: Any) -> bytes:
        one = example()
        for name, values in features.items():
            feature = one.features.feature[name.replace("__", "/")]
            if isinstance(values[0], bytes):
                feature.bytes_list.value.extend(values)
            elif isinstance(values[0], float):
                feature.float_list.value.extend(values)
            else:
                feature.int64_list.value.extend(values)
        return tf_record(one.SerializeToString())

    path = tmp_path / "x.tfrecord"
    path.write_bytes(write(image=[b"x"]))
    wrong(path, "the record 0 has no steps: expected features such as 'steps/action', found 'image'", "no-samples")
    good = write(steps__is_first=[1, 0], steps__a=[1.0] * 6)
    path.write_bytes(good + write(steps__is_first=[1, 0], steps__b=[1.0] * 6))
    wrong(path, "columns differ from those of 'episode 0'", "other-columns")
    path.write_bytes(good + write(steps__is_first=[1, 0], steps__a=[1.0] * 7))
    wrong(path, "'a' has 7 numbers for 2 steps", "other-columns")
    path.write_bytes(good + write(steps__is_first=[1, 0], steps__a=[1.0] * 8))
    wrong(path, "'a' has 8 numbers for 2 steps", "other-columns")
    path.write_bytes(write(steps__is_first=[1, 0], steps__a=[b"x"]))
    wrong(path, "'a' has 1 values for 2 steps", "other-columns")
    path.write_bytes(tf_record(b"\x0a\xff"))
    wrong(path, "the episode 0 cannot be read", "bad-data")
    (tmp_path / "features.json").write_text('{"featuresDict": {}}')
    path.write_bytes(good)
    wrong(tmp_path, "does not describe steps", "bad-index")


def test_sequence_examples(tmp_path: Path) -> None:
    def field(number: int, data: bytes) -> bytes:
        assert len(data) < 128
        return bytes([number << 3 | 2, len(data)]) + data

    feature = b"".join(field(1, field(1, field(1, b"value %d" % n))) for n in range(3))
    record = field(2, field(1, field(1, b"text") + field(2, feature)))
    (tmp_path / "x.tfrecord").write_bytes(tf_record(record))
    assert [sample["text"] for sample in fm.open(tmp_path / "x.tfrecord")] == ["value 0", "value 1", "value 2"]


def test_packed_integers() -> None:
    numbers = [0, 1, 127, 128, 300, 2**63 - 1, -1, -(2**63)]
    out = bytearray()
    for number in numbers:
        value = number % 2**64
        while value >= 128:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    assert _integers((8,), "int64", bytes(out), 0, 0).tolist() == numbers
    for bad, shape in ((b"\x80" * 11 + b"\1", (1,)), (b"\1\2", (3,)), (b"\1\x80", (1,))):
        with pytest.raises(ValueError, match=r"bits|expected"):
            _integers(shape, "int64", bad, 0, 0)


def test_rlds_becomes_a_lerobot_dataset(tmp_path: Path) -> None:
    folder = made(tmp_path)
    fm.convert(folder, tmp_path / "out", "lerobot", fps=5, progress=False, workers=1)
    back, before = fm.open(tmp_path / "out"), fm.open(folder)
    assert [sample["task"] for sample in back] == [sample["language_instruction"] for sample in before]
    assert back[7]["task_index"] == 2 and back.info["total_tasks"] == 3
    assert np.array_equal(back[7]["observation.state"], before[7]["observation.state"])
    assert back[7].raw("observation.images.image") == before[7].raw("observation.image")
