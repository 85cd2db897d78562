from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import struct
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.formats.objects import decode_json
from feedmill.formats.pth import dump
from feedmill.samples import cbor
from feedmill.samples.decode import Decoder, SampleDecoder
from helpers.raw_samples import sample_of

decode = Decoder()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("txt", "é\n".encode(), "é\n"),
        ("a.b.text", b"", ""),
        ("transcript", b"x", "x"),
        *[(name, b" 12\n", 12) for name in ("cls", "cls2", "index", "inx", "id")],
        ("json", b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("x.jsn", b"[]", []),
        *[(name, msgspec.msgpack.encode({"a": [1, b"x"]}), {"a": [1, b"x"]}) for name in ("mp", "msgpack", "msg")],
        ("cbor", bytes.fromhex("a161618201f6"), {"a": [1, None]}),
        ("txt.gz", gzip.compress(b"hello", mtime=0), "hello"),
        ("json.gz", gzip.compress(b"7", mtime=0), 7),
        ("gz", gzip.compress(b"hello", mtime=0), b"hello"),
        ("bin.gz", gzip.compress(b"hello", mtime=0), b"hello"),
        ("txt.gz.gz", gzip.compress(gzip.compress(b"", mtime=0), mtime=0), gzip.compress(b"", mtime=0)),
        # Everything else stays bytes; suffixes count as written, except for media.
        *[(name, b"\x80\x04K\x01.", b"\x80\x04K\x01.") for name in ("", "TXT", "xyz", "ps", "h5")],
        *[(name, b"\x80\x04K\x01.", b"\x80\x04K\x01.") for name in ("pyd", "pickle", "a.pkl")],
        ("__meta__.json", b"not json", b"not json"),
    ],
)
def test_suffix_decides(name: str, data: bytes, wanted: object) -> None:
    found = decode(name, data)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize("array", [np.arange(6, dtype="<i4").reshape(2, 3), np.float64(3.5), np.zeros((0, 4), "u1")])
def test_arrays(array: np.ndarray) -> None:
    found = decode("emb.npy", npy(np.array(array, order="F")))
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)
    both = decode("npz", npz(a=array, b=np.ones(2)))
    assert list(both) == ["a", "b"] and np.array_equal(both["a"], array)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("txt", b"\xff", "utf-8"),
        ("cls", b"cat", "invalid literal"),
        ("json", b'{"a": ', "Expecting value"),
        ("json", b"\xff", "decode"),
        ("json", b"[" * 100_000, "recursion"),
        ("msg", b"\xc1", "malformed"),
        ("npy", npy(np.arange(4))[:-1], "read"),
        ("npy", npy(np.array([{}], dtype=object)), "allow_pickle"),
        ("npz", npz(a=np.array([{}], dtype=object)), "allow_pickle"),
        ("npz", b"PK", "."),
        ("txt.gz", b"\x1f\x8b", "."),
        ("ten", b"~TenBin~", "truncated"),
        ("cbor", b"\x82\x01", "truncated"),
        ("png", b"\x89PNG", "cannot identify"),
        ("jpg", b"", "is empty"),
    ],
)
def test_bad_bytes_name_part_reason_and_first_bytes(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(name, data)
    assert repr(name) in caught.value.what and reason in caught.value.what
    assert not data or repr(data[:16])[:-1] in caught.value.what or name.endswith("gz")


def test_a_sample_adds_file_key_and_part() -> None:
    sample = sample_of({"txt": b"fine", "json": b"{"}, decode=decode)
    assert sample["txt"] == "fine"
    with pytest.raises(DataError) as caught:
        sample["json"]
    error = caught.value
    assert (error.file, error.record, error.offset, error.kind) == ("ds/0.tar", "k0.json", 512, "bad-part")
    assert isinstance(error.__cause__, ValueError)
    assert sample.raw("json") == b"{"


def test_a_pickle_runs_only_when_trusted() -> None:
    data = pickle.dumps({"a": 1})
    assert decode("pkl", data) == data
    assert Decoder(trust=True)("pkl", data) == {"a": 1}
    with pytest.raises(DataError, match="holds a pickle of Python, not what its name says"):
        Decoder(trust=True)("pth", data)


def test_tensors_are_decoded_as_arrays_or_tensors() -> None:
    data = dump(np.arange(6).reshape(2, 3))
    assert decode("input_ids.pth", data).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert decode("x.pth.gz", gzip.compress(data)).shape == (2, 3)
    torch = pytest.importorskip("torch")
    assert isinstance(pickle.loads(pickle.dumps(Decoder(tensors="torch")))("pth", data), torch.Tensor)
    with pytest.raises(ConfigError, match="unknown tensor type 'jax'"):
        Decoder(tensors="jax")


def test_settings_are_checked_and_travel() -> None:
    with pytest.raises(ConfigError, match=r"unknown image spec 'torchrbg' \(did you mean 'torchrgb'\?\)"):
        Decoder("torchrbg")
    with pytest.raises(ConfigError, match=r"cannot be decoded as 'avdecoder' \(did you mean 'AVDecoder'\?\)"):
        Decoder(av="avdecoder")
    copied = pickle.loads(pickle.dumps(Decoder("pil", trust=True)))
    assert (copied.image, copied.av, copied.trust) == ("pil", "AVDecoder", True)
    assert copied == Decoder("pil", trust=True) and hash(copied) == hash(Decoder("pil", trust=True))
    assert copied != Decoder("pil") and Decoder("torchrgb") != SampleDecoder()
    energons = pickle.loads(pickle.dumps(SampleDecoder(av_decode="torch", guess_content=True)))
    assert energons == SampleDecoder(av_decode="torch", guess_content=True)
    assert "guess_content=True" in repr(energons)


@pytest.mark.parametrize("module", ["PIL", "torch"])
def test_a_missing_package_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    pillow.new("RGB", (2, 2)).save(stream, "PNG")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"feedmill\[{'media' if module == 'PIL' else 'torch'}\]"):
        Decoder("torchrgb")("png", stream.getvalue())


numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.booleans())
def test_json_equals_pythons_own(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert decode_json(text) == json.loads(text)
    assert repr(decode_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"[-Infinity, 1e400]", b'"\\ud800"', b"\xef\xbb\xbf7", '"é"'.encode("utf-16"), b'{"a":1,"a":2}', b"-0"],
)
def test_json_takes_what_python_takes(text: bytes) -> None:
    found, wanted = decode_json(text), json.loads(text)
    assert found == wanted or (math.isnan(found) and math.isnan(wanted))


def ten(*arrays: np.ndarray) -> bytes:
    def chunk(body: bytes) -> bytes:
        return b"~TenBin~" + struct.pack("<q", len(body)) + body + bytes(-len(body) % 64)

    result = b""
    for array in arrays:
        short = array.dtype.str[1:].encode().ljust(8, b"\0")
        header = short + b"name\0\0\0\0" + struct.pack(f"<{array.ndim + 1}q", array.ndim, *array.shape)
        result += chunk(header) + chunk(array.tobytes())
    return result


def test_ten_holds_a_list_of_arrays() -> None:
    arrays = [np.arange(6, dtype="f4").reshape(2, 3), np.array(7, dtype="i8"), np.zeros((0, 2), "u1")]
    found = decode("x.ten", ten(*arrays))
    assert [(a.dtype, a.shape) for a in found] == [(a.dtype, a.shape) for a in arrays]
    assert all(np.array_equal(a, b) for a, b in zip(found, arrays, strict=True))
    assert decode("tb", b"") == []


@given(st.data())
def test_damaged_ten_and_cbor_give_data_errors_only(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from(
            [("ten", ten(np.arange(9.0))), ("cbor", bytes.fromhex("bf6161fb3ff199999999999a61629f0102ffff"))]
        )
    )
    raw = bytearray(whole[1])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        decode(whole[0], bytes(raw))
    except DataError as error:
        assert error.kind == "bad-part"


@pytest.mark.parametrize(
    ("encoded", "wanted"),
    [  # RFC 8949, appendix A
        ("00", 0),
        ("1903e8", 1000),
        ("1bffffffffffffffff", 2**64 - 1),
        ("c249010000000000000000", 2**64),
        ("3bffffffffffffffff", -(2**64)),
        ("c349010000000000000000", -(2**64) - 1),
        ("3903e7", -1000),
        ("f90001", 5.960464477539063e-08),
        ("f97bff", 65504.0),
        ("fa47c35000", 100000.0),
        ("fb3ff199999999999a", 1.1),
        ("f97c00", math.inf),
        ("f4", False),
        ("f5", True),
        ("f6", None),
        ("f7", None),
        ("c074323031332d30332d32315432303a30343a30305a", "2013-03-21T20:04:00Z"),
        ("4401020304", b"\x01\x02\x03\x04"),
        ("62c3bc", "ü"),
        ("83018202039f0405ff", [1, [2, 3], [4, 5]]),
        ("a201020304", {1: 2, 3: 4}),
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("bf6346756ef563416d7421ff", {"Fun": True, "Amt": -2}),
    ],
)
def test_cbor_examples_of_the_standard(encoded: str, wanted: object) -> None:
    found = decode("cbor", bytes.fromhex(encoded))
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    "encoded", ["", "ff", "0000", "1c", "1f", "a1ff", "5f6161ff", "a18001", "f8ff", "81" * 400, "82ff01"]
)
def test_cbor_refuses(encoded: str) -> None:
    with pytest.raises(DataError):
        decode("cbor", bytes.fromhex(encoded))


@pytest.mark.parametrize(
    ("encoded", "wanted"),
    [  # what tags make is the content: no date, no pattern, no set, nothing that refers to itself
        ("d82340", b""),
        ("d823615b", "["),
        ("d90102820101", [1, 1]),
        ("d81c81d81d00", [0]),
        ("d9030081a10100", [{1: 0}]),
        ("c10a", 10),
        ("c4820203", [2, 3]),
        ("82f7f6", [None, None]),
    ],
)
def test_tags_of_cbor_are_read_through(encoded: str, wanted: object) -> None:
    assert decode("cbor", bytes.fromhex(encoded)) == wanted


def test_without_cbor2_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    cbor._cbor2.cache_clear()
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(MissingExtra, match=r"feedmill\[cbor\]"):
        decode("cbor", b"\x00")
    cbor._cbor2.cache_clear()
