"""Codecs of Zarr: from the stored bytes of a chunk to the bytes of its numbers, every size and checksum compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from feedmill.formats.tokens.zarr.blosc import unpack
from feedmill.kernels.hashing.crc32c import crc32c
from feedmill.storage.codec import inflate, unzstd

CRC = "crc32c"
_CRC_BYTES = 4


def _checked(data: memoryview, size: int | None) -> memoryview:  # noqa: ARG001 - as the other decoders
    """Return what is before a checksum."""
    body = data[:-_CRC_BYTES]
    expected = int.from_bytes(data[-_CRC_BYTES:], "little")
    if len(data) < _CRC_BYTES or crc32c(body) != expected:
        raise ValueError("its checksum (CRC-32C) differs from its content")
    return body


_DECODERS: dict[str, Callable[[memoryview, Any], Any]] = {
    CRC: _checked,
    "blosc": unpack,
    "gzip": lambda data, size: inflate(data, size, gzip=True),
    "zstd": unzstd,
}


class Pipeline(NamedTuple):
    """The codecs of a chunk.

    Attributes:
        order: byte order of its numbers, ``<`` or ``>``.
        steps: names of the codecs that turned their bytes into the stored bytes, in the order of writing.
    """

    order: Literal["<", ">"]
    steps: tuple[str, ...]

    @property
    def overhead(self) -> int | None:
        """Return by how many bytes the stored bytes exceed the numbers'; None if that depends on the content."""
        return _CRC_BYTES * len(self.steps) if set(self.steps) <= {CRC} else None

    def decode(self, data: bytes, size: int) -> Any:
        """Return the bytes of the numbers, an object of `size` bytes.

        Raises:
            ValueError: the data are corrupt, truncated, or of another size.
        """
        sizes: list[int | None] = [size]
        for step in self.steps:
            before = sizes[-1]
            sizes.append(before + _CRC_BYTES if step == CRC and before is not None else None)
        found: Any = memoryview(data)
        for step, before in zip(reversed(self.steps), reversed(sizes[:-1]), strict=True):
            found = memoryview(_DECODERS[step](found, before)).cast("B")
        if len(found) != size:
            raise ValueError(f"expected {size:,} bytes, found {len(found):,}")
        return found


def pipeline_of(codecs: Sequence[Any], dtype: np.dtype[Any]) -> Pipeline:
    """Return the codecs of an array's metadata.

    Raises:
        ValueError: they are not what Zarr's specification allows, or unsupported; the message names them.
    """
    named = [(name_of(codec), configuration_of(codec)) for codec in codecs]
    while named and named[0][0] == "transpose" and named[0][1].get("order") in ([0], "C", "F"):
        named.pop(0)  # an array of one dimension stays as it is
    if not named or named[0][0] != "bytes":
        raise ValueError(f"its first codec is {named[0][0] if named else 'missing'}, expected bytes")
    endian = named[0][1].get("endian", "little" if dtype.itemsize == 1 else None)
    if endian not in ("little", "big"):
        raise ValueError(f"the codec bytes has the byte order {endian!r}, expected little or big")
    steps = tuple(name for name, _ in named[1:])
    wrong = [name for name in steps if name not in _DECODERS]
    if wrong:
        raise ValueError(f"the codec {wrong[0]} is unsupported, expected {', '.join(_DECODERS)} or sharding_indexed")
    if sum(step != CRC for step in steps) > 1:
        raise ValueError(f"its chunks are compressed twice ({', '.join(steps)})")
    return Pipeline("<" if endian == "little" else ">", steps)


def name_of(extension: Any) -> str:
    """Return the name of a codec, grid or encoding, which is given alone or in an object. Raises `ValueError`."""
    name = extension.get("name") if isinstance(extension, dict) else extension
    if not isinstance(name, str):
        raise ValueError(f"{str(extension)[:80]} has no name")
    return name


def configuration_of(extension: Any) -> dict[str, Any]:
    """Return the configuration of a codec, grid or encoding; empty by default. Raises `ValueError`."""
    found = extension.get("configuration", {}) if isinstance(extension, dict) else {}
    if not isinstance(found, dict):
        raise ValueError(f"the configuration of {name_of(extension)} is no object")
    return found
