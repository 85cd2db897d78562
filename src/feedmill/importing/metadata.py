"""Metadata files of media: tables with the column ``file_name``, relative to their folder."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, NamedTuple

from feedmill.errors import DataError, FeedmillError
from feedmill.importing.recognition import CAPTIONING, CLASSIFICATION, MEDIA, Recognized
from feedmill.importing.rows import Row, read_rows
from feedmill.importing.scanning import Files
from feedmill.jobs.left_out import LeftOut
from feedmill.storage import open_store

FILE_NAME = "file_name"
CAPTION_COLUMNS = ("text", "caption")
LABEL_COLUMNS = ("label", "label_name", "class")


class Metadata(NamedTuple):
    """Rows of metadata files.

    Attributes:
        rows: path of a media file, with prefix -> its columns except the file name.
        columns: all column names, in the order of their first occurrence.
    """

    rows: dict[str, dict[str, Any]]
    columns: list[str]

    @property
    def caption(self) -> str | None:
        """The column that holds captions, if there is one."""
        return next((column for column in CAPTION_COLUMNS if column in self.columns), None)

    @property
    def label(self) -> str | None:
        """The column that holds classes, if there is one."""
        return next((column for column in LABEL_COLUMNS if column in self.columns), None)

    @property
    def type(self) -> str:
        """Type of import that the columns suggest."""
        return CAPTIONING if self.caption else CLASSIFICATION if self.label else MEDIA


def read_metadata(files: Files, found: Recognized, encoding: str, left: LeftOut) -> Metadata:
    """Return the rows of all metadata files. Rows without a media file are added to `left`.

    Raises:
        DataError: a metadata file cannot be read, or has no column ``file_name``.
    """
    there = {files.name(file) for file, _ in found.media}
    rows: dict[str, dict[str, Any]] = {}
    columns: dict[str, None] = {}
    for file in found.metadata:
        name = files.name(file)
        folder = name.rpartition("/")[0]
        for row in _named(name, read_rows(open_store(files.roots[file.root]), file, encoding)):
            where = f"{name}:{row.number}"
            if row.columns is None:
                left.add(f"metadata: {row.reason}", where)
                continue
            if FILE_NAME not in row.columns:
                raise DataError(
                    f"a metadata file needs the column {FILE_NAME!r}, this row has {', '.join(row.columns) or 'none'}",
                    file=name,
                    record=f"row {row.number}",
                    kind="no-file-name",
                    fix="Name the column of the files' paths file_name, or leave the file out with --exclude.",
                )
            given = row.columns[FILE_NAME]
            path = posixpath.normpath(posixpath.join(folder, given)) if isinstance(given, str) and given else ""
            if path not in there:
                left.add(f"metadata of a file that is not there or not {found.modality}", f"{where} {given}")
            elif path in rows:
                left.add("a second row of metadata for a file", f"{where} {given}")
            else:
                rows[path] = {key: value for key, value in row.columns.items() if key != FILE_NAME}
                columns.update(dict.fromkeys(rows[path]))
    return Metadata(rows, list(columns))


def _named(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows; an error that does not name their file gets its name."""
    try:
        yield from rows
    except FeedmillError as error:
        error.file = error.file or name
        raise
