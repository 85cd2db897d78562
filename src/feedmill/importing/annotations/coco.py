"""COCO's JSON: instances, captions and keypoints of many images in one file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from feedmill.errors import ConfigError, DataError
from feedmill.importing.annotations.base import (
    COCO,
    HEAD,
    MOST_CLASSES,
    Annotations,
    Image,
    Places,
    Reader,
    decode,
    split_in,
)
from feedmill.importing.kinds import JSON, Name, divide
from feedmill.importing.scanning import File, Files
from feedmill.samples.detection import polygon_of, runs_of
from feedmill.storage import open_store
from feedmill.structs import decoder_of

UNLISTED = "not listed in the annotations"
_MOST_TABLES = 200
"""JSON files that may be COCO's, the largest: some tools write one with other content for each image."""
_START = re.compile(rb'\s*\{\s*"(images|annotations|categories|info|licenses|type)"\s*:')

_coco = decoder_of(dict[str, msgspec.Raw])
_entries = decoder_of(list[dict[str, msgspec.Raw]])


def find(files: Files, divided: Sequence[tuple[File, Name]], stems: set[str], named: set[File]) -> Annotations | None:
    found = Annotations(COCO)
    alone = [file for file, name in divided if name.suffix == "json" and name.stem not in stems]
    largest = {*sorted(alone, key=lambda file: file.size, reverse=True)[:_MOST_TABLES], *named}
    for file, name in divided:
        if file not in largest or name.kind != JSON or name.suffix != "json":
            continue
        store = open_store(files.roots[file.root])
        head = store.read(file.path, 0, min(file.size, HEAD)).removeprefix(b"\xef\xbb\xbf")
        if not _START.match(head):
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


class Coco(Reader):
    kind = COCO

    def read(self) -> None:
        places = Places(self.names)
        for file in self.found.tables:
            self._file(file, places)
        listed = self.images.keys()
        for name in self.names:
            if name not in listed:
                self.left.add(UNLISTED, name)

    def _file(self, file: File, places: Places) -> None:
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
            if type(one) is not int or abs(one) >= MOST_CLASSES or not isinstance(name, str):
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
        self, entry: dict[str, Any], where: str, split: str | None, by_id: dict[Any, str | None], places: Places
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
            self.images[name] = Image(entry, size, split)
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
        made = self._object(entry, one, categories, image.size, where) if self.objects else None
        if made is None:
            return
        if one is not None:
            same = others[name].get(one)  # of another file, e.g. keypoints
            if same is not None and (same["label"], same["box"]) == (made["label"], made["box"]):
                same |= {key: value for key, value in made.items() if same.get(key) is None}
                return
            before = seen.setdefault((name, one), [])
            if made in before:
                self.lose("an annotation that is there already", where)
                return
            before.append(made)
            ids[one] += 1
        image.found.append(made)

    def _object(
        self, entry: dict[str, Any], one: Any, categories: set[int] | None, size: tuple[int, int] | None, where: str
    ) -> dict[str, Any] | None:
        """Return an annotation with a box as an object; None, with its reason in `left`."""
        label = entry.pop("category_id", None)
        if type(label) is not int or abs(label) >= MOST_CLASSES or (categories is not None and label not in categories):
            self.lose("an annotation of a category that is not listed", f"{where}: category {label}")
            return None
        given = entry.pop("bbox", None)
        edges: Sequence[Any] = ()
        if isinstance(given, list) and len(given) == 4 and all(type(v) in (int, float) for v in given):
            edges = (given[0], given[1], given[0] + given[2], given[1] + given[3])
        box = self.checked(edges, size, where)
        if box is None:
            return None
        area, crowd = entry.pop("area", None), entry.pop("iscrowd", None)
        if crowd not in (None, 0, 1):
            self.lose("an annotation whose iscrowd is neither 0 nor 1", f"{where}: {crowd!r}")
            return None
        made: dict[str, Any] = {
            "box": box,
            "label": label,
            "ids": one,
            "area": area if type(area) in (int, float) else given[2] * given[3],
            "crowd": bool(crowd),
        }
        self._add_mask(made, entry.pop("segmentation", None), size, where)
        self._add_keypoints(made, entry, where)
        if entry:
            made["attributes"] = entry
        return made

    def _add_mask(self, made: dict[str, Any], raw: Any, size: tuple[int, int] | None, where: str) -> None:
        if raw is None:
            return
        try:
            segment = decode(raw)
            if segment in (None, []):
                return
            if isinstance(segment, dict):
                runs_of(segment, *(size or (0, 0)))
            elif isinstance(segment, list):
                for polygon in segment:
                    polygon_of(polygon)
            else:
                raise DataError("it is neither polygons nor runs", kind="bad-part")
        except (DataError, msgspec.MsgspecError) as error:
            self.lose("a mask that is not valid; its box is kept", f"{where}: {getattr(error, 'what', error)}")
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
