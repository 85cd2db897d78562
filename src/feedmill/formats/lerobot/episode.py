"""Read whole episodes of a LeRobot dataset: the columns of all frames as arrays, and the video of each camera."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.arrowtypes.nested import is_file
from feedmill.formats.arrowtypes.place import Unreadable
from feedmill.formats.arrowtypes.reading import values
from feedmill.formats.lerobot.dataset import LeRobotDataset, is_numeric, numeric_column
from feedmill.formats.lerobot.meta import AGAIN
from feedmill.formats.rows import Lazy
from feedmill.formats.videocut import cut_video


@dataclass(slots=True)
class Episode:
    """The columns of an episode of T frames.

    Attributes:
        number: of the episode.
        arrays: numeric columns, [T] or [T, ...] in the dtype and with the axes of their feature.
        files: columns of images, the bytes of T files.
        others: other columns, such as text: T values.
    """

    number: int
    arrays: dict[str, npt.NDArray[Any]]
    files: dict[str, list[bytes]]
    others: dict[str, list[Any]]


def read_episode(dataset: LeRobotDataset, place: int) -> Episode:
    """Return the columns of an episode.

    Args:
        place: of the episode in the dataset, which was opened without a split.

    Raises:
        DataError: the data file is damaged, has rows of another episode, or values are missing or have other shapes.
        NotFound: the data file is missing.
    """
    number, length = int(dataset.episodes.number[place]), int(dataset.episodes.length[place])
    dataset.check_file(place)  # before memory is used for as many frames as `meta` claims
    first = int(dataset.episode_starts[place])
    table = dataset.arrow_rows(np.arange(first, first + length))
    found = Episode(number, {}, {}, {})
    where = dataset.store.locate(dataset.episodes.files[int(dataset.episodes.file[place])])
    for name in table.schema.names:
        try:
            _add(found, name, table.column(name), dataset.info["features"].get(name) or {}, where)
        except Unreadable as error:
            raise error.located(where) from None
    _check_numbers(found, where, length)
    return found


def _add(found: Episode, name: str, column: Any, feature: Mapping[str, Any], where: str) -> None:
    """Add a column to an episode."""
    if column.null_count:
        raise _bad(where, name, f"{column.null_count} of its {len(column)} values are missing")
    if is_file(column.type):
        found.files[name] = [one.make() if isinstance(one, Lazy) else one for one in values(column, name)]
        if None in found.files[name]:
            raise _bad(where, name, "an image is missing")
    elif (array := numeric_column(values(column, name), feature)) is not None:
        found.arrays[name] = array
    elif is_numeric(feature):
        raise _bad(where, name, f"its values are not of the shape {feature.get('shape')} of the feature")
    else:
        found.others[name] = values(column, name)


def read_video(dataset: LeRobotDataset, place: int, camera: str) -> bytes:
    """Return a file with the frames of an episode. Raises as `cut_video`."""
    path, begin = dataset.episodes.videos[camera][place]
    last = dataset.last_starts[camera][path] <= begin
    frames = int(dataset.episodes.length[place])
    return cut_video(dataset.store, path, begin, frames, float(dataset.info["fps"]), last=last)


def _check_numbers(episode: Episode, where: str, length: int) -> None:
    """Raise `DataError` if the rows are not the frames of the episode in their order."""
    numbers = episode.arrays.get("episode_index")
    frames = episode.arrays.get("frame_index")
    if numbers is not None and (numbers != episode.number).any():
        raise _bad(where, "episode_index", "there are rows of another episode")
    if frames is not None and (frames.ravel() != np.arange(length)).any():
        raise _bad(where, "frame_index", f"the frames are not 0 to {length - 1} in order")


def _bad(where: str, column: str, why: str) -> DataError:
    return DataError(f"column {column!r}: {why}", file=where, kind="bad-data", fix=AGAIN)
