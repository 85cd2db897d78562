"""Cut episodes, of a LeRobot dataset or of recordings, into the windows that VLA Foundry's robotics training reads.

Each sample has the low-dimensional fields of `past` steps before a frame, the frame (the anchor), and `future` steps
after it; the images at the anchor, or at other steps around it; and the text of the task. Steps beyond the episode are
copies of its first or last frame, and the masks are false there.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import yaml

from feedmill.errors import ConfigError, DataError
from feedmill.formats.content import content_of_files
from feedmill.formats.energon.prepared import INFO
from feedmill.formats.episodes import Episodic
from feedmill.formats.lerobot.dataset import LeRobotDataset
from feedmill.formats.lerobot.depth import is_depth
from feedmill.formats.offsets import hash_words
from feedmill.formats.vla.manifest import MANIFEST, Row, manifest_text
from feedmill.jobs.journal import Journal
from feedmill.jobs.work import tidy
from feedmill.samples.open import open as open_dataset
from feedmill.samples.robotics.job import compute_statistics
from feedmill.samples.robotics.view import FUTURE_MASK, LOWDIM, PAST_MASK
from feedmill.storage import Store, canonical_location, open_store
from feedmill.writing.destination import Destination
from feedmill.writing.shard import Layout
from feedmill.writing.write import write_shards

_COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_AT_ONCE = 64  # anchors whose frames are in memory at once


@dataclass(frozen=True, slots=True)
class Cut:
    """How episodes are cut into windows.

    Attributes:
        past, future: steps before and after the anchor.
        stride: frames from one anchor of an episode to the next.
        images: steps of the images, relative to the anchor.
        quality: of the JPEG files, from 1 to 95.

    Raises:
        ConfigError: a value is out of range.
    """

    past: int = 1
    future: int = 15
    stride: int = 1
    images: tuple[int, ...] = (0,)
    quality: int = 95

    def __post_init__(self) -> None:
        if self.past < 0 or self.future < 0 or self.stride < 1 or not self.images or not 1 <= self.quality <= 95:
            raise ConfigError(
                f"windows of {self.past} past and {self.future} future steps, stride {self.stride}, images at"
                f" {list(self.images)} and JPEG quality {self.quality} are impossible",
                kind="bad-option",
                fix="Steps must be at least 0, the stride at least 1, the quality from 1 to 95, with one image step.",
            )


@dataclass(frozen=True, slots=True)
class ShardOfWindows:
    """The anchors `first` to `stop` of the dataset, for the process that writes their shard.

    Attributes:
        source: fingerprint of the dataset: shards of other data are not kept after a kill.
    """

    url: str
    source: str
    split: str | None
    cut: Cut
    first: int
    stop: int


def windows_of(shard: ShardOfWindows) -> Iterator[dict[str, Any]]:
    """Yield the samples of a shard as parts."""
    dataset = opened(shard.url, shard.split)
    fields, cameras = features_of(dataset)
    bounds = np.asarray(episodes_of(dataset), np.int64)
    own = anchors_of(shard.url, shard.split, shard.cut.stride)[shard.first : shard.stop]
    for first in range(0, len(own), _AT_ONCE):
        anchors = own[first : first + _AT_ONCE]
        episode = np.searchsorted(bounds[:, 1], anchors, side="right")
        steps = anchors[:, None] + np.arange(-shard.cut.past, shard.cut.future + 1)
        pictured = anchors[:, None] + np.asarray(shard.cut.images, np.int64)
        low, high = bounds[episode, :1], bounds[episode, 1:] - 1
        real = (steps >= low) & (steps <= high)
        steps, pictured = steps.clip(low, high), pictured.clip(low, high)
        numbers = np.unique(np.concatenate([steps.ravel(), pictured.ravel()]))
        frames = dict(zip(numbers.tolist(), dataset.read(numbers), strict=True))
        for row, anchor in enumerate(anchors.tolist()):
            columns = {name: _column(frames, steps[row], name, dataset) for name in fields}
            yield _sample(
                frames[anchor],
                columns,
                real[row],
                shard.cut,
                cameras,
                frames,
                pictured[row].tolist(),
                dataset.task_part,
            )


def _sample(
    frame: Any,
    columns: Mapping[str, npt.NDArray[Any]],
    real: npt.NDArray[np.bool_],
    cut: Cut,
    cameras: Sequence[str],
    frames: Mapping[int, Any],
    pictured: Sequence[int],
    task_part: str,
) -> dict[str, Any]:
    past = np.arange(len(real)) < cut.past
    lowdim = io.BytesIO()
    np.savez(lowdim, **columns, **{PAST_MASK: real & past, FUTURE_MASK: real & ~past})  # type: ignore[arg-type]
    episode, number = frame.key.split("/")
    sample: dict[str, Any] = {"__key__": f"{episode}-{number}", LOWDIM: lowdim.getvalue()}
    sizes = {}
    for camera in cameras:
        for step, place in zip(cut.images, pictured, strict=True):
            pixels = frames[place][camera]
            sizes[camera] = [pixels.shape[1], pixels.shape[0]]
            sample[f"{camera.replace('.', '_')}_t{step}.jpg"] = _jpeg(pixels, cut.quality)
    about = {
        "camera_names": [camera.replace(".", "_") for camera in cameras],
        "anchor_relative_idx": cut.past,
        "episode_index": int(episode),
        "frame_index": int(number),
        "original_image_sizes": {camera.replace(".", "_"): size for camera, size in sizes.items()},
    }
    sample["metadata.json"] = orjson.dumps(about)
    task = frame.get(task_part) if task_part else None
    if task is not None:
        sample["language_instructions.json"] = orjson.dumps({"original": [task]})
    return sample


def _jpeg(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).convert("RGB").save(out, "JPEG", quality=quality)
    return out.getvalue()


def _column(frames: Mapping[int, Any], steps: npt.NDArray[np.int64], name: str, dataset: Episodic) -> npt.NDArray[Any]:
    """Return the values of a field over the steps, [T, D]. Raises `DataError` for a frame without a value."""
    values = [frames[step][name] for step in steps.tolist()]
    missing = next((step for step, value in zip(steps.tolist(), values, strict=True) if value is None), None)
    if missing is not None:
        raise DataError(
            f"the frame has no value of {name!r}",
            file=dataset.url,
            record=frames[missing].key,
            kind="missing-field",
            fix="Fix the episode, or remove the feature.",
        )
    return np.stack([np.atleast_1d(np.asarray(value)) for value in values])


@cache
def opened(url: str, split: str | None) -> Episodic:
    """Open the dataset, once per process."""
    dataset = open_dataset(url, split=split)
    if not isinstance(dataset, Episodic):
        raise ConfigError(
            f"expected episodes, such as a LeRobot dataset, found {dataset.format}",
            file=url,
            kind="other-format",
            fix="Give the folder with meta/info.json, or that of the recordings.",
        )
    return dataset


def forget() -> None:
    """Forget datasets that an earlier call in this process opened: they may have changed."""
    for remembered in (opened, anchors_of):
        remembered.cache_clear()


@cache
def anchors_of(url: str, split: str | None, stride: int) -> npt.NDArray[np.int64]:
    """Return the frames that are anchors, int64[samples], ascending."""
    return np.concatenate([np.arange(*bounds, stride, dtype=np.int64) for bounds in episodes_of(opened(url, split))])


def episodes_of(dataset: Episodic) -> list[tuple[int, int]]:
    """Return the first frame and the end of each episode that has frames."""
    ends = [*dataset.episode_starts[1:].tolist(), len(dataset)]
    return [(start, end) for start, end in zip(dataset.episode_starts.tolist(), ends, strict=True) if end > start]


def features_of(dataset: Episodic) -> tuple[list[str], list[str]]:
    """Return the names of the numeric fields of one axis, and of the cameras, without depth maps: JPEG has 8 bits.

    Raises:
        ConfigError: there are no fields.
    """
    fields, cameras = [], []
    for name, feature in dataset.features.items():
        kind, shape = str(feature.get("dtype")), feature.get("shape") or [1]
        if kind in ("video", "image"):
            cameras += [] if is_depth(feature) else [name]
        elif kind.startswith(("float", "int", "uint", "bool")) and len(shape) == 1 and name not in _COUNTERS:
            fields.append(name)
    if not fields:
        raise ConfigError("the dataset has no numeric field of one axis", file=dataset.url, kind="no-parts")
    return fields, cameras


CONFIG, STATISTICS = "preprocessing_config.yaml", "stats.json"
PATTERN = "shard_%06d.tar"
_DESCRIBED = (MANIFEST, CONFIG, STATISTICS)
_SOURCE = "source_fingerprint"
_PLACE = "source_episodes"


@dataclass(frozen=True)
class WindowsReport:
    """The result of `write_windows`.

    Attributes:
        path: the new dataset; `episodes`, `samples`, `shards`: its size.
        fields, cameras: names of the fields in `lowdim.npz`, and of the cameras.
        skipped: features that no window has: text, counters, those of several axes, and depth maps.
        seconds: wall time.
    """

    path: str
    episodes: int
    samples: int
    shards: int
    fields: list[str]
    cameras: list[str]
    skipped: list[str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return asdict(self)


def write_windows(
    url: str,
    output: str,
    cut: Cut,
    *,
    split: str | None = None,
    shard_samples: int = 1000,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> WindowsReport:
    """Write windows of all episodes, with the manifest, the configuration and the statistics that training needs.

    The output does not depend on `workers`. After a kill, the same call finishes the job. Then it has no effect.

    Args:
        url: episodes: a LeRobot dataset, version 2.x or 3.0, or recordings.
        output: the folder to write, also readable as a prepared dataset.
        cut: the windows.
        split: a split of the dataset; None for all episodes.
        shard_samples: samples per shard.
        workers: processes; by default one per core.
        overwrite: replace an existing dataset.
        progress: show progress bars.

    Raises:
        ConfigError: the dataset has no episodes, it has no numeric field, or the output is
            another dataset, or windows of other settings or data.
        DataError: a frame cannot be read, or has no value of a field.
        NotFound: a file of the dataset is missing.
    """
    began = time.perf_counter()
    forget()
    dataset = _checked(url, output, split, shard_samples)
    fields, cameras = features_of(dataset)
    samples, source = len(anchors_of(url, split, cut.stride)), _fingerprint(dataset)
    shards = [
        ShardOfWindows(url, source, split, cut, first, min(first + shard_samples, samples))
        for first in range(0, samples, shard_samples)
    ]
    config = _config(dataset, source, cut, cameras, shard_samples)
    store = open_store(output)
    if overwrite or not _is_written(store, config):
        _write_shards(output, shards, config, overwrite=overwrite, workers=workers, progress=progress)
    if not store.exists(MANIFEST):
        compute_statistics(output, f"{output.rstrip('/')}/{STATISTICS}", progress=progress)
        rows = [Row(PATTERN % number, shard.stop - shard.first) for number, shard in enumerate(shards)]
        store.write_bytes(MANIFEST, manifest_text(rows))  # last: with it, the dataset is complete
    have = {*fields, *cameras}
    return WindowsReport(
        output,
        len(episodes_of(dataset)),
        samples,
        len(shards),
        fields,
        cameras,
        sorted(name for name in dataset.features if name not in have),
        round(time.perf_counter() - began, 3),
    )


def _checked(url: str, output: str, split: str | None, shard_samples: int) -> Episodic:
    """Return the dataset. Raises `ConfigError`."""
    if canonical_location(url) == canonical_location(output):
        raise ConfigError(
            "the output is the dataset itself", file=output, kind="input-is-output", fix="Use another folder."
        )
    dataset = opened(url, split)
    if shard_samples < 1:
        raise ConfigError(f"shards cannot have {shard_samples} samples", kind="bad-option", fix="Use at least 1.")
    if not len(dataset):
        raise ConfigError("the dataset has no frames", file=url, kind="empty-source", fix="Choose another split.")
    return dataset


def _fingerprint(dataset: Episodic) -> str:
    """Return the fingerprint of the dataset with its videos. Raises `NotFound` for a missing one."""
    if not isinstance(dataset, LeRobotDataset):
        return hash_words([dataset.fingerprint()])
    videos = sorted({path for places in dataset.episodes.videos.values() for path, _ in places})
    return hash_words(
        [dataset.fingerprint(), content_of_files(dataset.store, videos)] if videos else [dataset.fingerprint()]
    )


def _is_written(store: Store, config: dict[str, Any]) -> bool:
    """Return whether all shards with these settings are there, and the job that wrote them has ended.

    Raises:
        ConfigError: they are windows of other settings or data.
    """
    if not store.exists(INFO):
        return False
    try:
        there = yaml.safe_load(store.read_small(CONFIG)) if store.exists(CONFIG) else None
    except (yaml.YAMLError, UnicodeDecodeError):
        there = None
    if not isinstance(there, dict) or there.get("type") != config["type"]:
        return False  # another dataset, which writing refuses to replace
    other = [f"{name} {there.get(name)}, not {value}" for name, value in config.items() if there.get(name) != value]
    other = [words for words in other if not words.startswith((_SOURCE, _PLACE))]
    if other or there.get(_SOURCE) != config[_SOURCE]:
        raise ConfigError(
            f"windows {'with ' + ', '.join(other) if other else 'of other data'} exist here already",
            file=store.url,
            kind="exists",
            fix="Use another folder, or replace them with --overwrite.",
        )
    job = Journal(store).job
    published = job is not None and (job.get("half") or job.get("published"))
    if job is not None and (published or not job.get("staged")):
        return False  # killed when the shards were there, and not yet all of their index: the job is resumed
    tidy(store)
    return True


def _write_shards(
    output: str,
    shards: Sequence[ShardOfWindows],
    config: dict[str, Any],
    *,
    overwrite: bool,
    workers: int | None,
    progress: bool,
) -> None:
    layout, job = (
        Layout(PATTERN, None, None),
        {"verb": "windows", "items": hash_words([repr(shard) for shard in shards])},
    )
    target = Destination(output, layout, job=job, overwrite=overwrite, beside=_DESCRIBED)
    with closing(target):
        target.store.write_bytes(CONFIG, yaml.safe_dump(config).encode())
        if target.store is target.home:  # otherwise the old files are deleted when the new shards are published
            for name in (MANIFEST, STATISTICS):
                target.home.delete(name)
        write_shards(target, shards, windows_of, workers=workers, progress=progress)


def _config(dataset: Episodic, source: str, cut: Cut, cameras: Sequence[str], shard_samples: int) -> dict[str, Any]:
    return {
        "type": "lerobot",
        "camera_names": [camera.replace(".", "_") for camera in cameras],
        "past_lowdim_steps": cut.past,
        "future_lowdim_steps": cut.future,
        "image_indices": list(cut.images),
        "stride": cut.stride,
        "padding_strategy": "copy",
        "jpeg_quality": cut.quality,
        "samples_per_shard": shard_samples,
        "fps": dataset.fps,
        "robot_type": getattr(dataset, "info", {}).get("robot_type"),
        _PLACE: [dataset.url],
        _SOURCE: source,
    }
