"""Load the value of a ``.pth`` file. Consecutive files are mostly alike, so layouts are cached.

The complete list of names allowed in a ``.pth`` pickle, and the functions they call.
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.pth.archive import Entry, bad, checksums, entries
from feedmill.formats.pth.pickled import AllowedGlobal, Machine, check_size, hashable
from feedmill.formats.pth.tensors import (
    DTYPES,
    LARGEST,
    NUMPY,
    OVERLAP,
    STORAGES,
    TORCH,
    Spec,
    Storage,
    checked,
    element_size,
    maker,
    memory,
    numpy_dtype,
    torch_module,
)
from feedmill.storage.reasons import HEAD, other_format

_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_ZIP = b"PK\x03\x04"
_MOST_LAYOUTS = 256
_MOST_OF_A_SIZE = 8

_Layout = tuple[bytes, int, tuple[tuple[int, int, bytes], ...], Callable[[bytes], Any]]
_layouts: dict[tuple[str, int], list[_Layout]] = {}


def load(data: bytes, *, to: str = NUMPY) -> Any:
    """Return the value that `torch.save` wrote.

    Args:
        data: the whole file.
        to: ``numpy`` for read-only arrays that share `data`, or ``torch`` for tensors with their own memory.

    Raises:
        DataError: the file is invalid or corrupt, or its pickle is not limited to data (kind ``unsafe-pickle``).
        MissingExtra: torch, or ml_dtypes for bfloat16 arrays, is not installed.

    >>> import numpy as np
    >>> from feedmill.formats.pth import dump
    >>> load(dump({"x": np.arange(3)}))
    {'x': array([0, 1, 2])}
    """
    for prefix, length, rest, make in _layouts.get((to, len(data)), ()):
        if data[:length] == prefix:
            for start, stop, same in rest:
                if data[start:stop] != same:
                    break
            else:
                return make(data)
    if to not in (NUMPY, TORCH):
        raise ConfigError(f"invalid value to={to!r}", fix="Use 'numpy' or 'torch'.")
    data = bytes(data)
    try:
        return _zipped(data, to) if data[:4] == _ZIP else _legacy(data, to)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError, LookupError, struct.error) as error:
        if isinstance(error, FeedmillError):
            raise
        raise bad(f"its content is malformed ({type(error).__name__})") from error
    except DataError as error:
        begin = data[:HEAD]
        if error.kind != "bad-pickle" or begin[:4] == _ZIP or begin[:2] == b"\x80\x02":  # as torch.save begins
            raise
        raise other_format(begin) or error from None


def _zipped(data: bytes, to: str) -> Any:
    found = entries(data)
    pickled = found.get("data.pkl")
    if pickled is None or "constants.pkl" in found:
        raise bad("it is a TorchScript program" if "constants.pkl" in found else "it has no data.pkl", "bad-pickle")
    order = found.get("byteorder")
    written = sys.byteorder.encode() if order is None else data[order.start : order.stop]
    if written not in (b"little", b"big"):
        raise bad(f"its byte order is {written[:20]!r}")
    swapped = written != sys.byteorder.encode() if order is not None else sys.byteorder != "little"
    specs: list[Spec] = []

    def persistent(pid: Any) -> Storage:
        kind, key, elements = _storage_id(pid, 5)
        entry = found.get(f"data/{key}")
        if entry is None:
            raise bad(f"the storage {key!r:.40} is missing")
        return _storage(key, kind, elements, entry.start, entry.stop)

    value = _run(data, pickled.start, pickled.stop, persistent, specs, swapped, to)[0]
    if len(specs) == 1 and not isinstance(value, list | tuple | dict | set):
        _remember(data, found, specs[0], swapped, to, value)
    return value


def _run(
    data: bytes,
    start: int,
    stop: int,
    persistent: Callable[[Any], Any],
    specs: list[Spec],
    swapped: bool,
    to: str,
) -> tuple[Any, int]:
    """Return the value of the pickle, and the offset of its end."""

    left = max(LARGEST, OVERLAP * len(data))

    def make(spec: Spec) -> Any:
        nonlocal left
        left -= memory(spec, to)
        if left < 0:
            raise DataError(
                f"its tensors would need many times the {len(data):,} stored bytes",
                kind="expands-too-far",
                fix="Save fewer views of the same memory in one file.",
            )
        specs.append(spec)
        return maker(spec, swapped, to)(data)

    machine = Machine(data, start, stop, table(make, to), persistent, build)
    value = machine.run()
    check_size(value)
    return value, machine.at


def _storage_id(pid: Any, length: int) -> tuple[StorageClass, str, int]:
    if not isinstance(pid, tuple) or len(pid) != length or pid[0] != "storage":
        raise bad(f"its pickle refers to {str(pid)[:60]!r}, which is not a storage")
    kind, key, elements = pid[1], pid[2], pid[4]
    if not isinstance(kind, StorageClass) or type(key) is not str or type(elements) is not int or elements < 0:
        raise bad("its pickle refers to a storage with an invalid class, key or size")
    return kind, key, elements


def _storage(key: str, kind: StorageClass, elements: int, start: int, stop: int) -> Storage:
    needed = elements * element_size(kind.dtype)
    if needed > stop - start:
        raise bad(f"the storage {key!r:.40} has {stop - start} bytes, expected {needed}")
    return Storage(key, kind.dtype, start, start + needed if elements else start)


def _remember(data: bytes, found: Mapping[str, Entry], spec: Spec, swapped: bool, to: str, value: Any) -> None:
    """Cache the layout of a file that is one tensor.

    A later file that differs only in the tensor's bytes, checksums and torch's own hash is read without parsing.
    """
    if len(_layouts) >= _MOST_LAYOUTS or not hasattr(value, "shape") or len(data) > 1 << 26:
        return
    free: list[tuple[int, int]] = []
    for name, entry in found.items():
        if name == f"data/{spec.storage.key}" or name == ".data/serialization_id":
            free += [(entry.start, entry.stop), *checksums(entry)]
    segments, at = [], 0
    for start, stop in sorted(free):
        if start > at:
            segments.append((at, start, data[at:start]))
        at = max(at, stop)
    if at < len(data):
        segments.append((at, len(data), data[at:]))
    if not segments or segments[0][0]:
        return
    known = _layouts.setdefault((to, len(data)), [])
    if len(known) < _MOST_OF_A_SIZE:
        known.append((segments[0][2], segments[0][1], tuple(segments[1:]), maker(spec, swapped, to)))


def _legacy(data: bytes, to: str) -> Any:
    """Load a legacy file. The offsets of the storages are known only after one pass over the value."""

    def plain(start: int) -> tuple[Any, int]:
        return _run(data, start, len(data), _no_storage, [], False, NUMPY)

    if data[:1] != b"\x80":
        raise bad(f"it begins with {data[:8]!r}")
    magic, at = plain(0)
    if magic != _MAGIC:
        raise bad("it does not have the magic number of torch.save")
    version, at = plain(at)
    facts, start = plain(at)
    if version != _LEGACY_VERSION or not isinstance(facts, dict):
        raise bad("its version is unknown")
    kinds: dict[str, tuple[str, int]] = {}

    def collect(pid: Any) -> Storage:
        kind, key, elements = _storage_id(pid, 6)
        if kinds.setdefault(key, (kind.dtype, elements)) != (kind.dtype, elements):
            raise bad(f"the storage {key!r:.40} is declared with two kinds")
        return Storage(key, kind.dtype, 0, 1 << 62)

    walk = Machine(data, start, len(data), table(lambda _: 0, NUMPY), collect, build)
    walk.run()
    keys, at = plain(walk.at)
    if not isinstance(keys, list) or set(keys) != set(kinds) or len(set(keys)) != len(keys):
        raise bad("its list of storages does not match its value")
    swapped = bool(facts.get("little_endian", True)) != (sys.byteorder == "little")
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        dtype, elements = kinds[key]
        if int.from_bytes(data[at : at + 8], "big" if facts.get("little_endian") is False else "little") != elements:
            raise bad(f"the storage {key!r:.40} does not have the declared {elements} elements")
        places[key] = at + 8, at + 8 + elements * element_size(dtype)
        at = places[key][1]
        if at > len(data):
            raise bad(f"the storage {key!r:.40} is truncated")

    def persistent(pid: Any) -> Storage:
        kind, key, elements = _storage_id(pid, 6)
        low, high = places[key]
        if pid[5] is not None:
            view, offset, length = pid[5]
            size = element_size(kind.dtype)
            if not all(type(n) is int and n >= 0 for n in (offset, length)) or offset + length > elements:
                raise bad(f"the view {view!r:.40} lies outside its storage")
            low, high = low + offset * size, low + (offset + length) * size
        return Storage(key, kind.dtype, low, high)

    return _run(data, start, len(data), persistent, [], swapped, to)[0]


def _no_storage(pid: Any) -> Any:
    raise bad(f"its pickle refers to {str(pid)[:60]!r} before its value")


_KINDS = "biufc"


class NumpyArray:
    """A NumPy array that is being unpickled: created empty, its state is set later."""

    __slots__ = ()


class StorageClass(AllowedGlobal):
    """A storage class; its `value` in the table is the object itself."""

    __slots__ = ("dtype",)

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(name, None)
        self.dtype = dtype


def table(make: Callable[[Spec], Any], to: str) -> dict[str, AllowedGlobal]:
    """Return the table ``"module name"`` -> allowed global.

    Args:
        make: returns a tensor for a `Spec`.
        to: ``numpy`` or ``torch``.
    """

    def rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_more: Any) -> Any:
        metadata = _more[2] if len(_more) > 2 else None
        return _signed(make(checked(storage, offset, tuple(shape), tuple(strides))), metadata)

    def rebuild_typed(storage: Any, offset: Any, shape: Any, strides: Any, *_more: Any) -> Any:
        # (requires_grad, hooks, dtype, metadata): the dtype as its name
        dtype = _dtype_name(_more[2])
        metadata = _more[3] if len(_more) > 3 else None
        return _signed(make(checked(storage, offset, tuple(shape), tuple(strides), dtype)), metadata)

    makers: dict[str, Callable[..., Any]] = {
        "torch._utils _rebuild_tensor": rebuild,
        "torch._utils _rebuild_tensor_v2": rebuild,
        "torch._utils _rebuild_tensor_v3": rebuild_typed,
        "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
        "torch Size": lambda sizes=(): tuple(sizes),
        "torch device": lambda kind, number=None: kind if number is None else f"{kind}:{number}",
        "collections OrderedDict": _ordered,
        "builtins set": _set,
        "__builtin__ set": _set,
        "builtins complex": complex,
        "__builtin__ complex": complex,
        "builtins bytes": lambda data=b"": _bytes(data),
        "__builtin__ bytes": lambda data=b"": _bytes(data),
        "_codecs encode": _encoded,
        "numpy dtype": _numpy_dtype,
    }
    for package in ("numpy.core", "numpy._core"):
        makers[f"{package}.multiarray scalar"] = _scalar
        makers[f"{package}.multiarray _reconstruct"] = lambda *_: NumpyArray()
    names = {name: AllowedGlobal(name, function) for name, function in makers.items()}
    names["numpy ndarray"] = AllowedGlobal("numpy ndarray", None)
    return names | {**_classes(), **_dtypes(to)}


@lru_cache(maxsize=1)
def _classes() -> dict[str, AllowedGlobal]:
    out: dict[str, AllowedGlobal] = {}
    for name, dtype in STORAGES.items():
        for module in ("torch", "torch.storage"):
            out[f"{module} {name}"] = StorageClass(f"{module} {name}", dtype)
    return out


@lru_cache(maxsize=2)
def _dtypes(to: str) -> dict[str, AllowedGlobal]:
    """Return torch's dtypes as values: torch's objects with ``to="torch"``, else their names (NumPy lacks some)."""
    torch = torch_module() if to == TORCH else None
    return {
        f"torch {name}": AllowedGlobal(name, None, name if torch is None else getattr(torch, name))
        for name in DTYPES
        if torch is None or hasattr(torch, name)
    }


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise bad(f"a tensor has the unknown dtype {name:.40}")
    return name


def _signed(tensor: Any, metadata: Any) -> Any:
    """Return the conjugated or negated view that the tensor's metadata declares."""
    if not metadata or tensor is None:
        return tensor
    unknown = set(metadata) - {"conj", "neg"}
    if unknown:
        raise bad(f"a tensor has the unknown property {sorted(map(str, unknown))[0]!r:.40}")
    if metadata.get("conj"):
        tensor = tensor.conj().resolve_conj() if hasattr(tensor, "resolve_conj") else tensor.conj()
    return -tensor if metadata.get("neg") else tensor


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict((hashable(key), value) for key, value in items)


