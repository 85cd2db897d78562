"""Plan the samples of media: their keys, splits, parts and labels, and the groups of them that become shards.

Classes of media are a column of labels in their metadata, or their folders. A label is a number, or a name. Whole
numbers are kept as they are, however the table writes them: ``3``, ``"3"``, ``3.0`` or ``-1``. Names are numbered in
alphabetical order.

Groups are pickled as a few columns: sending 10^5 small files to workers takes most of its time for the objects around
each of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from itertools import chain, islice, pairwise, repeat
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.importing.annotations import read_annotations
from feedmill.importing.annotations.base import Annotations, split_of_folders
from feedmill.importing.kinds import IMAGE, Name, divide
from feedmill.importing.metadata import Metadata, Talk, read_metadata, read_talks
from feedmill.importing.recognition import (
    AUTO,
    CAPTION_SUFFIXES,
    CAPTIONING,
    CLASSIFICATION,
    DETECTION,
    MEDIA,
    PARTS,
    Recognized,
    beside,
    captions,
    class_of,
    split_of,
)
from feedmill.importing.scanning import File, Files
from feedmill.jobs.reports import LeftOut
from feedmill.samples.encode import encode_json
from feedmill.structs import decode_as
from feedmill.writing.encoding import check_key
from feedmill.writing.shard import cut

TRAIN = "train"
BESIDE = "beside a file that is left out"
_FEW = 10
"""Images outside of the splits are left out if there are at least this many times more in them."""
_HEADER = 1024
"""Bytes that a part may take beside its content: header and padding."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,17}(\.0*)?", re.ASCII)
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


class Part(NamedTuple):
    """A part of a sample: its name, its size, and the file that it is read from or its content."""

    name: str
    size: int
    root: int = 0
    path: str = ""
    content: bytes | None = None


def _of_file(name: str, file: File) -> Part:
    return Part(name, file.size, file.root, file.path)


def _of_content(name: str, content: bytes) -> Part:
    return Part(name, len(content), content=content)


class Planned(NamedTuple):
    """A sample: key, parts (the first one is the media), and its size in a tar in bytes, as an upper bound."""

    key: str
    parts: tuple[Part, ...]
    size: int


def name_others(left: LeftOut, files: Files, samples: Samples, dropped: Container[str]) -> None:
    """Add the other files of dropped samples, such as captions, to `left`; the first files are named already."""
    if not dropped:
        return
    kept: set[tuple[int, str]] = set()
    gone: set[tuple[int, str]] = set()
    for group in samples.splits.values():
        for planned in group:
            (gone if planned.key in dropped else kept).update(
                (part.root, part.path) for part in planned.parts[1:] if part.path
            )
    _name(left, files, gone - kept)


def _name(left: LeftOut, files: Files, unused: Collection[tuple[int, str]]) -> None:
    """Add files beside media that are left out to `left`, except those that are there for a reason of their own."""
    if unused:
        named = {name for names in left.names.values() for name in names}
        for name in sorted(files.prefixes[root] + path for root, path in unused):
            if name not in named:
                left.add(BESIDE, name)


def _planned(key: str, parts: Sequence[Part]) -> Planned:
    size = _HEADER * len(parts)
    for part in parts:
        size += part.size
    return Planned(key, tuple(parts), size)


class Samples(NamedTuple):
    """The samples of an import.

    Attributes:
        splits: split -> samples.
        sample_type, field_map: content of ``dataset.yaml``.
        names: names of classes, by number.
    """

    splits: dict[str, list[Planned]]
    sample_type: str
    field_map: dict[str, str] | None
    names: list[str]

    @property
    def total(self) -> int:
        """Number of all samples."""
        return sum(map(len, self.splits.values()))


