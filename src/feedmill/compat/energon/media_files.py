"""Energon's names for media metadata: filters, `prepare_filesystem_dataset`, and the JSON of the index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum

import orjson

from feedmill.errors import DataError
from feedmill.samples.media import MediaFilter, kind_of_name, probe
from feedmill.samples.mediafacts import AVMetadata, ImageMetadata, MediaMetadata

__all__ = [
    "MediaFilterConfig",
    "MediaFilterStrategy",
    "MediaMetadataType",
    "deserialize_media_metadata",
    "prepare_filesystem_dataset",
    "serialize_media_metadata",
]


class MediaFilterStrategy(StrEnum):
    """How media files are recognized."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


class MediaMetadataType(StrEnum):
    """Kind of media."""

    AV = "av"
    IMAGE = "image"


class MediaFilterConfig(MediaFilter):
    """A `MediaFilter`, which every function of Feedmill takes.

    Args:
        strategy: how media files are recognized.
        patterns: patterns of names for ``GLOB``.
    """

    def __init__(self, strategy: MediaFilterStrategy | str, patterns: Sequence[str] | None = None) -> None:
        super().__init__(MediaFilterStrategy(strategy).value, tuple(patterns or ()))

    def extract_metadata(self, source: bytes | os.PathLike[str], filename: str | None = None) -> MediaMetadata | None:
        """Return the metadata of a file; None if the filter does not select it, or it is not media.

        Args:
            source: the bytes of the file, or its path.
            filename: name of the file, if its bytes are given.
        """
        if not isinstance(source, bytes):
            filename = os.fspath(source)
            with open(source, "rb") as file:
                source = file.read()
        kind = self.kind(filename or "", source)
        if kind is None:
            return None
        try:
            found, values = probe(filename or "", source, kind)
        except DataError:
            if kind_of_name(filename or "") is None:
                return None
            raise
        return ImageMetadata(**values) if found == "image" else AVMetadata(**values)


def prepare_filesystem_dataset(
    root_path: str | os.PathLike[str],
    media_filter: MediaFilter,
    *,
    progress: bool,
    workers: int = 16,
    index_sqlite_tmp_path: object = None,  # noqa: ARG001 - TMPDIR sets the folder
) -> int:
    """Write the media metadata of a folder of files into its index. Return the number of media files in it.

    Raises:
        FeedmillError: as `feedmill.edit.prepare_media` does.
    """
    from feedmill.indexing.prepare_media import prepare_media

    return prepare_media(root_path, media_filter, workers=workers, progress=progress).media


def serialize_media_metadata(metadata: MediaMetadata) -> tuple[MediaMetadataType, str]:
    """Return kind and JSON of metadata, as they are stored in the index."""
    kind = MediaMetadataType.IMAGE if isinstance(metadata, ImageMetadata) else MediaMetadataType.AV
    values = {name: value for name, value in asdict(metadata).items() if value is not None and name != "orientation"}
    return kind, orjson.dumps(values).decode()


def deserialize_media_metadata(metadata_type: str, metadata_json: str) -> MediaMetadata:
    """Return the metadata of a row of the index. Raises `ValueError` for an unknown kind."""
    kind = ImageMetadata if MediaMetadataType(metadata_type) is MediaMetadataType.IMAGE else AVMetadata
    return kind(**orjson.loads(metadata_json or "{}"))
