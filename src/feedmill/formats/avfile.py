"""Open audio and video with PyAV, and detect truncated files.

A source is bytes, a path, or a seekable binary file. Decoders run on the calling thread by default: there are already
many workers, and a process that forks must not have threads running.
"""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

from feedmill.errors import MissingExtra

AvSource = bytes | str | os.PathLike[str] | BinaryIO

_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
_CUES_AHEAD = 4096
"""Bytes at the start of a Matroska file within which its segment begins."""


def pyav() -> Any:
    """Return the `av` package. Raises `MissingExtra` if it is not installed."""
    try:
        import av
    except ImportError:
        raise MissingExtra("decoding audio and video needs PyAV", extra="media") from None
    return av


def ffmpeg_error() -> Any:
    """Return the base class of PyAV's errors."""
    from av.error import FFmpegError

    return FFmpegError


def reason(error: BaseException) -> str:
    """Return the text of a codec's error without its error number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def as_file(source: AvSource) -> Any:
    """Return the source as PyAV takes it: a path, or a file at its beginning."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return _Cursor(source)


class _Cursor(io.RawIOBase):
    """View of a file with its own position, so that one file can be open several times. Not thread-safe."""

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


def open_av(source: AvSource, threads: int = 1, containers: str | None = None) -> Any:
    """Return an open ``av.container.InputContainer``.

    Args:
        threads: Threads of the video decoder; 0 means one per core. The decoded frames do not depend on it.
        containers: FFmpeg's names of the allowed containers, separated by commas; None allows all.

    Raises:
        MissingExtra: PyAV is not installed.
        Exception: Whatever PyAV raises for bytes that are not a media file.
    """
    # Security: a sample that is a list of files (ffconcat) could otherwise open and decode local files.
    protocols = "file" if isinstance(source, str | os.PathLike) else "none"
    options = {"protocol_whitelist": protocols} | ({} if containers is None else {"format_whitelist": containers})
    container = pyav().open(as_file(source), "r", options=options)
    for stream in container.streams:
        context = stream.codec_context
        if context is not None:
            context.thread_type = "NONE" if threads == 1 else "AUTO"
            context.thread_count = threads
    return container


def size_of(source: AvSource) -> int:
    """Return the number of bytes of the source."""
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, str | os.PathLike):
        return os.stat(source).st_size
    return source.seek(0, io.SEEK_END)


def head_of(source: AvSource, length: int) -> bytes:
    """Return the first `length` bytes of the source."""
    if isinstance(source, bytes):
        return source[:length]
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return file.read(length)
    source.seek(0)
    return source.read(length)


def announced_size(head: bytes) -> int | None:
    """Return the file size declared by a RIFF (WAV, AVI), RF64 or Matroska header; None if it declares none."""
    if head[:4] == b"RIFF" and len(head) >= 12:
        size = int.from_bytes(head[4:8], "little")
        return None if size in _UNKNOWN_SIZES else size + 8
    if head[:4] == b"RF64" and head[12:16] == b"ds64" and len(head) >= 28:  # a RIFF of more than 4 GiB, or ready for it
        size = int.from_bytes(head[20:28], "little")
        return None if not size else size + 8
    if head[:4] == b"\x1a\x45\xdf\xa3":
        at = _skip(head, 4)
        if at is not None and head[at : at + 4] == b"\x18\x53\x80\x67":
            number = _matroska_size(head, at + 4)
            return None if number is None or number[0] is None else number[1] + number[0]
    return None


def _skip(head: bytes, at: int) -> int | None:
    """Return the end of the Matroska element whose size field is at `at`."""
    number = _matroska_size(head, at)
    return None if number is None or number[0] is None else number[1] + number[0]


def _matroska_size(head: bytes, at: int) -> tuple[int | None, int] | None:
    """Return a Matroska size and where its field ends. The size is None if unknown (all ones, as in live streams)."""
    if at >= len(head) or not head[at]:
        return None
    length = 9 - head[at].bit_length()
    value = int.from_bytes(head[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def check_whole(source: AvSource, container: Any) -> None:
    """Raise `ValueError` if a file is shorter than its header or its index declares."""
    size = size_of(source)
    wanted = announced_size(head_of(source, _CUES_AHEAD)) or 0
    for stream in container.streams:
        entries = stream.index_entries if is_indexed(container, stream) else ()
        if len(entries):
            last = entries[len(entries) - 1]
            wanted = max(wanted, last.pos + last.size)
    if wanted > size:
        raise ValueError(f"the file is truncated: expected {wanted} bytes, found {size}")


def is_indexed(container: Any, stream: Any) -> bool:
    """Return whether the container has an index of every frame of the stream, as MP4 and QuickTime do."""
    return "mp4" in container.format.name and 0 < stream.frames == len(stream.index_entries)


def is_cover(stream: Any) -> bool:
    """Return whether a video stream is a cover picture attached to the audio."""
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)
