"""Frames of robot episodes as samples of a common shape, so that several robots can be mixed.

`EpisodeSamples` is a dataset over one of episodes (LeRobot). In this order:

1. ``rename``: parts get common names; all other settings use these. ``parts`` keeps only some of them.
2. ``where``: frames, and so whole episodes, are dropped by columns. Windows still reach over dropped frames.
3. ``windows`` at ``fps`` steps a second: each step is the nearest frame in time (the later one of two equally near
   ones), or with ``interpolate: linear`` lies between two frames, for columns of floats.
4. ``poses``: rotations become six numbers. ``relative``: values are seen from those of another feature at the
   sample's own frame; poses in its frame, other numbers as differences.
5. ``normalize``: see `feedmill.samples.robotics.summary`.
6. ``sizes``: vectors are padded with zeros, pictures are resized, and a feature that the robot lacks is all padding.

Steps 3 to 5 compute in float64 and give float32. Statistics (`EpisodeSamples.summary`) are of what step 4 gives,
without the steps that lie outside of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import ConfigError, DataError, MissingExtra, did_you_mean, refuse_empty
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.costs import Int64s
from feedmill.formats.episodes import PAD, TOLERANCE, Episodic, frames_at, no_rate, offsets_of
from feedmill.formats.lerobot.dataset import is_numeric
from feedmill.formats.offsets import Extents, hash_words
from feedmill.formats.rows import PIXELS, Lazy, RowSample, to_bytes
from feedmill.formats.sample import Sample, Source
from feedmill.samples.robotics import poses
from feedmill.samples.robotics.summary import METHODS, Scaling, Summary
from feedmill.samples.views import DatasetView

Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Lookup = Callable[[str, Int64s], Float64s]
"""(stored column, frames int64[...]) -> float64[..., D]."""

DIM_PAD = "_dim_is_pad"
"""End of the name of the part that says which dimensions of a feature are padding."""
PERSISTENT, EVENTS = "language_persistent", "language_events"
_SHOWN = 8
_AT_ONCE = 1 << 20
"""Numbers that are computed at once for statistics."""


@dataclass(frozen=True, slots=True)
class Pose:
    """Where a rotation, and the position of the same body, lie in a vector.

    Attributes:
        rotation: its first dimension.
        form: one of `poses.FORMS`.
        position: the first of its three dimensions; None for a rotation alone.
    """

    rotation: int
    form: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Relative:
    """What a feature is seen from.

    Attributes:
        to: feature with the same dimensions.
        keep: dimensions that stay as they are, such as that of a gripper.
    """

    to: str
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """Which text of the language columns a part is: the one that holds at the frame.

    Attributes:
        style: such as ``subtask``.
        role, camera: only texts of this role, or about this camera.
    """

    style: str
    role: str | None = None
    camera: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """How frames of episodes become samples; see the module's docstring. Names are those after `rename`.

    Attributes:
        fps: steps a second of windows; None for the rate of the episodes.
        rate: steps a second of the episodes, for data that do not say it.
        interpolate: ``nearest`` or ``linear``.
        windows: see `feedmill.formats.episodes.offsets_of`; whole numbers count steps.
        rename: stored name -> name.
        parts: names of the parts that samples have; None for all.
        where: column -> condition: a value, a list of values, or a mapping of ``min``, ``max`` and ``not``.
        poses, relative: by feature.
        language: part -> text of the language columns.
        sizes: feature -> dimensions; camera -> height and width.
        normalize: feature -> method.
    """

    fps: float | None = None
    rate: float | None = None
    interpolate: str = "nearest"
    windows: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[str] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    poses: Mapping[str, Sequence[Pose]] = field(default_factory=dict)
    relative: Mapping[str, Relative] = field(default_factory=dict)
    language: Mapping[str, Said] = field(default_factory=dict)
    sizes: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    normalize: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any] | EpisodeOptions) -> EpisodeOptions:
        """Return options from plain data, as a recipe has them. Raises `ConfigError`."""
        if isinstance(given, EpisodeOptions):
            return given
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                fix = f"Options are {', '.join(known)}."
                what = f"episodes: unknown option {name!r}{did_you_mean(str(name), known)}"
                raise ConfigError(what, kind="bad-option", fix=fix)
        made = dict(given)
        try:
            made["poses"] = {
                name: tuple(one if isinstance(one, Pose) else Pose(**one) for one in _listed(some))
                for name, some in given.get("poses", {}).items()
            }
            made["relative"] = {
                name: Relative(one) if isinstance(one, str) else one if isinstance(one, Relative) else Relative(**one)
                for name, one in given.get("relative", {}).items()
            }
            said = given.get("language", {})
            made["language"] = {
                name: one if isinstance(one, Said) else Said(**one)
                for name, one in (
                    said if isinstance(said, Mapping) else {each: {"style": each} for each in said}
                ).items()
            }
        except (AttributeError, TypeError) as error:
            fix = "See docs/formats/lerobot.md for the forms."
            raise ConfigError(f"episodes: {error}", kind="bad-option", fix=fix) from None
        found = cls(**made)
        wrong = found._wrong()
        if wrong:
            raise ConfigError(f"episodes: {wrong}", kind="bad-option", fix="See docs/formats/lerobot.md for the forms.")
        return found

    def _wrong(self) -> str | None:
        """Return which option has a value of another type than it needs."""
        for key in ("windows", "rename", "where", "sizes", "normalize"):
            if not isinstance(getattr(self, key), Mapping):
                return f"{key} is {getattr(self, key)!r}: expected a mapping by name"
        if isinstance(self.parts, str) or not isinstance(self.parts, Sequence | None):
            return f"parts is {self.parts!r}: expected a list of names"
        if self.fps is not None and not _is_number(self.fps):
            return f"fps is {self.fps!r}: expected a number"
        for name, size in self.sizes.items():
            axes: Sequence[Any] = size if isinstance(size, list | tuple) else [size]
            if not all(_is_whole(one) and one > 0 for one in axes) or len(axes) != (2 if axes is size else 1):
                return f"sizes: {name} is {size!r}: expected a number of dimensions, or [height, width]"
        for name, turns in self.poses.items():
            for pose in turns:
                if not _is_whole(pose.rotation) or not (pose.position is None or _is_whole(pose.position)):
                    return f"poses: {name}: rotation and position are the numbers of their first dimensions"
        for name, one in self.relative.items():
            if not isinstance(one.keep, list | tuple) or not all(map(_is_whole, one.keep)):
                return f"relative: {name}: keep is {one.keep!r}: expected a list of dimensions"
        for name, wanted in self.where.items():
            for key in ("min", "max") if isinstance(wanted, Mapping) else ():
                if key in wanted and not _is_number(wanted[key]):
                    return f"where: {name}: {key} is {wanted[key]!r}: expected a number"
        return None

    @property
    def identity(self) -> str:
        """Everything that determines the samples."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and value == value)


