"""Pascal VOC: an XML for each image, lists of splits, and pictures of the masks of objects.

In a picture in `SegmentationObject`, pixels have the number of an object, from 1 in the order of the XML, 0 for the
background and 255 for what belongs to none (borders, difficult objects). Other programs write colors instead. A mask
belongs to the object of its number if it fills that one's box, or else to the object whose box it fills.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import MissingExtra
from feedmill.importing.annotations.base import HEAD, VOC, Annotations, Image, Reader
from feedmill.importing.kinds import Name, divide
from feedmill.importing.scanning import File, Files, read_file
from feedmill.samples.detection import as_runs
from feedmill.storage import open_store

_OBJECTS = re.compile(r"(^|/)SegmentationObject/[^/]+\.png$", re.IGNORECASE)
_BORDER, _BORDER_COLOR = 255, 0xE0E0C0
_FITS = 0.5
"""Overlap of the box around a mask with the box of its object, as a part of both together."""
_PICTURED = re.compile(r"(^|/)Segmentation(Class|Object)(Aug|Raw)?/")


def find(
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
            head = open_store(files.roots[file.root]).read(file.path, 0, min(file.size, HEAD))
            if b"<annotation" not in head or not re.search(rb"<(object|filename|size)\b", head):
                continue
        found.labels[name.stem] = file
    for file, _ in divided if found.labels else ():
        if re.search(r"(^|/)ImageSets/Main/(train|val|test)\.txt$", file.path):
            found.tables.append(file)
        elif _OBJECTS.search(file.path):
            found.pictures[divide(files.name(file)).stem] = file
    return found if found.labels else None


def is_picture_of_masks(found: Annotations, path: str) -> bool:
    """Return whether an image file is no image of a dataset, but the masks of one."""
    return found.kind == VOC and _PICTURED.search(path) is not None


class Voc(Reader):
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
            self.images[self.names[number]] = Image()
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
        pictures: dict[str, list[str]] = {}
        for path in self.found.pictures:
            pictures.setdefault(path.rpartition("/")[2], []).append(path)
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
                of_stem = pictures.get(stem.rpartition("/")[2], [])
                best = max(of_stem, key=lambda path: _shared(path, stem.rpartition("/")[0]), default=None)
                if best is not None:
                    of_stem.remove(best)
                    self._masks(image, self.found.pictures[best])
        for path in (path for paths in pictures.values() for path in paths):
            self.left.add("masks of an image without annotations", self.files.name(self.found.pictures[path]))
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
        image: Image,
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
                image.found.append(made | {"number": number + 1})

    def _masks(self, image: Image, file: File) -> None:
        """Add masks to the objects of an image. Those that cannot be used go to `left`."""
        where = self.files.name(file)
        pixels = self._pixels(file, image.size, where)
        if pixels is None:
            return
        numbered = pixels.dtype == np.uint8
        present = np.flatnonzero(np.bincount(pixels.ravel(), minlength=256)) if numbered else np.unique(pixels)
        masks = {int(number): pixels == number for number in present if number not in (0, _border(pixels))}
        fit: list[tuple[bool, float, int, int]] = []
        for number, mask in masks.items():
            around = _around(mask)
            for at, each in enumerate(image.found):
                share = _overlap(around, each["box"])
                if share >= _FITS:
                    fit.append((numbered and each["number"] == number, share, number, at))
        for _, _, number, at in sorted(fit, reverse=True):
            if number in masks and image.found[at].get("masks") is None:
                image.found[at]["masks"] = as_runs(masks.pop(number))
        for number in masks:
            self.lose("a mask that fills the box of no object", f"{where}:{number}")
        for each in image.found:
            if each.get("masks") is None:
                self.lose("an object that no mask of its image fits; its box is kept", f"{where}:{each['number']}")

    def _pixels(self, file: File, size: tuple[int, int] | None, where: str) -> npt.NDArray[Any] | None:
        """Return numbers, uint8[height, width], or colors, int32[height, width], of a picture; None if it has none."""
        try:
            from PIL import Image as pillow
        except ImportError:
            raise MissingExtra("pictures of masks need Pillow", extra="media") from None
        data = read_file(open_store(self.files.roots[file.root]), file.path, file.size)
        try:
            with pillow.open(io.BytesIO(data)) as picture:
                if size != (picture.height, picture.width):
                    self.lose("a picture of masks of another size than its image", where)
                    return None
                if picture.mode in ("P", "L"):
                    return np.asarray(picture)
                colors = np.asarray(picture.convert("RGB")).astype(np.int32)
        except Exception:  # Pillow's readers raise errors of many types
            self.lose("a picture of masks that cannot be read", where)
            return None
        return colors[..., 0] << 16 | colors[..., 1] << 8 | colors[..., 2]


def _border(pixels: npt.NDArray[Any]) -> int:
    return _BORDER if pixels.dtype == np.uint8 else _BORDER_COLOR


def _around(mask: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return the box around the pixels of a mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return what two boxes share, as a part of both together."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (both - width * height)


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
