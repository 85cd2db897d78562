"""Load the value of a ``.pth`` file. Consecutive files are mostly alike, so layouts are cached."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.pth import names
from feedmill.formats.pth.archive import Entry, bad, checksums, entries
from feedmill.formats.pth.pickled import Machine, check_size
from feedmill.formats.pth.tensors import LARGEST, NUMPY, OVERLAP, TORCH, Spec, Storage, element_size, maker, memory
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

    machine = Machine(data, start, stop, names.table(make, to), persistent, names.build)
    value = machine.run()
    check_size(value)
    return value, machine.at


def _storage_id(pid: Any, length: int) -> tuple[names.StorageClass, str, int]:
    if not isinstance(pid, tuple) or len(pid) != length or pid[0] != "storage":
        raise bad(f"its pickle refers to {str(pid)[:60]!r}, which is not a storage")
    kind, key, elements = pid[1], pid[2], pid[4]
    if not isinstance(kind, names.StorageClass) or type(key) is not str or type(elements) is not int or elements < 0:
        raise bad("its pickle refers to a storage with an invalid class, key or size")
    return kind, key, elements


def _storage(key: str, kind: names.StorageClass, elements: int, start: int, stop: int) -> Storage:
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

    walk = Machine(data, start, len(data), names.table(lambda _: 0, NUMPY), collect, names.build)
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