def _set(items: Any = ()) -> set[Any]:
    return set(map(hashable, items))


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes | list | tuple):  # `bytes(number)` would allocate that many zeros
        raise TypeError
    return bytes(data)


def _encoded(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise TypeError
    return text.encode("latin-1")


def _numpy_dtype(name: Any, *_flags: Any) -> np.dtype[Any]:
    if type(name) is not str or len(name) > 4:
        raise TypeError
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS:
        raise bad(f"it has a NumPy array of the unsupported type {name!r}")
    return dtype


def _scalar(dtype: Any, data: Any) -> Any:
    if not isinstance(dtype, np.dtype) or type(data) is not bytes or len(data) != dtype.itemsize:
        raise TypeError
    return np.frombuffer(data, dtype)[0]


def build(value: Any, state: Any) -> Any:
    """Apply the opcode BUILD to (value, state). Raises `TypeError` or `DataError`."""
    if isinstance(value, np.dtype):  # (version, byte order, ...): a plain dtype has nothing else
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ("<", ">", "|", "="):
            raise TypeError
        return value.newbyteorder(order)
    if isinstance(value, NumpyArray):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, np.dtype) or type(data) is not bytes or not isinstance(shape, tuple):
            raise TypeError
        return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    if type(value) is OrderedDict and isinstance(state, dict) and set(state) <= {"_metadata"}:
        vars(value).update(state)  # a model's state has its layers' versions there
        return value
    raise DataError(
        f"its pickle sets the state of a {type(value).__name__}, which is not plain data",
        kind="unsafe-pickle",
        fix="Loading it may run code, so it is not read.",
    )


__all__ = ["StorageClass", "build", "numpy_dtype", "table"]
