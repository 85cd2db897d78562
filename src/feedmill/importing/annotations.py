"""Annotations of images: COCO, folders of YOLO, and Pascal VOC.

`find_annotations` recognizes the files, `read_annotations` reads the objects of each image, and `completed` adds what
only the image tells: its size and orientation. Whatever the source has, boxes become ``x1, y1, x2, y2`` in pixels:

    COCO    ``x, y, width, height`` in pixels
    YOLO    center, width and height as parts of the upright image; polygons and keypoints likewise
    VOC     first and last pixel, counted from 1; if a box of the folder begins at 0, the edges in pixels

Sources: https://cocodataset.org/#format-data, https://docs.ultralytics.com/datasets/, and the development kit of VOC
2012.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson

from feedmill.documents.hub_splits import WORDS
from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.formats.orientation import turned
from feedmill.importing.kinds import IMAGE, JSON, Name, divide
from feedmill.importing.scanning import File, Files, read_file
from feedmill.jobs.left_out import LeftOut
from feedmill.samples.detection import polygon_of, runs_of
from feedmill.samples.imageheader import image_header, orientation_in
from feedmill.storage import open_store

COCO, YOLO, VOC = "COCO", "YOLO", "Pascal VOC"
UNLISTED = "not listed in the annotations"
_MOST = 100
"""Names that are recorded for each reason why an annotation is left out."""
_MOST_TABLES = 200
"""JSON files that may be COCO's, the largest: some tools write one with other content for each image."""
_HEAD = 4096
_COCO_START = re.compile(rb'\s*\{\s*"(images|annotations|categories|info|licenses|type)"\s*:')
_SPLITS = {word: {"validation": "val"}.get(split, split) for split, words in WORDS.items() for word in words}
_SMALL = 1 << 20
_CLASS_LISTS = ("classes.txt", "obj.names", "_darknet.labels")
_PICTURED = re.compile(r"(^|/)Segmentation(Class|Object)(Aug|Raw)?/")
_NUMBERS = re.compile(rb"(?i)([-+0-9.e \t\r\n]|nan|inf)*")
_MOST_CLASSES = 1 << 63
_UNREADABLE = (1 << 24, 1 << 24)
_FORWARD = {COCO: "stored", YOLO: "upright", VOC: "stored"}
"""What boxes refer to if the size of a turned image does not tell."""

_coco = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entries = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_encode = msgspec.json.Encoder().encode
_value = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Annotations:
    """Files of annotations.

    Attributes:
        kind: of them, one of `COCO`, `YOLO` and `VOC`.
        tables: files about all images: COCO's JSON, the names of the classes, lists of splits.
        labels: path with prefix, without suffix -> file about one image.
        documents: path with prefix -> content of COCO's files.
    """

    kind: str
    tables: list[File] = field(default_factory=list)
    labels: dict[str, File] = field(default_factory=dict)
    documents: dict[str, dict[str, msgspec.Raw]] = field(default_factory=dict)

    @property
    def files(self) -> set[File]:
        """All files that are used."""
        return {*self.tables, *self.labels.values()}


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


def find_annotations(
    files: Files, divided: Sequence[tuple[File, Name]], tables: Sequence[File] = ()
) -> Annotations | None:
    """Return the annotations among the files; None if there are none.

    Args:
        divided: files of all kinds, images among them.
        tables: files that are about media because the user named them.

    Raises:
        DataError: a file that looks like COCO's cannot be read.
    """
    stems = {name.stem for _, name in divided if name.kind == IMAGE}
    if not stems:
        return None
    named = {*tables, *(file for file in files.files if (file.root, file.path) in files.typed)}
    for find in (_find_coco, _find_voc, _find_yolo):
        found = find(files, divided, stems, named)
        if found is not None:
            return found
    return None


