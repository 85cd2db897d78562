"""Write values as ``.pth`` that ``torch.load(weights_only=True)`` reads. The same value gives the same bytes."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.pth.pickled import DEEPEST
from feedmill.formats.pth.tensors import SPECIAL, STORAGES, contiguous

_ALIGNMENT = 64
_CLASSES = {dtype: name for name, dtype in STORAGES.items() if name != "UntypedStorage"}
_ROOT = "archive"
_FRAMED = 16 << 20
_TORCH_NAMES: dict[Any, str] = {}


def dump(value: Any) -> bytes:
    """Return the bytes of a ``.pth`` file.

    Args:
        value: NumPy arrays or torch tensors, numbers, text, bytes, None, and lists, tuples and dicts of them. Strided
            arrays are written contiguously; an object that occurs twice is written once.

    Raises:
        DataError: the value contains something else, or is nested too deeply.
    """
    torch = sys.modules.get("torch")
    if type(value) is np.ndarray or (torch is not None and type(value) is torch.Tensor):
        dtype, shape, data = _content(value)
        if len(data) <= _FRAMED:  # most parts are one tensor that differs only in content
            return _frame(dtype, shape, len(data)).around(data)
    pickler = _Pickler()
    pickler.out += b"\x80\x02"
    pickler.add(value, 0)
    pickler.out += b"."
    return _file(pickler)[0]


class _Frame(NamedTuple):
    """The bytes around the content of one tensor, in four pieces.

    The checksum goes between the first two pieces and between the last two, the content in the middle.
    """

    pieces: tuple[bytes, bytes, bytes, bytes]

    def around(self, data: bytes) -> bytes:
        crc = zlib.crc32(data).to_bytes(4, "little")
        a, b, c, d = self.pieces
        return b"".join((a, crc, b, data, c, crc, d))


@lru_cache(maxsize=1024)
def _frame(dtype: str, shape: tuple[int, ...], size: int) -> _Frame:
    pickler = _Pickler()
    pickler.out += b"\x80\x02"
    pickler.described(dtype, shape, bytes(size))
    pickler.remember(pickler)
    pickler.out += b"."
    whole, (first, content, second) = _file(pickler)
    behind = content + size
    return _Frame((whole[:first], whole[first + 4 : content], whole[behind:second], whole[second + 4 :]))


def _file(pickler: _Pickler) -> tuple[bytes, tuple[int, int, int]]:
    """Return the file, and the offsets of the first storage's checksum, its content, and its second checksum."""
    parts = [("data.pkl", bytes(pickler.out)), (".format_version", b"1"), (".storage_alignment", b"64")]
    parts.append(("byteorder", sys.byteorder.encode()))
    parts += [(f"data/{key}", storage) for key, storage in enumerate(pickler.storages)]
    parts.append(("version", b"3\n"))
    whole, places = _zip(parts)
    return whole, places[4]


