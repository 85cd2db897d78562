"""Transforms that move the pixels of an image together with its boxes, masks and keypoints; and pictures of these.

`resize`, `crop` and `flip` take a sample with an image, and return a new one. Boxes are edges between pixels, so they
are scaled and shifted as they are. Keypoints are pixels: those of the first pixel are 0, and a mirror exchanges 0 and
``width - 1``. Masks are moved as pixels are, each to the nearest one (the center decides), so that a mask after a
transform equals the transformed mask, bit by bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.samples.detection import OBJECTS, Bitmap, Masks, blanked, mirrored
from feedmill.samples.types import DetectionSample, TypedSample

Sized = TypeVar("Sized", bound=TypedSample)


def resize(sample: Sized, height: int, width: int) -> Sized:
    """Return a sample whose image has another size (bilinear, as Pillow does), and whose objects are scaled with it.

    Args:
        sample: a sample with an image: an array ``[H, W, C]`` or ``[H, W]``, a tensor ``[C, H, W]``, or Pillow's.
        height, width: in pixels.

    Raises:
        ConfigError: the size is not positive, or the sample has no image, or objects of another size.
        MissingExtra: Pillow is not installed.
    """
    if height < 1 or width < 1:
        raise ConfigError(
            f"an image of {width} x {height} pixels has no pixels", kind="bad-option", fix="Use 1 or more."
        )
    tall, wide = _size_of(sample)
    changes: dict[str, Any] = {"image": _resized(_image_of(sample), height, width)}
    if isinstance(sample, DetectionSample):
        changes["size"] = (height, width)
        scale = np.array([width / wide, height / tall])
        changes["boxes"] = (sample.boxes * np.tile(scale, 2)).astype(np.float32)
        if sample.areas is not None:
            changes["areas"] = sample.areas * scale.prod()
        if sample.keypoints is not None:
            points = sample.keypoints.astype(np.float64)
            points[..., :2] = (points[..., :2] + 0.5) * scale - 0.5
            changes["keypoints"] = blanked(points.astype(np.float32))
        if sample.masks is not None:
            changes["masks"] = sample.masks.moved(_nearest(height, tall), _nearest(width, wide))
    return dataclasses.replace(sample, **changes)


def _nearest(length: int, of: int) -> npt.NDArray[np.int64]:
    """Return the pixel of `of` under the center of each one of `length`.

    It is exact, unlike Pillow's (findings/pillow_nearest_ties.sh), whose sums of steps miss centers on edges.
    """
    return (2 * np.arange(length, dtype=np.int64) + 1) * of // (2 * length)


def crop(sample: Sized, top: int, left: int, height: int, width: int) -> Sized:
    """Return the part of a sample's image that begins at a pixel, with the objects that it shows.

    Boxes are cut at its edges; an object whose box is outside is dropped. Areas become those of the masks, or shrink as
    the boxes do. Keypoints outside are no longer labeled.

    Raises:
        ConfigError: the part is not within the image, or the sample has no image.
    """
    tall, wide = _size_of(sample)
    if min(top, left) < 0 or min(height, width) < 1 or top + height > tall or left + width > wide:
        raise ConfigError(
            f"the crop is not within the image: rows {top} to {top + height} of {tall}, columns {left} to"
            f" {left + width} of {wide}",
            kind="bad-option",
            fix="Choose a part of the image.",
        )
    image = _image_of(sample)
    if hasattr(image, "crop"):
        image = image.crop((left, top, left + width, top + height))
    elif _is_planes(image):
        image = image[..., top : top + height, left : left + width].contiguous()
    else:
        image = np.ascontiguousarray(image[top : top + height, left : left + width])
    if not isinstance(sample, DetectionSample):
        return dataclasses.replace(sample, image=image)  # type: ignore[call-arg]
    corner = np.array([left, top], np.float32)
    boxes = sample.boxes - np.tile(corner, 2)
    boxes = np.clip(boxes, 0, np.array([width, height, width, height], np.float32))
    kept = np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    changes: dict[str, Any] = {name: _chosen(getattr(sample, name), kept) for name in OBJECTS}
    changes |= {"image": image, "size": (height, width), "boxes": boxes[kept]}
    if sample.keypoints is not None:
        points = changes["keypoints"].copy()
        points[..., :2] -= corner
        outside = ((points[..., :2] < -0.5) | (points[..., :2] >= np.array([width, height], np.float32) - 0.5)).any(
            axis=-1
        )
        points[outside] = 0
        changes["keypoints"] = blanked(points)
    if sample.masks is not None:
        changes["masks"] = changes["masks"].moved(np.arange(top, top + height), np.arange(left, left + width))
    if sample.areas is not None:
        shares = _areas(boxes[kept]) / np.maximum(_areas(sample.boxes[kept]), 1e-9)
        areas = changes["areas"] * shares
        for number, segment in enumerate(changes["masks"].segments if sample.masks is not None else ()):
            areas[number] = areas[number] if segment is None else changes["masks"][number].sum()
        changes["areas"] = areas
    return dataclasses.replace(sample, **changes)


def _areas(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    sides = (boxes[:, 2:] - boxes[:, :2]).astype(np.float64)
    return np.asarray(sides[:, 0] * sides[:, 1])


def _chosen(values: Any, kept: npt.NDArray[np.int64]) -> Any:
    if values is None or not isinstance(values, list):
        return values if values is None else values[kept]
    return [values[number] for number in kept.tolist()]


def flip(sample: Sized, *, vertical: bool = False) -> Sized:
    """Return a sample mirrored left to right, or top to bottom. Left and right keypoints are exchanged.

    Raises:
        ConfigError: the sample has keypoints, and no `keypoint_flip`; it has no image, or objects of another size.
    """
    _size_of(sample)
    image = _image_of(sample)
    if hasattr(image, "transpose") and hasattr(image, "getbands"):
        from PIL.Image import Transpose

        image = image.transpose(Transpose.FLIP_TOP_BOTTOM if vertical else Transpose.FLIP_LEFT_RIGHT)
    elif _is_planes(image):
        image = image.flip(-2 if vertical else -1)
    else:
        image = np.ascontiguousarray(image[::-1] if vertical else image[:, ::-1])
    made: Any = dataclasses.replace(sample, image=image)  # type: ignore[call-arg]
    if not isinstance(sample, DetectionSample):
        return made  # type: ignore[no-any-return]
    made = mirrored(made, vertical)
    if sample.keypoints is not None and sample.keypoints.shape[1]:
        pairs = sample.keypoint_flip
        if pairs is None or sorted(pairs) != list(range(sample.keypoints.shape[1])):
            raise ConfigError(
                f"which keypoints are left and right is not known: 'keypoint_flip' is {pairs}, expected the number of"
                f" the counterpart for each of {sample.keypoints.shape[1]}",
                record=sample.__key__,
                kind="missing-field",
                fix="Set it on the sample before 'flip', for example sample.keypoint_flip = [0, 2, 1].",
            )
        made.keypoints = made.keypoints[:, pairs]
    return made  # type: ignore[no-any-return]


def _image_of(sample: Any) -> Any:
    image = getattr(sample, "image", None)
    if image is None or isinstance(image, bytes | str):
        raise ConfigError(
            f"a {type(sample).__name__} has no decoded image: found {type(image).__name__}",
            kind="bad-option",
            fix="Use a sample with a decoded image.",
        )
    return image


def _is_planes(image: Any) -> bool:
    """Return whether an image is a tensor, ``[C, H, W]`` or ``[H, W]``."""
    return type(image).__module__.partition(".")[0] == "torch"


def _size_of(sample: Any) -> tuple[int, int]:
    """Return height and width of a sample's image. Raises `ConfigError` if its objects refer to another size."""
    image = _image_of(sample)
    if hasattr(image, "getbands"):
        found = (image.height, image.width)
    else:
        found = tuple(image.shape[-2:]) if _is_planes(image) else tuple(image.shape[:2])
    if isinstance(sample, DetectionSample) and tuple(sample.size) != found:
        raise ConfigError(
            f"the boxes refer to an image of {sample.size[1]} x {sample.size[0]} pixels, and this one has"
            f" {found[1]} x {found[0]}",
            record=sample.__key__,
            kind="bad-option",
            fix="Transform image and objects together, with the functions of feedmill.samples.vision.",
        )
    return found