def _find_coco(
    files: Files, divided: Sequence[tuple[File, Name]], stems: set[str], named: set[File]
) -> Annotations | None:
    found = Annotations(COCO)
    alone = [file for file, name in divided if name.suffix == "json" and name.stem not in stems]
    largest = {*sorted(alone, key=lambda file: file.size, reverse=True)[:_MOST_TABLES], *named}
    for file, name in divided:
        if file not in largest or name.kind != JSON or name.suffix != "json":
            continue
        store = open_store(files.roots[file.root])
        head = store.read(file.path, 0, min(file.size, _HEAD)).removeprefix(b"\xef\xbb\xbf")
        if not _COCO_START.match(head):
            continue
        where = files.name(file)
        try:
            document = _coco.decode(store.read(file.path).removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(
                f"looks like annotations of COCO, and is not valid JSON: {error}",
                file=where,
                kind="bad-line",
                fix="Repair the file, or leave it out with --exclude.",
            ) from None
        if "images" in document and document.keys() & {"annotations", "categories"}:
            found.tables.append(file)
            found.documents[where] = document
    return found if found.tables else None


def _find_voc(
    files: Files,
    divided: Sequence[tuple[File, Name]],
    stems: set[str],  # noqa: ARG001
    named: set[File],  # noqa: ARG001
) -> Annotations | None:
    found = Annotations(VOC)
    for file, name in divided:
        if name.suffix != "xml" or not file.size:
            continue
        if not found.labels:  # one is read for all
            head = open_store(files.roots[file.root]).read(file.path, 0, min(file.size, _HEAD))
            if b"<annotation" not in head or not re.search(rb"<(object|filename|size)\b", head):
                continue
        found.labels[name.stem] = file
    for file, _ in divided if found.labels else ():
        if re.search(r"(^|/)ImageSets/Main/(train|val|test)\.txt$", file.path):
            found.tables.append(file)
    return found if found.labels else None


def _find_yolo(
    files: Files,
    divided: Sequence[tuple[File, Name]],
    stems: set[str],
    named: set[File],  # noqa: ARG001
) -> Annotations | None:
    found = Annotations(YOLO)
    for file, name in divided:
        base = file.path.rpartition("/")[2].lower()
        settings = _settings(files, file) if name.suffix in ("yaml", "yml") and file.size < _SMALL else None
        if settings is not None and "names" in settings:
            found.tables += [file, *(each for key in _SPLITS for each in _listing(files, settings.get(key)))]
        elif base in _CLASS_LISTS or (name.suffix == "names" and file.size < _SMALL):
            found.tables.append(file)
    texts = [(file, name) for file, name in divided if name.suffix == "txt" and file not in found.tables]
    beside = [(file, name) for file, name in texts if "labels" in name.stem.split("/")[:-1]]
    if found.tables:
        beside = beside or [(file, name) for file, name in texts if name.stem in stems]
    if not beside or not any(_is_label(files, file) for file, _ in beside[:20]):
        return None
    found.labels = {name.stem: file for file, name in beside}
    return found


def _is_label(files: Files, file: File) -> bool:
    """Return whether a text has nothing but rows of numbers."""
    data = open_store(files.roots[file.root]).read(file.path, 0, min(file.size, _HEAD))
    first = data.partition(b"\n")[0].split()
    return len(first) >= 5 and _NUMBERS.fullmatch(data) is not None


def _settings(files: Files, file: File) -> dict[str, Any] | None:
    """Return a mapping in YAML, its scalars as text; None if the file has none."""
    import yaml

    from feedmill.formats.yamls import compose, refuse_twice

    where = files.name(file)
    try:
        root = compose(open_store(files.roots[file.root]).read(file.path), where)
        refuse_twice(root, where)
    except (yaml.YAMLError, ValueError, ConfigError):
        return None

    def plain(node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return {str(plain(key)): plain(value) for key, value in node.value}
        return [plain(each) for each in node.value] if isinstance(node, yaml.SequenceNode) else node.value

    made = plain(root) if root is not None else None
    return made if isinstance(made, dict) else None


def is_picture_of_masks(found: Annotations, path: str) -> bool:
    """Return whether an image file is no image of a dataset, but the masks of one."""
    return found.kind == VOC and _PICTURED.search(path) is not None


def read_annotations(
    files: Files, images: Sequence[tuple[File, Name]], found: Annotations, left: LeftOut, *, objects: bool = True
) -> Read:
    """Return the annotations of all images; those that cannot be used are added to `left`.

    Args:
        images: image files.
        objects: read objects, not only captions.

    Raises:
        ConfigError: two files give one category different names.
        DataError: a file of annotations is damaged as a whole.
    """
    reader = {COCO: _Coco, YOLO: _Yolo, VOC: _Voc}[found.kind](files, images, found, left)
    reader.objects = objects
    reader.read()
    return reader.result()


@dataclass(slots=True)
class _Image:
    """Annotations of an image while they are read; boxes are parts of its size if `size` is None."""

    about: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    split: str | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)


class _Reader:
    """What the three sources share: checks of boxes, categories, and the content of samples."""

    kind = ""

    def __init__(self, files: Files, images: Sequence[tuple[File, Name]], found: Annotations, left: LeftOut) -> None:
        self.files, self.media, self.found, self.left = files, images, found, left
        self.names = [files.name(file) for file, _ in images]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.images: dict[str, _Image] = {}
        self.categories: dict[int, str] = {}
        self.keypoints: list[str] = []
        self.flip: list[int] | None = None
        self.objects = True
        self.beyond: Counter[str] = Counter()
        self.warnings: list[str] = []
        self.unused: set[str] = set()

    def read(self) -> None:
        raise NotImplementedError

    def lose(self, reason: str, name: str) -> None:
        self.left.add(reason, name, most=_MOST)

    def entry(self, raw: Mapping[str, msgspec.Raw], where: str) -> dict[str, Any] | None:
        """Return the values of an object of JSON, masks undecoded; None, with its reason in `left`, for odd numbers."""
        try:
            return {name: value if name in _RAW else _value(value) for name, value in raw.items()}
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
            width, height = _size(read_file(open_store(self.files.roots[file.root]), file.path, file.size))
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
            finite = all(abs(edge) < 1e7 for edge in (x1, y1, x2, y2))  # not of NaN
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

    def _content(self, image: _Image, fields: Sequence[str], keypoints: int) -> Annotated:
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


class _Coco(_Reader):
    kind = COCO

    def read(self) -> None:
        places = _Places(self.names)
        for file in self.found.tables:
            self._file(file, places)
        listed = self.images.keys()
        for name in self.names:
            if name not in listed:
                self.left.add(UNLISTED, name)

    def _file(self, file: File, places: _Places) -> None:
        where = self.files.name(file)
        document = self.found.documents.pop(where)
        images = self._list(document, "images", where)
        annotations = self._list(document, "annotations", where)
        categories = self._categories(document, where) if self.objects else None
        split = split_in(divide(where).stem.rpartition("/")[2])
        by_id: dict[Any, str | None] = {}
        for number, raw in enumerate(images):
            entry = self.entry(raw, f"{where}:{number}")
            if entry is not None:
                self._image(entry, f"{where}:{number}", split, by_id, places)
        mine = {name: self.images[name] for name in by_id.values() if name is not None}
        others = {name: {each["ids"]: each for each in image.found} for name, image in mine.items()}
        ids: Counter[Any] = Counter()
        seen: dict[tuple[str, Any], list[dict[str, Any]]] = {}
        for number, raw in enumerate(annotations):
            self._annotation(raw, f"{where}:{number}", by_id, categories, others, ids, seen)
        twice = sum(count > 1 for count in ids.values())
        if twice:
            first = next(one for one, count in ids.items() if count > 1)
            self.warnings.append(
                f"warning: {twice:,} id{'s' * (twice > 1)} of several annotations in {where}, which are kept (such as"
                f" {first})"
            )
        self.unused |= document.keys() - {"images", "annotations", "categories"}

    def _list(self, document: Mapping[str, msgspec.Raw], name: str, where: str) -> list[dict[str, msgspec.Raw]]:
        try:
            return _entries.decode(document.get(name, msgspec.Raw(b"[]")))
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{name!r} of annotations of COCO must be a list of objects: {error}",
                file=where,
                kind="bad-line",
                fix="Repair the file, or leave it out with --exclude.",
            ) from None

    def _categories(self, document: Mapping[str, msgspec.Raw], where: str) -> set[int] | None:
        """Return the ids of the categories; None if the file lists none."""
        listed: set[int] = set()
        more: set[str] = set()
        for number, raw in enumerate(self._list(document, "categories", where)):
            entry = self.entry(raw, f"{where}:{number}")
            if entry is None:
                continue
            one, name = entry.get("id"), entry.get("name")
            if type(one) is not int or abs(one) >= _MOST_CLASSES or not isinstance(name, str):
                self.lose("a category without id and name", f"{where}:{number}")
                continue
            if one in listed:
                self.lose("a second category with an id", f"{where}: category {one} {name!r}")
                continue
            listed.add(one)
            if self.categories.setdefault(one, name) != name:
                raise ConfigError(
                    f"the category {one} is {self.categories[one]!r} in one file and {name!r} in this one",
                    file=where,
                    kind="other-columns",
                    fix="Import one of them with --exclude, or give the categories ids that agree.",
                )
            points = entry.get("keypoints")
            if isinstance(points, list) and points:
                names = list(map(str, points))
                if self.keypoints and self.keypoints != names:
                    self.warnings.append(f"warning: no names of keypoints: categories in {where} have other ones")
                    names = []
                self.keypoints = names
            more |= entry.keys() - {"id", "name", "keypoints"}
        self.unused |= more
        return listed or None

    def _image(
        self, entry: dict[str, Any], where: str, split: str | None, by_id: dict[Any, str | None], places: _Places
    ) -> None:
        one, path = entry.get("id"), entry.get("file_name") or entry.get("coco_url")
        if not isinstance(one, int | str) or not isinstance(path, str):
            self.lose("an image without id and file_name", where)
            return
        if one in by_id:
            self.lose("a second image with an id", f"{where} {path} (id {one})")
            return
        name, several = places.of(path, where.rpartition(":")[0])
        by_id[one] = name
        if name is None:
            why = "several files fit an image of the annotations" if several else "an image that is not there"
            self.lose(why, f"{where} {path}")
            return
        height, width = entry.pop("height", None), entry.pop("width", None)
        sized = type(height) is int and type(width) is int and min(height, width) > 0
        size = (height, width) if sized else self.size_of(name)
        image = self.images.get(name)
        entry.pop("file_name", None)
        if image is None:
            self.images[name] = _Image(entry, size, split)
        elif image.size != size:
            self.lose("another size of an image in a second file", f"{where} {path}")
            by_id[one] = None
        else:
            image.about = {**entry, **image.about}

    def _annotation(
        self,
        raw: dict[str, msgspec.Raw],
        where: str,
        by_id: Mapping[Any, str | None],
        categories: set[int] | None,
        others: Mapping[str, dict[Any, dict[str, Any]]],
        ids: Counter[Any],
        seen: dict[tuple[str, Any], list[dict[str, Any]]],
    ) -> None:
        entry = self.entry(raw, where)
        if entry is None:
            return
        one, image_id = entry.pop("id", None), entry.pop("image_id", None)
        one = one if isinstance(one, int | str) else None
        where += f" (annotation {one}, image {image_id})"
        if not isinstance(image_id, int | str) or image_id not in by_id:
            self.lose("an annotation of an image that is not listed", where)
            return
        name = by_id[image_id]
        if name is None:
            self.lose("an annotation of an image that is left out", where)
            return
        image = self.images[name]
        if "caption" in entry and "bbox" not in entry:
            if isinstance(entry["caption"], str) and entry["caption"].strip():
                image.captions.append(entry["caption"])
            else:
                self.lose("an empty caption", where)
            return
        label = entry.pop("category_id", None)
        if not self.objects:
            return
        if (
            type(label) is not int
            or abs(label) >= _MOST_CLASSES
            or (categories is not None and label not in categories)
        ):
            self.lose("an annotation of a category that is not listed", f"{where}: category {label}")
            return
        given = entry.pop("bbox", None)
        edges: Sequence[Any] = ()
        if isinstance(given, list) and len(given) == 4 and all(type(v) in (int, float) for v in given):
            edges = (given[0], given[1], given[0] + given[2], given[1] + given[3])
        box = self.checked(edges, image.size, where)
        if box is None:
            return
        area, crowd = entry.pop("area", None), entry.pop("iscrowd", None)
        if crowd not in (None, 0, 1):
            self.lose("an annotation whose iscrowd is neither 0 nor 1", f"{where}: {crowd!r}")
            return
        made: dict[str, Any] = {
            "box": box,
            "label": label,
            "ids": one,
            "area": area if type(area) in (int, float) else given[2] * given[3],
            "crowd": bool(crowd),
        }
        self._add_mask(made, entry.pop("segmentation", None), image.size, where)
        self._add_keypoints(made, entry, where)
        if entry:
            made["attributes"] = entry
        if one is not None:
            same = others[name].get(one)
            if same is not None and (same["label"], same["box"]) == (label, box):  # of another file, e.g. keypoints
                same |= {key: value for key, value in made.items() if same.get(key) is None}
                return
            before = seen.setdefault((name, one), [])
            if made in before:
                self.lose("an annotation that is there already", where)
                return
            before.append(made)
            ids[one] += 1
        image.found.append(made)

    def _add_mask(self, made: dict[str, Any], raw: Any, size: tuple[int, int] | None, where: str) -> None:
        if raw is None:
            return
        segment = _value(raw)
        if segment in (None, []):
            return
        try:
            if isinstance(segment, dict):
                runs_of(segment, *(size or (0, 0)))
            elif isinstance(segment, list):
                for polygon in segment:
                    polygon_of(polygon)
            else:
                raise DataError("it is neither polygons nor runs", kind="bad-part")
        except DataError as error:
            self.lose("a mask that is not valid; its box is kept", f"{where}: {error.what}")
            return
        made["masks"] = segment

    def _add_keypoints(self, made: dict[str, Any], entry: dict[str, Any], where: str) -> None:
        given = entry.pop("keypoints", None)
        entry.pop("num_keypoints", None)  # the visible ones are counted
        if given in (None, []):
            return
        if not isinstance(given, list) or len(given) % 3 or not all(type(v) in (int, float) for v in given):
            self.lose("keypoints that are not triples of numbers; their box is kept", where)
            return
        self.points(made, [given[at : at + 3] for at in range(0, len(given), 3)], where)


