"""Opening audio and video with PyAV, and noticing files that are truncated.

What PyAV is given may be bytes, a path, or a seekable binary file. Decoders run on the calling thread: workers are many
already, and threads must not be left behind where a process forks.
"""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

from feedmill.errors import MissingExtra

AvSource = bytes | str | os.PathLike[str] | BinaryIO

_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
_CUES_AHEAD = 4096
"""Bytes of a Matroska file in which its segment begins."""


def pyav() -> Any:
    """Return the package. Raises `MissingExtra`."""
    try:
        import av
    except ImportError:
        raise MissingExtra("decoding audio and video needs PyAV", extra="media") from None
    return av


def ffmpeg_error() -> Any:
    """Return the class of PyAV's errors."""
    from av.error import FFmpegError

    return FFmpegError


def reason(error: BaseException) -> str:
    """Return what a codec's error says, without its numbers."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def as_file(source: AvSource) -> Any:
    """Return what PyAV opens: a path, or a file at its beginning."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return _Cursor(source)


class _Cursor(io.RawIOBase):
    """A file with a position of its own, so that it can be open several times. One thread at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self._file.seek(0, io.SEEK_END) if base is None else base)
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_av(source: AvSource, threads: int = 1) -> Any:
    """Return an open ``av.container.InputContainer``.

    Args:
        threads: threads of a video decoder; 0 for as many as there are cores. What is decoded does not depend on it.

    Raises:
        MissingExtra: PyAV is not installed.
        Exception: whatever PyAV raises for bytes that are no media file.
    """
    # A sample that is a list of files (ffconcat) would have this machine's own opened and decoded in its place.
    protocols = "file" if isinstance(source, str | os.PathLike) else "none"
    container = pyav().open(as_file(source), "r", options={"protocol_whitelist": protocols})
    for stream in container.streams:
        context = stream.codec_context
        if context is not None:
            context.thread_type = "NONE" if threads == 1 else "AUTO"
            context.thread_count = threads
    return container


def size_of(source: AvSource) -> int:
    """Return bytes."""
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, str | os.PathLike):
        return os.stat(source).st_size
    return source.seek(0, io.SEEK_END)


def head_of(source: AvSource, length: int) -> bytes:
    """Return the first bytes."""
    if isinstance(source, bytes):
        return source[:length]
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return file.read(length)
    source.seek(0)
    return source.read(length)


def announced_size(head: bytes) -> int | None:
    """Return the size that the header of a RIFF (WAV, AVI) or Matroska file promises; None if it promises none."""
    if head[:4] == b"RIFF" and len(head) >= 12:
        size = int.from_bytes(head[4:8], "little")
        return None if size in _UNKNOWN_SIZES else size + 8
    if head[:4] == b"\x1a\x45\xdf\xa3":
        at = _skip(head, 4)
        if at is not None and head[at : at + 4] == b"\x18\x53\x80\x67":
            number = _number(head, at + 4)
            return None if number is None or number[0] is None else number[1] + number[0]
    return None


def _skip(head: bytes, at: int) -> int | None:
    """Return the end of the element whose size is written at `at`."""
    number = _number(head, at)
    return None if number is None or number[0] is None else number[1] + number[0]


def _number(head: bytes, at: int) -> tuple[int | None, int] | None:
    """A Matroska size and where it ends; the size is None if it is unknown (all ones, as live streams have it)."""
    if at >= len(head) or not head[at]:
        return None
    length = 9 - head[at].bit_length()
    value = int.from_bytes(head[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def check_whole(source: AvSource, container: Any) -> None:
    """Refuse a file that ends before its header or its index says. Raises `ValueError`."""
    size = size_of(source)
    wanted = announced_size(head_of(source, _CUES_AHEAD)) or 0
    for stream in container.streams:
        entries = stream.index_entries if is_indexed(container, stream) else ()
        if len(entries):
            last = entries[len(entries) - 1]
            wanted = max(wanted, last.pos + last.size)
    if wanted > size:
        raise ValueError(f"cut short: expected {wanted} bytes, found {size}")


def is_indexed(container: Any, stream: Any) -> bool:
    """Return whether the container came with an index of every frame of the stream, as MP4 and QuickTime have it."""
    return "mp4" in container.format.name and 0 < stream.frames == len(stream.index_entries)


def is_cover(stream: Any) -> bool:
    """Return whether a video stream is one picture that goes with the audio."""
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)
