"""What the three sources of annotations share: their files, checks of objects, and the content of samples."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from feedmill.errors import MissingExtra
from feedmill.formats.hub_splits import WORDS
from feedmill.importing.kinds import Name
from feedmill.importing.scanning import File, Files, read_file
from feedmill.jobs.reports import LeftOut
from feedmill.samples.imageheader import image_header
from feedmill.storage import open_store

COCO, YOLO, VOC = "COCO", "YOLO", "Pascal VOC"
_MOST = 100
"""Names that are recorded for each reason why an annotation is left out."""
HEAD = 4096
"""Bytes of a file that are looked at to recognize it."""
SPLITS = {word: {"validation": "val"}.get(split, split) for split, words in WORDS.items() for word in words}
MOST_CLASSES = 1 << 63
RAW = frozenset(("segmentation",))
"""Values of entries that stay JSON."""
_FURTHEST = {False: 1e7, True: 10.0}
"""Largest coordinate of a box, by whether it is a part of the image's size."""
_UNREADABLE = (1 << 24, 1 << 24)

_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Annotations:
    """Files of annotations.

    Attributes:
        kind: of them, one of `COCO`, `YOLO` and `VOC`.
        tables: files about all images: COCO's JSON, the names of the classes, lists of splits.
        labels: path with prefix, without suffix -> file about one image.
        documents: path with prefix -> content of COCO's files.
        pictures: path with prefix, without suffix -> picture of the masks of an image of VOC.
    """

    kind: str
    tables: list[File] = field(default_factory=list)
    labels: dict[str, File] = field(default_factory=dict)
    documents: dict[str, dict[str, msgspec.Raw]] = field(default_factory=dict)
    pictures: dict[str, File] = field(default_factory=dict)

    @property
    def files(self) -> set[File]:
        """All files that are used."""
        return {*self.tables, *self.labels.values(), *self.pictures.values()}


class Annotated(NamedTuple):
    """The annotations of an image before it is read.

    Attributes:
        split: that its annotations name; None for none.
        content: JSON for `completed`.
        objects: number of them.
        captions: number of them.
    """

    split: str | None
    content: bytes
    objects: int
    captions: int


@dataclass(slots=True)
class Read:
    """Annotations of all images.

    Attributes:
        images: path of an image file, with prefix -> its annotations.
        fields: fields of objects that the samples have, besides those that they always have.
        notes: what was read, for the report.
    """

    images: dict[str, Annotated]
    fields: list[str]
    notes: list[str]


@dataclass(slots=True)
class Image:
    """Annotations of an image while they are read; boxes are parts of its size if `size` is None."""

    about: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    split: str | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)


