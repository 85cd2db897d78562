"""Zarr replay buffers: what zarr reads, by ranges, of folders and zip files; and buffers that are damaged."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import DataError, FeedmillError, MissingExtra
from feedmill.storage import LocalStore
from helpers.recordings import replay_buffer

zarr: Any = pytest.importorskip("zarr")
numcodecs: Any = pytest.importorskip("numcodecs")
CODECS = {
    "none": None,
    "blosc-lz4": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
    "blosc-zstd": numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE),
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    "zstd": numcodecs.Zstd(),
    "lz4": numcodecs.LZ4(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / ".cache"))


def compare(path: Path) -> None:
    store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else str(path)
    root, dataset = zarr.open_group(store, mode="r"), fm.open(path, decode=None)
    assert len(dataset) == int(root["meta/episode_ends"][-1])
    for name in dataset.columns:
        array = root[f"data/{name}"][:]
        for step in range(len(dataset)):
            found = dataset[step].row[name]
            assert np.array_equal(found, array[step]), name
            assert not array.shape[1:] or found.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("codec", CODECS)
def test_folders_of_version_2(codec: str, tmp_path: Path) -> None:
    compare(replay_buffer(tmp_path / "x.zarr", compressor=CODECS[codec]))


@pytest.mark.parametrize("codec", ["auto", "none", "gzip", "blosc", "crc"])
def test_folders_of_version_3(codec: str, tmp_path: Path) -> None:
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec

    codecs = {"auto": "auto", "none": None, "gzip": [GzipCodec()], "blosc": [BloscCodec()], "crc": [Crc32cCodec()]}
    compare(replay_buffer(tmp_path / "x.zarr", version=3, compressor=codecs[codec]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("version", [2, 3])
def test_zip_files(version: int, tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "buffer.zarr.zip", version=version)
    compare(path)
    deflated = tmp_path / "packed.zarr.zip"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as out:
        for name in source.namelist():
            out.writestr(f"buffer.zarr/{name}", source.read(name))  # of the folder itself
    a, b = fm.open(path), fm.open(deflated)
    assert all(np.array_equal(x["camera0_rgb"], y["camera0_rgb"]) for x, y in zip(a, b, strict=True))


def test_fortran_order_big_numbers_and_fill_values(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "x.zarr", [4, 6])
    root = zarr.open_group(str(path), mode="r+", zarr_format=2)
    more = root.create_array("data/fortran", shape=(10, 4, 3), chunks=(3, 2, 2), dtype=">i4", order="F", fill_value=-3)
    more[3:] = np.arange(7 * 12).reshape(7, 4, 3)
    nan = root.create_array("data/nan", shape=(10,), chunks=(4,), dtype="f4", fill_value=np.nan)
    nan[:4] = 1.5
    compare_but = fm.open(path, decode=None)
    values = root["data/fortran"][:]
    assert all(np.array_equal(compare_but[n].row["fortran"], values[n]) for n in range(10))
    assert compare_but[0].row["fortran"].tolist() == [[-3] * 3] * 4 and np.isnan(compare_but[9].row["nan"])
    assert any("4 of 16 chunks of 'data/fortran' are not there" in remark for remark in compare_but.remarks)


def test_windows_and_episodes(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "x.zarr.zip", [5, 0, 1, 9])
    dataset = fm.open(path, windows={"n": [-1, 1], "camera0_rgb": [0, 1]})
    assert dataset.episode_lengths.tolist() == [5, 1, 9] and dataset[5].key == "000002/000000"
    assert dataset[5]["n"].tolist() == [5, 5, 5] and dataset[5]["n_is_pad"].tolist() == [True, False, True]
    assert dataset[4]["n"].tolist() == [3, 4, 4] and dataset[4]["camera0_rgb"].shape == (2, 12, 16, 3)
    units = fm.open(path, windows={"camera0_rgb": [0, 1]}, decode="rgb")[4]["camera0_rgb"]
    assert np.array_equal(units, dataset[4]["camera0_rgb"] / np.float32(255)) and units.dtype == np.float32
    assert not fm.check(path).findings


def test_a_step_of_a_bucket_costs_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = replay_buffer(tmp_path / "x.zarr.zip", rows=1, compressor=None)
    fm.open(path)
    asked: list[tuple[int, int]] = []
    read = LocalStore.read

    def counted(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
        asked.append((offset, length or 0))
        return read(store, path, offset, length)

    monkeypatch.setattr(LocalStore, "is_local", False)
    monkeypatch.setattr(LocalStore, "descriptors", lambda store, paths: None)
    monkeypatch.setattr(LocalStore, "read", counted)
    monkeypatch.setattr(
        LocalStore, "read_ranges", lambda s, p, a, b: [s.read(p, *each) for each in zip(a, b, strict=True)]
    )
    dataset = fm.open(path, decode=None)
    asked.clear()
    row = dataset[7].row
    size = sum(np.asarray(value).nbytes for value in row.values())
    assert len(asked) <= 5 and size <= sum(length for _, length in asked) <= size + 5 * 100


def test_jpeg_xl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imagecodecs: Any = pytest.importorskip("imagecodecs")
    path = replay_buffer(tmp_path / "x.zarr", [3])
    folder = path / "data" / "camera0_rgb"
    expected = [sample["camera0_rgb"] for sample in fm.open(path)]
    for step, pixels in enumerate(expected):
        (folder / f"{step}.0.0.0").write_bytes(imagecodecs.jpegxl_encode(pixels, lossless=True))
    about = json.loads((folder / ".zarray").read_text())
    (folder / ".zarray").write_text(json.dumps({**about, "compressor": {"id": "imagecodecs_jpegxl", "level": None}}))
    dataset = fm.open(path)
    assert all(np.array_equal(dataset[step]["camera0_rgb"], pixels) for step, pixels in enumerate(expected))
    (folder / "1.0.0.0").write_bytes(imagecodecs.jpegxl_encode(np.zeros((99, 99, 3), np.uint8)))
    with pytest.raises(DataError, match="JPEG XL data are corrupt"):
        fm.open(path)[1]
    monkeypatch.setitem(__import__("sys").modules, "imagecodecs", None)
    with pytest.raises(MissingExtra, match="pip install imagecodecs"):
        fm.open(path)[0]


def wrong(path: Path, words: str, kind: str, index: int | None = None) -> None:
    with pytest.raises(FeedmillError, match=words) as found:
        dataset = fm.open(path)
        if index is not None:
            dataset[index]
    assert found.value.kind == kind and found.value.fix


def test_wrong_ends(tmp_path: Path) -> None:
    for ends, words, kind in (
        ([5, 6, 14], "ends with 14 steps, and no array below data/ has that number of rows", "wrong-count"),
        ([5, 4, 15], "does not ascend: the episode 1 ends at 4", "bad-index"),
        ([-1, 4, 15], "does not ascend", "bad-index"),
        ([0, 0, 0], "no steps: 3 episodes are empty", "no-samples"),
    ):
        path = replay_buffer(tmp_path / "x.zarr")
        zarr.open_group(str(path), mode="r+")["meta/episode_ends"][:] = ends
        wrong(path, words, kind)
        shutil.rmtree(path)


def test_corrupt_buffers(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "x.zarr")
    chunk = path / "data/action/1.0"
    data = bytearray(chunk.read_bytes())
    data[-3] ^= 8
    chunk.write_bytes(data[:-1])
    wrong(path, "chunk of 'data/action' cannot be read", "bad-data", 5)
    assert len(fm.open(path).verify()) >= 1
    chunk.unlink()
    assert fm.open(path)[5]["action"].tolist() == [0, 0, 0]
    assert fm.open(path).remarks == [
        "1 of 4 chunks of 'data/action' are not there: their values are the fill value 0.0"
    ]
    (path / "data/action/1.O").write_bytes(b"")  # as if its name were corrupt
    wrong(path, "'data/action/1.O' is of no array", "bad-index")
    (path / "data/action/.zarray").write_text("{")
    wrong(path, "'data/action/.zarray' is not JSON", "bad-index")
    shutil.rmtree(path / "meta")
    (path / "meta/episode_ends").mkdir(parents=True)
    (path / "meta/episode_ends/.zarray").write_text("{}")
    wrong(path, "zarr_format is None", "bad-index")


def test_corrupt_zip_files(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "x.zarr.zip", compressor=None)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("data/action/1.0").header_offset + 60
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    wrong(path, "checksum \\(CRC-32\\) differs", "bad-data", 5)
    path.write_bytes(data[: len(data) // 2])
    wrong(path, "the zip cannot be read|truncated", "bad-data")
    path.write_bytes(b"")
    wrong(path, "empty", "empty-file")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../evil/.zarray", "{}")
    wrong(path, "no array 'meta/episode_ends'", "no-samples")


def test_objects_never_run_code(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "x.zarr", [2])
    for name, about in (
        ("objects", {"dtype": "|O", "filters": [{"id": "pickle"}]}),
        ("filtered", {"filters": [{"id": "delta", "dtype": "<f4"}]}),
        ("unknown", {"compressor": {"id": "pcodec"}}),
        ("fields", {"dtype": [["a", "<i4"]]}),
    ):
        shutil.copytree(path / "data/action", path / "data" / name)
        found = json.loads((path / "data" / name / ".zarray").read_text())
        (path / "data" / name / ".zarray").write_text(json.dumps({**found, **about}))
    remarks = "\n".join(fm.open(path).remarks)
    for words in (
        "'data/objects': objects, whose codecs can run code",
        "the filter delta",
        "the codec pcodec",
        "several fields",
    ):
        assert words in remarks


def test_a_buffer_becomes_a_lerobot_dataset(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "x.zarr.zip")
    fm.convert(path, tmp_path / "out", "lerobot", fps=10, progress=False, workers=1)
    back = fm.open(tmp_path / "out")
    assert [sample["n"] for sample in back] == list(range(15)) and back.episode_lengths.tolist() == [5, 1, 9]
    assert back[3]["observation.images.camera0_rgb"].tolist() == fm.open(path)[3]["camera0_rgb"].tolist()
    folder = replay_buffer(tmp_path / "y.zarr")
    report = fm.convert(folder, tmp_path / "table", "parquet", progress=False, workers=1)
    assert report.samples == 15 and not [loss for loss in report.plan.losses if "beside" in loss.what]
