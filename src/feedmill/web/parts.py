"""The parts of one sample as plain data for pages, and its images, decoded and encoded again: no byte is sent raw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import orjson

from feedmill.errors import DataError, FeedmillError, MissingExtra, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.samples.images import left_to_turn, turned_image
from feedmill.samples.sheet import as_image, image_shape
from feedmill.samples.text import as_text, human_size
from feedmill.samples.vision import drawn, objects_in
from feedmill.web.invisible import cut, one_line

TOO_LARGE = 50_000_000
"""Bytes of a sample above which its parts are only decoded when asked."""
IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "image", "jpeg_bytes")
MEDIA = {
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "mov": "video/quicktime",
    "webm": "video/webm",
    "mkv": "video/x-matroska",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
    "aac": "audio/aac",
}
_CURVES, _POINTS, _DEEP, _ENTRIES = 8, 512, 6, 200


def extension(part: str) -> str:
    """Return the extension of a part's name, in lower case: ``jpg`` of ``top.jpg`` and of ``jpg``."""
    return part.rpartition(".")[2].lower()


def kind_of(part: str, data: bytes | None = None) -> str:
    """Return what a part is by its name, and by its first bytes if given: image, video, audio or data."""
    name = extension(part)
    if name in MEDIA:
        return MEDIA[name].partition("/")[0]
    if name in IMAGES or (data is not None and data[:3] in (b"\xff\xd8\xff", b"\x89PN", b"GIF")):
        return "image"
    return "data"


def read_one(dataset: Dataset, index: int) -> Sample:
    """Return a sample with its parts undecoded. Raises `NotFound` for a number outside the dataset."""
    if not 0 <= index < len(dataset):
        raise NotFound(
            f"there is no sample {index:,}: there are {len(dataset):,}",
            file=dataset.url,
            kind="no-such-sample",
            fix="Numbers start at 0.",
        )
    return dataset.read_raw([index])[0]


def facts_of(dataset: Dataset) -> dict[str, Any]:
    """Return what a dataset says of itself; only that it cannot, as ``problem``, if a file is missing."""
    try:
        return dataset.describe()
    except FeedmillError as error:
        return {"problem": str(error)}


def part_names(sample: Sample) -> list[str]:
    """Return the names of the parts that hold data of the sample."""
    return [name for name in sample if not name.startswith("__")]


def shown_parts(sample: Sample) -> list[dict[str, Any]]:
    """Return each part as plain data: ``name``, ``bytes``, ``kind``, and what `shown` adds."""
    found = []
    for name in part_names(sample):
        data = sample.raw(name)
        entry: dict[str, Any] = {"name": name, "bytes": len(data), "kind": kind_of(name, data)}
        if entry["kind"] == "data":
            try:
                entry |= shown(sample[name])
            except FeedmillError as error:
                entry |= {"kind": "undecoded", "why": error.what, "text": as_text(data)}
        found.append(entry)
    return found