def _listed(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, Mapping | Pose) else value


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of numbers that is computed.

    Attributes:
        name, stored: its name in samples, and in the dataset.
        width, out_width: dimensions that are stored, and that come out.
        near: int64[k], the nearest frame of each step from the sample's one.
        low, part: the frame before, and how far each step lies on the way to the next; None for the nearest.
        windowed: whether samples have an axis of steps.
        poses, relative: see `EpisodeOptions`.
        reference: the stored column that `relative` names.
        scalar: whether a feature of one dimension has no axis of dimensions.
        size: dimensions with padding; None for `out_width`.
    """

    name: str
    stored: str
    width: int
    out_width: int
    near: Int64s
    low: Int64s
    part: Float64s | None
    windowed: bool
    poses: tuple[Pose, ...]
    relative: Relative | None
    reference: str | None
    scalar: bool
    size: int | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that are read."""
        return (self.stored,) if self.reference is None else (self.stored, self.reference)

    @property
    def identity(self) -> str:
        """Everything that determines the values before they are normalized."""
        words = [self.stored, self.near.tolist(), self.low.tolist(), None if self.part is None else self.part.tolist()]
        words += [[asdict(pose) for pose in self.poses], None if self.relative is None else list(self.relative.keep)]
        return orjson.dumps([*words, self.reference]).decode()

    def steps(self, lookup: Lookup, samples: Int64s, first: Int64s, last: Int64s) -> tuple[Float64s, Bools]:
        """Return the values of all steps, float64[n, k, out_width], and which lie outside of the episode, bool[n, k].

        Args:
            lookup: reads columns.
            samples, first, last: int64[n], the frames, and the first and last one of their episodes.
        """
        begin, end = first[:, None], last[:, None]
        wanted = samples[:, None] + self.near
        inside = np.clip(wanted, begin, end)
        if self.part is None:
            values = lookup(self.stored, inside)
        else:
            low = np.clip(samples[:, None] + self.low, begin, end)
            high = np.clip(samples[:, None] + self.low + 1, begin, end)
            values = self._between(lookup(self.stored, low), lookup(self.stored, high))
        reference = None if self.reference is None else lookup(self.reference, samples)[:, None, :]
        return self.seen(values, reference), wanted != inside

    def _between(self, low: Float64s, high: Float64s) -> Float64s:
        """Return what lies between the frames of each step, ``[n, k, width]``; rotations turn on the shortest way."""
        assert self.part is not None
        values = low * (1 - self.part[:, None]) + high * self.part[:, None]
        for pose in self.poses:  # angles that jump by a turn, and quaternions of the other sign, are not between
            count, to_matrix, from_matrix = poses.FORMS[pose.form]
            place = slice(pose.rotation, pose.rotation + count)
            turn = poses.between(to_matrix(low[..., place]), to_matrix(high[..., place]), self.part)
            values[..., place] = from_matrix(turn)
        return values

    def seen(self, values: Float64s, reference: Float64s | None) -> Float64s:
        """Return values ``[..., out_width]``: rotations as six numbers, relative to a reference ``[..., width]``."""
        if reference is None and not self.poses:
            return values
        shown = values
        if reference is not None:
            assert self.relative is not None
            shown = values - reference
            kept = list(self.relative.keep)
            shown[..., kept] = values[..., kept]
        if not self.poses:
            return shown
        parts, at = [], 0
        for pose in sorted(self.poses, key=lambda one: one.rotation):
            count, to_matrix, _ = poses.FORMS[pose.form]
            place = slice(pose.rotation, pose.rotation + count)
            turn = to_matrix(values[..., place])
            if reference is not None:
                own = to_matrix(reference[..., place]).swapaxes(-1, -2)
                turn = own @ turn
                if pose.position is not None:
                    spot = slice(pose.position, pose.position + 3)
                    shown[..., spot] = (own @ (values[..., spot] - reference[..., spot])[..., None])[..., 0]
            parts.append((pose.rotation, count, poses.rotation_six(turn)))
        out: list[npt.NDArray[Any]] = []
        for begin, count, six in parts:
            out += [shown[..., at:begin], six]
            at = begin + count
        return np.concatenate([*out, shown[..., at:]], axis=-1)

    def restored(self, values: Float64s, reference: Float64s | None) -> Float64s:
        """Return values as they are stored ``[..., width]``: the inverse of `seen`."""
        if reference is None and not self.poses:
            return values
        shown: list[npt.NDArray[Any]] = []
        turns, at, shift = [], 0, 0
        for pose in sorted(self.poses, key=lambda one: one.rotation):
            count, to_matrix, from_matrix = poses.FORMS[pose.form]
            begin = pose.rotation + shift
            turn = poses.rotation_matrix(values[..., begin : begin + 6])
            origin = None if reference is None else to_matrix(reference[..., pose.rotation : pose.rotation + count])
            turn = turn if origin is None else origin @ turn
            shown += [values[..., at:begin], from_matrix(turn)]
            turns.append((pose, count, origin))
            at, shift = begin + 6, shift + 6 - count
        whole = np.concatenate([*shown, values[..., at:]], axis=-1)
        if reference is None:
            return whole
        assert self.relative is not None
        turned = [n for pose, count, _ in turns for n in range(pose.rotation, pose.rotation + count)]
        moved = [n for n in range(self.width) if n not in (*self.relative.keep, *turned)]
        for pose, _, origin in turns:
            if pose.position is not None and origin is not None:
                spot = slice(pose.position, pose.position + 3)
                whole[..., spot] = (origin @ whole[..., spot, None])[..., 0]
        whole[..., moved] += reference[..., moved]
        return whole