def plan_samples(files: Files, found: Recognized, encoding: str, left: LeftOut) -> Samples:
    """Return the samples of recognized media; media without what their type needs are added to `left`.

    Completes type and notes of `found`. Raises as `read_metadata` and `Labels`.
    """
    if found.type == PARTS:
        return _grouped(files, found, left)
    if found.annotations is not None:
        return _annotated(files, found, found.annotations, left)
    if found.type == AUTO and (talks := read_talks(files, found, encoding, left)) is not None:
        return _talking(files, found, talks, left)
    metadata = read_metadata(files, found, encoding, left) if found.metadata else None
    if found.type == AUTO:
        assert metadata is not None
        found.type = metadata.type
    labels = Labels(files, found, metadata)
    keys = _Keys(files, found, left)
    splits: dict[str, list[Planned]] = {}
    for file, name in found.media:
        if not file.size:
            left.add("an empty file", files.name(file))
            continue
        split = _split(files, found, file, left)
        parts = None if split is None else _parts(files, found, file, name, metadata, labels, left)
        if split is None or parts is None:
            continue
        key = keys.of(file, name)
        if key is not None:
            splits.setdefault(split, []).append(_planned(key, parts))
    _note(files, found, metadata, labels)
    unused = {(one[0], one[1]) for group in found.beside.values() for _, one in group}
    for group in splits.values():
        unused.difference_update([(part[2], part[3]) for planned in group for part in planned.parts[1:]])
    _name(left, files, unused)
    suffixes = sorted({name.suffix for _, name in found.media})
    ordered = {name: splits[name] for name in (TRAIN, "val", "test") if name in splits}
    return Samples(ordered, *_described(found, suffixes, labels), labels.names)


def _talking(files: Files, found: Recognized, talks: Sequence[Talk], left: LeftOut) -> Samples:
    """Return a sample for each conversation, with its media: ``jpg``, or ``0.jpg``, ``1.jpg`` if it has several."""
    found.type = MEDIA
    by_name = {files.name(file): (file, name) for file, name in found.media}
    counts = Counter(chain.from_iterable(set(talk.media) for talk in talks))
    alone = all(len(talk.media) == 1 for talk in talks) and max(counts.values()) == 1
    keys = _Keys(files, found, left)
    splits: dict[str, list[Planned]] = {}
    used: set[str] = set()
    for talk in talks:
        media = [by_name[path] for path in talk.media]
        split: str | None = TRAIN
        if empty := next((file for file, _ in media if not file.size), None):
            left.add("a conversation with an empty file", f"{talk.key} {files.name(empty)}")
            continue
        if media:
            split = _split(files, found, media[0][0], left)
        key = keys.of(*media[0]) if alone else talk.key
        if split is None or key is None:
            continue
        several = len(media) > 1
        parts = [
            _of_file(f"{n}.{name.suffix}" if several else name.suffix, file) for n, (file, name) in enumerate(media)
        ]
        parts.append(_of_content("json", encode_json(msgspec.to_builtins(talk.columns, enc_hook=str))))
        splits.setdefault(split, []).append(_planned(key, parts))
        used.update(talk.media)
    for path in by_name:
        if path not in counts:
            left.add("not listed in the metadata", path)
    whole = sum(bool(talk.media) for talk in talks)
    text = f", and {len(talks) - whole:,} of text alone" if whole < len(talks) else ""
    more = f" and {len(found.metadata) - 1:,} more" if len(found.metadata) > 1 else ""
    table = files.name(found.metadata[0])
    found.notes.insert(0, f"{whole:,} conversations about {len(used):,} {found.modality} files{text}, in {table}{more}")
    if shared := sum(count > 1 for count in counts.values()):
        found.notes.append(f"{shared:,} file{'s' * (shared > 1)} of several conversations, stored with each of them")
    if found.splits:
        found.notes.append("splits from the first folder" + (f" in {found.top!r}" if found.top else ""))
    ordered = {name: splits[name] for name in (TRAIN, "val", "test") if name in splits}
    return Samples(ordered, "CrudeWebdataset", None, [])