_RAW = frozenset(("segmentation",))


class _Places:
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
    return next((_SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _SPLITS), None)


def split_of_folders(path: str) -> str | None:
    """Return the split that a folder of a path names: ``train`` of ``images/train2017/1.jpg``; None if none does."""
    for folder in reversed(path.split("/")[:-1]):
        word = re.fullmatch(r"([a-z]+)[-_ ]?[0-9]*", folder.lower())
        if word and word[1] in _SPLITS:
            return _SPLITS[word[1]]
    return None


class _Yolo(_Reader):
    kind = YOLO

    def read(self) -> None:
        self.shape: tuple[int, int] | None = None
        settings = [each for file in self.found.tables if (each := self._described(file)) is not None]
        lists = self._lists(settings)
        if not self.categories:
            self.warnings.append("warning: no names of classes: there is no data.yaml or classes.txt with 'names'")
        rest = dict(self.found.labels)
        bases: dict[str, list[str]] = {}
        for label in rest:
            bases.setdefault(label.rpartition("/")[2], []).append(label)
        images = Counter(media.stem.rpartition("/")[2] for _, media in self.media)
        for (_, media), name in zip(self.media, self.names, strict=True):
            image = self.images[name] = _Image(split=lists(name))
            alike = bases.get(media.stem.rpartition("/")[2], [])
            stem = next((one for one in (_labels_of(media.stem), media.stem) if one in self.found.labels), None)
            if stem is None and len(alike) == 1 == images[media.stem.rpartition("/")[2]]:
                stem = alike[0]
            if stem is not None:
                self._file(self.found.labels[stem], image)
                rest.pop(stem, None)
        for file in rest.values():
            self.left.add("labels without an image", self.files.name(file))

    def _described(self, file: File) -> dict[str, Any] | None:
        """Read the names of the classes, and the form of keypoints. Return the content of a YAML."""
        base, where = file.path.rpartition("/")[2].lower(), self.files.name(file)
        if base not in _CLASS_LISTS and not base.endswith((".yaml", ".yml", ".names")):
            return None  # a list of images
        if not base.endswith((".yaml", ".yml")):
            text = read_file(open_store(self.files.roots[file.root]), file.path, file.size).decode("utf-8", "replace")
            names: Any = [line.strip() for line in text.splitlines() if line.strip()]
            settings: dict[str, Any] = {}
        else:
            settings = _settings(self.files, file) or {}
            names = settings.get("names")
        pairs = names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else ()
        for number, name in pairs:
            if not re.fullmatch("[0-9]{1,18}", str(number)) or not isinstance(name, str):
                raise DataError(
                    f"the names of classes must be texts by number: found {number!r}: {name!r}",
                    file=where,
                    kind="bad-config",
                    fix="Write 'names: [cat, dog]' or 'names: {0: cat, 1: dog}'.",
                )
            if self.categories.setdefault(int(number), name) != name:
                raise ConfigError(
                    f"the class {number} is {self.categories[int(number)]!r} in one file and {name!r} in this one",
                    file=where,
                    kind="other-columns",
                    fix="Import one of them with --exclude.",
                )
        shape, flip = settings.get("kpt_shape"), settings.get("flip_idx")
        if shape is not None:
            try:
                self.shape = (int(shape[0]), int(shape[1]))
                self.flip = None if flip is None else list(map(int, flip))
            except (TypeError, ValueError, IndexError):
                self.shape = None
            if self.shape is None or self.shape[0] < 1 or self.shape[1] not in (2, 3):
                raise DataError(
                    f"kpt_shape and flip_idx must be lists of numbers: found {shape!r} and {flip!r}",
                    file=where,
                    kind="bad-config",
                    fix="Write for example 'kpt_shape: [17, 3]'.",
                )
        return settings or None

    def _lists(self, settings: Sequence[Mapping[str, Any]]) -> Callable[[str], str | None]:
        """Return a function path -> split, by the folders and lists that ``train``, ``val`` and ``test`` name."""
        folders: dict[str, str] = {}
        listed: dict[str, str] = {}
        places = _Places(self.names)
        for each in settings:
            for key, split in _SPLITS.items():
                for path in _paths(each.get(key)):
                    if not path.endswith(".txt"):
                        folders.setdefault(path, split)
                for file in _listing(self.files, each.get(key)):
                    where = self.files.name(file)
                    data = read_file(open_store(self.files.roots[file.root]), file.path, file.size)
                    for line in data.decode("utf-8", "replace").split():
                        image, _ = places.of(line, where)
                        if image is None:
                            self.lose("a listed image that is not there", f"{where} {line}")
                        else:
                            listed.setdefault(image, split)

        def split_of(name: str) -> str | None:
            if name in listed:
                return listed[name]
            return next((split for path, split in folders.items() if f"/{path}/" in f"/{name}"), None)

        return split_of

    def _file(self, file: File, image: _Image) -> None:
        where = self.files.name(file)
        data = read_file(open_store(self.files.roots[file.root]), file.path, file.size)
        seen = set()
        for number, line in enumerate(data.splitlines(), 1):
            words = line.split()
            if not words:
                continue
            at = f"{where}:{number}"
            values: list[float] = []
            with suppress(ValueError):
                values = [float(word) for word in words]
            if len(values) < 5 or not np.isfinite(values).all() or not 0 <= values[0] < 1e15 or values[0] % 1:
                self.lose("a line of labels that is no class with numbers", at)
            elif line in seen:
                self.lose("a line of labels that is there already", at)
            else:
                seen.add(line)
                self._object(int(values[0]), np.array(values[1:]), image, at)

    def _object(self, label: int, values: Any, image: _Image, where: str) -> None:
        if self.categories and label not in self.categories:
            self.lose("a label of a class that is not listed", f"{where}: class {label}")
            return
        points = masks = None
        if self.shape is not None and len(values) == 4 + self.shape[0] * self.shape[1]:
            points = values[4:].reshape(self.shape)
            if self.shape[1] == 2:  # (0, 0) is not labeled, as ultralytics has it
                points = np.concatenate([points, 2.0 * (points != 0).any(axis=1, keepdims=True)], axis=1)
            points = [*map(list, points.tolist())]
        if points is not None or len(values) == 4:
            x, y, width, height = values[:4].tolist()
            edges = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        elif len(values) >= 6 and len(values) % 2 == 0:
            corners = values.reshape(-1, 2)
            edges = (*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist())
            masks = [values.tolist()]
        else:
            self.lose("a line of labels that is neither a box, a polygon nor keypoints", where)
            return
        box = self.checked(edges, None, where)
        if box is not None:
            area = (box[2] - box[0]) * (box[3] - box[1])
            made = {"box": box, "label": label, "area": area, "crowd": False, "masks": masks}
            if points is not None:
                self.points(made, points, where)
            image.found.append(made)


