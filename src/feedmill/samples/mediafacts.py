"""Read the media metadata in the index of a dataset or a folder, as written by ``prepare-media``."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass, fields
from typing import Any

import orjson

from feedmill.errors import DataError, NotFound
from feedmill.formats.energon.database import INDEX, open_index
from feedmill.formats.energon.media import rows_query
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMetadata:
    """Metadata of an image: width and height in pixels, and Pillow's format (``JPEG``) and mode (``RGB``).

    The orientation is that by which pixels of this width and height are still to be turned, see
    `feedmill.formats.orientation`: from 5 on, width and height of the upright image are exchanged. None: upright.
    """

    width: int
    height: int
    format: str
    mode: str
    orientation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AVMetadata:
    """Metadata of audio or video: durations in seconds, counts and sizes; None if the file has no such value.

    A duration is the time from the first frame or sample to the end of the last one. The orientation is that by which
    frames of this width and height are still to be turned, as for `ImageMetadata`.
    """

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None
    orientation: int | None = None


MediaMetadata = ImageMetadata | AVMetadata


class MediaFacts:
    """Reader of the media tables of one folder. It opens the index on first use and is thread-safe.

    Args:
        store: The folder that contains ``.nv-meta``.
        name: Name of the folder in error messages.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[MediaFacts], tuple[Store, str]]:
        return MediaFacts, (self._store, self._name)

    def find(self, key: str) -> MediaMetadata:
        """Return the metadata of one file by its name.

        Raises:
            NotFound: The index has no metadata of this file, or no media metadata at all.
            DataError: The index is damaged.
        """
        try:
            cursor, query = self._local.opened
        except AttributeError:
            cursor, query = self._local.opened = self._open()
        try:
            row = cursor.execute(query, (key,)).fetchone()
        except UnicodeEncodeError:
            row = None  # stored names are valid text, so this one cannot be among them
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error):
                raise self._nothing() from None
            raise self._damaged(str(error), key) from None
        if row is None:
            raise NotFound(
                "the index has no media metadata of this file",
                file=self._name,
                record=key,
                kind="not-prepared",
                fix=f"Run 'feedmill edit prepare-media' on {self._name} with an option that finds this file.",
            )
        return self._understood(*row)

    def _understood(self, key: str, kind: str, text: str, corrections: str) -> MediaMetadata:
        try:
            given: dict[str, Any] = orjson.loads(text) | orjson.loads(corrections or "{}")
            known = ImageMetadata if kind == "image" else AVMetadata
            names = {field.name for field in fields(known)}
            return known(**{name: value for name, value in given.items() if name in names})
        except (ValueError, TypeError, AttributeError) as error:
            raise self._damaged(f"{error} in {text[:80]!r}", key) from None

    def _open(self) -> tuple[sqlite3.Cursor, str]:
        """Return a cursor on the index, and the query for one file."""
        if not self._store.exists(INDEX):
            raise self._nothing()
        cursor = open_index(cached_copy(self._store, INDEX)).cursor()
        return cursor, f"{rows_query(cursor.connection)} WHERE entry_key = ?"

    def _nothing(self) -> NotFound:
        return NotFound(
            "the index has no media metadata",
            file=self._name,
            kind="not-prepared",
            fix=f"Run 'feedmill edit prepare-media --media-by-extension {self._name}'.",
        )

    def _damaged(self, why: str, key: str) -> DataError:
        return DataError(
            f"the media metadata cannot be read: {why}",
            file=self._store.locate(INDEX),
            record=key,
            kind="bad-index",
            fix=f"Run 'feedmill edit prepare-media' on {self._name} again.",
        )
