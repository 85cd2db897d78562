"""Pascal VOC: an XML for each image, and lists of splits."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.importing.annotations.base import HEAD, VOC, Annotations, Image, Reader
from feedmill.importing.kinds import Name, divide
from feedmill.importing.scanning import File, Files, read_file
from feedmill.storage import open_store

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
