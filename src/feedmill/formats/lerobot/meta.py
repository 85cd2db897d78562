"""Read ``meta/`` of a LeRobot dataset: facts, episodes, tasks and splits, in versions 2.x and 3.x.

See `feedmill.formats.lerobot.dataset` for the layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, NotFound, StorageError
from feedmill.formats.arrowtypes.reading import values
from feedmill.formats.columns import ParquetFile, damaged
from feedmill.formats.objects import read_object
from feedmill.formats.offsets import Int64s
from feedmill.storage import Store

INFO = "meta/info.json"
AGAIN = "Download the dataset again."
_CHUNK = 1000
"""Files in a folder, unless the dataset says another number."""
_PLACE = ("chunk_index", "file_index", "from_timestamp")
"""Columns that say where the frames of a camera are."""
_FIELD = re.compile(r"\{(\w+)(?::0?(\d{0,2})d)?\}")


@dataclass(slots=True)
class Episodes:
    """The episodes listed in ``meta``, in the order of their frames.

    Attributes:
        number, length: int64[episodes].
        file: int64[episodes], the data file of each, as an index of `files`.
        videos: camera -> (path, start of the episode in seconds) of each.
    """

    number: Int64s
    length: Int64s
    file: Int64s
    files: list[str]
    videos: dict[str, list[tuple[str, float]]] = field(default_factory=dict)


def read_info(store: Store) -> dict[str, Any]:
    """Return the content of ``meta/info.json``. Raises `DataError`, `ConfigError`."""
    where = store.locate(INFO)
    info = read_object(store, INFO, kind="bad-index", fix=AGAIN)
    lacking = [key for key in ("codebase_version", "fps", "features", "data_path") if not info.get(key)]
    if lacking:
        raise DataError(f"it lacks {', '.join(map(repr, lacking))}", file=where, kind="bad-index", fix=AGAIN)
    if not isinstance(info["features"], dict) or not isinstance(info["fps"], int | float) or info["fps"] <= 0:
        raise DataError("'features' must be an object and 'fps' above 0", file=where, kind="bad-index", fix=AGAIN)
    try:
        orjson.dumps(info)  # orjson parses deeper nesting than it can write
    except TypeError:
        raise DataError("it is nested too deeply", file=where, kind="bad-index", fix=AGAIN) from None
    if not str(info["codebase_version"]).startswith(("v2", "v3")):
        raise ConfigError(
            f"unsupported version {info['codebase_version']!r}: expected v2 or v3",
            file=where,
            kind="unsupported",
            fix="Convert it with LeRobot's own scripts.",
        )
    for name, feature in info["features"].items():
        shape = feature.get("shape") if isinstance(feature, dict) else 0
        if shape is not None and not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
            raise DataError(
                f"the feature {name!r} has no valid 'shape', expected a list of numbers such as [7]",
                file=where,
                kind="bad-index",
                fix=AGAIN,
            )
    return info


def splits_of(store: Store, info: Mapping[str, Any], episodes: int) -> dict[str, range]:
    """Return split -> range of episodes."""
    out = {}
    for name, text in (info.get("splits") or {}).items():
        match = re.fullmatch(r"(\d*):(\d*)", str(text))
        begin, end = (int(match[1] or 0), int(match[2] or episodes)) if match else (0, -1)
        if not 0 <= begin <= end <= episodes:
            raise DataError(
                f"the split {name!r} is {text!r}, expected a range of its {episodes} episodes such as '0:10'",
                file=store.locate(INFO),
                kind="bad-index",
                fix=AGAIN,
            )
        out[str(name)] = range(begin, end)
    return out


def fill(store: Store, template: Any, **numbers: int | str) -> str:
    """Fill in a path template such as ``data/chunk-{chunk_index:03d}/file.parquet``.

    Only names and widths are supported, so that a template cannot run code.

    Raises:
        DataError: a name is unknown.
        ConfigError: the path leads out of the folder.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in numbers:
            raise DataError(
                f"the path {template!r} has the unknown field {match[1]!r}",
                file=store.locate(INFO),
                kind="bad-index",
                fix=f"Supported fields are {', '.join(numbers)}.",
            )
        found = numbers[match[1]]
        return f"{found:0{match[2] or 0}d}" if isinstance(found, int) else str(found)

    return store.check_path(_FIELD.sub(value, str(template)))


def _cameras(info: Mapping[str, Any]) -> list[str]:
    return [name for name, feature in info["features"].items() if feature.get("dtype") == "video"]


def _lines(store: Store, path: str) -> list[dict[str, Any]]:
    if not store.exists(path):
        raise gone(store, path)
    out = []
    for number, line in enumerate(store.read_small(path).splitlines(), 1):
        try:
            if line.strip():
                out.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise DataError(
                f"line {number} is not JSON ({error})", file=store.locate(path), kind="bad-line", fix=AGAIN
            ) from None
    return out