def _resized(image: Any, height: int, width: int) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("resizing images needs Pillow", extra="media") from None
    how = Image.Resampling.BILINEAR
    if hasattr(image, "getbands"):
        return image.resize((width, height), how)
    if _is_planes(image):
        import torch

        array = image.cpu().numpy()
        array = _resized(array.transpose(1, 2, 0) if array.ndim == 3 else array, height, width)
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1) if array.ndim == 3 else array))
    if image.dtype == np.uint8:
        return np.array(Image.fromarray(np.ascontiguousarray(image)).resize((width, height), how))
    if image.ndim == 2:
        return np.array(Image.fromarray(image.astype(np.float32)).resize((width, height), how)).astype(image.dtype)
    bands = [_resized(np.ascontiguousarray(image[..., band]), height, width) for band in range(image.shape[2])]
    return np.stack(bands, axis=-1)


_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#46f0f0", "#f032e6", "#bcf60c", "#fabebe", "#008080")


def objects_in(fields: Any) -> DetectionSample | None:
    """Return the objects that a part ``json`` of an import describes, for an upright image; None if it has none."""
    if not isinstance(fields, Mapping) or not {"boxes", "labels", "size"} <= fields.keys():
        return None
    names = [name for name in (*OBJECTS, "size", "keypoint_names", "keypoint_flip") if name in fields]
    base = {"__key__": "", "__restore_key__": (), "image": None}
    try:
        return DetectionSample.of_parts("apply", **base, **{name: fields[name] for name in names})
    except DataError:
        return None