class Reader(ABC):
    """What the three sources share: checks of boxes, categories, and the content of samples."""

    kind = ""

    def __init__(self, files: Files, images: Sequence[tuple[File, Name]], found: Annotations, left: LeftOut) -> None:
        self.files, self.media, self.found, self.left = files, images, found, left
        self.names = [files.name(file) for file, _ in images]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.images: dict[str, Image] = {}
        self.categories: dict[int, str] = {}
        self.keypoints: list[str] = []
        self.flip: list[int] | None = None
        self.objects = True
        self.beyond: Counter[str] = Counter()
        self.warnings: list[str] = []
        self.unused: set[str] = set()

    @abstractmethod
    def read(self) -> None:
        """Fill `images` with the annotations of the files; what cannot be used goes to `left`."""

    def lose(self, reason: str, name: str) -> None:
        self.left.add(reason, name, most=_MOST)

    def entry(self, raw: Mapping[str, msgspec.Raw], where: str) -> dict[str, Any] | None:
        """Return the values of an object of JSON, masks undecoded; None, with its reason in `left`, for odd numbers."""
        try:
            return {name: value if name in RAW else decode(value) for name, value in raw.items()}
        except msgspec.MsgspecError:
            self.lose("an entry with a value that JSON readers refuse, such as a number out of range", where)
            return None

    def points(self, made: dict[str, Any], points: Sequence[Sequence[Any]], where: str) -> None:
        """Add keypoints to an object: coordinates, and 0, 1 or 2."""
        if all(all(abs(value) < 1e7 for value in point) and point[2] in (0, 1, 2) for point in points):
            made["keypoints"] = [list(point) for point in points]
        else:
            self.lose("keypoints that are not pairs of numbers with 0, 1 or 2; their box is kept", where)

    def size_of(self, name: str) -> tuple[int, int]:
        """Return height and width of a file of which the annotations have none."""
        file = self.media[self._numbers[name]][0]
        try:
            width, height = image_size(read_file(open_store(self.files.roots[file.root]), file.path, file.size))
        except MissingExtra:
            raise
        except Exception:  # each codec has its own errors; the file is named when it is read for its sample
            return _UNREADABLE
        return height, width

    def checked(self, box: Sequence[Any], size: tuple[int, int] | None, where: str) -> list[float] | None:
        """Return a box ``x1, y1, x2, y2``; None, with its reason in `left`, if it cannot be used.

        Args:
            size: height and width of the image; None if the box has parts of them.
        """
        try:
            x1, y1, x2, y2 = map(float, box)
            finite = all(abs(edge) < _FURTHEST[size is None] for edge in (x1, y1, x2, y2))  # not of NaN
        except (TypeError, ValueError):
            finite = False
        if not finite:
            self.lose("an annotation without a valid box", where)
            return None
        height, width = size or (1, 1)
        if np.float32(x2) <= np.float32(x1) or np.float32(y2) <= np.float32(y1):  # as samples have it
            self.lose("a box without area", where)
        elif x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
            self.lose("a box outside the image", where)
        else:
            slack = 1 if size else 0.005
            over = min(x1, y1) < -slack or x2 > width + slack or y2 > height + slack
            self.beyond.update([where] if over else [])
            return [x1, y1, x2, y2]
        return None

    def result(self) -> Read:
        """Return the annotations of all images, as the parts of samples."""
        everything = [each for image in self.images.values() for each in image.found]
        count, kinds = len(everything), {each["label"] for each in everything}
        captions = sum(len(image.captions) for image in self.images.values())
        has = {name: any(each.get(name) is not None for each in everything) for name in _OPTIONAL}
        names = bool(self.categories)
        most = max((len(each["keypoints"]) for each in everything if each.get("keypoints")), default=0)
        fields = [name for name in _OPTIONAL if has[name]] + ["label_names"] * names + ["captions"] * bool(captions)
        if has["keypoints"]:
            if len(self.keypoints) != most:
                self.keypoints = []
            self.flip = self.flip if self.flip and len(self.flip) == most else flip_of(self.keypoints)
            fields += ["keypoint_names"] * bool(self.keypoints) + ["keypoint_flip"] * bool(self.flip)
        images = {}
        for where, image in self.images.items():
            images[where] = self._content(image, fields, most)
            image.found = []
        noted = [f"{captions:,} caption{'s' * (captions != 1)}"] * bool(captions)
        for name, noun in (("masks", "mask{}"), ("keypoints", "object{} with keypoints")) if self.objects else ():
            if total := sum(each.get(name) is not None for each in everything):
                noted.append(f"{total:,} {noun.format('s' * (total != 1))}")
        if self.objects and (count or not captions):
            noted.insert(
                0, f"{count:,} box{'es' * (count != 1)} of {len(kinds):,} categor{'y' if len(kinds) == 1 else 'ies'}"
            )
            if crowd := sum(each["crowd"] for each in everything):
                noted.append(f"{crowd:,} of the boxes around crowds")
        notes = [f"annotations of {self.kind}: {', '.join(noted)}{self._source()}"]
        empty = sum(not one.objects and not one.captions for one in images.values())
        if empty:
            notes.append(
                f"{empty:,} image{'s' * (empty > 1)} without annotations, which {'are' if empty > 1 else 'is'} kept"
            )
        if self.beyond:
            first = next(iter(self.beyond))
            many = len(self.beyond) > 1
            notes.append(
                f"warning: {len(self.beyond):,} box{'es reach' if many else ' reaches'} beyond"
                f" {'their images' if many else 'its image'}, and {'are' if many else 'is'} kept ({first})"
            )
        if self.unused:
            notes.append(f"not imported of the annotations: {', '.join(sorted(self.unused))}")
        return Read(images, fields, notes + self.warnings)

    def _source(self) -> str:
        if not self.found.tables:
            return ""
        more = len(self.found.tables) - 1
        return f", in {self.files.name(self.found.tables[0])}{f' and {more:,} more' if more else ''}"

    def _content(self, image: Image, fields: Sequence[str], keypoints: int) -> Annotated:
        objects = image.found
        content: dict[str, Any] = {
            "source": self.kind,
            "size": None if image.size is None else list(image.size),
            "boxes": [each["box"] for each in objects],
            "labels": [each["label"] for each in objects],
            "areas": [each["area"] for each in objects],
            "crowd": [each["crowd"] for each in objects],
        }
        for name in ("ids", "masks"):
            if name in fields:
                content[name] = [each.get(name) for each in objects]
        if "attributes" in fields:
            content["attributes"] = [each.get("attributes") or {} for each in objects]
        if "label_names" in fields:
            content["label_names"] = [self.categories.get(each["label"], str(each["label"])) for each in objects]
        if "keypoints" in fields:
            none = [[0, 0, 0]] * keypoints
            content["keypoints"] = [
                [*(each.get("keypoints") or ()), *none[len(each.get("keypoints") or ()) :]] for each in objects
            ]
            content |= {"keypoint_names": self.keypoints} if self.keypoints else {}
            content |= {"keypoint_flip": self.flip} if self.flip else {}
        if "captions" in fields:
            content["captions"] = image.captions
        if image.about:
            content["image"] = image.about
        return Annotated(image.split, _encode(content), len(objects), len(image.captions))