class EpisodeSamples(DatasetView):
    """Frames of episodes with common names, rates and shapes.

    Args:
        dataset: the episodes.
        options: see there.

    Raises:
        ConfigError: an option names a feature that does not exist, or does not fit it.
        EmptyResult: no frame is left.
    """

    format = "lerobot"
    dataset: Episodic

    def __init__(self, dataset: Episodic, options: EpisodeOptions) -> None:
        super().__init__(dataset)
        self.options = options
        self.format = dataset.format  # type: ignore[misc]  # that of the data, for messages
        self._rate = self._known_rate()
        self.scaling: Scaling | None = None
        self._names = self._renamed()
        self._stored = {name: stored for stored, name in self._names.items()}
        self._check_names()
        features = [*self._stored, *options.sizes]
        steps = offsets_of(options.windows, features, options.fps or self._rate, dataset.url)
        self._absent = {name: steps.pop(name, None) for name in options.sizes if name not in self._stored}
        if options.fps is not None and self._rate is None:
            raise no_rate(self.url)
        self._frames = {name: frames_at(each, self._rate or 1.0, options.fps) for name, each in steps.items()}
        self.features = {name: self._feature(name) for name in self._numeric()}
        others = {self._stored[name]: near for name, (near, _, _) in self._frames.items() if name not in self.features}
        kept = dataset if options.parts is None else dataset.with_cameras({self._stored.get(n) for n in options.parts})
        self._inner = kept.with_offsets(others)
        spans = {self._stored[n]: _reach(one) for n, one in self.features.items() if one.windowed}
        self._ahead = kept.with_offsets({**others, **spans})
        self._numbers = _chosen(self) if options.where else None

    def _known_rate(self) -> float | None:
        """Return the steps a second that the data say, else those of the options; None if neither does."""
        given, said = self.options.rate, self.dataset.fps
        if given is None:
            return said
        if not 0 < given <= 1e6:
            raise self._bad(f"rate is {given!r}: expected steps a second", "Give a number above 0.")
        if said is not None and said != given:
            raise self._bad(
                f"rate: {given:g} steps a second were given, and the data say {said:g}",
                "Remove 'rate', which is for data that do not say it; 'fps' is the rate of windows.",
            )
        return given

    def _renamed(self) -> dict[str, str]:
        """Return stored name -> name of all parts."""
        there = [*self.dataset.features, *self.dataset.texts]
        for stored in self.options.rename:
            if stored not in there:
                raise self._no_feature("rename", stored, there)
        names = {stored: self.options.rename.get(stored, stored) for stored in there}
        seen: dict[str, str] = {}
        for stored, name in names.items():
            if name in seen:
                raise self._bad(
                    f"rename: {seen[name]!r} and {stored!r} would both be {name!r}", "Give each part a name of its own."
                )
            seen[name] = stored
        return names

    def _check_names(self) -> None:
        options = self.options
        lacking = set(options.sizes)  # a feature with a size may be missing: it is all padding then
        for key in ("windows", "poses", "relative", "normalize"):
            for name in getattr(options, key):
                if name not in self._stored and name not in lacking:
                    raise self._no_feature(key, name, self._stored)
        if options.interpolate not in ("nearest", "linear"):
            raise self._bad(f"unknown interpolation {options.interpolate!r}", "Use nearest or linear.")
        if options.fps is not None and not 0 < options.fps <= 1e6:
            raise self._bad(f"fps is {options.fps!r}: expected steps a second", "Give a number above 0.")
        for name, method in options.normalize.items():
            if method not in METHODS:
                raise self._bad(f"normalize: {name}: unknown method {method!r}", f"Use {', '.join(METHODS)}.")
        for name, axes in options.sizes.items():
            if not isinstance(axes, int) and name in self._stored and name not in self.cameras:
                raise self._bad(f"sizes: {name} is not a camera, and has no height and width", "Give its dimensions.")
        for name in {*options.windows, *options.sizes}:
            for end in (PAD, DIM_PAD):
                if name + end in self._stored:
                    raise self._bad(f"the mask {name + end!r} would hide the column of that name", "Rename the column.")
        known = [*self._stored, *options.language, *options.sizes]
        for name in options.parts or ():
            if name not in known:
                error = self._no_feature("parts", name, known)
                error.fix = f"{error.fix} A source without it can have 'parts' of its own, or padding by 'sizes'."
                raise error
        for name, said in options.language.items():
            if PERSISTENT not in self._stored and EVENTS not in self._stored:
                raise self._bad(
                    f"language: {name}: the dataset has no {PERSISTENT} and no {EVENTS}", f"Remove {said.style!r}."
                )

    def _no_feature(self, key: str, name: str, known: Iterable[str]) -> ConfigError:
        there = sorted(set(known))
        what = f"{key}: there is no column or camera {name!r}{did_you_mean(name, there)}"
        return self._bad(what, f"Names are: {', '.join(there)}.")

    def _bad(self, what: str, fix: str) -> ConfigError:
        return ConfigError(what, file=self.url, kind="bad-option", fix=fix)

    @property
    def stored_names(self) -> Mapping[str, str]:
        """Name of a part -> its name in the dataset."""
        return self._stored

    @property
    def lacking(self) -> list[str]:
        """Names of the features that the episodes do not have: samples have their padding alone."""
        return list(self._absent)

    def feature(self, name: str) -> Feature:
        """Return how a column of numbers is computed, also of one that samples have as it is stored."""
        known = self.features.get(name)
        return self._feature(name) if known is None else known

    @property
    def cameras(self) -> list[str]:
        """Names of the cameras."""
        said = self.dataset.features
        return [name for stored, name in self._names.items() if said.get(stored, {}).get("dtype") in ("image", "video")]

    def _numeric(self) -> list[str]:
        """Return the features that are computed."""
        options, said = self.options, self.dataset.features
        sized = [name for name, size in options.sizes.items() if isinstance(size, int)]
        wanted = dict.fromkeys(sized, "sizes")
        for key in ("poses", "relative", "normalize"):
            for name in getattr(options, key):
                wanted.setdefault(name, key)
        if options.interpolate == "linear" and options.fps is not None:
            for name in self._frames:  # also of robots that have that rate: all of a mixture give float32
                if str(said.get(self._stored[name], {}).get("dtype")).startswith("float"):
                    wanted.setdefault(name, "windows")
        for name, key in wanted.items():
            stored = self._stored.get(name)
            if stored is not None and (name in self.cameras or not is_numeric(said.get(stored, {}))):
                what = "a camera" if name in self.cameras else f"{said.get(stored, {}).get('dtype', 'text')}"
                in_sizes = name in self.cameras and name in sized
                fix = "Give a camera [height, width] in 'sizes'." if in_sizes else f"Remove {name!r} from {key!r}."
                raise self._bad(f"{name!r} is {what}: expected a column of numbers", fix)
        return [name for name in wanted if name in self._stored]

    def _width(self, stored: str) -> int:
        shape = self.dataset.features[stored].get("shape") or [1]
        return int(np.prod(shape))

    def _feature(self, name: str) -> Feature:
        options, stored = self.options, self._stored[name]
        width = self._width(stored)
        turns = tuple(sorted(options.poses.get(name, ()), key=lambda one: one.rotation))
        used: list[int] = []
        for pose in turns:
            if pose.form not in poses.FORMS:
                raise self._bad(f"poses: {name}: unknown form {pose.form!r}", f"Use {', '.join(poses.FORMS)}.")
            used += range(pose.rotation, pose.rotation + poses.FORMS[pose.form][0])
            used += () if pose.position is None else range(pose.position, pose.position + 3)
        if used and (min(used) < 0 or max(used) >= width or len(set(used)) != len(used)):
            raise self._bad(
                f"poses: {name}: its dimensions {sorted(used)} overlap, or are not among the {width} of the feature",
                "Give the first dimension of each rotation and position.",
            )
        relative = options.relative.get(name)
        reference = None
        if relative is not None:
            reference = self._stored.get(relative.to)
            if reference is None:
                raise self._no_feature(f"relative: {name}", relative.to, self._stored)
            if self._width(reference) != width:
                raise self._bad(
                    f"relative: {name} has {width} dimensions and {relative.to} {self._width(reference)}",
                    "Name a feature with the same dimensions.",
                )
            if any(not 0 <= n < width or n in used for n in relative.keep):
                raise self._bad(
                    f"relative: {name}: keep is {list(relative.keep)}: expected dimensions from 0 to {width - 1}"
                    " that are in no pose",
                    "Give the dimensions that stay absolute.",
                )
        out = width + sum(6 - poses.FORMS[pose.form][0] for pose in turns)
        size = options.sizes.get(name)
        if isinstance(size, int) and size < out:
            raise self._bad(f"sizes: {name} has {out} dimensions, more than {size}", f"Give at least {out}.")
        near, low, part = self._frames.get(name, (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1)))
        between = options.interpolate == "linear" and bool(part.any())
        return Feature(
            name=name,
            stored=stored,
            width=width,
            out_width=out,
            near=near,
            low=low,
            part=part if between else None,
            windowed=name in self._frames,
            poses=turns,
            relative=relative,
            reference=reference,
            scalar=width == out == 1 and size is None,
            size=size if isinstance(size, int) else None,
        )

    def __len__(self) -> int:
        return len(self.dataset) if self._numbers is None else len(self._numbers)

    def numbers_of(self, indices: Indices) -> Int64s:
        wanted = np.asarray(indices, np.int64)
        return wanted if self._numbers is None else np.asarray(self._numbers[wanted], np.int64)

    def place_of(self, number: int) -> int | None:
        if self._numbers is None:
            return number
        at = int(np.searchsorted(self._numbers, number))
        return at if at < len(self._numbers) and self._numbers[at] == number else None

    @property
    def what(self) -> str:
        return f"where {', '.join(self.options.where)}"

    @property
    def fps(self) -> float:
        """Frames a second of the episodes."""
        if self._rate is None:
            raise no_rate(self.url)
        return self._rate

    def episodes_of(self, indices: Indices) -> Int64s:
        """Return the number of each sample's episode in the dataset, int64[n]."""
        return self.dataset.episodes_of(self.numbers_of(indices))

    def read_raw(self, indices: Indices) -> list[Sample]:
        numbers = self.numbers_of(self._inside(indices))
        made = self._inner.read_raw(numbers)
        arrays = self._arrays(numbers)
        out: list[Sample] = []
        for at, one in enumerate(made):
            assert isinstance(one, RowSample)
            row, suffixes = self._row(one, {name: values[at] for name, values in arrays.items()})
            out.append(RowSample(one.key, row, one._source, self.decode, self.subflavors, suffixes))
        return out

    def _arrays(self, numbers: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Return the computed parts of samples, [n, ...] each."""
        if not self.features or not len(numbers):
            return {}
        first, last = self.dataset.bounds(numbers)
        needed = [numbers]
        for one in self.features.values():
            for offsets in (one.near,) if one.part is None else (one.low, one.low + 1):
                needed.append(np.clip(numbers[:, None] + offsets, first[:, None], last[:, None]).ravel())
        frames = np.unique(np.concatenate(needed))
        columns = list(dict.fromkeys(name for one in self.features.values() for name in one.columns))
        table = self.dataset.numbers(columns, frames)
        for name in columns:
            self._check_width(name, table[name])

        def lookup(name: str, wanted: Int64s) -> Float64s:
            return np.asarray(table[name][np.searchsorted(frames, wanted)], np.float64)

        out: dict[str, npt.NDArray[Any]] = {}
        for name, one in self.features.items():
            values, pads = one.steps(lookup, numbers, first, last)
            out |= self._shaped(name, one, values, pads)
        return out

    def _check_width(self, stored: str, values: npt.NDArray[Any]) -> None:
        if values.shape[1] != self._width(stored):
            raise DataError(
                f"column {stored!r} has {values.shape[1]} numbers a row, but its feature says {self._width(stored)}",
                file=self.url,
                record=stored,
                kind="bad-data",
                fix="Download the dataset again.",
            )

    def _shaped(self, name: str, one: Feature, values: Float64s, pads: Bools) -> dict[str, npt.NDArray[Any]]:
        scaled = self.scaling is not None and name in self.scaling
        shown = self.scaling.apply(name, values) if self.scaling is not None and scaled else values.astype(np.float32)
        out: dict[str, npt.NDArray[Any]] = {}
        if one.size is not None:
            wide = np.zeros((*shown.shape[:2], one.size), np.float32)
            wide[..., : one.out_width] = shown
            shown = wide
            out[name + DIM_PAD] = np.broadcast_to(np.arange(one.size) >= one.out_width, (len(shown), one.size)).copy()
        if one.windowed:
            out[name + PAD] = pads
        else:
            shown = shown[:, 0]
            if one.size is not None:
                out[name + PAD] = np.zeros(len(shown), bool)
        return {name: shown[..., 0] if one.scalar else shown, **out}

    def _row(self, sample: RowSample, arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values of a sample by name, and the suffixes of those that are decoded."""
        options, stored = self.options, sample.row
        row: dict[str, Any] = {}
        suffixes: dict[str, str] = {}
        for part, value in stored.items():
            name = self._names.get(part)
            if name is None:  # NAME_is_pad of a window
                name = self._names.get(part.removesuffix(PAD), part) + (PAD if part.endswith(PAD) else "")
            if name in self.features or (options.language and part in (PERSISTENT, EVENTS)):
                continue
            row[name] = value
            if part in sample._suffixes:
                suffixes[name] = sample._suffixes[part]
        row |= arrays
        for name, said in options.language.items():
            row[name] = _said(name, said, stored, self.url)
        for name, size in options.sizes.items():
            self._sized(sample, name, size, row, suffixes)
        if options.parts is not None:
            ends = ("", PAD, DIM_PAD)
            kept = {name + end for name in options.parts for end in ends}
            row = {name: value for name, value in row.items() if name in kept}
        return row, {name: suffix for name, suffix in suffixes.items() if name in row}

    def _sized(
        self, sample: RowSample, name: str, size: int | Sequence[int], row: dict[str, Any], suffixes: dict[str, str]
    ) -> None:
        """Give a camera its size, and a feature that the robot lacks its padding."""
        if name in self._absent:
            steps = self._absent[name]
            count = None if steps is None else len(steps)
            axes = () if count is None else (count,)
            if isinstance(size, int):
                row[name] = np.zeros((*axes, size), np.float32)
                row[name + DIM_PAD] = np.ones(size, bool)
            else:
                axis = () if count == 1 else axes  # as windows of one frame
                row[name] = np.zeros((*axis, *size, 3), np.uint8)
                suffixes[name] = PIXELS
            row[name + PAD] = np.ones(axes, bool) if axes else np.True_
        elif not isinstance(size, int):
            own = {name: suffixes.pop(name)} if name in suffixes else {}
            make = partial(_resized, row[name], name, own, sample.key, sample._source, (size[0], size[1]))
            row[name] = Lazy(make, lambda make=make: to_bytes(make()))  # type: ignore[misc]
            suffixes[name] = PIXELS
            row.setdefault(name + PAD, np.False_)

    def summary(self, name: str, indices: npt.NDArray[np.int64] | range | None = None) -> Summary:
        """Return the distribution of a feature over all samples, or some, before it is normalized.

        Steps outside of the episode do not count. Every column is read once, alone.

        Args:
            name: a column of numbers.
            indices: numbers of samples, ascending.

        Raises:
            DataError: a value is missing or not finite.
        """
        one = self.feature(name)
        numbers = self.numbers_of(np.arange(len(self)) if indices is None else np.asarray(indices, np.int64))
        out = _Gathered(one.out_width)
        bounds = self.dataset.shard_bounds
        cuts = np.searchsorted(numbers, bounds)
        for file, (begin, stop) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            if begin == stop:
                continue
            start, samples = int(bounds[file]), numbers[begin:stop]
            table = self.dataset.columns_of(file, one.columns)
            for column in one.columns:
                self._check_width(column, table[column])

            def lookup(column: str, wanted: Int64s, table: Any = table, start: int = start) -> Float64s:
                return np.asarray(table[column][wanted - start], np.float64)

            first, last = self.dataset.bounds(samples)
            if one.part is None and one.reference is None:
                times = np.zeros(int(bounds[file + 1]) - start, np.int64)
                for offset in one.near.tolist():
                    at = samples + offset
                    at = at[(at >= first) & (at <= last)] - start
                    times += np.bincount(at, minlength=len(times))
                values = one.seen(np.asarray(table[one.stored], np.float64), None)
                self._add(out, name, values, times, start)
                continue
            step = max(1, _AT_ONCE // max(1, len(one.near) * one.out_width))
            for at in range(0, len(samples), step):
                part = slice(at, at + step)
                values, pads = one.steps(lookup, samples[part], first[part], last[part])
                self._add(out, name, values[~pads], None, start)
        return out.summary()

    def _add(self, out: _Gathered, name: str, values: Float64s, times: Int64s | None, start: int) -> None:
        finite = np.isfinite(values).all(-1)
        if times is not None:
            finite |= times == 0
        if not finite.all():
            at = int(np.flatnonzero(~finite)[0])
            raise DataError(
                f"{name!r} has {int((~finite).sum()):,} values that are not finite",
                file=self.url,
                record=self.dataset.locate(start + at).key if times is not None else None,
                kind="bad-statistics",
                fix="Drop these frames with 'where', or leave the feature out.",
            )
        out.add(values, times)

    def summary_key(self, name: str, indices: range | None = None) -> str:
        """Return a hash of everything that determines `summary`."""
        span = range(len(self)) if indices is None else indices
        where = orjson.dumps(self.options.where, option=orjson.OPT_SORT_KEYS).decode()
        renamed = orjson.dumps(sorted(self._names.items())).decode() if self.options.where else ""
        words = [self.dataset.fingerprint(), self.feature(name).identity, where, renamed, f"{span.start} {span.stop}"]
        return hash_words(words)

    def normalized(self, scaling: Scaling) -> EpisodeSamples:
        """Return the dataset with features normalized."""
        reopen = self._opened.reopen
        other = self.opened_as()
        other.scaling = scaling
        if reopen is not None:
            other._opened = replace(other._opened, reopen=partial(_again, reopen, scaling))
        return other

    def restored(
        self, name: str, values: npt.NDArray[np.floating], reference: npt.NDArray[np.floating] | None = None
    ) -> npt.NDArray[np.float32]:
        """Return a feature as the robot has it: the inverse of padding, normalization, `relative` and `poses`.

        Args:
            name: the feature, such as ``action``.
            values: float[..., D], such as a policy's actions.
            reference: float[..., width], the feature that `relative` names at the sample's frame, as stored. Its axes
                before the last one broadcast with those of `values`.

        Raises:
            ConfigError: the feature is not computed, the widths differ, or the reference is missing.
        """
        one = self.features.get(name)
        if one is None:
            raise self._no_feature("restored", name, self.features)
        given = np.asarray(values)
        if given.shape[-1] not in (one.out_width, one.size):
            raise self._bad(
                f"{name} has {given.shape[-1]} dimensions: expected {one.size or one.out_width}", "Pass whole vectors."
            )
        if one.reference is not None and reference is None:
            raise self._bad(
                f"{name} is relative to {one.relative.to if one.relative else ''}", "Pass its value as 'reference'."
            )
        shown = np.asarray(given[..., : one.out_width], np.float64)
        if self.scaling is not None and name in self.scaling:
            shown = self.scaling.invert(name, shown)
        origin = None if reference is None or one.reference is None else np.asarray(reference, np.float64)
        return np.asarray(one.restored(shown, origin), np.float32)

    def fingerprint(self) -> str:
        words = [self.dataset.fingerprint(), "episodes", self.options.identity]
        return hash_words(words if self.scaling is None else [*words, self.scaling.identity])

    def describe(self) -> dict[str, Any]:
        facts = {**self.dataset.describe(), "samples": len(self), "renamed": dict(self.options.rename)}
        if self._numbers is not None:
            facts["selection"] = f"where {', '.join(self.options.where)}: {len(self):,} of {len(self.dataset):,} frames"
        return facts

    def extents(self, indices: Indices) -> Sequence[Extents]:
        return self._ahead.extents(self.numbers_of(indices))

    @property
    def shard_bounds(self) -> Int64s:
        bounds = self.dataset.shard_bounds
        return bounds if self._numbers is None else np.searchsorted(self._numbers, bounds)

    def _find_costs(self, by: str) -> Int64s | None:
        costs = self._inner.costs(by)
        return costs if costs is None or self._numbers is None else costs[self._numbers]

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        values = self._inner.values(by, texts=texts)
        return values if values is None or self._numbers is None else values[self._numbers]


class _Gathered:
    """Collects vectors until they are enough to be added at once: adding sorts what a summary has."""

    def __init__(self, width: int) -> None:
        self._summary = Summary(width)
        self._values: list[Float64s] = []
        self._times: list[Int64s] = []
        self._count = 0

    def add(self, values: Float64s, times: Int64s | None) -> None:
        """Add vectors, see `Summary.add`."""
        self._values.append(values)
        self._times.append(np.ones(len(values), np.int64) if times is None else times)
        self._count += len(values)
        if self._count >= _AT_ONCE // 4:
            self._flush()

    def _flush(self) -> None:
        if self._values:
            self._summary.add(np.concatenate(self._values), np.concatenate(self._times))
        self._values, self._times, self._count = [], [], 0

    def summary(self) -> Summary:
        """Return the summary of all vectors."""
        self._flush()
        return self._summary


def _reach(one: Feature) -> Int64s:
    """Return the offsets of all frames that a feature reads, int64[n]."""
    return one.near if one.part is None else np.concatenate((one.low, one.low + 1))


def _again(reopen: Callable[[], Dataset], scaling: Scaling) -> Dataset:
    dataset = reopen()
    assert isinstance(dataset, EpisodeSamples)
    return dataset.normalized(scaling)


def dimension_names(feature: Mapping[str, Any]) -> list[str] | None:
    """Return the names of a feature's dimensions from ``info.json``: a list, or a mapping with one; None without."""
    names = feature.get("names")
    if isinstance(names, Mapping) and len(names) == 1:
        names = next(iter(names.values()))
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if listed else None


def _resized(
    value: Any, name: str, suffixes: Mapping[str, str], key: str, source: Callable[[], Source], size: tuple[int, int]
) -> npt.NDArray[Any]:
    """Return a picture ``[H, W, C]``, or pictures ``[k, H, W, C]``, of a size: bilinear, of depth the nearest pixel."""
    if isinstance(value, Lazy):
        found = value.make()
    else:
        from feedmill.samples.decode import Decoder

        # An image spec of the user's decoder could give tensors: pictures are resized as arrays.
        made = RowSample(key, {name: value}, source, Decoder(), None, suffixes)[name]
        found = np.stack(made) if isinstance(made, list) else made
    frames = found if found.ndim == 4 else found[None]
    if frames.shape[1:3] == size:
        return np.asarray(found)
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pictures of another size need Pillow", "media") from None
    shape = size[1], size[0]
    if frames.dtype == np.uint8 and frames.shape[-1] == 3:
        out = [np.asarray(Image.fromarray(one).resize(shape, Image.Resampling.BILINEAR)) for one in frames]
    else:
        rows, columns = (  # the pixel at the middle of each, as bilinear ones have it
            ((2 * np.arange(new) + 1) * old - 1) // (2 * new) for new, old in zip(size, frames.shape[1:3], strict=True)
        )
        out = list(frames[:, rows[:, None], columns])
    return np.stack(out) if found.ndim == 4 else out[0]


def _said(name: str, said: Said, row: Mapping[str, Any], url: str) -> str | None:
    """Return the text of a style that holds at a frame; None if there is none. Raises `DataError` for several."""

    def matches(one: Mapping[str, Any]) -> bool:
        return one.get("style") == said.style and all(
            wanted is None or one.get(key) == wanted for key, wanted in (("role", said.role), ("camera", said.camera))
        )

    lasting = [one for one in row.get(PERSISTENT) or () if matches(one)]
    now = row.get("timestamp")
    # Times of frames are float32: after a minute they are microseconds off.
    begun = [one for one in lasting if now is None or one["timestamp"] <= now + TOLERANCE + abs(now) * 2**-23]
    latest = max((one["timestamp"] for one in begun), default=None)
    found = [one for one in begun if one["timestamp"] == latest]
    if not lasting:
        found = [one for one in row.get(EVENTS) or () if matches(one)]
    if len(found) > 1:
        kinds = ", ".join(sorted({f"role {one.get('role')}, camera {one.get('camera')}" for one in found}))
        raise DataError(
            f"language: {name}: {len(found)} texts of style {said.style!r} hold at once ({kinds})",
            file=url,
            kind="bad-data",
            fix="Give 'role' or 'camera' to choose one.",
        )
    return found[0].get("content") if found else None


def _chosen(samples: EpisodeSamples) -> Int64s:
    """Return the frames that fulfil ``where``, int64[n]."""
    dataset = samples.dataset
    keep = np.ones(len(dataset), bool)
    for name, wanted in samples.options.where.items():
        stored = samples._stored.get(name, name)
        values: Sequence[Any] | npt.NDArray[Any] | None
        if stored in dataset.names:
            values = _column(dataset, stored)
        elif stored in dataset.texts:
            values = dataset.text_values(stored)
        else:
            of_episodes = dataset.episode_values(name)
            values = of_episodes
            if of_episodes is not None:
                values = np.repeat(np.asarray(of_episodes, object), dataset.episode_lengths).tolist()
        if values is None:
            there = [*map(samples._names.__getitem__, [*dataset.names, *dataset.texts]), *dataset.episode_columns]
            raise samples._no_feature("where", name, there)
        fulfil = _fulfil(name, values, wanted, samples)
        if not fulfil.any():
            refuse_empty(0, len(dataset), "frame", file=samples.url, fix=_values_there(name, values), allow=None)
        keep &= fulfil
    numbers = np.flatnonzero(keep).astype(np.int64)
    refuse_empty(len(numbers), len(dataset), "frame", file=samples.url, fix="Check 'where'.", allow=None)
    return numbers


def _values_there(name: str, values: Sequence[Any] | npt.NDArray[Any]) -> str:
    """Return what to do about a condition that no frame fulfils."""
    there = np.unique(values).tolist() if isinstance(values, np.ndarray) else sorted(set(map(str, values)))
    shown = ", ".join(map(str, there[:_SHOWN])) + (", ..." if len(there) > _SHOWN else "")
    return f"Check 'where': the values of {name!r} are {shown}."


def _column(dataset: Episodic, stored: str) -> Sequence[Any] | npt.NDArray[Any]:
    """Return a column of all frames: numbers as an array, as there may be very many, others as Python values."""
    if is_numeric(dataset.features[stored]):
        try:
            files = [dataset.columns_of(file, [stored])[stored] for file in range(len(dataset.shard_bounds) - 1)]
        except DataError:  # some are missing
            return dataset.values_of(stored)
        values = np.concatenate(files)
        return values[:, 0] if values.shape[1] == 1 else list(values[:1])
    return dataset.values_of(stored)


def _fulfil(name: str, values: Sequence[Any] | npt.NDArray[Any], wanted: Any, samples: EpisodeSamples) -> Bools:
    first = values[0] if isinstance(values, np.ndarray) and len(values) else None
    if first is None:
        first = next((value for value in values if value is not None), None)
    if isinstance(first, list | dict) or getattr(first, "ndim", 0) > 0:
        raise samples._bad(
            f"where: {name!r} has several values a frame: expected one number, bool or text", "Use another column."
        )
    array = values if isinstance(values, np.ndarray) else np.asarray(values, object)
    if isinstance(wanted, Mapping):
        unknown = sorted(set(wanted) - {"min", "max", "not"})
        if unknown or not wanted:
            raise samples._bad(f"where: {name}: unknown condition {unknown}", "Use min, max and not.")
        if ("min" in wanted or "max" in wanted) and not isinstance(first, int | float | np.number):
            raise samples._bad(f"where: {name!r} is not numbers: min and max need them", "Give values instead.")
        keep = np.asarray(array != None, bool) if array.dtype == object else np.ones(len(array), bool)  # noqa: E711
        if "min" in wanted or "max" in wanted:
            numbers = array.astype(np.float64)  # None is NaN
            keep &= (numbers >= wanted.get("min", -np.inf)) & (numbers <= wanted.get("max", np.inf))
        if "not" in wanted:
            keep &= ~_among(array, wanted["not"])
        return keep
    return _among(array, wanted)


def _among(array: npt.NDArray[Any], wanted: Any) -> Bools:
    out = np.zeros(len(array), bool)
    for one in wanted if isinstance(wanted, list | tuple) else [wanted]:
        out |= np.asarray(array == one, bool)
    return out