def _annotated(files: Files, found: Recognized, annotations: Annotations, left: LeftOut) -> Samples:
    """Return a sample for each image with annotations: its objects, or its captions if there is nothing else.

    Raises:
        DataError: no annotation can be used.
    """
    read = read_annotations(files, found.media, annotations, left, objects=found.type != CAPTIONING)
    objects = sum(image.objects for image in read.images.values())
    captions = sum(image.captions for image in read.images.values())
    if not objects and (not captions or found.type == DETECTION):
        lost = "; ".join(left.lines()[-3:])
        raise DataError(
            f"no {'caption' if found.type == CAPTIONING else 'annotation'} of an image can be used"
            f"{f' (left out: {lost})' if lost else ''}",
            file=files.name(next(iter(annotations.files))),
            kind="loses-content",
            fix="Name the folder of the images, correct the annotations, or import the images with --type media.",
        )
    found.type = DETECTION if objects else CAPTIONING
    named = {name: image.split or split_of_folders(name) for name, image in read.images.items()}
    outside = [name for name, split in named.items() if split is None]
    has_splits = len(outside) * _FEW <= len(named)
    if len(outside) < len(named) and not has_splits:
        found.notes.append(
            f"warning: no splits: {len(outside):,} of {len(named):,} images are in none ({outside[0]!r})"
        )
    keys = _Keys(files, found, left)
    splits: dict[str, list[Planned]] = {}
    for file, name in found.media:
        where = files.name(file)
        image = read.images.get(where)
        if image is None:
            continue  # named already
        split = named[where] if has_splits else TRAIN
        if not file.size:
            left.add("an empty file", where)
        elif found.type == CAPTIONING and not image.captions:
            left.add("image without a caption", where)
        elif split is None:
            left.add("outside the splits", where)
        elif (key := keys.of(file, name)) is not None:
            content = image.content
            if found.type == CAPTIONING:
                whole = decode_as(content, dict[str, msgspec.Raw])
                content = msgspec.json.encode({one: whole[one] for one in ("captions", "image") if one in whole})
            # Numbers may be longer once they are pixels.
            part = Part("json", 2 * len(content), content=content)
            splits.setdefault(split, []).append(_planned(key, [_of_file(name.suffix, file), part]))
    found.notes[:0] = [f"{len(found.media):,} image files", *read.notes]
    if has_splits:
        found.notes.append("splits from folders or from files of annotations")
    suffixes = ",".join(sorted({name.suffix for _, name in found.media}))
    ordered = {name: splits[name] for name in (TRAIN, "val", "test") if name in splits}
    if found.type == CAPTIONING:
        found.notes.append("the caption of a sample is the first one; all are in its part json")
        return Samples(ordered, "CaptioningSample", {"image": suffixes, "caption": "json[captions][0]"}, [])
    fields = ("boxes", "labels", "size", "areas", "crowd", *read.fields)
    return Samples(ordered, "DetectionSample", {"image": suffixes, **{one: f"json[{one}]" for one in fields}}, [])


def _split(files: Files, found: Recognized, file: File, left: LeftOut) -> str | None:
    """Return the split of a file; None if it is left out, because others are in folders of splits."""
    split = split_of(files, found, file) if found.splits else TRAIN
    if split is None:
        left.add("outside the folders of splits", files.name(file))
    return split


def _described(found: Recognized, suffixes: Sequence[str], labels: Labels) -> tuple[str, dict[str, str] | None]:
    """Return the sample type and its field map. There are types for images only."""
    image = ",".join(suffixes)
    if found.modality != IMAGE:
        return "CrudeWebdataset", None
    if found.type == CAPTIONING:
        return "CaptioningSample", {"image": image, "caption": "txt"}
    if found.type == CLASSIFICATION:
        named = {"label_name": "json[label_name]"} if labels.names else {}
        return "ImageClassificationSample", {"image": image, "label": "cls", **named}
    return "ImageSample", {"image": image}


