"""Recordings of robots, as the libraries of their formats write them. Tests that need one are skipped without it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def picture(number: int, height: int = 16, width: int = 24, kind: str = "JPEG") -> bytes:
    """An image file that depends on a number."""
    from PIL import Image

    rng = np.random.default_rng(number)
    small = Image.fromarray(rng.integers(0, 255, (height // 4, width // 4, 3), dtype=np.uint8))
    out = io.BytesIO()
    small.resize((width, height)).save(out, kind)
    return out.getvalue()


def hdf5(root: Path, counts: Sequence[int]) -> Path:
    """A folder of files of one episode each, whose column ``n`` counts the steps of all of them."""
    h5py = pytest.importorskip("h5py")
    first = 0
    for number, count in enumerate(counts):
        with h5py.File(root / f"episode_{number}.hdf5", "w") as file:
            n = np.arange(first, first + count)
            file["n"] = n
            file.create_dataset(
                "grid", data=np.repeat(n[:, None, None], 6, 1).repeat(4, 2), chunks=(min(2, count), 4, 4)
            )
            file.create_dataset("packed", data=n, chunks=(min(3, count),), compression="gzip", shuffle=True)
            file["text"] = [f"step {each}" for each in n]
        first += count
    return root


def aloha(path: Path, count: int = 5, *, form: str = "padded", seed: int = 0) -> Path:
    """A file as ALOHA's: one episode with two cameras, as rows of padded JPEG files, as values, or as pixels."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        for name in ("action", "observations/qpos"):
            file.create_dataset(name, data=rng.normal(size=(count, 4)).astype("f4"))
        for camera in ("cam_high", "cam_low"):
            name, files = f"observations/images/{camera}", [picture(seed + n) for n in range(count)]
            if form == "values":
                values = file.create_dataset(name, (count,), dtype=h5py.vlen_dtype(np.uint8))
                for n, data in enumerate(files):
                    values[n] = np.frombuffer(data, np.uint8)
            elif form == "padded":
                width = max(map(len, files)) + 5
                padded = file.create_dataset(name, (count, width), "u1", chunks=(1, width))
                for n, data in enumerate(files):
                    padded[n, : len(data)] = np.frombuffer(data, np.uint8)
            else:
                file.create_dataset(name, data=rng.integers(0, 255, (count, 16, 24, 3), dtype=np.uint8))
        file["compress_len"] = np.zeros((2, count))
    return path


