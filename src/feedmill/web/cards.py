"""Cards of HTML that notebooks show for an object by itself, without scripts and requests.

It does without the packages of the extra ``web``. Everything from data is escaped, and invisible characters are written
as their code. A card shows a few samples, however large the dataset is; `feedmill.show` has all of it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from feedmill.errors import FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.loading.loader import Loader
from feedmill.planning.overview import PlanReport
from feedmill.planning.plan import Plan
from feedmill.samples.preview import PreviewReport, token_text
from feedmill.samples.sheet import as_image, image_shape
from feedmill.samples.text import as_numbers, as_text, human_size
from feedmill.samples.types import DetectionSample, TypedSample, named_fields
from feedmill.samples.vision import drawn
from feedmill.web.invisible import one_line, visible
from feedmill.web.parts import TOO_LARGE, cells, encoded, kind_of, part_names, picture

SAMPLES, PARTS, ROWS = 4, 12, 12
"""Samples of a dataset, parts of a sample, and lines of a list in a card; what is left out is counted."""
THUMBNAIL, LONGEST = 120, 240
"""Longest side in pixels of images in the cards of datasets and of samples."""
_TEXT = 120
_BOX = (
    "border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:8px 12px;margin:4px 0;max-width:60em;"
    "font:13px/1.5 system-ui,sans-serif;overflow:auto"
)
_PRE = "white-space:pre-wrap;margin:2px 0;font:12px/1.4 ui-monospace,monospace;background:none;color:inherit"
_GRID = "display:flex;flex-wrap:wrap;gap:8px;margin-top:6px"
_PICTURE = "max-width:100%;outline:1px solid rgba(128,128,128,.3)"  # a white picture is seen on white
_TILE = "width:150px;overflow:hidden;overflow-wrap:anywhere;border-top:1px solid rgba(128,128,128,.3);padding-top:4px"


def card_of(thing: Any) -> str:
    """Return the card of a dataset, sample, plan, loader or report as HTML; of data that cannot be read, the error."""
    made = next((make for kind, make in _CARDS if isinstance(thing, kind)), _report)
    try:
        return f'<div style="{_BOX}">{made(thing)}</div>'
    except FeedmillError as error:
        return f'<div style="{_BOX}">{_head(type(thing).__name__, "cannot be shown")}{_pre(str(error))}</div>'


def _text(value: Any) -> str:
    return escape(str(visible(str(value))))


def _head(name: str, *facts: str) -> str:
    return f"<div><b>{_text(name)}</b> {' &middot; '.join(_text(fact) for fact in facts if fact)}</div>"


def _pre(text: str) -> str:
    return f'<pre style="{_PRE}">{_text(text)}</pre>'


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and HTML."""
    cell = "text-align:left;vertical-align:top;padding:1px 12px 1px 0;border:0;background:none"
    lines = [f'<tr><td style="{cell}">{_text(name)}</td><td style="{cell}">{html}</td></tr>' for name, html in rows]
    return f'<table style="border:0;margin-top:4px;font:inherit">{"".join(lines)}</table>' if lines else ""


def _more(count: int, shown: int, noun: str) -> str:
    return f"<div>and {count - shown:,} more {noun}</div>" if count > shown else ""


def _image(data: bytes, kind: str, name: str) -> str:
    text = base64.b64encode(data).decode()
    return f'<img alt="{_text(name)}" style="{_PICTURE}" src="data:{kind};base64,{text}">'


def _dataset(dataset: Dataset) -> str:
    facts = dataset.describe()
    size = human_size(facts["bytes"]) if isinstance(facts.get("bytes"), int) else ""
    split = "" if dataset.split is None else f"split {dataset.split}"
    head = _head(
        f"{facts.get('format', dataset.format)} dataset", dataset.url, f"{len(dataset):,} samples", split, size
    )
    tiles = "".join(_tile(dataset, number) for number in range(min(SAMPLES, len(dataset))))
    return f'{head}<div style="{_GRID}">{tiles}</div>{_more(len(dataset), SAMPLES, "samples")}'


def _tile(dataset: Dataset, number: int) -> str:
    try:
        sample = dataset.read_raw([number])[0]
        sample.home = dataset
        words = token_text(dataset, sample, lines=4)
        if sample.source.length > TOO_LARGE:
            body = _text(f"{human_size(sample.source.length)}: too large for a card")
        elif words:
            body = _text(words)
        else:
            body = "<br>".join([*_pictures(sample)[:1], *(_text(one_line(t, _TEXT)) for t in _cells(sample))])
        key = sample.key
    except FeedmillError as error:
        key, body = str(number), _text(f"cannot be read: {error.what}")
    return f'<div style="{_TILE}"><b>{_text(one_line(key, 40))}</b><br>{body}</div>'


