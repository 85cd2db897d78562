"""Large results from worker processes without a copy through a pipe: both sides map the memory of their arrays.

The main process creates anonymous memory files (Linux memfd), which have no name: nothing is left behind, however a
process ends. A worker opens one by its descriptor number in the main process, writes the arrays of a result into it,
and sends only the rest by pipe. The main process maps them in place; when the last array of a result is released, its
memory is reused. On systems without memfd, whole results go through the pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import threading
import weakref
from dataclasses import dataclass
from io import BytesIO
from typing import Any

SMALL = 1 << 16
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """A result in transit: pickled bytes, and the location of its arrays in shared memory (None: in the bytes)."""

    data: bytes
    spans: tuple[tuple[int, int], ...] | None = None


class Shelf:
    """The main process's pool of memory files: one for each result in flight or in use."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> int | None:
        """Return an unused memory file; None if the system has no memfd."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return os.memfd_create("feedmill", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else None

    def give_back(self, file: int | None) -> None:
        """Return a memory file to the pool."""
        if file is None:
            return
        with self._lock:
            if not self._closed:
                self._free.append(file)
                return
        os.close(file)

    def unpack(self, parcel: Parcel, file: int | None) -> Any:
        """Unpickle the result. Its arrays use the memory file until the last of them is released."""
        if parcel.spans is None or file is None:
            self.give_back(file)
            return pickle.loads(parcel.data)  # noqa: S301 - our own worker's bytes  # nosec B301
        begin, length = parcel.spans[-1]
        memory = mmap.mmap(file, begin + length)
        weakref.finalize(memory, self.give_back, file).atexit = False
        whole = memoryview(memory)
        buffers = [whole[at : at + size] for at, size in parcel.spans]
        return pickle.loads(parcel.data, buffers=buffers)  # noqa: S301 - our own worker's bytes  # nosec B301

    def close(self) -> None:
        """Close free memory files now, and the others when their arrays are released."""
        with self._lock:
            self._closed, free, self._free = True, self._free, []
        for file in free:
            os.close(file)


def address(file: int | None) -> str | None:
    """Return the path by which another process of this user opens a memory file of this one."""
    return None if file is None else f"/proc/{os.getpid()}/fd/{file}"


def pack(result: Any, place: str | None) -> Parcel:
    """Pack a result in a worker; its large arrays are written to the memory file at `place`."""
    if place is None:
        return Parcel(_dumps(result, None))
    buffers: list[pickle.PickleBuffer] = []
    data = _dumps(result, buffers)
    raw = [buffer.raw() for buffer in buffers]
    if sum(map(len, raw)) < SMALL:
        return Parcel(_dumps(result, None))
    spans, end = [], 0
    for view in raw:
        begin = -(-end // _ALIGN) * _ALIGN
        spans.append((begin, len(view)))
        end = begin + len(view)
    file = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_size < end:
            os.ftruncate(file, end)
        for (begin, size), view in zip(spans, raw, strict=True):
            done = 0
            while done < size:  # a mapping would cost twice the time: each page is mapped at its first byte
                done += os.pwrite(file, view[done:], begin + done)
    finally:
        os.close(file)
    return Parcel(data, tuple(spans))


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        """Reduce plain tensors to arrays that share their memory; torch would copy them into the pickle."""
        torch = sys.modules.get("torch")
        if torch is None or type(item) is not torch.Tensor or item.device.type != "cpu" or item.requires_grad:
            return NotImplemented
        try:
            return torch.from_numpy, (item.numpy(),)
        except (TypeError, RuntimeError):  # a type that numpy does not have, or a sparse tensor
            return NotImplemented


def _dumps(result: Any, buffers: list[pickle.PickleBuffer] | None) -> bytes:
    out = BytesIO()
    _Pickler(out, 5, buffer_callback=None if buffers is None else buffers.append).dump(result)
    return out.getvalue()