def robomimic(path: Path, lengths: Sequence[int] = (7, 12, 5), **options: Any) -> Path:
    """A file as robomimic's: several episodes, splits, and a rate of 20 steps a second."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        for number in rng.permutation(len(lengths)).tolist():
            count = lengths[number]
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"] = count
            group["actions"] = rng.normal(size=(count, 7))
            group["dones"] = np.arange(count) == count - 1
            pixels = rng.integers(0, 255, (count, 12, 12, 3), dtype=np.uint8)
            group.create_dataset("obs/agentview_image", data=pixels, **(options if count else {}))
            group["obs/eef"] = rng.normal(size=(count, 3))
        if len(lengths) > 2:
            file["mask/train"] = np.asarray([b"demo_0", b"demo_1"])
            file["mask/valid"] = np.asarray([b"demo_2"])
    return path


def replay_buffer(
    path: Path, lengths: Sequence[int] = (5, 1, 9), *, version: int = 2, compressor: Any = "auto", rows: int = 4
) -> Path:
    """A replay buffer as UMI's and Diffusion Policy's: a folder, or one file if its name ends in ``.zip``."""
    zarr: Any = pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else zarr.storage.LocalStore(path)
    root = zarr.create_group(store, zarr_format=version)
    count, codecs = sum(lengths), {} if compressor == "auto" else {"compressors": compressor}

    def add(name: str, data: Any, chunks: Any, **more: Any) -> None:
        array = root.create_array(name, shape=data.shape, chunks=chunks, dtype=data.dtype, **(more or codecs))
        array[:] = data

    add("data/action", rng.normal(size=(count, 3)).astype("f4"), (rows, 3))
    add("data/robot0_eef_pos", rng.normal(size=(count, 3)), (rows, 2), compressors=None)
    add("data/n", np.arange(count), (rows,))
    add("data/camera0_rgb", rng.integers(1, 255, (count, 12, 16, 3), dtype=np.uint8), (1, 12, 16, 3))
    add("meta/episode_ends", np.cumsum(lengths), (len(lengths),))
    store.close()
    return path


def mcap(path: Path, count: int = 12, *, compression: str = "ZSTD", chunk_size: int = 2048, late: int = 0) -> Path:
    """A recording of 20 steps a second: two cameras, joints at 100 a second, an action, and messages of ROS."""
    writer: Any = pytest.importorskip("mcap.writer")
    schema = json.dumps({"properties": {"n": {"type": "integer"}, "q": {"items": {"type": "number"}}}}).encode()
    with path.open("wb") as file:
        out = writer.Writer(file, chunk_size=chunk_size, compression=writer.CompressionType[compression])
        out.start()
        image = out.register_schema("foxglove.CompressedImage", "jsonschema", b"{}")
        joints = out.register_schema("joints", "jsonschema", schema)
        ros = out.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        cameras = [out.register_channel(f"/{side}/image", "json", image) for side in ("left", "right")]
        state, action = (out.register_channel(topic, "json", joints) for topic in ("/joint_states", "/arm/action"))
        raw = out.register_channel("/raw", "cdr", ros)
        for tick in range(count * 5):
            time = 1_700_000_000_000_000_000 + tick * 10_000_000
            if tick % 5 == 2:
                step = tick // 5
                for number, camera in enumerate(cameras):
                    if number or step >= late:
                        data = base64.b64encode(picture(2 * step + number)).decode()
                        message = {"timestamp": {"sec": 1}, "frame_id": "x", "data": data, "format": "jpeg"}
                        out.add_message(camera, time, json.dumps(message).encode(), time)
            if tick % 5 == 3:
                message = {"n": tick // 5, "q": [tick / 3, 1.0], "on": True}
                out.add_message(action, time, json.dumps(message).encode(), time)
                out.add_message(raw, time, b"\0\1\0\0" + bytes([tick % 256]), time)
            message = {"n": tick, "q": [[tick, 2.5], [0, 0]], "names": [{"a": 1}], "pose": {"x": 0, "frame": "base"}}
            out.add_message(state, time, json.dumps(message).encode(), time)
        out.finish()
    return path


_POOLS: list[Any] = []  # which classes use after they are made


def example_class() -> Any:
    """The class of ``tf.train.Example``, made of its description without TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(parent: Any, name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        one = parent.add(name=name)
        for title, number, label, kind, of in fields:
            one.field.add(name=title, number=number, label=label, type=kind, **({"type_name": of} if of else {}))
        return one

    top = file.message_type
    many, single = field.LABEL_REPEATED, field.LABEL_OPTIONAL
    message(top, "BytesList", ("value", 1, many, field.TYPE_BYTES, ""))
    message(top, "FloatList", ("value", 1, many, field.TYPE_FLOAT, ""))
    message(top, "Int64List", ("value", 1, many, field.TYPE_INT64, ""))
    lists = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
    kinds = [
        (name, number, single, field.TYPE_MESSAGE, f".tensorflow.{of}")
        for number, (name, of) in enumerate(lists.items(), 1)
    ]
    feature = message(top, "Feature", *kinds)
    feature.oneof_decl.add(name="kind")
    for one in feature.field:
        one.oneof_index = 0
    features = message(top, "Features", ("feature", 1, many, field.TYPE_MESSAGE, ".tensorflow.Features.FeatureEntry"))
    entry = message(
        features.nested_type,
        "FeatureEntry",
        ("key", 1, single, field.TYPE_STRING, ""),
        ("value", 2, single, field.TYPE_MESSAGE, ".tensorflow.Feature"),
    )
    entry.options.map_entry = True
    message(top, "Example", ("features", 1, single, field.TYPE_MESSAGE, ".tensorflow.Features"))
    _POOLS.append(pool := descriptor_pool.DescriptorPool())
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def tf_record(data: bytes) -> bytes:
    """A record of a TFRecord file."""
    from oracles.crc32c import crc32c

    def masked(data: bytes) -> bytes:
        crc = crc32c(data)
        return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    length = len(data).to_bytes(8, "little")
    return length + masked(length) + data + masked(data)


def rlds(root: Path, lengths: Sequence[int] = (5, 1, 9), *, described: bool = True, split: str = "train") -> Path:
    """An RLDS dataset of two files, as TensorFlow Datasets writes it."""
    example, first = example_class(), 0
    files: list[list[bytes]] = [[], []]
    for episode, count in enumerate(lengths):
        rng = np.random.default_rng(episode)
        one = example()
        steps = one.features.feature
        steps["steps/action"].float_list.value.extend(rng.normal(size=count * 7).tolist())
        steps["steps/observation/state"].float_list.value.extend(rng.normal(size=count * 6).tolist())
        steps["steps/observation/image"].bytes_list.value.extend(picture(first + n) for n in range(count))
        steps["steps/language_instruction"].bytes_list.value.extend([f"task {episode} ü".encode()] * count)
        steps["steps/is_first"].int64_list.value.extend(int(n == 0) for n in range(count))
        steps["steps/n"].int64_list.value.extend(range(first, first + count))
        steps["steps/big"].int64_list.value.extend(rng.integers(-(2**62), 2**62, 2 * count).tolist())
        steps["episode_metadata/file_path"].bytes_list.value.append(b"x")
        files[episode * 2 // len(lengths)].append(tf_record(one.SerializeToString()))
        first += count
    for number, records in enumerate(files):
        name = f"demo-{split}.tfrecord-{number:05d}-of-00002" if described else f"{number}.tfrecord"
        (root / name).write_bytes(b"".join(records))
    if described:

        def tensor(dtype: str, *shape: int) -> dict[str, Any]:
            return {"tensor": {"dtype": dtype, "shape": {"dimensions": [str(n) for n in shape]}, "encoding": "none"}}

        image = {"image": {"dtype": "uint8", "encodingFormat": "jpeg"}}
        observation = {"featuresDict": {"features": {"state": tensor("float32", 2, 3), "image": image}}}
        inner = {
            "action": tensor("float32", 7), "observation": observation, "language_instruction": {"text": {}},
            "is_first": tensor("bool"), "n": tensor("int32"), "big": tensor("int64", 2),
        }  # fmt: skip
        steps = {"sequence": {"feature": {"featuresDict": {"features": inner}}, "length": "-1"}}
        content = {
            "featuresDict": {"features": {"steps": steps, "episode_metadata": {"featuresDict": {"features": {}}}}}
        }
        (root / "features.json").write_text(json.dumps(content))
    return root
