"""Convert robotics samples to arrays, and collate them into batches.

Supported parts are VLA Foundry's own files (``<camera>_t<index>.jpg``, ``lowdim.npz``, ``metadata.json``,
``language_instructions.json``) and ``.pth`` fields (``actions.pth``, ``state.pth``, ``pixel_values.pth``, ...).
Fields are those of a window of time around an anchor, with masks of the real data. `RoboticsSettings` are VLA Foundry's
settings, completed from the datasets' own files.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, did_you_mean
from feedmill.formats.documents import json_fault
from feedmill.formats.npz.arrays import read_npz
from feedmill.formats.sample import Sample
from feedmill.formats.yamls import read_settings
from feedmill.samples.images import decode_images
from feedmill.samples.robotics.normalize import Normalization, Normalizer
from feedmill.samples.robotics.relative import PoseGroup, advice, computed, pose_groups, sources
from feedmill.samples.vla.columns import columns
from feedmill.samples.vla.text import bad_sample, missing, picture, resized, tensor_fields
from feedmill.storage import Store, open_store
from feedmill.structs import decode_as

PREPROCESSING = "preprocessing_config.yaml"
INSTRUCTIONS = ("original", "randomized", "verbose", "alternative")


@dataclass(frozen=True, slots=True)
class RoboticsSettings:
    """Settings that select the images, fields and steps of a sample.

    Attributes:
        camera_names, image_indices: Cameras and time indices whose images are read if `image_names` is empty.
        image_names: ``<camera>_t<index>``; if empty, all combinations of `camera_names` and `image_indices`.
        proprioception_fields, action_fields: Fields to concatenate, in this order.
        extra_fields: Further fields, kept separate (``intrinsics_fields``, ``extrinsics_fields``).
        pose_groups: Fields that are poses, from which relative fields (``X_relative``) are computed.
        past, future: Steps to read before and after the anchor; None for all (``lowdim_past_timesteps``, ...).
        language_instruction_types: Types of instructions; one instruction is drawn from those of all these types.
        pad_missing_images: Replace a missing image by a black one, with False in ``image_mask``. Otherwise a missing
            image is an error.
        image_size: Resize images to this height and width. None keeps their size, which must be the same for all.
        normalization: See `feedmill.samples.robotics.normalize`.
    """

    camera_names: tuple[str, ...] = ()
    image_indices: tuple[int, ...] = ()
    image_names: tuple[str, ...] = ()
    proprioception_fields: tuple[str, ...] = ()
    action_fields: tuple[str, ...] = ()
    extra_fields: tuple[str, ...] = ()
    pose_groups: tuple[PoseGroup, ...] = ()
    past: int | None = None
    future: int | None = None
    language_instruction_types: tuple[str, ...] = ("original",)
    pad_missing_images: bool = False
    image_size: int | None = None
    normalization: Normalization = field(default_factory=lambda: Normalization(enabled=False))

    @property
    def images(self) -> tuple[str, ...]:
        """The names of the images, in the order in which they are stacked."""
        if self.image_names:
            return self.image_names
        return tuple(f"{camera}_t{index}" for index in self.image_indices for camera in self.camera_names)

    @classmethod
    def of(cls, config: Mapping[str, Any], folders: Sequence[str]) -> RoboticsSettings:
        """Return the settings for VLA Foundry's settings, completed by ``preprocessing_config.yaml`` of each dataset.

        As in VLA Foundry, ``normalization`` has defaults (enabled, ``std``), and the window is that of the shortest
        dataset.

        Args:
            config: VLA Foundry's ``data`` settings.
            folders: Folders of the manifests.

        Raises:
            ConfigError: A setting is invalid, or the datasets differ in a setting that is not given.
        """
        given = {"past": config.get("lowdim_past_timesteps"), "future": config.get("lowdim_future_timesteps")}
        names = {one.name for one in fields(cls)} - {"normalization", "extra_fields", "pose_groups", *given}
        for name in names & set(config):
            value = config[name]
            given[name] = tuple(value) if isinstance(value, list | tuple) else value
        extra = [config.get(name) or () for name in ("intrinsics_fields", "extrinsics_fields")]
        given["extra_fields"] = tuple(name for group in extra for name in group)
        given["pose_groups"] = pose_groups(config.get("pose_groups") or ())
        found = [_preprocessing(open_store(folder)) for folder in folders]
        if not given.get("image_names"):
            for name in ("camera_names", "image_indices"):
                if not given.get(name):
                    given[name] = tuple(_agreed(found, name, folders) or ())
        normalization = Normalization.from_config(config.get("normalization") or {})
        if normalization.per_timestep and normalization.past is None:
            anchor = _agreed(found, "past_lowdim_steps", folders, "normalization.lowdim_past_timesteps")
            normalization = replace(normalization, past=anchor)
        for name, steps, own in (
            ("past", "past_lowdim_steps", normalization.past),
            ("future", "future_lowdim_steps", (config.get("normalization") or {}).get("lowdim_future_timesteps")),
        ):
            if given[name] is None:
                given[name] = own if own is not None else _shortest(found, steps, folders)
        given["normalization"] = normalization
        return cls(**{name: value for name, value in given.items() if value is not None})

    def __post_init__(self) -> None:
        for kind in self.language_instruction_types:
            if kind not in INSTRUCTIONS:
                raise ConfigError(
                    f"unknown language instruction type {kind!r}{did_you_mean(kind, list(INSTRUCTIONS))}",
                    fix=f"Use {', '.join(INSTRUCTIONS)}.",
                )
        for name in ("past", "future"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ConfigError(
                    f"invalid window of {value!r} steps: expected an integer of 0 or more",
                    fix="Set lowdim_past_timesteps and lowdim_future_timesteps to a number of steps, or remove them.",
                )


def _preprocessing(store: Store) -> Mapping[str, Any]:
    if not store.exists(PREPROCESSING):
        return {}
    settings = read_settings(store.read(PREPROCESSING), store.locate(PREPROCESSING))
    if not isinstance(settings, dict):
        raise ConfigError("expected a mapping of settings", file=store.locate(PREPROCESSING))
    return settings


def _shortest(found: Sequence[Mapping[str, Any]], name: str, folders: Sequence[str]) -> int | None:
    """Return the smallest number of steps of any dataset; None if no dataset has the setting."""
    steps = [(one[name], folder) for one, folder in zip(found, folders, strict=True) if one.get(name) is not None]
    for value, folder in steps:
        if type(value) is not int or value < 0:
            raise ConfigError(
                f"{name!r} must be a number of steps: found {value!r}", file=f"{folder.rstrip('/')}/{PREPROCESSING}"
            )
    return min((value for value, _ in steps), default=None)


def _agreed(found: Sequence[Mapping[str, Any]], name: str, folders: Sequence[str], setting: str = "") -> Any:
    values = [(one[name], folder) for one, folder in zip(found, folders, strict=True) if one.get(name) is not None]
    for value, folder in values[1:]:
        if value != values[0][0]:
            raise ConfigError(
                f"the datasets differ in {name!r}: {values[0][0]} in {values[0][1]}, {value} here",
                file=f"{folder.rstrip('/')}/{PREPROCESSING}",
                kind="settings-differ",
                fix=f"Set data.{setting or name} in the run's configuration.",
            )
    return values[0][0] if values else None


LOWDIM, METADATA, LANGUAGE = "lowdim.npz", "metadata.json", "language_instructions.json"
_SUFFIXES = (".jpg", ".png", ".jpeg", ".webp")
_ANCHOR = "anchor_relative_idx"
_FIELDS, _IMAGES = "fields", "pixel_values"


class _Metadata(msgspec.Struct):
    anchor_relative_idx: int


@dataclass(frozen=True, slots=True)
class Robotics:
    """Modality of robotics samples.

    Attributes:
        settings: The images, fields and steps to read.
        normalizer: Normalizes the fields of a batch; None keeps them as they are.
        lowdim_only: Skip the images without decoding them.

    A batch has ``actions`` float32[B, T, A], ``proprioception`` float32[B, past + 1, P], ``past_mask`` and
    ``future_mask`` bool[B, T], ``anchor_relative_idx`` int64[B], ``pixel_values`` uint8[B, images, H, W, 3] (with
    ``image_size`` float32[B, images, 3, S, S]), ``image_mask`` bool[B, images], ``language_instruction`` list, and the
    extra fields.
    """

    settings: RoboticsSettings
    normalizer: Normalizer | None = None
    lowdim_only: bool = False

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """Return the sample's fields, not yet normalized. Raises `DataError`."""
        out = self.prepare(sample, rng)
        if isinstance(out.get(_IMAGES), _Encoded):
            out[_IMAGES] = out[_IMAGES].decoded()
        return out

    def prepare(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """Return the fields as `cook` does, for `batch` only: images may be decoded later, into the batch's array."""
        tensors = tensor_fields(sample)
        if tensors is not None:
            if "actions" not in tensors:
                raise missing(sample, "actions.pth")
            return {"__key__": sample.key, **tensors}
        settings = self.settings
        for name in (LOWDIM, METADATA):
            if name not in sample:
                raise missing(sample, name)
        lowdim, anchor = self._lowdim(sample), anchor_of(sample)
        try:
            cut = window(lowdim, anchor, settings.past, settings.future)
        except ValueError as error:
            raise bad_sample(sample, str(error), "bad-batch") from None
        wanted = dict.fromkeys((*settings.proprioception_fields, *settings.action_fields))
        try:
            lowdim = {**lowdim, **computed(lowdim, wanted, settings.pose_groups, anchor)}
        except ValueError as error:
            raise bad_sample(sample, str(error), "bad-batch") from None
        out: dict[str, Any] = {
            "__key__": sample.key,
            _FIELDS: {name: self._field(sample, lowdim, name, cut) for name in wanted},
            PAST_MASK: cut.past_mask,
            FUTURE_MASK: cut.future_mask,
            _ANCHOR: cut.anchor,
            f"original_{_ANCHOR}": anchor,
            "language_instruction": self._instruction(sample, rng),
        }
        for name in settings.extra_fields:
            out[name] = None if name not in lowdim else np.asarray(lowdim[name][cut.start : cut.stop], np.float32)
        if not self.lowdim_only and settings.images:
            out |= self._images(sample)
        return out

    def _lowdim(self, sample: Sample) -> Mapping[str, npt.NDArray[Any]]:
        settings = self.settings
        names = (*settings.proprioception_fields, *settings.action_fields, *settings.extra_fields)
        names = (*names, *sources(names, settings.pose_groups))
        try:
            return read_npz(sample.raw(LOWDIM), (*names, PAST_MASK, FUTURE_MASK), writable=False)
        except (ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, struct.error) as error:
            raise bad_sample(sample, f"{LOWDIM} cannot be read: {error}") from None

    def _field(
        self, sample: Sample, lowdim: Mapping[str, npt.NDArray[Any]], name: str, cut: Window
    ) -> npt.NDArray[np.float32]:
        value = lowdim.get(name)
        if value is None:
            with zipfile.ZipFile(io.BytesIO(sample.raw(LOWDIM))) as file:
                known = [part.removesuffix(".npy") for part in file.namelist()]
            what = f"{LOWDIM} has no field {name!r}{did_you_mean(name, known)}"
            fixes = (advice(name, self.settings.pose_groups), f"Use the fields that it has: {', '.join(known)}.")
            raise bad_sample(sample, what, "missing-field", " ".join(fix for fix in fixes if fix))
        if value.dtype.kind not in "fiub" or value.ndim not in (1, 2) or len(value) < cut.stop:
            raise bad_sample(sample, f"the field {name!r} is {value.dtype}{list(value.shape)}, expected numbers [T, C]")
        taken = np.asarray(value[cut.start : cut.stop], np.float32)
        return taken[:, None] if taken.ndim == 1 else taken

    def _images(self, sample: Sample) -> dict[str, Any]:
        parts: list[str | None] = []
        for name in self.settings.images:
            part = next((name + suffix for suffix in _SUFFIXES if name + suffix in sample), None)
            if part is None and not self.settings.pad_missing_images:
                raise missing(sample, f"image {name}.jpg")
            parts.append(part)
        there = [part for part in parts if part is not None]
        if not there:
            raise missing(sample, "images")
        mask = np.array([part is not None for part in parts])
        encoded = _Encoded(sample, there)
        if len(there) == len(parts):
            return {_IMAGES: encoded, "image_mask": mask}
        found = iter(encoded.decoded())
        images = [None if part is None else next(found) for part in parts]
        shape = next(image.shape for image in images if image is not None)
        return {_IMAGES: [np.zeros(shape, np.uint8) if i is None else i for i in images], "image_mask": mask}

    def _instruction(self, sample: Sample, rng: np.random.Generator | None) -> str | None:
        if LANGUAGE not in sample:
            return None
        given = _json(sample, LANGUAGE, dict[str, list[str] | str | None])
        texts: list[str] = []
        for kind in self.settings.language_instruction_types:
            texts_of_kind = given.get(kind) or []
            texts += [texts_of_kind] if isinstance(texts_of_kind, str) else texts_of_kind
        if not texts:
            return None
        return texts[int(rng.integers(len(texts)))] if rng is not None and len(texts) > 1 else texts[0]

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return a normalized batch. Raises `DataError` if the samples or their images differ in shape."""
        out = columns(samples)
        fields = out.pop(_FIELDS, None)
        if fields is None:
            return self._tensors(out)
        if not isinstance(out[PAST_MASK], np.ndarray) or any(not isinstance(v, np.ndarray) for v in fields.values()):
            raise DataError(
                "the samples of a batch have windows of different lengths",
                kind="bad-batch",
                fix="Set lowdim_past_timesteps and lowdim_future_timesteps.",
            )
        if _IMAGES in out:
            out[_IMAGES] = _stacked(out[_IMAGES], self.settings.image_size, out["__key__"])
        anchor = int(out[_ANCHOR][0])
        if (out[_ANCHOR] != anchor).any():
            raise DataError(
                f"the samples of a batch have their anchors at different steps: {sorted(set(out[_ANCHOR].tolist()))}",
                kind="bad-batch",
                fix="Set a window around the anchor with lowdim_past_timesteps and lowdim_future_timesteps.",
            )
        settings = self.settings
        done = {name: self._normalized(name, values, anchor) for name, values in fields.items()}
        shape = out[PAST_MASK].shape
        out["actions"] = joined([done[name] for name in settings.action_fields], shape)
        out["proprioception"] = joined([done[name] for name in settings.proprioception_fields], shape)[:, : anchor + 1]
        return out

    def _tensors(self, out: dict[str, Any]) -> dict[str, Any]:
        """Normalize ``.pth`` fields. They have no anchor, so statistics per step are aligned with the first step."""
        for name in ("actions", "state"):
            if self.normalizer is not None and isinstance(out.get(name), np.ndarray):
                named = self.normalizer.how.include
                if named is not None and name not in named:
                    raise DataError(
                        f"{name}.pth would not be normalized: the fields to normalize are {', '.join(named)}",
                        record=str(out["__key__"][0]),
                        kind="bad-statistics",
                        fix=f"Add {name!r} to action_fields or proprioception_fields, or set normalization.enabled to"
                        " false.",
                    )
                out[name] = self._normalized(name, out[name].astype(np.float32), self.normalizer.how.past or 0)
        return out

    def _normalized(self, name: str, values: npt.NDArray[np.float32], anchor: int) -> npt.NDArray[np.float32]:
        return values if self.normalizer is None else self.normalizer.apply(name, values, anchor)

    def denormalized(self, actions: npt.NDArray[np.float32], anchor: int, widths: Sequence[int]) -> dict[str, Any]:
        """Return a model's actions as fields in their own units.

        Args:
            actions: float32[..., T, A].
            anchor: The step of `actions` that is the anchor.
            widths: Number of channels of each action field, in order.

        Raises:
            ConfigError: The widths do not match the fields.
        """
        names = self.settings.action_fields
        if len(names) != len(widths) or sum(widths) != actions.shape[-1]:
            raise ConfigError(
                f"{actions.shape[-1]} channels do not match {len(names)} action fields of widths {list(widths)}"
            )
        parts = np.split(actions, np.cumsum(widths)[:-1], axis=-1)
        if self.normalizer is None:
            return dict(zip(names, parts, strict=True))
        return {name: self.normalizer.invert(name, part, anchor) for name, part in zip(names, parts, strict=True)}


def anchor_of(sample: Sample) -> int:
    """Return the step of a sample's anchor. Raises `DataError`."""
    if METADATA not in sample:
        raise missing(sample, METADATA)
    return int(_json(sample, METADATA, _Metadata).anchor_relative_idx)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The encoded images of a sample."""

    sample: Sample
    parts: list[str]

    def decoded(self) -> list[npt.NDArray[Any]]:
        """Return the decoded images."""
        return [_picture(self.sample, part) for part in self.parts]


def _stacked(samples: list[_Encoded | list[npt.NDArray[Any]]], size: int | None, keys: Sequence[str]) -> Any:
    """Return images as [B, images, H, W, 3], or resized as [B, images, 3, size, size].

    Raises:
        DataError: An image cannot be decoded, or the images differ in size or dtype.
    """
    if all(isinstance(sample, _Encoded) for sample in samples):
        parts = [sample.sample.raw(part) for sample in samples for part in sample.parts]  # type: ignore[union-attr]
        together = decode_images(parts, "rgb8")  # into one array without a copy: images are most of a batch's bytes
        if together is not None:
            together = together.reshape(len(samples), -1, *together.shape[1:])
            return together if size is None else _resized(together, size)
    lists = [sample.decoded() if isinstance(sample, _Encoded) else sample for sample in samples]
    first = lists[0][0]
    if size is not None and first.ndim == 3:
        first = np.empty((3, size, size), np.float32)
    out = np.empty((len(lists), len(lists[0]), *first.shape), first.dtype)
    for key, row, images in zip(keys, out, lists, strict=True):
        for place, image in zip(row, images, strict=True):
            ready = image if size is None or image.ndim != 3 else resized(image, size, size)
            if ready.shape != first.shape or ready.dtype != first.dtype:
                raise DataError(
                    f"the images of a batch differ in size or dtype: {image.dtype}{list(image.shape)} here,"
                    f" {lists[0][0].dtype}{list(lists[0][0].shape)} in {keys[0]!r}",
                    record=key,
                    kind="bad-batch",
                    fix="Set image_size to resize them, or use cameras of one kind in camera_names.",
                )
            place[...] = ready
    return out


def _resized(images: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.float32]:
    out = np.empty((*images.shape[:2], 3, size, size), np.float32)
    for row, pictures in zip(out, images, strict=True):
        for place, image in zip(row, pictures, strict=True):
            place[...] = resized(image, size, size)
    return out


def _json(sample: Sample, part: str, kind: Any) -> Any:
    data = sample.raw(part)
    try:
        return decode_as(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_sample(sample, f"{part} is invalid: {json_fault(data, error)}") from None


def _picture(sample: Sample, part: str) -> npt.NDArray[Any]:
    """Return an image as uint8[H, W, 3], or a 16-bit gray PNG (depth in millimeters) as uint16[H, W]."""
    if part.endswith(".png"):
        data = sample.raw(part)
        if data[12:16] == b"IHDR" and data[24:26] == b"\x10\x00":
            from PIL import Image

            try:
                return np.asarray(Image.open(io.BytesIO(data)), np.uint16)
            except (OSError, SyntaxError, ValueError) as error:
                raise bad_sample(sample, f"the depth image {part} cannot be decoded: {error}") from None
    return picture(sample, part)


PAST_MASK, FUTURE_MASK = "past_mask", "future_mask"


@dataclass(frozen=True, slots=True)
class Window:
    """Window of steps around the anchor of one sample.

    Attributes:
        start, stop: The range of steps.
        anchor: The anchor's step within the window.
        past_mask, future_mask: bool[stop - start], true for data before the anchor, and from the anchor on. Both are
            False for padding: a copy of another step, where the episode had none.
    """

    start: int
    stop: int
    anchor: int
    past_mask: npt.NDArray[np.bool_]
    future_mask: npt.NDArray[np.bool_]


def window(lowdim: Mapping[str, npt.NDArray[Any]], anchor: int, past: int | None, future: int | None) -> Window:
    """Return the window of a sample.

    Args:
        lowdim: Fields with ``past_mask`` and ``future_mask``, bool[T].
        anchor: The anchor's step in the sample.
        past, future: Number of steps before and after the anchor; None for all.

    Raises:
        ValueError: The masks are missing or invalid, or the window exceeds the sample.
    """
    masks = [lowdim.get(name) for name in (PAST_MASK, FUTURE_MASK)]
    if any(mask is None or mask.ndim != 1 for mask in masks) or masks[0].shape != masks[1].shape:  # type: ignore[union-attr]
        raise ValueError("past_mask and future_mask are required, with one value for each step")
    steps = len(masks[0])  # type: ignore[arg-type]
    if not 0 <= anchor < steps:
        raise ValueError(f"the anchor is step {anchor}, but the sample has {steps} steps")
    start = 0 if past is None else anchor - past
    stop = steps if future is None else anchor + future + 1
    if start < 0 or stop > steps:
        raise ValueError(
            f"the sample is too short for a window of {past} steps before and {future} after the anchor:"
            f" it has {anchor} and {steps - anchor - 1}"
        )
    cut = [np.asarray(mask[start:stop], bool) for mask in masks]  # type: ignore[index]
    return Window(start, stop, anchor - start, cut[0], cut[1])


def joined(fields: Sequence[npt.NDArray[np.float32]], like: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Concatenate fields float32[..., T, C] on their last axis; without fields return float32[*like, 0]."""
    return np.concatenate(fields, axis=-1) if fields else np.zeros((*like, 0), np.float32)