class _Pickler:
    """Pickler of protocol 2 that only uses opcodes supported by `feedmill.formats.pth.pickled`."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.storages: list[bytes] = []
        self.memo: dict[int, int] = {}
        self.kept: list[Any] = []

    def add(self, value: Any, depth: int) -> None:
        if depth >= DEEPEST and isinstance(value, list | tuple | Mapping):
            raise _cannot(f"the value is nested more than {DEEPEST} levels deep")
        if id(value) in self.memo:
            self.out += b"j" + struct.pack("<I", self.memo[id(value)])
        elif value is None or isinstance(value, bool):
            self.out += b"N" if value is None else (b"\x88" if value else b"\x89")
        elif isinstance(value, np.bool_):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int | np.integer):
            self.integer(int(value))
        elif isinstance(value, float | np.floating):
            self.out += b"G" + struct.pack(">d", float(value))
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, bytes):
            self.out += b"c_codecs\nencode\n"
            self.text(value.decode("latin-1"))
            self.text("latin1")
            self.out += b"\x86R"
        elif isinstance(value, list | tuple):
            self.sequence(value, depth)
        elif isinstance(value, Mapping):
            self.mapping(value, depth)
        else:
            self.tensor(value)

    def remember(self, value: Any) -> None:
        number = len(self.memo)
        self.out += b"r" + struct.pack("<I", number)
        self.memo[id(value)] = number
        self.kept.append(value)  # ids are unique only while the object is alive

    def integer(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
            return
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        if len(data) > 255:
            raise _cannot("an integer is larger than 255 bytes")
        self.out += b"\x8a" + bytes([len(data)]) + data

    def text(self, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(data)) + data

    def sequence(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        self.out += b"](" if isinstance(value, list) else b"("
        for item in value:
            self.add(item, depth + 1)
        self.out += b"e" if isinstance(value, list) else b"t"

    def mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        self.out += b"}("
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | None):
                raise _cannot(f"a dict has a key of type {type(key).__name__}")
            self.add(key, depth + 1)
            self.add(item, depth + 1)
        self.out += b"u"

    def tensor(self, value: Any) -> None:
        self.described(*_content(value))
        self.remember(value)

    def described(self, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        """Write a tensor, given torch's name of its dtype, shape and bytes."""
        elements = 1
        for length in shape:
            elements *= length
        typed = dtype not in _CLASSES
        self.out += b"ctorch._utils\n_rebuild_tensor_v3\n((" if typed else b"ctorch._utils\n_rebuild_tensor_v2\n(("
        self.text("storage")
        self.out += b"ctorch.storage\nUntypedStorage\n" if typed else f"ctorch\n{_CLASSES[dtype]}\n".encode()
        self.text(str(len(self.storages)))
        self.text("cpu")
        self.integer(len(data) if typed else elements)
        self.out += b"tQ"
        self.integer(0)
        for numbers in (shape, contiguous(shape)):
            self.out += b"("
            for number in numbers:
                self.integer(number)
            self.out += b"t"
        self.out += b"\x89ccollections\nOrderedDict\n)R"
        if typed:
            self.out += f"ctorch\n{dtype}\n".encode()
        self.out += b"tR"
        self.storages.append(data)


def _content(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return torch's dtype name, shape and bytes of an array or tensor."""
    torch = sys.modules.get("torch")  # a value can only be a tensor if torch is imported
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise _cannot("sparse and quantized tensors are not supported")
        dtype = _TORCH_NAMES.get(value.dtype) or _TORCH_NAMES.setdefault(value.dtype, str(value.dtype)[6:])
        try:
            return dtype, tuple(value.shape), value.numpy().tobytes()
        except (RuntimeError, TypeError):  # with a gradient, on a device, conjugated, or a dtype that NumPy lacks
            pass
        plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return dtype, tuple(value.shape), data
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        name = array.dtype.name
        if name in _CLASSES or name in SPECIAL or name in ("uint16", "uint32", "uint64"):
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            return name, array.shape, np.ascontiguousarray(native).tobytes()
        raise _cannot(f"torch has no tensors of {array.dtype}")
    raise _cannot(f"a {type(value).__name__} is neither a tensor nor plain data")


def _zip(parts: list[tuple[str, bytes]]) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Return the archive, and for each part the offsets of its checksum, content, and checksum in the directory."""
    if len(parts) >= 0xFFFF:
        raise _cannot(f"too many tensors in one file ({len(parts):,})")
    out, central = bytearray(), bytearray()
    places = []
    for name, data in parts:
        path = f"{_ROOT}/{name}".encode()
        pad = -(len(out) + 30 + len(path) + 4) % _ALIGNMENT
        extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
        at, crc = len(out), zlib.crc32(data)
        if at + len(data) >= 0xFFFFFFFF:
            raise _cannot("more than 4 GiB in one file")
        # version 0, UTF-8 names, stored, and the first date of zip: nothing depends on the time of writing
        fields = struct.pack("<5H3L", 0, 0x0800, 0, 0, 0x21, crc, len(data), len(data))
        out += b"PK\x03\x04" + fields + struct.pack("<2H", len(path), len(extra)) + path + extra + data
        places.append((at + 14, len(out) - len(data), len(central) + 16))
        central += b"PK\x01\x02" + struct.pack("<H", 0) + fields
        central += struct.pack("<5H2L", len(path), 0, 0, 0, 0, 0, at) + path
    start = len(out)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(parts), len(parts), len(central), start, 0)
    return bytes(out + central + end), [(local, content, start + listed) for local, content, listed in places]


def _cannot(what: str) -> DataError:
    return DataError(f"cannot be written as .pth: {what}", kind="no-conversion", fix="Convert the value first.")
