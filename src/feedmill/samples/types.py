"""Sample types: the fields of a training sample for each task.

Names, fields and defaults are those of Megatron Energon, so a ``dataset.yaml`` written for Energon has the same
meaning. Energon has no `DetectionSample`. Images have the type that the decoder returns: ``uint8[H, W, 3]`` by default,
or a tensor ``[3, H, W]`` for the ``torch...`` image specs. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.sample import Source
from feedmill.notebooks import Displayed

_LONGEST = 60
_OF_DICTS = ("keys", "values", "items", "get", "to_dict", "asdict", "as_dict")


def brief(value: Any) -> str:
    """Return a value in a few words: arrays and tensors by type and shape, bytes by number, long texts and lists cut.

    >>> brief(["a", b"123"]), brief("x" * 100)[-4:]
    ("['a', 3 B]", "...'")
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "...")
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} B"
    if isinstance(value, Mapping):
        shown = [f"{key!r}: {brief(each)}" for key, each in list(value.items())[:6]]
        return "{" + ", ".join([*shown, *["..."] * (len(value) > 6)]) + "}"
    if isinstance(value, list | tuple):
        shown = [brief(each) for each in value[:6]] + ["..."] * (len(value) > 6)
        return f"[{', '.join(shown)}]" if isinstance(value, list) else f"({', '.join(shown)})"
    text = repr(value)
    return text if len(text) <= _LONGEST and "\n" not in text else f"<{type(value).__name__}>"


@dataclass(kw_only=True, slots=True)
class TypedSample(Displayed):
    """Base class of the sample types.

    Attributes:
        __key__: Key of the sample in its dataset.
        __restore_key__: Identifies the sample for reading it again, e.g. ``("Webdataset", 17)``; nested for derived
            samples.
        __subflavors__: Data attached by the dataset's description.
        __sources__: Locations that the sample came from, with the names of the parts read.
    """

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: Mapping[str, Any] | None = None
    __sources__: tuple[Source, ...] | None = None

    def __init_subclass__(cls) -> None:
        # Else `dataclass` writes one that prints all pixels.
        cls.__repr__ = TypedSample.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the key and the fields: arrays by type and shape, long values cut."""
        fields = [field.name for field in dataclasses.fields(self) if field.name not in BASE_FIELDS]
        shown = [f"{name}={brief(getattr(self, name, None))}" for name in fields]
        return f"{type(self).__name__}({', '.join([repr(self.__key__), *shown])})"

    if not TYPE_CHECKING:  # checkers know the fields

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with the fields; those of other libraries' samples have a way here."""
            if name.startswith("_") or name in self.__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            fields = ", ".join(each for each in self.__dataclass_fields__ if each not in BASE_FIELDS)
            way = ": dataclasses.asdict(sample) makes a dict" if name in _OF_DICTS else f": its fields are {fields}"
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}{way}", name=name, obj=self)

        def __getitem__(self, name: Any) -> Any:
            """Raise TypeError: fields are attributes."""
            fields = ", ".join(f"sample.{each}" for each in self.__dataclass_fields__ if each not in BASE_FIELDS)
            raise TypeError(f"a {type(self).__name__} has its fields as attributes: {fields}")

    @classmethod
    def derive_from(cls, base: TypedSample, **fields: Any) -> Self:
        """Return a sample of this type with `fields`, and the key, subflavors and sources of `base`."""
        inherited = {name: getattr(base, name) for name in BASE_FIELDS if name not in fields}
        return cls(**inherited, **fields)

    @classmethod
    def extend(cls, base: TypedSample, **fields: Any) -> Self:
        """Return a sample of this type with every field of `base`, and `fields` added or replaced."""
        inherited = {f.name: getattr(base, f.name) for f in dataclasses.fields(base) if f.name not in fields}
        return cls(**inherited, **fields)

    @classmethod
    def from_joined(cls, *parts: TypedSample | None, **named: TypedSample | None) -> Self:
        """Return a sample of this type with the matching fields of joined samples.

        If several samples have a field, the last one's value is used. Key, restore key and subflavors come from the
        first sample, sources from all. Missing samples (None) are skipped.
        """
        present = [part for part in (*parts, *named.values()) if part is not None]
        wanted = {field.name for field in dataclasses.fields(cls)} - set(BASE_FIELDS)
        fields = {
            field.name: getattr(part, field.name)
            for part in present
            for field in dataclasses.fields(part)
            if field.name in wanted
        }
        sources = tuple(source for part in present for source in part.__sources__ or ())
        return cls.derive_from(present[0], __sources__=sources, **fields)