def _cells(sample: Sample) -> list[str]:
    return [f"{name}: {text}" for name, text in cells(sample).items() if kind_of(name) != "image"][:4]


def _pictures(sample: Sample) -> list[str]:
    out = []
    for name in part_names(sample):
        if kind_of(name, sample.raw(name)[:8]) == "image":
            try:
                out.append(_image(*picture(sample, name, THUMBNAIL), name))
            except FeedmillError as error:  # it does not decode, or Pillow is not installed
                out.append(_text(f"{name}: {error.what}"))
    return out


def _sample(sample: Any) -> str:
    fields: Mapping[str, Any] = named_fields(sample) or {}
    names = [name for name in fields if not name.startswith("__")]
    key = sample.key if isinstance(sample, Sample) else getattr(sample, "__key__", "")
    rows = [(name, _part(sample, fields, name)) for name in names[:PARTS]]
    home = sample.home if isinstance(sample, Sample) else None
    if home is not None and "input_ids" in names:
        text = token_text(home, sample)
        rows += [("text", _pre(text))] if text else []
    kind = "sample" if isinstance(sample, Sample) else type(sample).__name__
    return _head(kind, key) + _facts(rows) + _more(len(names), PARTS, "parts")


def _part(sample: Any, fields: Mapping[str, Any], name: str) -> str:
    try:
        if isinstance(sample, Sample) and kind_of(name) == "image":
            return _image(*picture(sample, name, LONGEST), name)
        value = fields[name]
        if name in getattr(type(sample), "ragged", ()):
            return _pre(as_numbers(value))
        if hasattr(value, "mode") or image_shape(value):
            image = as_image(value)
            if image is not None:
                image = drawn(image, sample) if isinstance(sample, DetectionSample) else image
                return _image(*encoded(image, LONGEST, name), name)
        return _pre(as_text(value))
    except FeedmillError as error:
        return _text(f"(not decoded: {error})")


def _plan(plan: Plan) -> str:
    size = "endless" if plan.length is None else f"{plan.length:,} samples"
    count = len(plan.sources)
    return _head("plan", size, f"{count:,} source{'' if count == 1 else 's'}", plan.fingerprint) + _lines(str(plan))


def _summary(report: PlanReport) -> str:
    rows = report.facts["sources"]
    shares = [
        (row["name"], _text(f"{row['drawn']:,} samples drawn, {row['weight_realised']:.2%}, {row['epochs']:,} epochs"))
        for row in rows[:ROWS]
    ]
    return _plan(report.plan) + _facts(shares) + _more(len(rows), ROWS, "sources")


def _lines(text: str) -> str:
    """Return the first lines of a text."""
    rows = text.splitlines()
    return _pre("\n".join(rows[: 2 * ROWS])) + _more(len(rows), 2 * ROWS, "lines")


def _loader(loader: Loader) -> str:
    return _head("loader", repr(loader).removeprefix("Loader(").removesuffix(")")) + _lines(str(loader.plan))


def _preview(report: PreviewReport) -> str:
    tiles = [
        _head(sample["key"]) + _facts([(name, _pre(text)) for name, text in list(sample["parts"].items())[:PARTS]])
        for sample in report.samples[:SAMPLES]
    ]
    return _head("preview", report.path) + "".join(tiles) + _more(len(report.samples), SAMPLES, "samples")


def _report(report: Any) -> str:
    """Return the facts of a report: values as they are, of lists and mappings the number of entries and the first."""
    data = dict(report.as_dict())
    rows = [(name, _value(value)) for name, value in data.items() if value is not None]
    return _head(type(report).__name__) + _facts(rows)


def _value(value: Any) -> str:
    if isinstance(value, Mapping) and value and not any(isinstance(one, Mapping | list) for one in value.values()):
        return _listed([f"{name}: {one}" for name, one in value.items()])
    if isinstance(value, Mapping):
        return _listed([f"{name}: {one_line(str(one), _TEXT)}" for name, one in value.items()])
    if isinstance(value, list | tuple):
        return _listed([_line(one) for one in value])
    return _text(f"{value:,}" if type(value) is int else value)


def _line(entry: Any) -> str:
    """Return an entry of a list as one line; of a finding its message."""
    if isinstance(entry, Mapping) and "what" in entry:
        return f"{entry.get('file') or ''}: {entry['what']}".removeprefix(": ")
    return one_line(str(entry), 2 * _TEXT)


def _listed(rows: list[str]) -> str:
    return "<br>".join(_text(row) for row in rows[:ROWS]) + _more(len(rows), ROWS, "entries") if rows else "none"


_CARDS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (Dataset, _dataset),
    (Plan, _plan),
    (PlanReport, _summary),
    (Loader, _loader),
    (PreviewReport, _preview),
    (Sample | TypedSample, _sample),
)
