"""Cut the episodes of a LeRobot dataset into the windows that VLA Foundry's robotics training reads.

See `feedmill.converting.windows` for the samples.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from feedmill.converting.windows import (
    Cut,
    ShardOfWindows,
    anchors_of,
    episodes_of,
    features_of,
    forget,
    opened,
    windows_of,
)
from feedmill.errors import ConfigError
from feedmill.formats.content import content_of_files
from feedmill.formats.energon.prepared import INFO
from feedmill.formats.lerobot.dataset import LeRobotDataset
from feedmill.formats.offsets import hash_words
from feedmill.formats.vla.manifest import MANIFEST, Row, manifest_text
from feedmill.jobs.unfinished import unfinished
from feedmill.jobs.work import tidy
from feedmill.samples.robotics.job import compute_statistics
from feedmill.storage import Store, canonical_location, open_store
from feedmill.writing.destination import Destination
from feedmill.writing.layout import Layout
from feedmill.writing.write import write_shards

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
        url: a LeRobot dataset, version 2.x or 3.0.
        output: the folder to write, also readable as a prepared dataset.
        cut: the windows.
        split: a split of the dataset; None for all episodes.
        shard_samples: samples per shard.
        workers: processes; by default one per core.
        overwrite: replace an existing dataset.
        progress: show progress bars.

    Raises:
        ConfigError: the dataset is not a LeRobot dataset, it has no numeric field, or the output is
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
        sorted(name for name in dataset.info["features"] if name not in have),
        round(time.perf_counter() - began, 3),
    )


def _checked(url: str, output: str, split: str | None, shard_samples: int) -> LeRobotDataset:
    """Return the dataset. Raises `ConfigError`."""
    if canonical_location(url) == canonical_location(output):
        raise ConfigError(
            "the output is the LeRobot dataset itself", file=output, kind="input-is-output", fix="Use another folder."
        )
    dataset = opened(url, split)
    if shard_samples < 1:
        raise ConfigError(f"shards cannot have {shard_samples} samples", kind="bad-option", fix="Use at least 1.")
    if not len(dataset):
        raise ConfigError("the dataset has no frames", file=url, kind="empty-source", fix="Choose another split.")
    return dataset


def _fingerprint(dataset: LeRobotDataset) -> str:
    """Return the fingerprint of the dataset with its videos. Raises `NotFound` for a missing one."""
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
        there = yaml.safe_load(store.read(CONFIG)) if store.exists(CONFIG) else None
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
    job = unfinished(store)
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


def _config(
    dataset: LeRobotDataset, source: str, cut: Cut, cameras: Sequence[str], shard_samples: int
) -> dict[str, Any]:
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
        "fps": dataset.info["fps"],
        "robot_type": dataset.info.get("robot_type"),
        _PLACE: [dataset.url],
        _SOURCE: source,
    }