def shown(value: Any) -> dict[str, Any]:
    """Return a decoded value as plain data; ``kind`` says which: text, json, tokens, curves, image or value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"kind": "value", "text": as_text(bytes(value), lines=12)}
    if isinstance(value, str):
        text, more = cut(value)
        return {"kind": "text", "text": text, "more": more, "characters": len(value)}
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        return {"kind": "tokens", "ids": value[:_POINTS].tolist(), "count": len(value)}
    if isinstance(value, np.ndarray) and image_shape(value):
        return {"kind": "image", "text": as_text(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim in (1, 2) and len(value) > 1:
        return {
            "kind": "curves",
            "text": f"{' x '.join(map(str, value.shape))}, {value.dtype}",
            "curves": curves(value),
        }
    if isinstance(value, Mapping):
        arrays = {name: item for name, item in value.items() if isinstance(item, np.ndarray)}
        if arrays and len(arrays) == len(value):
            return {"kind": "arrays", "arrays": [{"name": str(name), **shown(item)} for name, item in arrays.items()]}
        return {"kind": "json", "tree": tree(value)}
    if isinstance(value, list | tuple):
        return {"kind": "json", "tree": tree(value)}
    return {"kind": "value", "text": as_text(value)}


def curves(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return up to eight columns of [T] or [T, D] as points in a box of 1000 x 100, with the range of their values."""
    table = values[:, None] if values.ndim == 1 else values
    table = table.astype(np.float64)[:: max(1, len(table) // _POINTS), :_CURVES]
    finite = table[np.isfinite(table)]
    if not finite.size:
        return {"low": None, "high": None, "lines": []}
    low, high = float(finite.min()), float(finite.max())
    span = high - low or 1.0
    x = np.linspace(0, 1000, len(table))
    lines = []
    for column in table.T:
        good = np.isfinite(column)
        y = 97 - (column - low) / span * 94
        lines.append([[round(a, 1), round(b, 1)] for a, b in zip(x[good].tolist(), y[good].tolist(), strict=True)])
    return {"low": float(f"{low:.4g}"), "high": float(f"{high:.4g}"), "lines": lines, "steps": len(values)}


def tree(value: Any, deep: int = 0) -> Any:
    """Return JSON-like data as nested plain data of bounded depth, with long texts cut."""
    if isinstance(value, Mapping):
        if deep == _DEEP:
            return {"text": f"{len(value):,} fields"}
        items = list(value.items())
        rows = [{"name": str(name), **tree(item, deep + 1)} for name, item in items[:_ENTRIES]]
        return {"rows": rows, "more": len(items) - len(rows), "size": f"{len(items):,} fields"}
    if isinstance(value, list | tuple):
        if deep == _DEEP:
            return {"text": f"{len(value):,} entries"}
        rows = [{"name": str(n), **tree(item, deep + 1)} for n, item in enumerate(value[:_ENTRIES])]
        return {"rows": rows, "more": len(value) - len(rows), "size": f"{len(value):,} entries"}
    if isinstance(value, str):
        text, more = cut(value)
        return {"text": text, "cut": more, "is_text": True}
    return {"text": as_text(value, lines=3)}


def cells(sample: Sample) -> dict[str, Any]:
    """Return a row of the table: the simple fields of a sample as short texts or numbers, without decoding images."""
    values: dict[str, Any] = {}
    for name in part_names(sample):
        data = sample.raw(name)
        if kind_of(name, data) != "data":
            values[name] = human_size(len(data))
            continue
        try:
            value = sample[name]
        except FeedmillError as error:
            values[name] = f"not decoded: {error.what}"
            continue
        if isinstance(value, Mapping) and not any(isinstance(item, np.ndarray) for item in value.values()):
            own = {inner: item for inner, item in value.items() if inner != "id" or item != sample.key}
            for inner, item in list(own.items())[:8]:
                values[str(inner) if len(value) and name == "json" else f"{name}.{inner}"] = _cell(item)
        else:
            values[name] = _cell(value)
    return values


def all_text(sample: Sample) -> Iterator[tuple[str, str]]:
    """Yield the texts of a sample, each with the name of its part or field."""
    for name in part_names(sample):
        if kind_of(name, sample.raw(name)[:8]) == "data":
            yield from _texts(name, _tried(sample, name), 0)


def _texts(name: str, value: Any, deep: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, bool | int | float):
        yield name, str(value)
    elif deep < _DEEP and isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _texts(str(inner), item, deep + 1)
    elif deep < _DEEP and isinstance(value, list | tuple):
        for item in value:
            yield from _texts(name, item, deep + 1)


def scalars(sample: Sample) -> Iterator[tuple[str, tuple[str, str | None], Any]]:
    """Yield the fields of a sample that are one text, number or boolean: name as in `cells`, part and field, value."""
    for name in part_names(sample):
        if kind_of(name, sample.raw(name)[:8]) != "data":
            continue
        value = _tried(sample, name)
        if isinstance(value, Mapping):
            for inner, item in value.items():
                if isinstance(item, str | bool | int | float):
                    yield str(inner) if name == "json" else f"{name}.{inner}", (name, str(inner)), item
        elif isinstance(value, str | bool | int | float):
            yield name, (name, None), value


def next_step(text: str, *, code: str | None = None, href: str | None = None, label: str = "Open") -> dict[str, Any]:
    """Return what a page suggests to do next: a sentence, with a command or a link."""
    return {"text": text, "code": code, "href": href, "label": label}


def _cell(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, bytes):
        try:
            return one_line(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=as_text).decode())
        except orjson.JSONEncodeError:
            pass
    return one_line(as_text(value, lines=1))


_SAYING = (
    *("caption", "text", "txt", "task", "instruction", "instructions", "language_instruction", "original", "prompt"),
    *("question", "query", "problem", "messages", "conversations", "conversation", "title", "content", "answer"),
    *("response", "transcript", "description", "label", "cls", "class_name", "name", "category"),
)
"""Names of fields that say what a sample is, the most telling first."""
_TITLE, _DEEP_TITLE = 160, 5


def title_of(sample: Sample, fields: Mapping[str, str] | None = None) -> str | None:
    """Return the sample's own words as one line: its caption, task, first message or text; None if it has none.

    Args:
        fields: the dataset's map of fields to parts, such as ``{"caption": "json[text]"}``, which comes first.
    """
    for name, place in sorted((fields or {}).items(), key=lambda item: _telling(item[0])):
        part, _, inner = place.partition("[")
        if _telling(name) < len(_SAYING) and part in sample and kind_of(part) == "data":
            words = _words(_tried(sample, part), inner.removesuffix("]"))
            if words is not None:
                return words
    best: tuple[int, str] | None = None
    for name in part_names(sample):
        if kind_of(name, sample.raw(name)[:8]) != "data":
            continue
        value = _tried(sample, name)
        for inner, item in value.items() if isinstance(value, Mapping) else ((name, value),):
            rank = _telling(str(inner)) if str(inner) in _SAYING else _telling(extension(name)) + 1
            words = _words(item)
            if words is not None and (rank < len(_SAYING) or " " in words) and (best is None or rank < best[0]):
                best = rank, words
    return None if best is None else best[1]


def _telling(name: str) -> int:
    return _SAYING.index(name) if name in _SAYING else len(_SAYING)


def _tried(sample: Sample, part: str) -> Any:
    try:
        return sample[part]
    except FeedmillError:  # the opened sample says why
        return None


def _words(value: Any, field: str = "", deep: int = 0) -> str | None:
    """Return the first words in a value: of a list those of its first entry, of a message its content."""
    if isinstance(value, str):
        return one_line(value, _TITLE) or None
    if deep == _DEEP_TITLE:
        return None
    if isinstance(value, Mapping):
        names = (field,) if field else ("content", "value", "text")
        inner = next((value[name] for name in names if name in value), None)
        return None if inner is None else _words(inner, "", deep + 1)
    if isinstance(value, list | tuple):
        found = (_words(item, "", deep + 1) for item in value[:8])
        return next((words for words in found if words is not None), None)
    return None


THUMBNAIL, FULL = 240, 1600
"""Longest side in pixels."""
MOST_PIXELS = 80_000_000


def picture(sample: Sample, part: str, longest: int) -> tuple[bytes, str]:
    """Return an image of a sample as PNG or JPEG bytes, and its media type.

    Raises:
        NotFound: there is no such part.
        DataError: it is not an image, does not decode, or has too many pixels.
        MissingExtra: Pillow is not installed.
    """
    data = sample.raw(part)
    image = _decoded(data, part) if kind_of(part, data) == "image" else as_image(sample[part])
    if image is None:
        raise DataError("this part is not an image", record=f"{sample.key}.{part}", kind="bad-part")
    image = with_objects(image, sample, longest)
    return encoded(image, longest, f"{sample.key}.{part}")


def with_objects(image: Any, sample: Sample, longest: int) -> Any:
    """Return a Pillow image with the boxes, masks and keypoints of its sample drawn on it, if the part json has any."""
    if "json" not in sample:
        return image
    try:
        objects = objects_in(sample["json"])
    except FeedmillError:  # shown with the part itself
        return image
    if objects is None:
        return image
    image.thumbnail((longest, longest))
    return drawn(image, objects)


def encoded(image: Any, longest: int, record: str) -> tuple[bytes, str]:
    """Return a Pillow image as PNG or JPEG bytes, and its media type. Raises `DataError` if it does not decode."""
    try:
        small = image.mode in ("1", "P", "LA", "RGBA", "PA")
        image = image.convert("RGBA" if small else "RGB") if image.mode not in ("L", "RGB", "RGBA") else image
        image.thumbnail((longest, longest))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"the image does not decode ({error})", record=record) from None
    out = BytesIO()
    if image.mode == "RGBA":
        image.save(out, "PNG", compress_level=1)
        return out.getvalue(), "image/png"
    image.save(out, "JPEG", quality=88)
    return out.getvalue(), "image/jpeg"


def _decoded(data: bytes, part: str) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("images need Pillow", extra="media") from None
    try:
        image = Image.open(BytesIO(data))
        if image.width * image.height > MOST_PIXELS:
            raise DataError(f"the image has {image.width:,} x {image.height:,} pixels", record=part, kind="too-large")
        image.draft("RGB", (FULL, FULL))
        image = turned_image(image, left_to_turn(image))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the image does not decode ({error})", record=part, kind="bad-media") from None
    return image


def first_image(sample: Sample) -> str | None:
    """Return the name of the first part that is an image."""
    for name in part_names(sample):
        if kind_of(name, sample.raw(name)[:8]) == "image":
            return name
    return None