def _parts(
    files: Files,
    found: Recognized,
    file: File,
    name: Name,
    metadata: Metadata | None,
    labels: Labels,
    left: LeftOut,
) -> list[Part] | None:
    """Return the parts of a sample; None if it lacks one."""
    others = beside(files, found, file, name)
    if metadata is None and found.type == CAPTIONING and len(others) == 1:  # nearly all
        suffix, caption_file = others[0]
        if caption_file.size and suffix in CAPTION_SUFFIXES:
            return [_of_file(name.suffix, file), _of_file("txt", caption_file)]
    where = files.name(file)
    parts = [_of_file(name.suffix, file)]
    about: dict[str, Any] = {}
    if metadata is not None:
        row = metadata.rows.get(where)
        if row is None:
            left.add("not listed in the metadata", where)
            return None
        about = dict(row)
    if found.type == CAPTIONING:
        caption = _caption(files, found, file, others, metadata, about, left)
        if caption is None:
            return None
        parts.append(caption)
    elif found.type == CLASSIFICATION:
        label = labels.of(file, about)
        if label is None:
            left.add("no class", where)
            return None
        parts.append(_of_content("cls", b"%d" % label[0]))
        if label[1] is not None:
            if about.get("label_name") not in (None, label[1]):  # a column of its own: the row keeps both
                about["label"] = label[1]
            else:
                about["label_name"] = label[1]
    extra = [one for suffix, one in others if suffix == "json"]
    if about:
        parts.append(_of_content("json", encode_json(msgspec.to_builtins(about, enc_hook=str))))
    elif extra:
        parts.append(_of_file("json", extra[0]))
        extra = extra[1:]
    for one in extra:
        left.add("JSON beside media that have other metadata", files.name(one))
    for suffix, one in others:
        if suffix == "cls" and found.type == MEDIA:
            parts.append(_of_file("cls", one))
        elif suffix == "cls" or (suffix not in ("json", "cls") and (found.type != CAPTIONING or metadata is not None)):
            left.add(f"a caption or class beside media imported as {found.type}", files.name(one))
    return parts


def _caption(
    files: Files,
    found: Recognized,
    file: File,
    others: Sequence[tuple[str, File]],
    metadata: Metadata | None,
    about: dict[str, Any],
    left: LeftOut,
) -> Part | None:
    where = files.name(file)
    if metadata is not None:
        value = about.pop(metadata.caption, None) if metadata.caption else None
        if not isinstance(value, str) or not value.strip():
            left.add("no caption in its row of metadata", where)
            return None
        return _of_content("txt", value.encode("utf-8", "replace"))
    own = captions(others)
    if not own:
        left.add(f"{found.modality} without a caption", where)
        return None
    for second in own[1:]:
        left.add(f"a second caption (the first is .{divide(own[0].path).suffix})", files.name(second))
    if not own[0].size:
        left.add("an empty caption", where)
        return None
    return _of_file("txt", own[0])


class _Keys:
    """Keys of samples: paths without suffix. Media that differ in the suffix only have it in their keys."""

    def __init__(self, files: Files, found: Recognized, left: LeftOut) -> None:
        self._files, self._left = files, left
        keys = [_plain(name.stem) for _, name in found.media]
        counts = Counter(keys) if len(set(keys)) < len(keys) else {}
        self._twice = {key for key, count in counts.items() if count > 1}
        self._seen: set[str] = set()

    def of(self, file: File, name: Name) -> str | None:
        key = _plain(name.stem)
        if key in self._twice:
            key = f"{key}_{name.suffix}"
        try:
            check_key(key)
        except DataError as error:
            why = f"the name cannot be a key ({error.what.removeprefix('invalid key: ')})"
            self._left.add(why, self._files.name(file))
            return None
        if key in self._seen:
            self._left.add("the same key as another file (rename it)", self._files.name(file))
            return None
        self._seen.add(key)
        return key


def _plain(stem: str) -> str:
    """Return a path without the dots in its last component, at which readers would end the key."""
    if "." not in stem:
        return stem
    folder, slash, last = stem.rpartition("/")
    return f"{folder}{slash}{last.replace('.', '_')}"


