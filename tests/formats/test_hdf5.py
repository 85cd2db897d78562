"""HDF5 recordings: what h5py reads, by ranges; windows, splits, buckets, and files that are not as they should be."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.recorders.hdf5 import _same_sum
from feedmill.storage import LocalStore
from helpers.recordings import aloha, hdf5, picture, robomimic

h5py: Any = pytest.importorskip("h5py")
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))


def compare(path: Path, group: str = "/", first: int = 0, dataset: Any = None) -> int:
    """Compare all steps of an episode with what h5py reads; return the number of the next one."""
    dataset = fm.open(path, decode=None) if dataset is None else dataset
    with h5py.File(path) as file:
        for name in dataset.columns:
            array = file[group][name.replace(".", "/")]
            for step in range(len(array)):
                expected, found = array[step], dataset[first + step].row[name]
                if isinstance(expected, bytes):
                    assert found == expected.decode(), name
                elif dataset.columns[name].kind == "image":
                    whole = expected.tobytes()
                    assert whole.startswith(found) and not whole[len(found) :].strip(b"\0"), name
                else:
                    assert np.array_equal(found, expected), name
                    assert not array.shape[1:] or found.dtype == array.dtype.newbyteorder("="), name
    return first + len(array)


STORED = {
    "contiguous": {},
    "chunked": {"chunks": (3, 5, 7)},
    "rows": {"chunks": (4, 10, 9)},
    "gzip": {"chunks": True, "compression": "gzip"},
    "shuffle": {"chunks": (3, 10, 9), "shuffle": True},
    "all": {"chunks": (2, 5, 5), "shuffle": True, "compression": "gzip", "fletcher32": True},
    "fletcher": {"chunks": (1, 10, 9), "fletcher32": True},
    "lzf": {"chunks": (3, 10, 9), "compression": "lzf"},
    "scaleoffset": {"chunks": (3, 10, 9), "scaleoffset": 0},
}
TYPES = ["u1", "<i4", ">i8", "<f2", ">f4", "<f8", "?"]


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_arrays_are_those_of_h5py(how: str, version: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=version) as file:
        for dtype in TYPES:
            if how == "scaleoffset" and dtype[-2:] != "i4":
                continue
            data = RNG.integers(0, 100, (8, 10, 9)).astype(dtype)
            file.create_dataset(f"of/{dtype[-2:]}", data=data, **STORED[how])
        file["action"] = np.arange(8)
    compare(path)
    library = how in ("lzf", "scaleoffset")
    notes = fm.open(path).describe().get("notes", [])
    assert any("read through h5py" in note for note in notes) == library and not fm.open(path).remarks


def test_values_that_were_never_written_are_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["action"] = np.zeros(8)
        file.create_dataset("none", (8, 3), "f4", fillvalue=2.5)
        some = file.create_dataset("some", (8, 3), "i2", chunks=(2, 2), fillvalue=-7, compression="gzip")
        some[2:4, :2] = 5
        file.create_dataset("nan", (8, 2), "f4", fillvalue=np.nan, chunks=(2, 2))
    dataset = fm.open(tmp_path / "x.h5")
    assert dataset[0]["none"].tolist() == [2.5] * 3
    assert [dataset[step]["some"].tolist() for step in (1, 2)] == [[-7, -7, -7], [5, 5, -7]]
    assert np.isnan(dataset[3]["nan"]).all()


@pytest.mark.parametrize("form", ["padded", "values", "pixels"])
def test_episodes_of_aloha(form: str, tmp_path: Path) -> None:
    for number in (2, 10, 1):  # in the order of numbers, not of names
        aloha(tmp_path / f"episode_{number}.hdf5", 3 + number, form=form, seed=number)
    dataset = fm.open(tmp_path)
    assert dataset.episode_lengths.tolist() == [4, 5, 13] and len(dataset) == 22
    first = 0
    for number in (1, 2, 10):
        path = tmp_path / f"episode_{number}.hdf5"
        first = compare(path, first=first, dataset=fm.open(tmp_path, decode=None))
    assert dataset["000001/000002"]["observations.images.cam_low"].shape == (16, 24, 3)
    assert dataset.remarks == ["'compress_len': it has not a row for each step, not read (in 3 of the files)"]
    assert dataset.describe()["cameras"] == ["observations.images.cam_high", "observations.images.cam_low"]


def test_values_of_one_heap_and_of_many(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["action"] = np.zeros(40)
        texts = file.create_dataset("text", (40,), h5py.string_dtype())
        texts[:] = ["", *("é" * n for n in range(39))]
        packed = file.create_dataset("packed", (40,), h5py.vlen_dtype("<i4"), chunks=(7,), compression="gzip")
        for n in range(40):
            packed[n] = np.arange(n * 100)
        swapped = file.create_dataset("swapped", (40,), h5py.vlen_dtype(">f4"))
        for n in range(40):
            swapped[n] = np.arange(n, dtype=">f4")
        file["wide"] = np.full((40, 2), 0.5, np.longdouble)
        fixed = file.create_dataset("fixed", (40,), "S5")
        fixed[:] = [b"ab%d" % n for n in range(40)]
    dataset = fm.open(tmp_path / "x.h5")
    assert [s["text"] for s in dataset] == ["", *("é" * n for n in range(39))]
    assert [len(s["packed"]) for s in dataset] == [n * 100 for n in range(40)]
    assert dataset[39]["swapped"].tolist() == list(range(39)) and dataset[39]["swapped"].dtype.isnative
    assert dataset[39]["wide"].tolist() == [0.5, 0.5]
    assert dataset[39]["packed"].tolist() == list(range(3900)) and dataset[39]["fixed"] == "ab39"


def test_episodes_of_robomimic(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", [7, 0, 5, *[2] * 8], compression="gzip", chunks=(2, 6, 12, 3))
    dataset = fm.open(path)
    assert dataset.episode_lengths.tolist() == [7, 5, *[2] * 8] and dataset.fps == 20
    first = 0
    for number in (0, 2, 10):
        at = dataset.find(f"{number:06d}/000000")
        compare(path, f"data/demo_{number}", at, fm.open(path, decode=None))
    assert dataset.remarks == ["1 of 11 episodes have no steps: left out"]
    assert dataset.splits == {"train": 7, "valid": 5} and first == 0
    valid = fm.open(path, split="valid")
    assert len(valid) == 5 and valid[0].key == "000002/000000"
    assert np.array_equal(valid[1]["obs.eef"], dataset["000002/000001"]["obs.eef"])
    camera = next(name for name, one in dataset.features.items() if one["dtype"] == "image")
    units = fm.open(path, decode="rgb", windows={camera: [-1, 0]})
    assert np.array_equal(units[3][camera][1], dataset[3][camera] / np.float32(255))
    assert valid.fingerprint() != dataset.fingerprint()
    with pytest.raises(NotFound, match=r"no split 'test'.*'train', 'valid'"):
        fm.open(path, split="test")


def test_windows(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", [7, 12, 5], compression="gzip")
    windows = {"actions": [-1, 2], "obs.agentview_image": [-0.05, 0.0], "dones": [0, 0]}
    dataset = fm.open(path, windows=windows)
    with h5py.File(path) as file:
        actions, pixels = file["data/demo_1/actions"][:], file["data/demo_1/obs/agentview_image"][:]
    for step in range(12):
        sample = dataset[7 + step]
        wanted = np.arange(step - 1, step + 3)
        assert np.array_equal(sample["actions"], actions[wanted.clip(0, 11)]) and sample["actions"].dtype == np.float64
        assert sample["actions_is_pad"].tolist() == ((wanted < 0) | (wanted > 11)).tolist()
        assert np.array_equal(sample["obs.agentview_image"], pixels[[max(step - 1, 0), step]])
        assert sample["dones"].tolist() == [step == 11] and sample["dones"].dtype == bool
        assert sample["obs.eef"].shape == (3,)
    with pytest.raises(ConfigError, match=r"no column or camera 'action' \(did you mean 'actions'"):
        fm.open(path, windows={"action": [0, 1]})
    aloha(tmp_path / "x.hdf5")
    with pytest.raises(ConfigError, match="do not say how many steps a second"):
        fm.open(tmp_path / "x.hdf5", windows={"action": [0.0, 0.1]})
    pictures = fm.open(tmp_path / "x.hdf5", windows={"observations.images.cam_low": [-1, 0]})
    assert [one.shape for one in pictures[3]["observations.images.cam_low"]] == [(16, 24, 3)] * 2


def test_batches_workers_and_recipes(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", [7, 12, 5])
    recipe = {"blend": [{"path": str(path), "split": "train", "windows": {"actions": [0, 3]}}]}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    plan = fm.Recipe.load(tmp_path / "recipe.yaml").plan()
    loader = fm.Loader(plan, 4, workers=2)
    batch = next(iter(loader))
    loader.close()
    assert batch["actions"].shape == (4, 4, 7) and batch["obs.agentview_image"].shape == (4, 12, 12, 3)
    dataset = pickle.loads(pickle.dumps(fm.open(path)))
    assert len(dataset) == 24 and dataset[3]["actions"].shape == (7,)


class Counting:
    """Makes folders of this machine look remote, and counts what is read of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[str, int, int]] = []
        read = LocalStore.read

        def counted(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
            data = read(store, path, offset, length)
            self.requests.append((path, offset, len(data)))
            return data

        def ranges(store: LocalStore, path: str, offsets: Any, lengths: Any) -> list[bytes]:
            return [store.read(path, *each) for each in zip(offsets, lengths, strict=True)]

        patch.setattr(LocalStore, "is_local", False)
        patch.setattr(LocalStore, "descriptors", lambda store, paths: None)
        patch.setattr(LocalStore, "read", counted)
        patch.setattr(LocalStore, "read_ranges", ranges)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    return Counting(monkeypatch)


@pytest.mark.parametrize("form", ["padded", "values", "pixels"])
def test_a_step_of_a_bucket_costs_its_ranges(form: str, tmp_path: Path, counting: Counting) -> None:
    path = aloha(tmp_path / "x.hdf5", 40, form=form)
    dataset = fm.open(path, decode=None)
    counting.requests.clear()
    sample = dataset[17]
    assert len(counting.requests) == 4  # action, state and two cameras
    with h5py.File(path) as file:
        rows = [file[name][17] for name in ("action", "observations/qpos")]
        rows += [file[f"observations/images/{camera}"][17] for camera in ("cam_high", "cam_low")]
    assert sum(length for _, _, length in counting.requests) == sum(row.nbytes for row in rows)
    counting.requests.clear()
    again = fm.open(path, decode=None)  # the chunk lists are kept
    assert [request for request in counting.requests if request[0] == "x.hdf5"] == []
    assert again[17].raw("action") == sample.raw("action")


def test_chunks_across_steps_are_fetched_once(tmp_path: Path, counting: Counting) -> None:
    path = robomimic(tmp_path / "demo.hdf5", [40], chunks=(20, 6, 6, 1), compression="gzip")
    dataset = fm.open(path)
    counting.requests.clear()
    dataset.read([0, 1, 5, 19])
    first = len(counting.requests)
    with h5py.File(path) as file:
        pixels = file["data/demo_0/obs/agentview_image"].id
        packed = sum(pixels.get_chunk_info(n).size for n in range(12))
    assert first <= 12 + 4 * 3 and sum(size for *_, size in counting.requests) == packed + 4 * (7 * 8 + 1 + 3 * 8)
    dataset.read([7])
    assert len(counting.requests) == first + 3  # the pixels are cached


def wrong(path: Path, words: str, kind: str, *, index: int | None = None) -> FeedmillError:
    with pytest.raises(FeedmillError, match=words) as found:
        dataset = fm.open(path)
        if index is not None:
            dataset[index]
    assert found.value.kind == kind and found.value.fix
    return found.value


def test_columns_must_be_the_same_in_all_episodes(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/obs/eef"]
    assert wrong(path, "differ from those of 'demo_0'.*'obs.eef' is missing here", "other-columns").record == "demo_1"
    folder = tmp_path / "several"
    folder.mkdir()
    aloha(folder / "0.hdf5")
    aloha(folder / "1.hdf5", form="pixels")
    wrong(folder, "differ from those of '0.hdf5'.*uint8\\[16, 24, 3\\] here and image there", "other-columns")


def test_empty_recordings(tmp_path: Path) -> None:
    wrong(robomimic(tmp_path / "a.hdf5", [0, 0, 0]), "no steps: 3 episodes are empty", "no-samples")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file.create_group("data")
    wrong(tmp_path / "b.hdf5", "no arrays of time steps", "no-samples")
    (tmp_path / "c.hdf5").touch()
    wrong(tmp_path / "c.hdf5", "empty", "empty-file")
    (tmp_path / "d.hdf5").write_bytes(picture(0))
    wrong(tmp_path / "d.hdf5", "holds a JPEG image", "other-format")


def test_declared_numbers_are_compared(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5")
    with h5py.File(path, "r+") as file:
        file["data/demo_1"].attrs["num_samples"] = 13
    wrong(path, "has 12 steps, but its attribute num_samples is 13", "wrong-count")
    path = robomimic(tmp_path / "other.hdf5", [3, 3, 3])
    with h5py.File(path, "r+") as file:
        file["mask/more"] = np.asarray([b"demo_9"])
    wrong(path, "lists the episode 'demo_9'", "bad-index")


def test_truncated_files(tmp_path: Path) -> None:
    path = aloha(tmp_path / "x.hdf5", 20, form="pixels")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="truncated"):
        fm.open(path)


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"fletcher32": True}], ids=str)
def test_a_flipped_bit_is_found(options: dict[str, Any], tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", [4, 4, 4], chunks=(2, 12, 12, 3), **options)
    with h5py.File(path) as file:
        info = file["data/demo_1/obs/agentview_image"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[info.byte_offset + info.size // 2] ^= 4
    path.write_bytes(data)
    found = wrong(path, "obs/agentview_image.*cannot be read", "bad-data", index=6)
    assert found.offset == info.byte_offset
    assert fm.open(path)[5]["actions"].shape == (7,)
    assert len(fm.open(path).verify()) == 1


def test_links_are_not_followed(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", [3])
    secret = tmp_path / "secret.hdf5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(path, "r+") as file:
        group = file["data/demo_0"]
        group["far"] = h5py.ExternalLink("secret.hdf5", "/x")
        group["soft"] = h5py.SoftLink("/data/demo_0/actions")
        group["loop/back"] = file["data"]
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(str(secret), "x", (3,))
        group.create_virtual_dataset("virtual", layout)
        group.create_dataset("outside", (3,), "i8", external=[(str(tmp_path / "raw"), 0, 24)])
        group["fields"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
        group["complex"] = np.zeros(3, "c8")
    dataset = fm.open(path)
    assert set(dataset.columns) == {"actions", "dones", "obs.agentview_image", "obs.eef"}
    remarks = "\n".join(dataset.remarks)
    for words in (
        "'far': it is a link to another file",
        "'soft': it is a link (soft)",
        "'loop/back/demo_0': it leads back",
        "'outside', 'virtual': its values lie in other files",
        "complex64",
        "'a'",
    ):
        assert words in remarks, words


def test_a_file_that_is_replaced_during_the_run(tmp_path: Path) -> None:
    path = aloha(tmp_path / "x.hdf5", 5)
    dataset = fm.open(path)
    assert dataset[0]["action"].shape == (4,)
    other = aloha(tmp_path / "y.hdf5", 5, seed=3)
    os.utime(other, ns=(1, 1))
    other.replace(path)
    changed = fm.open(path)
    assert not np.array_equal(changed[0]["action"], fm.open(path)[1]["action"])
    try:
        assert dataset[1]["action"].shape == (4,)  # its descriptor is open
    except DataError as error:
        assert error.kind == "changed"


def test_a_corrupt_index_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = aloha(tmp_path / "x.hdf5")
    expected = fm.open(path)[2].raw("action")
    (kept,) = (tmp_path / ".cache" / "recordings").iterdir()
    data = bytearray(kept.read_bytes())
    data[data.index(b"episodes")] ^= 1
    kept.write_bytes(data)
    assert fm.open(path)[2].raw("action") == expected
    assert "corrupt and is made again" in caplog.text


def test_checksums_of_all_lengths() -> None:
    for length in (0, 1, 2, 7, 720, 721, 5000):
        data = RNG.integers(0, 256, length, dtype=np.uint8).tobytes()
        low = high = 0
        words = data + b"\0" * (length % 2)
        for at in range(0, len(words), 2):
            low = (low + int.from_bytes(words[at : at + 2], "big")) % 65535
            high = (high + low) % 65535
        assert _same_sum(memoryview(data), high << 16 | low)
        assert not _same_sum(memoryview(data), (high << 16 | low) ^ 1)


def test_a_chunk_that_unpacks_to_too_much(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["action"] = np.zeros(4)
        file.create_dataset("huge", (4, 1 << 26), "u1", chunks=(4, 1 << 26), compression="gzip")[0, 0] = 1
    assert wrong(tmp_path / "x.h5", "more than the limit", "too-large", index=0).record


def test_parts_are_named_by_their_path(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/b"] = np.zeros(3)
        file["a.b"] = np.ones(3)
    wrong(tmp_path / "x.h5", "two arrays would be the column 'a.b'", "name-clash")


def test_check_and_convert(tmp_path: Path) -> None:
    hdf5(tmp_path, [5, 1, 9])
    assert not fm.check(tmp_path).findings
    fm.convert(tmp_path, tmp_path.parent / f"{tmp_path.name}-out", "parquet", progress=False)
    back = fm.open(tmp_path.parent / f"{tmp_path.name}-out")
    assert [sample["n"] for sample in back] == list(range(15))