BASE_FIELDS = tuple(field.name for field in dataclasses.fields(TypedSample))


@dataclass(kw_only=True, slots=True)
class CaptioningSample(TypedSample):
    """An image and its caption."""

    image: Any
    caption: str


@dataclass(kw_only=True, slots=True)
class DetectionSample(TypedSample):
    """An image and the objects in it: boxes, and masks, keypoints and captions if the dataset has them.

    Boxes have one convention: ``x1, y1, x2, y2`` in pixels of the image, from its left and top edge, the end not
    included, so that a box around the whole image is ``0, 0, width, height``. `normalized` and `xywh` are views of it.
    Objects have the same order in all fields. `feedmill.samples.vision` has the transforms that move pixels and
    objects together.

    Attributes:
        boxes: float32[n, 4].
        labels: int64[n], the numbers of the categories as their source has them.
        size: height and width of the image to which the boxes refer.
        label_names: names of the categories, one for each object.
        ids: numbers of the objects in their source, int64[n]; a list if they are not whole numbers.
        areas: float64[n], in pixels: of the masks as the source states them, else of the boxes.
        crowd: bool[n], whether a box is around a group of objects (``iscrowd``).
        masks: `feedmill.samples.detection.Masks`.
        keypoints: float32[n, k, 3]: x, y and visibility (0 not labeled, 1 hidden, 2 visible). x and y are numbers of
            pixels: those of the first pixel are 0.
        keypoint_names: names of the k keypoints.
        keypoint_flip: for each keypoint, the number of its counterpart in a mirrored image.
        captions: texts about the image.
        attributes: for each object, other facts that its source has.
    """

    image: Any
    boxes: Any
    labels: Any
    size: tuple[int, int]
    label_names: list[str] | None = None
    ids: Any | None = None
    areas: Any | None = None
    crowd: Any | None = None
    masks: Any | None = None
    keypoints: Any | None = None
    keypoint_names: list[str] | None = None
    keypoint_flip: list[int] | None = None
    captions: list[str] | None = None
    attributes: list[dict[str, Any]] | None = None

    ragged: ClassVar[frozenset[str]] = frozenset(
        ("boxes", "labels", "label_names", "ids", "areas", "crowd", "masks", "keypoints", "captions", "attributes")
    )
    """Fields that a batch has as a list, one value for each sample: their shapes differ."""

    @classmethod
    def of_parts(cls, orientation: str | None, **fields: Any) -> Self:
        """Return a sample of the values that its parts have; `orientation` is that of the decoder of its image.

        The part for `size` is ``[height, width]``, or ``{"height": ..., "width": ...}``. Of an image that states an
        orientation, the mapping has two entries more, the orientations of EXIF by which the objects are turned for each
        `orientation` of a decoder: ``apply`` and ``stored``. Raises `DataError` for values that are no objects of an
        image.
        """
        from feedmill.samples.detection import of_parts

        made: Self = of_parts(cls, orientation, fields)
        return made

    @property
    def normalized(self) -> Any:
        """Boxes as parts of the width and the height, from 0 to 1: float32[n, 4] with ``x1, y1, x2, y2``."""
        height, width = self.size
        return self.boxes / np.array([width, height, width, height], np.float32)

    @property
    def xywh(self) -> Any:
        """Boxes as left, top, width and height in pixels, as COCO has them: float32[n, 4]."""
        return np.concatenate([self.boxes[:, :2], self.boxes[:, 2:] - self.boxes[:, :2]], axis=1)


@dataclass(kw_only=True, slots=True)
class ImageSample(TypedSample):
    """An image."""

    image: Any


