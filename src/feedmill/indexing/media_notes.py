"""Media metadata that an unfinished run has collected, so that a killed run is continued and not begun again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from feedmill.errors import DataError
from feedmill.formats.energon_media import Row
from feedmill.storage import Store
from feedmill.storage.frames import FrameFile, frames_place

NAME = ".nv-meta/feedmill.media.journal"


class _Frame(msgspec.Struct, array_like=True):
    piece: bytes
    rows: list[Row]
    broken: list[dict[str, Any]]


class MediaNotes:
    """Finished pieces of work by their names; see `feedmill.storage.frames` for where they are kept."""

    def __init__(self, frames: FrameFile) -> None:
        self.frames = frames
        self._known: dict[bytes, tuple[list[Row], list[DataError]]] | None = None

    @classmethod
    def of(cls, store: Store) -> MediaNotes:
        """The notes of a dataset or folder."""
        return cls(FrameFile(*frames_place(store, NAME)))

    def get(self, piece: bytes) -> tuple[list[Row], list[DataError]] | None:
        """What was found in this piece, or None where an earlier run did not come to it."""
        if self._known is None:
            self._known = {}
            for body in self.frames.read():  # a frame of something else is no work done
                with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                    frame = msgspec.msgpack.decode(body, type=_Frame)
                    self._known[frame.piece] = frame.rows, [DataError(**fields) for fields in frame.broken]
        return self._known.get(piece)

    def add(self, piece: bytes, rows: Sequence[Row], broken: Sequence[DataError]) -> None:
        """Note a finished piece. One with names that are not UTF-8 is left out: it is done again."""
        try:
            body = msgspec.msgpack.encode(_Frame(piece, list(rows), [error.as_dict() for error in broken]))
        except UnicodeEncodeError:
            return
        self.frames.add(body)

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it once the tables are written."""
        self.frames.close(remove=remove)