def _grouped(files: Files, found: Recognized, left: LeftOut) -> Samples:
    """Return one sample for all files with the same name up to the first dot, as in a tar of WebDataset."""
    splits: dict[str, dict[str, list[tuple[File, str]]]] = {}
    for file in found.documents:
        name = files.name(file)
        folder, slash, last = name.rpartition("/")
        base, dot, part = last.partition(".")
        if not file.size:
            left.add("an empty file", name)
        elif not dot or not part:
            left.add("a file without a suffix", name)
        elif part.startswith("__"):
            left.add("a suffix that begins with '__', which readers skip (rename it)", name)
        elif (split := _split(files, found, file, left)) is not None:
            splits.setdefault(split, {}).setdefault(folder + slash + base, []).append((file, part.lower()))
    out: dict[str, list[Planned]] = {}
    for split, groups in splits.items():
        for key, group in groups.items():
            planned = _group(files, key, group, left)
            if planned is not None:
                out.setdefault(split, []).append(planned)
    found.notes.append(f"{sum(map(len, out.values())):,} samples of files with the same name")
    return Samples(out, "CrudeWebdataset", None, [])


def _group(files: Files, key: str, group: Sequence[tuple[File, str]], left: LeftOut) -> Planned | None:
    try:
        check_key(key)
    except DataError as error:
        for file, _ in group:
            left.add(f"the name cannot be a key ({error.what.removeprefix('invalid key: ')})", files.name(file))
        return None
    parts: dict[str, Part] = {}
    for file, part in group:
        if part in parts:
            left.add("the same key and suffix as another file (rename it)", files.name(file))
        else:
            parts[part] = _of_file(part, file)
    return _planned(key, list(parts.values()))


def _note(files: Files, found: Recognized, metadata: Metadata | None, labels: Labels) -> None:
    note = f"{len(found.media):,} {found.modality} files"
    if metadata is not None:
        note += f", with columns {', '.join(metadata.columns) or 'none'} in {files.name(found.metadata[0])}"
        if len(found.metadata) > 1:
            note += f" and {len(found.metadata) - 1:,} more"
    elif found.type == CAPTIONING:
        note += " with captions beside them"
    elif found.type == CLASSIFICATION:
        shown = ", ".join(labels.names[:5]) + (", ..." if len(labels.names) > 5 else "")
        note += f" in {len(labels.names):,} class folders ({shown})"
    found.notes.insert(0, note)
    if found.splits:
        found.notes.append("splits from the first folder" + (f" in {found.top!r}" if found.top else ""))


def by_ratio(samples: Samples, sizes: dict[str, int], order: Sequence[int]) -> Samples:
    """Return the samples of all splits in other splits: exact sizes, in the given order, then by key within a split."""
    everything = [planned for group in samples.splits.values() for planned in group]
    chosen: Iterator[int] = iter(order)
    splits: dict[str, list[Planned]] = {}
    for split, size in sizes.items():
        numbers = sorted(next(chosen) for _ in range(size))
        if numbers:
            splits[split] = [everything[number] for number in numbers]
    return samples._replace(splits=splits)


