"""Files that were made to run code, to read beyond their bytes, or to fill the memory."""

import contextlib
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.pth import dump, load
from helpers.durations import examples


def zipped(
    pickled: bytes, *more: tuple[str, bytes], compress: int = zipfile.ZIP_STORED, root: str = "archive"
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as z:
        z.writestr(f"{root}/data.pkl", pickled)
        for name, data in more:
            z.writestr(f"{root}/{name}", data)
    return out.getvalue()


class Runs:
    def __init__(self, function, *arguments) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "function, arguments, name",
    [
        (os.system, ("touch {}",), "system"),
        (eval, ("open('{}', 'w')",), "eval"),
        (exec, ("open('{}', 'w')",), "exec"),
        (open, ("{}", "w"), "open"),
        (getattr, (os, "system"), "getattr"),
        (__import__, ("os",), "__import__"),
    ],
)
def test_code_is_refused_by_name_in_both_layouts(protocol, function, arguments, name, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    given = tuple(a.format(target) if isinstance(a, str) else a for a in arguments)
    if function is getattr:
        given = ("text", "upper")
    hostile = pickle.dumps([Runs(function, *given)], protocol)
    legacy = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {})) + hostile + pickle.dumps([], 2)
    for data in (zipped(hostile), legacy, hostile):
        with pytest.raises(DataError) as info:
            load(data)
        assert not target.exists()
        if data is not hostile and protocol >= 2:
            assert info.value.kind == "unsafe-pickle" and name in str(info.value)