def episodes_v2(store: Store, info: Mapping[str, Any]) -> Episodes:
    """Return the episodes of version 2. Raises `NotFound`, `DataError`, `ConfigError`."""
    path = "meta/episodes.jsonl"
    rows = _lines(store, path)
    try:
        numbers = [int(row["episode_index"]) for row in rows]
        lengths = [int(row["length"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"an episode lacks {error}", file=store.locate(path), kind="bad-line", fix=AGAIN) from None
    size = int(info.get("chunks_size") or 1000)
    files = [fill(store, info["data_path"], episode_chunk=number // size, episode_index=number) for number in numbers]
    videos = {
        camera: [
            (fill(store, info.get("video_path"), episode_chunk=n // size, episode_index=n, video_key=camera), 0.0)
            for n in numbers
        ]
        for camera in _cameras(info)
    }
    return Episodes(np.asarray(numbers, np.int64), np.asarray(lengths, np.int64), np.arange(len(rows)), files, videos)


def tasks_v2(store: Store) -> dict[int, str]:
    """Return task number -> text, for version 2. Raises `NotFound`, `DataError`."""
    return {int(row["task_index"]): str(row["task"]) for row in _lines(store, "meta/tasks.jsonl")}


def episodes_v3(store: Store, info: Mapping[str, Any]) -> Episodes:
    """Return the episodes of version 3. Raises `NotFound`, `DataError`, `ConfigError`."""
    cameras = _cameras(info)
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for camera in cameras:
        columns += [f"videos/{camera}/{name}" for name in _PLACE]
    table = _table(store, _episode_files(store, info), columns)
    order = np.argsort(np.asarray(table["episode_index"], np.int64), kind="stable")
    table = {name: [found[n] for n in order.tolist()] for name, found in table.items()}
    named: dict[str, int] = {}
    data = cache(lambda chunk, file: fill(store, info["data_path"], chunk_index=chunk, file_index=file))
    paths = [data(*place) for place in zip(table["data/chunk_index"], table["data/file_index"], strict=True)]
    file = np.asarray([named.setdefault(path, len(named)) for path in paths], np.int64)
    if (np.diff(file) < 0).any():
        raise DataError(
            "its episodes are not in the order of the data files",
            file=store.locate("meta/episodes"),
            kind="bad-index",
            fix=AGAIN,
        )
    videos = {}
    for camera in cameras:
        path = cache(partial(_video, store, info, camera))
        chunks, numbers, begins = (table[f"videos/{camera}/{name}"] for name in _PLACE)
        videos[camera] = [
            (path(chunk, number), float(begin)) for chunk, number, begin in zip(chunks, numbers, begins, strict=True)
        ]
    return Episodes(
        np.asarray(table["episode_index"], np.int64), np.asarray(table["length"], np.int64), file, list(named), videos
    )


def _video(store: Store, info: Mapping[str, Any], camera: str, chunk: int, file: int) -> str:
    return fill(store, info.get("video_path"), video_key=camera, chunk_index=chunk, file_index=file)


def _episode_files(store: Store, info: Mapping[str, Any]) -> list[str]:
    """Return the files of version 3 that list the episodes; from their numbers where a store cannot list files."""
    try:
        return [entry.path for entry in store.files("meta/episodes", suffixes=(".parquet",))]
    except StorageError as error:
        if error.kind != "unsupported":
            raise
    episode_files: list[str] = []
    given = info.get("chunks_size")
    chunk = given if type(given) is int and given > 0 else _CHUNK
    while True:
        number, file = divmod(len(episode_files), chunk)
        path = f"meta/episodes/chunk-{number:03d}/file-{file:03d}.parquet"
        if not store.exists(path):
            return episode_files
        episode_files.append(path)


def tasks_v3(store: Store) -> dict[int, str]:
    """Return task number -> text, for version 3. Raises `NotFound`, `DataError`."""
    return _texts(store, "meta/tasks.parquet", "task")


def subtasks_v3(store: Store) -> dict[int, str]:
    """Return subtask number -> text, for version 3; nothing if there is no list of them. Raises `DataError`."""
    path = "meta/subtasks.parquet"
    return _texts(store, path, "subtask") if store.exists(path) else {}


def _texts(store: Store, path: str, name: str) -> dict[int, str]:
    """Return the texts of a table by their numbers."""
    if not store.exists(path):
        raise gone(store, path)
    opened, number = ParquetFile(store, path), f"{name}_index"
    words = next((column for column in opened.schema.names if column != number), name)
    table = _table(store, [path], [number, words])
    return {int(n): str(text) for n, text in zip(table[number], table[words], strict=True)}


def episode_columns(store: Store, info: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns of episodes, without where its data lies and its statistics."""
    if str(info["codebase_version"]).startswith("v3"):
        names = ParquetFile(store, _episode_files(store, info)[0]).schema.names
        return [name for name in names if "/" not in name]
    return list(dict.fromkeys(name for row in _lines(store, "meta/episodes.jsonl") for name in row))


def episode_values(store: Store, info: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values of a column of episodes, in the order of the episodes."""
    if not str(info["codebase_version"]).startswith("v3"):
        return [row.get(name) for row in _lines(store, "meta/episodes.jsonl")]
    table = _table(store, _episode_files(store, info), list(dict.fromkeys(("episode_index", name))))
    order = np.argsort(np.asarray(table["episode_index"], np.int64), kind="stable")
    return [table[name][at] for at in order.tolist()]


def _table(store: Store, paths: list[str], columns: list[str]) -> dict[str, list[Any]]:
    """Return the concatenated columns of small Parquet files."""
    out: dict[str, list[Any]] = {name: [] for name in columns}
    if not paths:
        raise gone(store, "meta/episodes/chunk-000/file-000.parquet")
    for path in paths:
        opened = ParquetFile(store, path)
        lacking = [name for name in columns if name not in opened.schema.names]
        if lacking:
            raise DataError(f"it lacks the column {lacking[0]!r}", file=store.locate(path), kind="no-column", fix=AGAIN)
        for block in range(len(opened.ends)):
            table, _ = opened.read(block, columns)
            try:
                for name in columns:
                    out[name] += values(table.column(name))
            except ValueError as error:  # text that is not UTF-8
                raise damaged(store.locate(path), error) from None
    return out


def gone(store: Store, path: str) -> NotFound:
    """Return the error for a file that is missing."""
    return NotFound(
        "this file of the dataset is missing", file=store.locate(path), kind="missing-shard", fix="Download it again."
    )
