"""Convert episodes to a LeRobot dataset of version 3: Parquet, with the pictures of cameras in it or as videos.

Every output holds whole episodes; their places, the tasks and the statistics are in ``meta/``, which is written last.
Names follow LeRobot's: ``actions`` becomes ``action``, what is below ``obs`` or ``observations`` is below
``observation``, cameras are ``observation.images.NAME``; see `names_of`. The counters (``episode_index``,
``frame_index``, ``index``, ``timestamp``, ``task_index``) are made.

Images keep their bytes; pixels become PNG. Videos are H.264 with a key frame every two frames (as LeRobot's, so that
any frame is near one; it decodes in less time than AV1) and lose pixels: reading back compares how many frames there
are, and of which size.

Statistics are the minimum, maximum, mean and standard deviation of each value of a column, in one pass (Chan, Golub
and LeVeque, "Algorithms for computing the sample variance", 1983); those of cameras are of some frames, in [0, 1].
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import orjson

from feedmill.converting.engine import Conversion
from feedmill.converting.facts import source_facts
from feedmill.converting.fields import Taken, wanted
from feedmill.converting.job import ConvertWork, Done
from feedmill.converting.losses import losses_of
from feedmill.converting.options import Convert
from feedmill.converting.preview import SAMPLES_EACH, Loss, Preview, named
from feedmill.converting.samples import READ_BYTES, SampleSource
from feedmill.converting.targets.parquet import parquet_writer
from feedmill.converting.units import Add, SampleTarget, Shared, Unit, opened
from feedmill.converting.values import Coded, digest, plain_bytes, values_of
from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.formats.avvideo import as_png
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.episodes import Episodic
from feedmill.formats.offsets import Int64s
from feedmill.formats.rows import Lazy, RowSample
from feedmill.formats.sample import Sample
from feedmill.jobs.policy import skips
from feedmill.samples.images import decode_image
from feedmill.storage import Store
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


DATA = "data/chunk-%03d/file-%03d.parquet"
VIDEO = "videos/%s/chunk-%03d/file-%03d.mp4"
INFO, TASKS, STATS = "meta/info.json", "meta/tasks.parquet", "meta/stats.json"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
COUNTERS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
_FILES_EACH = 1000
_GROUP_BYTES = 8 << 20
_PICTURES = 128
"""Frames of a camera of which the statistics of an output are computed, about."""
_OPTIONS = {"g": "2", "crf": "23", "preset": "medium", "threads": "1"}  # whose bytes depend on nothing else
_KNOWN = {
    "actions": "action",
    "rewards": "next.reward",
    "dones": "next.done",
    "observation.qpos": "observation.state",
    "observation.qvel": "observation.velocity",
    "observation.effort": "observation.effort",
}
_ABOVE = ("obs.", "observations.", "observation.", "observation_")  # the last of Lance, whose names have no dots


def names_of(features: Mapping[str, Mapping[str, Any]], file: str) -> dict[str, str]:
    """Return column -> its name in LeRobot. Raises `ConfigError` if two columns would have one name.

    >>> names_of({"actions": {"dtype": "float64"}, "obs.top": {"dtype": "image"}, "obs.qpos": {"dtype": "float32"}}, "")
    {'actions': 'action', 'obs.top': 'observation.images.top', 'obs.qpos': 'observation.state'}
    """
    out: dict[str, str] = {}
    pictures = [name for name, feature in features.items() if feature["dtype"] in ("image", "video")]
    cameras = {name: name.rpartition(".")[2].removeprefix("observation_").removeprefix("images_") for name in pictures}
    if len(set(cameras.values())) < len(pictures):  # such as left.image and right.image
        cameras = {name: name.removeprefix("observation.images.").replace(".", "_") for name in pictures}
    for name in features:
        above = next((one for one in _ABOVE if name.startswith(one)), None)
        found = name if above is None else f"observation.{name.removeprefix(above)}"
        if name in cameras:
            found = f"observation.images.{cameras[name]}"
        found = _KNOWN.get(found, found).replace("/", ".")
        other = next((one for one, taken in out.items() if taken == found), None)
        if other is not None or found in COUNTERS:
            raise ConfigError(
                f"{name!r} would become {found!r}, which " + (f"{other!r} becomes too" if other else "is a counter"),
                file=file,
                kind="name-clash",
                fix="Select one of them with --fields.",
            )
        out[name] = found
    return out


@dataclass(frozen=True, slots=True)
class LeRobotEpisodes(SampleTarget):
    """Episodes as a LeRobot dataset.

    Attributes:
        names: part of the source -> name of the feature.
        features: name -> LeRobot's description: dtype, shape, names.
        task: part that has the task as text; empty if there is none.
        tasks: all of them.
        fps: steps a second.
        robot: type of the robot, if it is known.
        lengths: for each unit the steps of its episodes.
    """

    names: Mapping[str, str]
    features: Mapping[str, Mapping[str, Any]]
    task: str
    tasks: Sequence[str]
    fps: float
    robot: str | None
    lengths: Sequence[Sequence[int]]

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return DATA % divmod(unit.number, _FILES_EACH)

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        pattern = r"data/chunk-\d+/file-\d+\.parquet(\.idx)?|videos/.+/chunk-\d+/file-\d+\.mp4"
        return (INFO, TASKS, STATS, EPISODES), pattern

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:
        """See `Target`. Videos are published before the file that lists their frames."""
        lengths = self.lengths[unit.number]
        first = sum(map(len, self.lengths[: unit.number])), sum(map(sum, self.lengths[: unit.number]))
        steps = [(episode, step) for episode, length in enumerate(lengths) for step in range(length)]
        stats: dict[str, Statistics] = {}
        used: list[dict[str, None]] = [{} for _ in lengths]
        every = max(1, len(steps) // _PICTURES)
        rows: list[dict[str, Any]] = []
        at = size = 0
        with parquet_writer(store, path, schema_of(self.features)) as writer, ExitStack() as stack:
            videos = {
                name: stack.enter_context(self._video(store, name, unit))
                for name, feature in self.features.items()
                if feature["dtype"] == "video"
            }

            def flush() -> None:
                nonlocal size
                if rows:
                    for name in rows[0]:
                        if self.features.get(name, {}).get("dtype") not in ("image", "string"):
                            values = np.stack([np.atleast_1d(np.asarray(row[name], np.float64)) for row in rows])
                            stats.setdefault(name, Statistics()).add(values, len(rows))
                    writer.write_table(_table(rows, self.features))
                rows.clear()
                size = 0

            def add(item: tuple[int, Taken]) -> Sequence[bytes]:
                nonlocal at, size
                episode, step = steps[at]
                row, hashed = self._row(item[1])
                for name, value in row.items() if at % every == 0 else ():
                    if self.features[name]["dtype"] in ("image", "video"):
                        pixels = pixels_of(value) if isinstance(value, bytes) else value
                        stats.setdefault(name, Statistics()).add(pixels.reshape(-1, pixels.shape[-1]) / 255, 1)
                task = item[1].values.get(self.task) if self.task else ""
                counters = {
                    "timestamp": float(np.float32(step / self.fps)),
                    "frame_index": step,
                    "episode_index": first[0] + episode,
                    "index": first[1] + at,
                    "task_index": self.tasks.index(task or ""),
                }
                used[episode].setdefault(task or "")
                for name, push in videos.items():
                    push(row.pop(name))
                rows.append({**row, **counters})
                size += sum(len(value) for value in row.values() if isinstance(value, bytes)) + 256
                at += 1
                if size >= _GROUP_BYTES or at == len(steps) or steps[at][0] != episode:
                    flush()
                key = f"{first[0] + episode:06d}/{step:06d}"
                return (digest(key, {**hashed, **counters, "task": task or ""}),)

            yield add
            flush()
        extra["stats"] = {name: one.plain() for name, one in stats.items()}
        extra["tasks"] = [list(texts) for texts in used]

    def _row(self, taken: Taken) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of a step as they are stored, and what of them is compared when they are read back."""
        row: dict[str, Any] = {}
        hashed: dict[str, Any] = {}
        for part, name in self.names.items():
            value, feature = taken.values.get(part), self.features[name]
            if value is None:
                raise DataError(
                    f"the step has no value of {part!r}", record=taken.key, kind="missing-field", fix="Leave it out.",
                )  # fmt: skip
            kind = feature["dtype"]
            if kind == "video":
                row[name] = pixels_of(value) if isinstance(value, bytes) else value
                hashed[name] = list(row[name].shape)
                found: Sequence[int] = row[name].shape
            elif kind == "image":
                data = plain_bytes(value) if isinstance(value, bytes) else as_png(value)
                found = size_of(data)
                row[name] = data
                hashed[name] = Coded(data, value.suffix if isinstance(value, Coded) else "png")
            else:
                row[name] = hashed[name] = value
                found = np.shape(value) or (1,)
            if list(found) != list(feature["shape"]):
                raise DataError(
                    f"{part!r} has the shape {list(found)}, expected {list(feature['shape'])} as in the first step",
                    record=taken.key,
                    kind="other-columns",
                    fix="LeRobot has one shape for a feature: leave it out with --fields, or convert it apart.",
                )
        return row, hashed

    @contextmanager
    def _video(self, store: Store, name: str, unit: Unit) -> Iterator[Callable[[Any], None]]:
        """Open a video for writing; yield a function that adds a frame, uint8[H, W, 3]."""
        import av

        height, width, _ = self.features[name]["shape"]
        rate = Fraction(self.fps).limit_denominator(1001)
        with (
            store.build(VIDEO % (name, *divmod(unit.number, _FILES_EACH))) as path,
            av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container,
        ):
            stream = container.add_stream("libx264", rate=rate, options=_OPTIONS)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            count = 0

            def push(pixels: Any) -> None:
                nonlocal count
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
                frame.pts, frame.time_base = count, 1 / rate
                count += 1
                container.mux(stream.encode(frame))

            yield push
            container.mux(stream.encode(None))

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`. Writes ``meta/``."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        cameras = [name for name, feature in self.features.items() if feature["dtype"] == "video"]
        merged: dict[str, Statistics] = {}
        for each in done:
            for name, plain in each.extra["stats"].items():
                merged.setdefault(name, Statistics()).merge(Statistics.of(plain))
        episodes: list[dict[str, Any]] = []
        index = 0
        for unit, (each, lengths) in enumerate(zip(done, self.lengths, strict=True)):
            chunk, file = divmod(unit, _FILES_EACH)
            begin = 0
            for length, tasks in zip(lengths, each.extra["tasks"], strict=True):
                row: dict[str, Any] = {
                    "episode_index": len(episodes), "tasks": tasks, "length": length,
                    "data/chunk_index": chunk, "data/file_index": file,
                    "dataset_from_index": index, "dataset_to_index": index + length,
                }  # fmt: skip
                for camera in cameras:
                    place = f"videos/{camera}"
                    row |= {f"{place}/chunk_index": chunk, f"{place}/file_index": file}
                    row |= {
                        f"{place}/from_timestamp": begin / self.fps,
                        f"{place}/to_timestamp": (begin + length) / self.fps,
                    }
                row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
                episodes.append(row)
                index, begin = index + length, begin + length
        whole = int(self.fps) if self.fps == int(self.fps) else self.fps
        info = {
            "codebase_version": "v3.0",
            "robot_type": self.robot,
            "total_episodes": len(episodes),
            "total_frames": index,
            "total_tasks": len(self.tasks),
            "chunks_size": _FILES_EACH,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": whole,
            "splits": {"train": f"0:{len(episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if cameras else None,
            "features": {**self.features, **{n: _feature(d, [1]) for n, d in COUNTERS.items()}},
        }
        for path, table in ((EPISODES, pa.Table.from_pylist(episodes)), (TASKS, _tasks(self.tasks))):
            with store.write(path) as out:
                pq.write_table(table, out)
        images = {name for name, feature in self.features.items() if feature["dtype"] in ("image", "video")}
        store.write_bytes(STATS, orjson.dumps({n: one.facts(n in images) for n, one in merged.items()}))
        store.write_bytes(INFO, orjson.dumps(info, option=orjson.OPT_INDENT_2))
        paths = [each.path for each in done]
        for camera in cameras:
            paths += [VIDEO % (camera, *divmod(unit, _FILES_EACH)) for unit in range(len(self.lengths))]
        return [*paths, EPISODES, TASKS, STATS, INFO]

    def digest(self, sample: Sample) -> bytes:
        """See `SampleTarget`."""
        assert isinstance(sample, RowSample)
        videos = [name for name, feature in self.features.items() if feature["dtype"] == "video"]
        frames = {name: list(lazy.make().shape) for name in videos if isinstance(lazy := sample.row[name], Lazy)}
        others = values_of(sample.select(lambda name: name not in frames))
        return digest(sample.key, {**others, **frames})


def _feature(dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": None}


def pixels_of(data: bytes) -> Any:
    """Return the pixels of an encoded image, uint8[H, W, 3]. Raises `DataError`."""
    return decode_image(bytes(data), "rgb8")


def size_of(data: bytes) -> list[int]:
    """Return height, width and channels of an encoded image, of which only the header is read. Raises `DataError`."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("the sizes of images require Pillow", "media") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return [image.height, image.width, len(image.getbands())]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"an image cannot be read ({error})", kind="bad-media", fix="Record it again.") from None


class Statistics:
    """Minimum, maximum, mean and sum of squared differences from it, of each value of a column."""

    def __init__(self) -> None:
        self.count, self.steps = 0, 0
        self.low: Any = math.inf
        self.high: Any = -math.inf
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, values: Any, steps: int) -> None:
        """Add values, float64[n, ...], of some steps."""
        other = Statistics()
        other.count, other.steps = len(values), steps
        other.low, other.high, other.mean = values.min(0), values.max(0), values.mean(0)
        other.squares = ((values - other.mean) ** 2).sum(0)
        self.merge(other)

    def merge(self, other: Statistics) -> None:
        """Add the values of another column."""
        count = self.count + other.count
        if not other.count:
            return
        change = other.mean - self.mean
        self.squares = self.squares + other.squares + change**2 * (self.count * other.count / count)
        self.mean = self.mean + change * (other.count / count)
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.count, self.steps = count, self.steps + other.steps

    def plain(self) -> list[Any]:
        """Return plain data for `of`."""
        return [self.count, self.steps, *(one.tolist() for one in (self.low, self.high, self.mean, self.squares))]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Statistics:
        """Return what `plain` returned."""
        self = cls()
        self.count, self.steps = plain[:2]
        self.low, self.high, self.mean, self.squares = (np.asarray(one, np.float64) for one in plain[2:])
        return self

    def facts(self, camera: bool) -> dict[str, Any]:
        """Return LeRobot's statistics; of a camera for each channel, ``[C, 1, 1]``."""
        found = {"min": self.low, "max": self.high, "mean": self.mean, "std": np.sqrt(self.squares / self.count)}
        shown = {name: (one[:, None, None] if camera else one).tolist() for name, one in found.items()}
        return {**shown, "count": [self.steps]}


def schema_of(features: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the Arrow schema of the data files, with the features of `datasets` for images."""
    import pyarrow as pa

    fields: list[Any] = []
    described: dict[str, Any] = {}
    for name, feature in [*features.items(), *((n, _feature(d, [1])) for n, d in COUNTERS.items())]:
        kind, shape = feature["dtype"], list(feature["shape"])
        if kind == "video":
            continue
        if kind == "image":
            fields.append(pa.field(name, pa.struct([("bytes", pa.binary()), ("path", pa.string())])))
            described[name] = {"_type": "Image"}
            continue
        base = pa.string() if kind == "string" else pa.from_numpy_dtype(np.dtype(kind))
        described[name] = {"dtype": kind, "_type": "Value"}
        if shape != [1]:
            for length in reversed(shape):
                base = pa.list_(base, length) if len(shape) == 1 else pa.list_(base)
            if len(shape) == 1:
                described[name] = {"feature": described[name], "length": shape[0], "_type": "List"}
            else:
                described[name] = {"shape": shape, "dtype": kind, "_type": f"Array{len(shape)}D"}
        fields.append(pa.field(name, base))
    return pa.schema(fields, metadata={"huggingface": orjson.dumps({"info": {"features": described}})})


def _table(rows: Sequence[Mapping[str, Any]], features: Mapping[str, Mapping[str, Any]]) -> Any:
    import pyarrow as pa

    schema = schema_of(features)
    columns = []
    for field in schema:
        values = [row[field.name] for row in rows]
        kind = features.get(field.name, {}).get("dtype")
        if kind == "image":
            values = [{"bytes": bytes(value), "path": None} for value in values]
        elif isinstance(values[0], np.ndarray) and values[0].ndim == 1:
            flat = pa.array(np.concatenate(values))
            columns.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
            continue
        elif isinstance(values[0], np.ndarray):
            values = [value.tolist() for value in values]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _tasks(tasks: Sequence[str]) -> Any:
    """Return the table of tasks. LeRobot reads it with pandas, and takes the texts from its index."""
    import pyarrow as pa

    about: dict[str, Any] = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {
                "name": "task_index",
                "field_name": "task_index",
                "pandas_type": "int64",
                "numpy_type": "int64",
                "metadata": None,
            },
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
        ],
        "pandas_version": "2.0.0",
    }
    schema = pa.schema([("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": orjson.dumps(about)})
    return pa.table({"task_index": list(range(len(tasks))), "task": list(tasks)}, schema=schema)
