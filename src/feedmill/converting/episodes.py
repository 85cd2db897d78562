"""Plan the conversion of episodes to a LeRobot dataset: outputs of whole episodes, names, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feedmill.converting.engine import Conversion
from feedmill.converting.facts import source_facts
from feedmill.converting.fields import wanted
from feedmill.converting.job import ConvertWork
from feedmill.converting.losses import losses_of
from feedmill.converting.options import Convert
from feedmill.converting.preview import SAMPLES_EACH, Loss, Preview, named
from feedmill.converting.samples import READ_BYTES, SampleSource
from feedmill.converting.targets.episodes import COUNTERS, LeRobotEpisodes, names_of, pixels_of, size_of
from feedmill.converting.units import Shared, Unit, opened
from feedmill.errors import ConfigError
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.episodes import Episodic
from feedmill.formats.offsets import Int64s
from feedmill.jobs.policy import skips
from feedmill.writing.copying import mean_size

_OUTPUT_BYTES = 100 << 20
"""Bytes of the source for an output, about: LeRobot's own writer begins another file at 100 MB."""


def plan_episodes(source: str, destination: str, kind: str, options: Convert, work: ConvertWork) -> Conversion:
    """Plan the conversion.

    Raises:
        ConfigError: the rate is unknown, an option does not fit, or columns cannot be stored or would have one name.
        DataError: the first step cannot be read.
    """
    opened.cache_clear()
    dataset = opened(source, options.split)
    assert isinstance(dataset, Episodic)  # the only family that the format takes
    facts = source_facts(dataset, source, kind, options.split)
    load_pyarrow("LeRobot datasets")
    if skips(options.on_error):
        raise ConfigError(
            "--on-error skip: an episode cannot lack steps", kind="bad-option", fix="Leave it out, or fix the source."
        )
    fps = _rate(dataset, options)
    task = dataset.task_part
    features = {
        name: feature
        for name, feature in dataset.features.items()
        if name not in (*COUNTERS, task) and wanted(name, options.fields)
    }
    stored, dropped = _stored(dataset, features, videos=options.videos)
    if not stored:
        raise ConfigError("no column can be stored", file=source, kind="no-parts", fix="Select others with --fields.")
    names = names_of(stored, source)
    units, lengths = _units(dataset, options)
    plan = Preview("samples", source, destination, kind, "lerobot", count=len(dataset), outputs=len(units))
    plan.names = {
        part: name if stored[part]["dtype"] != "video" else f"{name}, as video" for part, name in names.items()
    }
    plan.names = {part: name for part, name in plan.names.items() if part != name}
    plan.losses = [
        Loss(f"{why}: {named(parts)}", content=True, fix="Leave them out with --fields.") for why, parts in dropped
    ]
    plan.losses += losses_of("lerobot", facts, {}, options)[1]
    if videos := [name for name, feature in stored.items() if feature["dtype"] == "video"]:
        plan.losses.append(Loss(f"exact pixels of {named(videos)}, which are encoded as H.264"))
    plan.losses.append(Loss("quantiles of statistics (q01 to q99): LeRobot's scripts add them"))
    if kind == "lerobot":
        plan.losses.append(Loss("names of joints: the features have none"))
    identity = {
        "source": source,
        "fingerprint": dataset.fingerprint(),
        "kind": kind,
        "to": "lerobot",
        "rate": fps,
        "features": {names[part]: dict(feature) for part, feature in stored.items()},
        **options.identity(),
    }
    batch = int(max(1, min(64, READ_BYTES // max(1, mean_size(dataset)))))
    keep = tuple(stored) + ((task,) if task else ())
    reads = SampleSource(source, tuple(map(_literal, keep)), False, batch)
    target = LeRobotEpisodes(
        destination,
        False,
        batch,
        names=names,
        features={names[part]: feature for part, feature in stored.items()},
        task=task,
        tasks=tuple(dataset.task_texts()) or ("",),
        fps=fps,
        robot=getattr(dataset, "info", {}).get("robot_type"),
        lengths=lengths,
    )
    return Conversion(plan, units, Shared(reads, target, work.folder, work.place.url), identity, dataset=dataset)


def _literal(name: str) -> str:
    """Return a pattern that only this name matches."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _rate(dataset: Episodic, options: Convert) -> float:
    if options.fps is not None and dataset.fps not in (None, options.fps):
        raise ConfigError(
            f"--fps {options.fps:g}: the source says {dataset.fps:g} steps a second",
            file=dataset.url,
            kind="bad-option",
            fix="Leave it out.",
        )
    fps = dataset.fps or options.fps
    if fps is None:
        raise ConfigError(
            "the source does not say how many steps a second it has, which LeRobot must know",
            file=dataset.url,
            kind="bad-option",
            fix="Add --fps, such as --fps 50 for ALOHA.",
        )
    return fps


def _stored(
    dataset: Episodic, features: Mapping[str, Mapping[str, Any]], *, videos: bool
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, list[str]]]]:
    """Return the features that are stored, and why others are not. The sizes of images are those of the first step."""
    first = dataset.read_raw([0])[0]
    stored: dict[str, dict[str, Any]] = {}
    left: dict[str, list[str]] = {}
    for name, feature in features.items():
        kind, shape = str(feature["dtype"]), list(feature.get("shape") or [1])
        about = {"names": feature.get("names")}
        if kind in ("image", "video"):
            value = first.row.get(name)  # type: ignore[attr-defined]
            if feature.get("info", {}) and feature["info"].get("is_depth_map"):
                left.setdefault("depth maps", []).append(name)
                continue
            shape = list(value.shape) if isinstance(value, np.ndarray) else size_of(first.raw(name))
            if videos and (shape[0] % 2 or shape[1] % 2):
                why = "videos need an even width and height (write images, without --videos)"
                left.setdefault(why, []).append(name)
                continue
            if videos:
                shape[2] = pixels_of(first.raw(name)).shape[2] if not isinstance(value, np.ndarray) else shape[2]
            about["names"] = ["height", "width", "channels"]
            if videos and shape[2] != 3:
                left.setdefault("videos of other than three channels", []).append(name)
                continue
            stored[name] = {"dtype": "video" if videos else "image", "shape": shape, **about}
        elif kind == "bytes" or kind.startswith("list:"):
            left.setdefault("bytes and lists of different lengths", []).append(name)
        elif len(shape) > 5:
            left.setdefault("arrays of more than five axes", []).append(name)
        else:
            stored[name] = {"dtype": kind, "shape": shape, **about}
    return stored, list(left.items())


def _units(dataset: Episodic, options: Convert) -> tuple[list[Unit], list[tuple[int, ...]]]:
    """Return a unit for each output, and the steps of its episodes."""
    most = options.max_shard_samples or SAMPLES_EACH
    size = options.shard_bytes or _OUTPUT_BYTES
    each = max(1, mean_size(dataset))
    units: list[Unit] = []
    lengths: list[tuple[int, ...]] = []
    begin, here = 0, list[int]()
    found: Int64s = dataset.episode_lengths
    for length in [*found[found > 0].tolist(), None]:
        whole = sum(here)
        if here and (length is None or whole + length > most or (whole + length) * each > size):
            units.append(Unit(len(units), (options.split, begin, begin + whole), whole))
            lengths.append(tuple(here))
            begin, here = begin + whole, []
        if length is not None:
            here.append(length)
    return units, lengths
