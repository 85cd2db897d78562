"""Tables about media: ``metadata.jsonl``, ``.csv`` and ``.parquet`` in their folders, and tables that the user named.

Paths in a metadata file are relative to its folder. A table that the user named may lie anywhere: its paths are looked
up in its folder, below the sources, and by as many of their last components as agree.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.importing.encodings import encoding_of_file
from feedmill.importing.kinds import CSV, TEXT, divide
from feedmill.importing.recognition import CAPTIONING, CLASSIFICATION, MEDIA, Recognized
from feedmill.importing.rows import Row, read_rows
from feedmill.importing.scanning import File, Files
from feedmill.jobs.reports import LeftOut
from feedmill.storage import open_store
from feedmill.tokens.chat.forms import is_conversation

FILE_COLUMNS = (
    *("file_name", "filename", "file", "file_path", "filepath", "path", "image", "image_path", "image_file"),
    *("image_name", "img", "img_path", "audio", "audio_path", "video", "video_path"),
)
"""Columns that name the file of a row, in any case; the first that a table has."""
CAPTION_COLUMNS = ("text", "caption")
MORE_CAPTIONS = ("captions", "sentence", "description")
"""Columns that are captions in tables without a label."""
LIST_COLUMNS = ("images", "videos", "audios")
"""Columns that name the files of a conversation in a list, beside those of `FILE_COLUMNS`."""
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
        names = CAPTION_COLUMNS if self.label else (*CAPTION_COLUMNS, *MORE_CAPTIONS)
        return next((column for column in names if column in self.columns), None)

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
        DataError: a metadata file cannot be read, or has no column of files.
        ConfigError: a table that the user named is about no media file.
    """
    names = [files.name(file) for file, _ in found.media]
    there = set(names)
    rows: dict[str, dict[str, Any]] = {}
    columns: dict[str, None] = {}
    for file in found.metadata:
        name, typed = files.name(file), file in files.tables
        places = _Places(files, file, names) if typed else None
        folder = name.rpartition("/")[0]
        column, used, wrong = "", 0, ""
        store = open_store(files.roots[file.root])
        used_encoding = encoding_of_file(store, file, encoding) if divide(file.path).kind in (CSV, TEXT) else encoding
        for row in _each(_named(name, read_rows(store, file, used_encoding)), places):
            where = f"{name}:{row.number}"
            if row.columns is None:
                left.add(f"metadata: {row.reason}", where)
                continue
            if column not in row.columns:
                column = _file_column(row, name)
            given = row.columns[column]
            path = None
            if isinstance(given, str) and given:
                path = places.of(given) if places else posixpath.normpath(posixpath.join(folder, given))
            if path not in there:
                wrong = wrong or f"{given}"
                left.add(f"metadata of a file that is not there or not {found.modality}", f"{where} {given}")
            elif path in rows:
                left.add("a second row of metadata for a file", f"{where} {given}")
            else:
                used += 1
                rows[path] = {key: value for key, value in row.columns.items() if key != column}
                columns.update(dict.fromkeys(rows[path]))
        if typed and not used:
            raise ConfigError(
                f"no row names {'an' if found.modality[0] in 'aeiou' else 'a'} {found.modality} file: the column"
                f" {column!r} has for example {wrong!r}, and a file is {names[0]!r}",
                file=name,
                kind="loses-content",
                fix="Correct the column, or the folder of the files.",
            )
    metadata = Metadata(rows, list(columns))
    for file in files.tables:
        if (file.root, file.path) not in files.typed and metadata.caption is None:
            raise ConfigError(
                "no column of --captions has captions: expected one of"
                f" {', '.join((*CAPTION_COLUMNS, *MORE_CAPTIONS))}, found {', '.join(columns) or 'none'}",
                file=files.name(file),
                kind="no-column",
                fix="Rename the column of the captions.",
            )
    return metadata


class Talk(NamedTuple):
    """A row with a conversation.

    Attributes:
        key: the number of the row, after the name of its table if there are several.
        media: paths of its media files, with prefix, in their order; none for a conversation of text alone.
        columns: all columns but those of the files.
    """

    key: str
    media: tuple[str, ...]
    columns: dict[str, Any]