@pytest.mark.parametrize(
    "pickled, word",
    [
        (b"\x80\x02i" + b"os\nsystem\n.", "INST"),
        (b"\x80\x02(cos\nsystem\nX\x01\x00\x00\x00xo.", "os.system"),
        (b"\x80\x02)\x81.", "NEWOBJ"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x04\x96" + struct.pack("<Q", 1) + b"a.", "BYTEARRAY8"),
        (b"\x80\x02Pabc\n.", "PERSID"),
        (b"\x80\x02I1\n.", "INT"),
    ],
)
def test_other_opcodes_are_named(pickled: bytes, word: str) -> None:
    with pytest.raises(DataError, match=word):
        load(zipped(pickled))


def test_billion_laughs_and_values_in_themselves() -> None:
    laughs = b"\x80\x02]q\x00K\x01a"
    for level in range(1, 60):
        laughs += b"](h" + bytes([level - 1]) + (b"h" + bytes([level - 1])) * 9 + b"eq" + bytes([level])
    itself = b"\x80\x02]q\x00h\x00a."
    around = b"\x80\x02}q\x00X\x01\x00\x00\x00a]q\x01h\x00as."
    with pytest.raises(DataError, match=r"levels|items"):
        load(zipped(_only_last(laughs)))
    for pickled in (itself, around):
        with pytest.raises(DataError, match="contains itself"):
            load(zipped(pickled))


@pytest.mark.parametrize(
    "name, value",
    [
        ("torch\nSize", b"](" + b"N" * 10**6 + b"e"),
        ("builtins\nbytes", b"](" + b"N" * 10**6 + b"e"),
        ("torch\ndevice", b"X" + struct.pack("<I", 10**6) + b"x" * 10**6),
    ],
)
def test_one_value_copied_thousands_of_times(name: str, value: bytes) -> None:
    call = f"c{name}\n".encode() + b"h\x00" + (b"K\x00\x86R" if "device" in name else b"\x85R")
    pickled = (
        b"\x80\x02" + value.replace(b"N", b"K\x00" if "bytes" in name else b"N") + b"q\x000](" + call * 3000 + b"e."
    )
    with pytest.raises(DataError, match="copies the same value many times"):
        load(zipped(pickled))


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_one_storage_in_thousands_of_tensors(to: str) -> None:
    if to == "torch":
        pytest.importorskip("torch")
    elements = 10**6
    one = tensor_pickle(shape=(elements,), elements=elements)[2:-1]
    data = zipped(b"\x80\x02](" + one * 2000 + b"e.", ("data/0", bytes(8 * elements)))
    with pytest.raises(DataError, match="many times the"):
        load(data, to=to)


def _only_last(pickled: bytes) -> bytes:
    """The pickle that leaves nothing but the outermost list: all the others are put into a tuple's place and popped."""
    return pickled + b"q\xff" + b"0" * 60 + b"h\xff."


def test_deep_nesting_neither_crashes_nor_passes() -> None:
    for opcode in (b"\x85", b"q\x00]h\x00a"):
        pickled = b"\x80\x02)" + opcode * 200_000 + b"."
        with pytest.raises(DataError):
            load(zipped(pickled))
    key = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."  # hashing it would exhaust the C stack
    with pytest.raises(DataError):
        load(zipped(key))


def tensor_pickle(offset=0, shape=(4,), strides=(1,), elements=4, key="0", kind="LongStorage") -> bytes:
    """A pickle as torch writes it, with these numbers."""
    out = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n" + kind.encode() + b"\n"
    out += b"X" + struct.pack("<I", len(key)) + key.encode() + b"X\x03\x00\x00\x00cpu" + _int(elements) + b"tQ"
    out += _int(offset) + b"(" + b"".join(map(_int, shape)) + b"t(" + b"".join(map(_int, strides)) + b"t"
    return out + b"\x89ccollections\nOrderedDict\n)RtR."


def _int(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


BYTES = ("data/0", np.arange(4).tobytes())


def test_the_forged_pickle_is_right_where_its_numbers_are() -> None:
    assert load(zipped(tensor_pickle(), BYTES)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "numbers, word",
    [
        ({"offset": 1}, "needs 40 bytes"),
        ({"shape": (5,)}, "needs 40 bytes"),
        ({"strides": (2,)}, "needs 56 bytes"),
        ({"offset": -1}, "non-negative"),
        ({"shape": (-4,)}, "non-negative"),
        ({"strides": (-1,)}, "non-negative"),
        ({"shape": (2**62,)}, "non-negative"),
        ({"shape": (2**40, 2**40), "strides": (0, 0)}, "would need"),
        ({"shape": (2**31,), "strides": (0,)}, "would need"),
        ({"shape": (2**61, 0), "strides": (0, 0)}, "would need"),
        ({"shape": (1,) * 40, "strides": (1,) * 40}, "40 dimensions"),
        ({"shape": (2, 2)}, "non-negative"),
        ({"elements": 5}, "32 bytes"),
        ({"elements": -1}, "size"),
        ({"elements": 3, "shape": (4,)}, "needs 32 bytes"),
        ({"key": "1"}, "is missing"),
        ({"key": "../data.pkl"}, "is missing"),
        ({"kind": "QInt8Storage"}, "QInt8Storage"),
    ],
)
def test_tensors_outside_their_storage(numbers, word) -> None:
    for to in ("numpy", "torch"):
        if to == "torch":
            pytest.importorskip("torch")
        with pytest.raises(DataError, match=word):
            load(zipped(tensor_pickle(**numbers), BYTES), to=to)


def test_empty_tensors_anywhere_are_fine() -> None:
    assert load(zipped(tensor_pickle(offset=99, shape=(0, 3), strides=(3, 1)), BYTES)).shape == (0, 3)


def test_zips_that_torch_never_writes() -> None:
    plain = zipped(tensor_pickle(), BYTES)
    with pytest.raises(DataError, match="compressed"):
        load(zipped(tensor_pickle() + bytes(10**6), BYTES, compress=zipfile.ZIP_DEFLATED))
    with pytest.warns(UserWarning), pytest.raises(DataError, match="twice"):
        load(zipped(tensor_pickle(), BYTES, BYTES))
    with pytest.raises(DataError, match=r"no data\.pkl"):
        load(zipped(tensor_pickle(), root="a/b"))
    with pytest.raises(DataError, match="TorchScript"):
        load(zipped(tensor_pickle(), ("constants.pkl", b"")))
    with pytest.raises(DataError, match="byte order"):
        load(zipped(tensor_pickle(), BYTES, ("byteorder", b"middle")))
    with pytest.raises(DataError):
        load(plain + b"more")
    with pytest.raises(DataError):
        load(b"MZ" + plain)
    overlapping = bytearray(plain)
    central = overlapping.find(b"PK\x01\x02")
    second = overlapping.find(b"PK\x01\x02", central + 1)
    overlapping[second + 42 : second + 46] = overlapping[central + 42 : central + 46]
    with pytest.raises(DataError, match="not at the offset in the directory"):
        load(bytes(overlapping))
    longer = bytearray(plain)
    for field in (20, 24):
        longer[central + field : central + field + 4] = struct.pack("<I", len(tensor_pickle()) + 60)
    with pytest.raises(DataError, match="overlaps"):
        load(bytes(longer))


def test_big_endian_files_are_swapped() -> None:
    torch = pytest.importorskip("torch")
    pickled = tensor_pickle()
    data = zipped(pickled, ("data/0", np.arange(4).astype(">i8").tobytes()), ("byteorder", b"big"))
    assert load(data).tolist() == [0, 1, 2, 3]
    assert load(data, to="torch").tolist() == [0, 1, 2, 3]
    half = tensor_pickle(kind="BFloat16Storage")
    words = torch.arange(4).to(torch.bfloat16).view(torch.uint16).numpy().astype(">u2").tobytes()
    assert load(zipped(half, ("data/0", words), ("byteorder", b"big")), to="torch").tolist() == [0, 1, 2, 3]


SEEDS = [dump({"a": np.arange(5), "b": [1.5, "text", None, (True, b"x")]}), zipped(tensor_pickle(), BYTES)]


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6))
@settings(max_examples=examples(400), deadline=None)
def test_no_damage_does_more_than_an_error(seed: bytes, changes) -> None:
    data = bytearray(seed)
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(FeedmillError):
        load(bytes(data))


@given(st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_no_pickle_does_more_than_an_error(pickled: bytes) -> None:
    with contextlib.suppress(FeedmillError):
        load(zipped(b"\x80\x02" + pickled, BYTES))
