"""Folders of YOLO: a text of labels for each image, names of classes in a YAML or a list."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.importing.annotations.base import HEAD, SPLITS, YOLO, Annotations, Image, Places, Reader
from feedmill.importing.kinds import IMAGE, Name
from feedmill.importing.scanning import File, Files, read_file
from feedmill.storage import open_store

_SMALL = 1 << 20
_CLASS_LISTS = ("classes.txt", "obj.names", "_darknet.labels")
_NUMBERS = re.compile(rb"(?i)([-+0-9.e \t\r\n]|nan|inf)*")


def find(
    files: Files,
    divided: Sequence[tuple[File, Name]],
    stems: set[str],
    named: set[File],  # noqa: ARG001
) -> Annotations | None:
    found = Annotations(YOLO)
    for file, name in divided:
        if name.kind == IMAGE:
            continue
        settings = _settings(files, file) if name.suffix in ("yaml", "yml") and file.size < _SMALL else None
        if settings is not None and "names" in settings:
            found.tables += [file, *(each for key in SPLITS for each in _listing(files, settings.get(key)))]
        elif _is_class_list(file.path) or (name.suffix == "names" and file.size < _SMALL):
            found.tables.append(file)
    texts = [(file, name) for file, name in divided if name.suffix == "txt" and file not in found.tables]
    beside = [(file, name) for file, name in texts if "labels" in name.stem and "labels" in name.stem.split("/")[:-1]]
    if found.tables:
        beside = beside or [(file, name) for file, name in texts if name.stem in stems]
    if not beside or not any(_is_label(files, file) for file, _ in beside[:20]):
        return None
    found.labels = {name.stem: file for file, name in beside}
    return found


def _is_class_list(path: str) -> bool:
    lowered = path.lower()
    return lowered.endswith(_CLASS_LISTS) and lowered.rpartition("/")[2] in _CLASS_LISTS


def _is_label(files: Files, file: File) -> bool:
    """Return whether a text has nothing but rows of numbers."""
    data = open_store(files.roots[file.root]).read(file.path, 0, min(file.size, HEAD))
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


class Yolo(Reader):
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
            image = self.images[name] = Image(split=lists(name))
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
        places = Places(self.names)
        for each in settings:
            for key, split in SPLITS.items():
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

    def _file(self, file: File, image: Image) -> None:
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

    def _object(self, label: int, values: Any, image: Image, where: str) -> None:
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