def _paths(value: Any) -> list[str]:
    """Return the paths that ``train``, ``val`` or ``test`` of a YAML has, below the folder of the dataset."""
    given = [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, str) and path]
    return ["/".join(part for part in path.split("/") if part not in ("", ".", "..")) for path in given]


def _listing(files: Files, value: Any) -> list[File]:
    """Return the lists of images that ``train``, ``val`` or ``test`` of a YAML names."""
    ends = tuple(f"/{path}" for path in _paths(value) if path.endswith(".txt"))
    return [file for file in files.files if ends and f"/{files.name(file)}".endswith(ends)]


def _labels_of(stem: str) -> str:
    """Return where YOLO looks for labels: the last folder ``images`` of a path is ``labels``."""
    parts = stem.split("/")
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            return "/".join([*parts[:at], "labels", *parts[at + 1 :]])
    return stem


class _Voc(_Reader):
    kind = VOC

    def read(self) -> None:
        lists = {divide(file.path).stem.rpartition("/")[2]: file for file in self.found.tables}
        splits: dict[str, str] = {}
        for split, file in lists.items():
            data = read_file(open_store(self.files.roots[file.root]), file.path, file.size)
            for word in data.decode("utf-8", "replace").splitlines():
                splits.setdefault((word.split() or [""])[0], split)
        by_base: dict[str, list[int]] = {}
        for number, (_, media) in enumerate(self.media):
            by_base.setdefault(media.stem.rpartition("/")[2], []).append(number)
            self.images[self.names[number]] = _Image()
            if splits:
                self.images[self.names[number]].split = splits.get(media.stem.rpartition("/")[2], "")
        parsed = {stem: self._parse(file) for stem, file in self.found.labels.items()}
        names = {name for document in parsed.values() for name, *_ in (document[2] if document else ())}
        numbers = {name: number for number, name in enumerate(sorted(names))}
        self.categories = {number: name for name, number in numbers.items()}
        boxes = [box for document in parsed.values() for _, box, _ in (document[2] if document else ()) if box]
        zero = any(min(box[:2]) < 1 for box in boxes)
        if zero:
            self.warnings.append("warning: boxes begin at 0, not at 1 as in VOC: they are taken as edges in pixels")
        done: set[str] = set()
        for stem, document in parsed.items():
            if document is None:
                continue
            where = self.files.name(self.found.labels[stem])
            name = self._image_of(stem, document[0], by_base)
            if name is None:
                self.left.add("annotations without an image", where)
            elif name in done:
                self.left.add("a second file of annotations of an image", where)
            else:
                done.add(name)
                image = self.images[name]
                image.size = document[1] or self.size_of(name)
                self._objects(image, document[2], numbers, 0 if zero else 1, where)
        for name in [name for name, image in self.images.items() if image.split == ""]:
            self.left.add("in no list of ImageSets/Main", name)
            del self.images[name]

    def _image_of(self, stem: str, named: str, by_base: Mapping[str, list[int]]) -> str | None:
        base = divide(named.replace("\\", "/").rpartition("/")[2]).stem if named else ""
        candidates = by_base.get(stem.rpartition("/")[2]) or by_base.get(base) or []
        folder = stem.rpartition("/")[0]
        if len(candidates) > 1:  # train/x.xml is of train/x.jpg, and train/Annotations/x.xml of train/JPEGImages/x.jpg
            shared = [(_shared(self.names[number], folder), number) for number in candidates]
            most = max(count for count, _ in shared)
            candidates = [number for count, number in shared if count == most]
        return self.names[candidates[0]] if len(candidates) == 1 else None

    def _parse(
        self, file: File
    ) -> tuple[str, tuple[int, int] | None, list[tuple[str, list[float] | None, dict[str, Any]]]] | None:
        """Return file name, size and objects of an XML; None, with its reason in `left`, if it has none."""
        data = read_file(open_store(self.files.roots[file.root]), file.path, file.size)
        where = self.files.name(file)
        if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
            self.left.add("XML with entities, which is not read", where)
            return None
        try:
            root = ET.fromstring(data)  # noqa: S314 - without entities  # nosec B314
        except (ET.ParseError, ValueError, LookupError):
            self.left.add("XML that is not valid", where)
            return None
        if root.tag != "annotation":
            self.left.add("XML without annotations", where)
            return None
        try:
            size = (int(root.findtext("size/height", "")), int(root.findtext("size/width", "")))
        except ValueError:
            size = (0, 0)
        objects: list[tuple[str, list[float] | None, dict[str, Any]]] = []
        for number, each in enumerate(root.iter("object")):
            name = (each.findtext("name") or "").strip()
            if not name:
                self.lose("an object without a name", f"{where}:{number}")
                continue
            try:
                box = [float(each.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax")]
            except ValueError:
                box = None
            more = {
                child.tag: _typed(child.text)
                for child in each
                if child.tag not in ("name", "bndbox") and not len(child)
            }
            objects.append((name, box, {key: value for key, value in more.items() if value is not None}))
        return root.findtext("filename") or "", size if min(size) > 0 else None, objects

    def _objects(
        self,
        image: _Image,
        objects: Sequence[tuple[str, list[float] | None, dict[str, Any]]],
        numbers: Mapping[str, int],
        first: int,
        where: str,
    ) -> None:
        for number, (name, given, more) in enumerate(objects):
            at = f"{where}:{number}"
            edges = () if given is None else (given[0] - first, given[1] - first, given[2], given[3])
            box = self.checked(edges, image.size, at)
            if box is not None:
                area = (box[2] - box[0]) * (box[3] - box[1])
                made = {"box": box, "label": numbers[name], "area": area, "crowd": False, "attributes": more or None}
                image.found.append(made)


def _shared(path: str, folder: str) -> int:
    """Return the number of folders that two paths begin with."""
    count = 0
    for one, other in zip(path.split("/")[:-1], folder.split("/"), strict=False):
        if one != other:
            break
        count += 1
    return count


def _typed(text: str | None) -> int | str | None:
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text or None


def completed(content: bytes, data: bytes) -> bytes | str:
    """Return the part ``json`` of a sample, or the reason why its annotations are not those of the image.

    Adds ``size``, the height and width of the image to which boxes refer, and for an image with an orientation how the
    objects are turned, see `DetectionSample.of_parts`.

    Args:
        content: of `Annotated`.
        data: the image file.
    """
    made = orjson.loads(content)
    width, height = _size(data)
    orientation = orientation_in(data)
    stored, upright = [height, width], [width, height] if turned(orientation) else [height, width]
    frame, size = _FORWARD[made.pop("source")], made["size"]
    if size is None:
        size = upright if frame == "upright" else stored
        _scale(made, *size)
    elif size not in (stored, upright):
        return f"annotations of another size ({size[1]} x {size[0]}, the image has {width} x {height})"
    elif stored != upright:
        frame = "stored" if size == stored else "upright"
    made["size"] = {"height": size[0], "width": size[1]}
    if orientation != 1:
        back = {6: 8, 8: 6}.get(orientation, orientation)
        made["size"] |= {"apply": orientation, "stored": 1} if frame == "stored" else {"apply": 1, "stored": back}
    return orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY)


def _size(data: bytes) -> tuple[int, int]:
    """Return width and height of an image as stored. Raises `DataError` if it is none, `MissingExtra`."""
    header = image_header(data)
    if header is not None:
        return header[:2]
    from feedmill.samples.media import probe

    _, facts = probe("", data, "image")
    return facts["width"], facts["height"]


def _scale(made: dict[str, Any], height: int, width: int) -> None:
    """Change parts of an image's size to pixels."""
    count = len(made["boxes"])
    boxes = np.array(made["boxes"], np.float64).reshape(count, 4) * [width, height, width, height]
    made["boxes"] = boxes.astype(np.float32)
    made["areas"] = [area * height * width for area in made["areas"]]
    if "keypoints" in made and count:
        made["keypoints"] = (np.array(made["keypoints"], np.float64) * [width, height, 1]).astype(np.float32)
    for polygons in made.get("masks") or ():
        for number, polygon in enumerate(polygons or ()):
            corners = np.array(polygon, np.float64).reshape(-1, 2) * [width, height]
            polygons[number] = corners.astype(np.float32).ravel()