def read_talks(files: Files, found: Recognized, encoding: str, left: LeftOut) -> list[Talk] | None:
    """Return the rows of metadata files if they are conversations, else None. Others are added to `left`.

    Raises:
        DataError: a metadata file cannot be read.
        ConfigError: no conversation of a table names a media file.
    """
    names = [files.name(file) for file, _ in found.media]
    there = set(names)
    talks: list[Talk] = []
    for file in found.metadata:
        name = files.name(file)
        places = _Places(files, file, names) if file in files.tables else None
        folder, wrong, before = name.rpartition("/")[0], "", len(talks)
        row = None
        store = open_store(files.roots[file.root])
        used_encoding = encoding_of_file(store, file, encoding) if divide(file.path).kind in (CSV, TEXT) else encoding
        for row in _named(name, read_rows(store, file, used_encoding)):
            where = f"{name}:{row.number}"
            if row.columns is None:
                left.add(f"metadata: {row.reason}", where)
                continue
            if not is_conversation(row.columns):
                if not talks:
                    return None
                left.add("metadata: a row without a conversation", where)
                continue
            given, used = _media_of(row.columns)
            paths = [
                places.of(each) if places else posixpath.normpath(posixpath.join(folder, each)) for each in given or ()
            ]
            lost = next((one for one, path in zip(given or (), paths, strict=True) if path not in there), None)
            if given is None or lost is not None:
                wrong = wrong or (lost or "")
                what = "is not a path" if given is None else f"is not there or not {found.modality}"
                left.add(f"a conversation with a file that {what}", f"{where} {lost or ''}".rstrip())
                continue
            key = f"{divide(name).stem}/{row.number:06}" if len(found.metadata) > 1 else f"{row.number:06}"
            rest = {column: value for column, value in row.columns.items() if column not in used}
            talks.append(Talk(key, tuple(path for path in paths if path is not None), rest))
        if row is None:
            raise DataError(
                "the table has no rows", file=name, kind="empty-file", fix="Fill it, or leave it out with --exclude."
            )
        if not any(talk.media for talk in talks[before:]):
            shown = f"for example {wrong!r} is none, and a file is {names[0]!r}" if wrong else f"a file is {names[0]!r}"
            raise ConfigError(
                f"no conversation names {'an' if found.modality[0] in 'aeiou' else 'a'} {found.modality} file: {shown}",
                file=name,
                kind="loses-content",
                fix="Name the files of each row in a column such as 'image' or 'images', relative to the table or to"
                " the folder of the files.",
            )
    return talks


def _media_of(columns: dict[str, Any]) -> tuple[list[str] | None, set[str]]:
    """Return the files of a conversation, None for one that is no path, and the columns that name them.

    They are in columns, or else in the contents of the messages: ``{"type": "image", "image": "x.jpg"}``.
    """
    known = {column.lower(): column for column in reversed(columns) if columns[column]}
    used = [known[name] for name in LIST_COLUMNS if name in known]
    used = used or [known[name] for name in FILE_COLUMNS if name in known][:1]
    lists = [value if isinstance(value := columns[column], list) else [value] for column in used]
    values = [each for given in lists for each in given] if used else list(_in_messages(columns))
    paths = [each.get("path") if isinstance(each, dict) else each for each in values]
    known_paths = [path.removeprefix("file://") for path in paths if isinstance(path, str) and path]
    return (known_paths, set(used)) if len(known_paths) == len(paths) else (None, set())


def _in_messages(columns: dict[str, Any]) -> Iterator[Any]:
    """Yield the files that the contents of messages name."""
    for messages in columns.values():
        for message in messages if isinstance(messages, list) else ():
            content = message.get("content") if isinstance(message, dict) else None
            for each in content if isinstance(content, list) else ():
                kind = each.get("type") if isinstance(each, dict) else None
                if kind in ("image", "video", "audio") and (given := each.get(kind) or each.get("path")):
                    yield given


def _each(rows: Iterator[Row], places: _Places | None) -> Iterator[Row]:
    """Yield the rows; an object of a named table that maps files to captions is a row for each file."""
    for row in rows:
        columns = row.columns or {}
        if places and any(map(places.of, columns)) and all(isinstance(value, str) for value in columns.values()):
            pairs = enumerate(columns.items(), row.number)
            yield from (Row(number, {FILE_COLUMNS[0]: path, "caption": text}) for number, (path, text) in pairs)
        else:
            yield row


def _file_column(row: Row, name: str) -> str:
    """Return the column that names the files."""
    columns = row.columns or {}
    known = {column.lower(): column for column in reversed(columns)}
    for wanted in FILE_COLUMNS:
        if wanted in known and isinstance(columns[known[wanted]], str):
            return known[wanted]
    raise DataError(
        "a table about media needs a column of their files, such as 'file_name' or 'image'; this row has"
        f" {', '.join(columns) or 'none'}",
        file=name,
        record=f"row {row.number}",
        kind="no-column",
        fix="Rename the column of the files' paths, or leave the file out with --exclude.",
    )


class _Places:
    """The media files that the paths in a table of the user name."""

    def __init__(self, files: Files, table: File, names: Sequence[str]) -> None:
        self._folder = posixpath.dirname(table.path) if files.prefixes[table.root] == "" else ""
        self._names = set(names)
        self._by_name: dict[str, list[str]] = {}
        for name in names:
            base = posixpath.basename(name)
            for key in {base, divide(base).stem}:
                self._by_name.setdefault(key, []).append(name)

    def of(self, given: str) -> str | None:
        """Return the file that a path names; None for none, and for several."""
        path = posixpath.normpath(given.replace("\\", "/"))
        for place in (path, posixpath.normpath(posixpath.join(self._folder, path))):
            if place in self._names:
                return place
        parts = path.split("/")
        best: list[str] = []
        most = 0
        for name in self._by_name.get(parts[-1], ()):
            stem = name if posixpath.basename(name) == parts[-1] else divide(name).stem
            pairs = list(zip(reversed(parts), reversed(stem.split("/")), strict=False))
            if all(one == other for one, other in pairs) and len(pairs) >= most:
                best = [*best, name] if len(pairs) == most else [name]
                most = len(pairs)
        return best[0] if len(best) == 1 else None


def _named(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows; an error that does not name their file gets its name."""
    try:
        yield from rows
    except FeedmillError as error:
        error.file = error.file or name
        raise