class Labels:
    """Classes of media.

    Attributes:
        names: of the classes, by number; empty if the labels are numbers.

    Raises:
        ConfigError: the metadata has no column of labels.
        DataError: the labels are of two kinds, or are fractions.
    """

    def __init__(self, files: Files, found: Recognized, metadata: Metadata | None) -> None:
        self._files, self._found = files, found
        self._column = metadata.label if metadata is not None else None
        self.names: list[str] = []
        if found.type != CLASSIFICATION:
            return
        if metadata is None:
            self.names = sorted({name for file, _ in found.media if (name := class_of(files, found, file))})
        elif self._column is None:
            raise ConfigError("the metadata has no column 'label'", kind="no-column", fix="Add it, or change --type.")
        else:
            labels = {where: label_of(row.get(self._column)) for where, row in metadata.rows.items()}
            self._check(labels)
            self.names = sorted({label for label in labels.values() if isinstance(label, str)})
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def of(self, file: File, about: dict[str, Any]) -> tuple[int, str | None] | None:
        """Return number and name of the class; None if there is none. Removes the column from the row."""
        if self._column is None:
            name = class_of(self._files, self._found, file)
            return None if name is None else (self._numbers[name], name)
        label = label_of(about.pop(self._column, None))
        return (
            (self._numbers[label], label) if isinstance(label, str) else None if label is None else (int(label), None)
        )

    def _check(self, labels: dict[str, int | float | str | None]) -> None:
        """Raise if numbers would get other numbers: beside names, or because they are fractions."""
        kinds: dict[str, list[str]] = {}
        for where, label in labels.items():
            if label is not None:
                kind = {int: "whole numbers", float: "fractions", str: "names"}[type(label)]
                kinds.setdefault(kind, []).append(f"{label!r} of {where!r}")
        if len(kinds) > 1 or "fractions" in kinds:
            shown = " and ".join(f"{kind} ({len(of):,}, such as {of[0]})" for kind, of in kinds.items())
            raise DataError(
                f"labels must be either whole numbers or names: column {self._column!r} has {shown}",
                file=self._files.name(self._found.metadata[0]),
                kind="other-columns",
                fix="Write all of them as whole numbers, or all as names. If they are not classes, use --type media:"
                " the column becomes a field of the part json.",
            )


def label_of(value: Any) -> int | float | str | None:
    """Return a label as a whole number, a fraction or a name; None if there is none.

    >>> [label_of(value) for value in (3, -1.0, "10", "1.0", " 2", "0.5", "cat", "", True, None)]
    [3, -1, 10, 1, 2, 0.5, 'cat', None, None, None]
    """
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            return int(text.partition(".")[0])
        return float(text) if _FRACTION.fullmatch(text) else value if text else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if value - value == 0 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


Row = TypeVar("Row")


def to_columns(rows: Sequence[tuple[Any, ...]]) -> tuple[int, list[Any]]:
    """Return the number of rows and their columns; a column with one value in all rows is that value in a list."""
    columns = zip(*rows, strict=True)
    return len(rows), [[column[0]] if len({*column}) == 1 else column for column in columns]


def from_columns(make: Callable[..., Row], count: int, columns: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of `to_columns`."""
    return map(make, *(repeat(column[0], count) if isinstance(column, list) else column for column in columns))


class Group(Sequence[Planned]):
    """The samples of a shard, as a sequence that is pickled as columns."""

    def __init__(self, samples: list[Planned]) -> None:
        self._samples = samples

    @property
    def size(self) -> int:
        """Upper bound of the shard's size in bytes."""
        return sum([planned.size for planned in self._samples])

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index]

    def __iter__(self) -> Iterator[Planned]:
        return iter(self._samples)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        parts = list(chain.from_iterable([planned.parts for planned in self._samples]))
        rows = [(planned.key, planned.size, len(planned.parts)) for planned in self._samples]
        return _unpickled, (to_columns(rows), to_columns(parts))


def _unpickled(samples: tuple[int, list[Any]], parts: tuple[int, list[Any]]) -> Group:
    row = from_columns(Part, *parts)
    return Group([Planned(k, tuple(islice(row, n)), size) for k, size, n in from_columns(_as_tuple, *samples)])


def _as_tuple(*row: Any) -> tuple[Any, ...]:
    return row


def groups_of(samples: Sequence[Planned], count: int, most: int) -> Iterator[Group]:
    """Yield the samples of each shard: at most `count`, of at most `most` bytes unless one is larger."""
    sizes = np.fromiter((planned.size for planned in samples), np.int64, len(samples))
    for begin, end in pairwise(cut(len(samples), sizes, count, most)):
        yield Group([*samples[begin:end]])
