"""Values to bytes and back."""

from __future__ import annotations

import datetime
import io
import json
import math
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feedmill.errors import DataError
from feedmill.formats.npz.arrays import npz
from feedmill.samples.decode import Decoder
from feedmill.samples.encode import Encoder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    assert json.loads(Encoder()("json", value)) == value


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN.filter(lambda value: type(value) is not bytes))  # bytes are the part itself, as for every suffix
def test_cbor_comes_back(value: Any) -> None:
    assert Decoder()("x.cbor", Encoder()("x.cbor", value)) == value


def test_cbor_holds_plain_data_and_arrays_as_lists() -> None:
    assert Decoder()("x.cbor", Encoder()("x.cbor", {"a": np.arange(3), "b": (np.float32(0.5),)})) == {
        "a": [0, 1, 2], "b": [0.5],
    }  # fmt: skip
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    for value, why in (
        ({1, 2}, "no set"),
        ({"d": datetime.date(2026, 1, 1)}, "no date"),
        (deep, "nested more than 256"),
    ):
        with pytest.raises(DataError, match=why):
            Encoder()("x.cbor", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("txt", "Größe\n"),
        ("cls", 7),
        ("index", np.int64(3)),
        ("json", [None, 2**70, {"a": "é"}]),
        ("json.gz", {"a": [1, 2]}),
        ("detail.json", {"a": 1.5}),
        ("mp", {"a": [1, b"2"]}),
    ],
)
def test_values_come_back(name: str, value: Any) -> None:
    assert Decoder()(name, Encoder()(name, value)) == value


def test_json_keeps_nan_and_takes_arrays() -> None:
    assert math.isnan(json.loads(Encoder()("json", [math.nan]))[0])
    assert json.loads(Encoder()("json", {"a": np.arange(3), "b": np.float32(1.5), "c": None})) == {
        "a": [0, 1, 2], "b": 1.5, "c": None,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "i8", "u1", ">i4", "?", "c8"])
def test_arrays_come_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = Decoder()("npy", Encoder()("npy", array))
    assert back.dtype == array.dtype and np.array_equal(back, array)
    both = Decoder()("npz", Encoder()("npz", {"a": array, "ü/x": array[0]}))
    assert list(both) == ["a", "ü/x"] and np.array_equal(both["ü/x"], array[0])


def test_an_archive_is_a_whole_zip_and_the_same_each_time() -> None:
    arrays = {"a": np.arange(3), "b": np.ones((2, 2), np.float16), "empty": np.zeros((0, 4))}
    data = npz(arrays)
    assert data == npz(arrays)
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None and archive.namelist() == ["a.npy", "b.npy", "empty.npy"]
    assert not np.load(io.BytesIO(npz({}))).files


def test_ten_comes_back() -> None:
    arrays = [np.arange(5, dtype="i4"), np.ones((2, 3), "f2"), np.float64(3.0)]
    back = Decoder()("ten", Encoder()("ten", arrays))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))


def test_images_come_back() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)
    for form in ("png", "PNG", "bmp", "ppm", "tiff"):
        assert np.array_equal(Decoder()(form, Encoder()(form, pixels)), pixels)
    assert Decoder()("jpg", Encoder()("jpg", pixels)).shape == (5, 7, 3)
    assert Decoder()("jpeg", Encoder()("jpeg", Image.fromarray(pixels).convert("RGBA"))).shape == (5, 7, 3)
    assert np.array_equal(Decoder()("png", Encoder()("png", pixels / 255)), pixels)
    grey = Decoder(image="l8")("png", Encoder()("png", pixels[:, :, :1]))
    assert np.array_equal(grey, pixels[:, :, 0])


def test_a_jpeg_of_16_bit_grey_is_not_white() -> None:
    grey = np.full((8, 8), 0x4000, np.uint16)
    assert (Decoder("l8")("jpg", Encoder()("jpg", Image.fromarray(grey))) == 0x40).all()


def test_torch_images_are_channels_first() -> None:
    torch = pytest.importorskip("torch")
    pixels = torch.arange(3 * 4 * 5, dtype=torch.uint8).reshape(3, 4, 5)
    assert np.array_equal(Decoder()("png", Encoder()("png", pixels)), pixels.numpy().transpose(1, 2, 0))
    assert np.array_equal(Decoder()("npy", Encoder()("npy", pixels)), pixels.numpy())


def test_bytes_stay_and_own_functions_come_first() -> None:
    encode = Encoder({"tok": lambda ids: bytes(ids), "detail.json": lambda _: b"own"})
    assert encode("tok", [1, 2]) == b"\1\2" and encode("detail.json", {}) == b"own" and encode("json", {}) == b"{}"
    assert encode("pkl", b"\x80") == b"\x80" and encode("jpg", bytearray(b"x")) == b"x"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("txt", 3),
        ("cls", 1.5),
        ("cls", "cat"),
        ("json", {1, 2}),
        ("json", object()),
        ("npy", np.array([object()])),
        ("npz", np.zeros(3)),
        ("jpg", np.zeros((4, 4, 7))),
        ("png", np.full((4, 4), 7.0)),
        ("png", "a.png"),
        ("pkl", {"a": 1}),
        ("pickle", 1),
        ("xyz", 1),
        ("bin", "text"),
        ("ten", [np.zeros(2, "c8")]),
        ("mp", object()),
    ],
)
def test_what_cannot_be_encoded_names_the_part(name: str, value: Any) -> None:
    with pytest.raises(DataError) as error:
        Encoder()(name, value)
    assert error.value.kind == "no-conversion" and repr(name) in str(error.value)


def test_a_function_has_to_give_bytes() -> None:
    with pytest.raises(DataError, match="not bytes"):
        Encoder({"x": str})("x", 1)