_OPTIONAL = ("ids", "masks", "keypoints", "attributes")


def flip_of(names: Sequence[str]) -> list[int] | None:
    """Return for each keypoint the number of its counterpart on the other side, by ``left`` and ``right`` in the names.

    >>> flip_of(["nose", "left_eye", "right_eye"])
    [0, 2, 1]
    """
    numbers = {name.lower(): number for number, name in enumerate(names)}

    def other(name: str) -> str:
        low = name.lower()
        for one, two in (("left", "right"), ("right", "left")):
            if one in low:
                return low.replace(one, two)
        for one, two in (("l", "r"), ("r", "l")):
            low, count = re.subn(rf"(?<![a-z]){one}(?![a-z])", two, low)
            if count:
                return low
        return low

    flip = [numbers.get(other(name), number) for number, name in enumerate(names)]
    return flip if names and sorted(flip) == list(range(len(names))) else None


class Places:
    """Image files by the ends of their paths."""

    def __init__(self, names: Sequence[str]) -> None:
        self._by_name: dict[str, list[str]] = {}
        for name in names:
            self._by_name.setdefault(name.rpartition("/")[2], []).append(name)

    def of(self, given: str, source: str) -> tuple[str | None, bool]:
        """Return the file that a path means, and whether several fit.

        Of several, it is the one below the folder of the file `source` that names the path, else the one in a folder
        that the name of that file has: ``instances_val2017.json`` means ``val2017/1.jpg``.
        """
        parts = [part for part in given.replace("\\", "/").split("/") if part not in ("", ".", "..")]
        fitting: list[str] = []
        most = 0
        for name in self._by_name.get(parts[-1] if parts else "", ()):
            agreed = 0
            for one, other in zip(reversed(parts), reversed(name.split("/")), strict=False):
                if one != other:
                    break
                agreed += 1
            if agreed >= most:
                fitting, most = [*fitting, name] if agreed == most else [name], agreed
        folder, _, base = source.rpartition("/")
        tests: tuple[Callable[[str], bool], ...] = (
            lambda name: name.rpartition("/")[0] == folder,
            lambda name: any(part.lower() in base.lower() for part in name.split("/")[:-1]),
            lambda name: name.startswith(f"{folder}/"),
            lambda name: split_of_folders(name) == split_in(base.rpartition(".")[0]),
        )
        for test in tests:
            if len(fitting) > 1:
                fitting = [name for name in fitting if test(name)] or fitting
        return (fitting[0], False) if len(fitting) == 1 else (None, len(fitting) > 1)


def split_in(name: str) -> str | None:
    """Return the split that a word of a name is: ``val`` of ``instances_val2017``; None if it has none."""
    return next((SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLITS), None)


def split_of_folders(path: str) -> str | None:
    """Return the split that a folder of a path names: ``train`` of ``images/train2017/1.jpg``; None if none does."""
    for folder in reversed(path.split("/")[:-1]):
        word = re.fullmatch(r"([a-z]+)[-_ ]?[0-9]*", folder.lower())
        if word and word[1] in SPLITS:
            return SPLITS[word[1]]
    return None


def image_size(data: bytes) -> tuple[int, int]:
    """Return width and height of an image as stored. Raises `DataError` if it is none, `MissingExtra`."""
    header = image_header(data)
    if header is not None:
        return header[:2]
    from feedmill.samples.media import probe

    _, facts = probe("", data, "image")
    return facts["width"], facts["height"]