@dataclass(kw_only=True, slots=True)
class ImageClassificationSample(TypedSample):
    """An image and its class, as a number, a name or both."""

    image: Any
    label: int | None = None
    label_name: str | None = None


@dataclass(kw_only=True, slots=True)
class InterleavedSample(TypedSample):
    """Images and texts in reading order."""

    sequence: list[Any]


@dataclass(kw_only=True, slots=True)
class MultiChoiceVQASample(TypedSample):
    """A question about an image, with the answers to choose from."""

    image: Any
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@dataclass(kw_only=True, slots=True)
class OCRSample(TypedSample):
    """A page image with its text, and boxes of blocks, lines, words and characters.

    Boxes are float arrays or tensors of shape ``[N, 4]`` or ``[N, 5]`` (with confidence).
    """

    image: Any
    text: str
    block_boxes: Any | None = None
    block_classes: Any | None = None
    block_text: list[str] | None = None
    lines_boxes: Any | None = None
    lines_text: list[str] | None = None
    words_boxes: Any | None = None
    words_text: list[str] | None = None
    chars_boxes: Any | None = None
    chars_text: list[str] | None = None


@dataclass(kw_only=True, slots=True)
class SimilarityInterleavedSample(TypedSample):
    """Images and texts of one document with their similarities ``[images, texts]``."""

    images: list[Any]
    texts: list[str]
    audio: list[Any] | None = None
    video: list[Any] | None = None
    similarity_matrix: Any | None = None
    matched_text_indices: list[int] | None = None


@dataclass(kw_only=True, slots=True)
class TextSample(TypedSample):
    """A text."""

    text: str


@dataclass(kw_only=True, slots=True)
class VidQASample(TypedSample):
    """A question about a video."""

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any | None = None


@dataclass(kw_only=True, slots=True)
class VQASample(TypedSample):
    """A question about an image."""

    image: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any | None = None


@dataclass(kw_only=True, slots=True)
class VQAOCRSample(TypedSample):
    """A question about an image that holds text."""

    image: Any
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: Any | None = None
    words_boxes: Any | None = None
    words_text: list[str] | None = None


SAMPLE_TYPES: Mapping[str, type[TypedSample]] = MappingProxyType(
    {
        cls.__name__: cls
        for cls in (
            CaptioningSample,
            DetectionSample,
            ImageClassificationSample,
            ImageSample,
            InterleavedSample,
            MultiChoiceVQASample,
            OCRSample,
            SimilarityInterleavedSample,
            TextSample,
            VQAOCRSample,
            VQASample,
            VidQASample,
        )
    }
)
"""The sample types by their names in ``dataset.yaml``."""

_FACTORIES = {name.removesuffix("Sample") + "Webdataset": cls for name, cls in SAMPLE_TYPES.items()}


def sample_type(name: str) -> type[TypedSample]:
    """Return the sample type of this name, or of its old factory name (``CaptioningWebdataset``).

    Raises:
        ConfigError: The type is unknown. The error suggests the nearest name and lists all types.
    """
    found = SAMPLE_TYPES.get(name) or _FACTORIES.get(name)
    if found is None:
        raise ConfigError(
            f"unknown sample type {name!r}{did_you_mean(name, [*SAMPLE_TYPES, *_FACTORIES, 'CrudeWebdataset'])}",
            fix=f"Use one of {', '.join(SAMPLE_TYPES)}, or CrudeWebdataset for undecoded parts.",
            kind="bad-option",
        )
    return found


def fields_of(cls: type[Any]) -> tuple[list[str], list[str]]:
    """Return the names of a sample type's own fields (required, optional), without the four base fields."""
    obligatory: list[str] = []
    optional: list[str] = []
    for field in dataclasses.fields(cls):
        if field.name in BASE_FIELDS or not field.init:
            continue
        given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        (optional if given else obligatory).append(field.name)
    return obligatory, optional


def named_fields(sample: Any) -> Mapping[str, Any] | None:
    """Return the fields by name of a mapping (`Sample`, crude dict) or a dataclass; None for anything else.

    Mappings are not copied, so the parts of a `Sample` are still decoded lazily.
    """
    if isinstance(sample, Mapping):
        return sample
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    return None