def drawn(image: Any, sample: DetectionSample) -> Any:
    """Return a Pillow image with the objects of a sample drawn on a copy of it: masks, boxes with names, keypoints.

    The image may be smaller or larger than `sample.size`.
    """
    from PIL import Image, ImageDraw, ImageFont

    picture = image.convert("RGB")
    height, width = sample.size
    scale = np.array([picture.width / width, picture.height / height])
    if sample.masks is not None:
        for number, mask in _shown(
            sample.masks.moved(_nearest(picture.height, height), _nearest(picture.width, width))
        ):
            color = Image.new("RGB", picture.size, _COLORS[number % len(_COLORS)])
            picture.paste(color, mask=Image.fromarray(mask.astype(np.uint8) * 96))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    line = max(1, round(max(picture.size) / 400))
    for number, box in enumerate((sample.boxes * np.tile(scale, 2)).tolist()):
        color = _COLORS[number % len(_COLORS)]
        draw.rectangle((box[0], box[1], max(box[2] - 1, box[0]), max(box[3] - 1, box[1])), outline=color, width=line)
        if picture.width >= 200:
            name = str((sample.label_names or sample.labels)[number])
            place = (max(0, box[0]), max(0, box[1] - 13 if box[1] >= 13 else box[1]))
            draw.rectangle(draw.textbbox(place, name, font=font), fill=color)
            draw.text(place, name, fill="#ffffff", font=font)
        for x, y, visible in sample.keypoints[number].tolist() if sample.keypoints is not None else ():
            if visible:
                x, y = (x + 0.5) * scale[0], (y + 0.5) * scale[1]
                fill = color if visible > 1 else None
                draw.ellipse((x - line - 1, y - line - 1, x + line + 1, y + line + 1), fill=fill, outline=color)
    return picture


def _shown(masks: Masks) -> Iterable[tuple[int, Bitmap]]:
    """Yield number and bitmap of the masks that can be decoded: a picture shows the others without them."""
    for number, segment in enumerate(masks.segments):
        if segment is not None:
            try:
                yield number, masks[number]
            except DataError:
                continue
