"""View 1: the samples of a dataset, as a grid or a table, with histograms, filters, search and one sample opened."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.samples.text import human_size
from feedmill.tokens.pieces import has_tokens, pieces_of, tokenizer_of
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.web.columns import Columns
from feedmill.web.documents import Documents, marked_text, short
from feedmill.web.episodes import episode_of
from feedmill.web.invisible import one_line
from feedmill.web.library import OpenItem
from feedmill.web.parts import TOO_LARGE, cells, facts_of, first_image, read_one, shown_parts, tree
from feedmill.web.state import State

TILES, ROWS = 60, 100
MOST_TEXT = 20_000
_AT_ONCE, _MOST_COLUMNS, _BEGINNING = 256, 8, 60
_SEARCH_SECONDS = 2.0


def samples(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return a page of samples as plain data.

    Raises:
        ConfigError: the address has an unknown column or an invalid value.
        NotFound: there is no such split or sample.
    """
    whole = thing.dataset()
    split = state.get("split")
    dataset, columns = thing.dataset(split), thing.columns(split)
    chosen = columns.selected(state)
    searched = _search(dataset, chosen, state["q"]) if "q" in state else None
    if searched is not None:
        chosen = searched["found"]
    count = len(dataset) if chosen is None else len(chosen)
    pictures = bool(len(dataset)) and _has_pictures(dataset)
    layout = state.choice("as", ("grid", "table"), "grid" if pictures else "table")
    size = TILES if layout == "grid" else ROWS
    place = _place(chosen, state.number("at"), len(dataset))
    page = state.number("page", 1 if place is None else place // size + 1, least=1) or 1
    numbers = _numbers(chosen, count, (page - 1) * size, size)
    facts = facts_of(dataset)
    return {
        "name": thing.name,
        "path": thing.path,
        "format": facts.get("format"),
        "shards": facts.get("shards"),
        "bytes": facts.get("bytes"),
        "tokens": facts.get("tokens"),
        "sample_type": facts.get("sample_type"),
        "field_map": facts.get("field_map"),
        "split": split,
        "splits": dict(whole.splits),
        "samples": len(dataset),
        "selected": count,
        "layout": layout,
        "page": page,
        "pages": max(1, -(-count // size)),
        "search": None if searched is None else {k: v for k, v in searched.items() if k != "found"},
        "facets": [{"name": name, "label": short(name), **columns.histogram(name, state)} for name in columns.names],
        "problems": columns.problems,
        "incomplete": facts.get("problem"),
        "skipped": dataset.skipped if isinstance(dataset, Documents) else [],
        "unread": isinstance(dataset, Documents) and dataset.unread,
        "sets": dataset.sets if isinstance(dataset, Documents) else [],
        "limits": _limits(state),
        "rows": _rows(thing, dataset, numbers, columns, layout),
        "opened": None if state.number("at") is None else _opened(thing, dataset, chosen, place, state),
        "python": python(thing, dataset, state),
    }


def _limits(state: State) -> list[dict[str, Any]]:
    return [{"name": name, "low": low, "high": high} for name, (low, high) in state.ranges().items()]


def _has_pictures(dataset: Dataset) -> bool:
    known = dataset.__dict__.get("_has_pictures")
    if known is None:
        try:
            known = first_image(dataset.read_raw([0])[0]) is not None
        except FeedmillError:
            known = False
        dataset.__dict__["_has_pictures"] = known
    return bool(known)


def _numbers(chosen: npt.NDArray[Any] | None, count: int, first: int, size: int) -> list[int]:
    stop = min(first + size, count)
    return list(range(first, stop)) if chosen is None else [int(n) for n in chosen[first:stop]]


def _place(chosen: npt.NDArray[Any] | None, number: int | None, count: int) -> int | None:
    """Return the place of a sample among the selected ones; None if it is not among them."""
    if number is None or not 0 <= number < count:
        return None
    if chosen is None:
        return number
    positions = np.flatnonzero(chosen == number)
    return int(positions[0]) if len(positions) else None


def read_each(dataset: Dataset, numbers: Sequence[int]) -> list[Sample | FeedmillError]:
    """Return samples; in place of one that cannot be read, its error."""
    try:
        return list(dataset.read_raw(numbers)) if len(numbers) else []
    except FeedmillError:
        found: list[Sample | FeedmillError] = []
        for number in numbers:
            try:
                found.append(dataset.read_raw([number])[0])
            except FeedmillError as error:
                found.append(error)
        return found


def _rows(thing: OpenItem, dataset: Dataset, numbers: list[int], columns: Columns, layout: str) -> list[dict[str, Any]]:
    words = _words(thing, dataset)
    sizes = columns["bytes"] if "bytes" in columns.names else None
    small = [n for n in numbers if sizes is None or int(sizes[n]) <= TOO_LARGE]
    read = dict(zip(small, read_each(dataset, small), strict=True))
    rows = []
    for number in numbers:
        row: dict[str, Any] = {"index": number, "columns": columns.at(number)}
        sample = read.get(number)
        if sample is None:
            row |= {"key": dataset.locate(number).key, "problem": f"above {human_size(TOO_LARGE)}: open it to decode"}
        elif isinstance(sample, FeedmillError):
            row |= {"key": sample.record or str(number), "problem": str(sample)}
        else:
            row |= {"key": sample.key, "cells": cells(sample)}
            if words is not None and "input_ids" in sample:
                ids = sample["input_ids"][:_BEGINNING].tolist()
                row["cells"] = {**row["cells"], "input_ids": one_line(words.decode(ids))}
            if layout == "grid":
                row["picture"] = first_image(sample)
        rows.append(row)
    return rows


def _words(thing: OpenItem, dataset: Dataset) -> Tokenizer | None:
    """Return the tokenizer of token files, if it is on this machine."""
    try:
        return tokenizer_of(dataset, thing.tokenizers) if has_tokens(dataset) else None
    except FeedmillError:  # the opened sample says why
        return None


def column_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the cells of a table, most frequent first, as many as fit."""
    counts: dict[str, int] = {}
    for row in rows:
        for name in row.get("cells", ()):
            counts[name] = counts.get(name, 0) + 1
    return list(islice(sorted(counts, key=lambda name: -counts[name]), _MOST_COLUMNS))


def _opened(
    thing: OpenItem, dataset: Dataset, chosen: npt.NDArray[Any] | None, place: int | None, state: State
) -> dict[str, Any]:
    number = state.number("at", 0) or 0
    sample = read_one(dataset, number)
    source = sample.source
    large = source.length > TOO_LARGE and state.get("decode") != "1"
    parts = [] if large else shown_parts(sample)
    if isinstance(dataset, Documents) and not large:
        parts = [*_document(dataset, number), *parts]
    for part in parts:
        if part["kind"] == "tokens":
            part |= _decoded(thing, dataset, part["ids"])
    count = len(dataset) if chosen is None else len(chosen)
    neighbors = [None if place is None else p for p in ((place or 0) - 1, (place or 0) + 1)]
    before, after = (
        None if p is None or not 0 <= p < count else (p if chosen is None else int(chosen[p])) for p in neighbors
    )
    return {
        "index": number,
        "key": sample.key,
        "file": source.where,
        "place": "line" if isinstance(dataset, Documents) else "offset",
        "offset": source.offset,
        "length": source.length,
        "large": large,
        "episode": None if large else episode_of(dataset, number, state),
        "parts": parts,
        "previous": before,
        "next": after,
    }


def _document(dataset: Documents, number: int) -> list[dict[str, Any]]:
    """Return the text of a document with the spans that attributes mark, and its attributes."""
    text, scores = dataset.text(number), dataset.scores(number)
    pieces, more = marked_text(text, dataset.spans(number), MOST_TEXT)
    size = len(text.encode("utf-8", "replace"))
    marked = {
        "name": "text",
        "bytes": size,
        "kind": "document",
        "pieces": pieces,
        "more": more,
        "characters": len(text),
    }
    if not scores:
        return [marked]
    return [marked, {"name": "attributes", "bytes": len(str(scores)), "kind": "json", "tree": tree(scores)}]


def _decoded(thing: OpenItem, dataset: Dataset, ids: Sequence[int]) -> dict[str, Any]:
    try:
        return {"pieces": pieces_of(tokenizer_of(dataset, thing.tokenizers), ids)}
    except FeedmillError as error:
        return {"why": error.what if error.fix is None else f"{error.what}. {error.fix}"}


def _search(dataset: Dataset, chosen: npt.NDArray[Any] | None, text: str) -> dict[str, Any]:
    """Return the samples whose key is `text`, or whose text contains it, as far as two seconds reach."""
    try:
        return {"text": text, "found": np.array([dataset.find(text)]), "read": 0, "of": len(dataset), "by": "key"}
    except (FeedmillError, ValueError):
        pass
    numbers = np.arange(len(dataset)) if chosen is None else chosen
    wanted, found, read = text.casefold(), [], 0
    end = time.monotonic() + _SEARCH_SECONDS
    while read < len(numbers) and time.monotonic() < end:
        block = numbers[read : read + _AT_ONCE]
        for number, sample in zip(block.tolist(), read_each(dataset, block.tolist()), strict=True):
            if not isinstance(sample, FeedmillError) and wanted in _all_text(sample):
                found.append(number)
        read += len(block)
    return {"text": text, "found": np.array(found, np.int64), "read": read, "of": len(numbers), "by": "text"}


def _all_text(sample: Sample) -> str:
    return "\n".join(str(value) for value in cells(sample).values()).casefold()


def jump(thing: OpenItem, text: str) -> int:
    """Return the number of a sample by its key or number. Raises `NotFound`."""
    dataset = thing.dataset()
    try:
        return dataset.find(text)
    except (NotFound, ValueError):
        plain = text.replace(",", "").strip()
        if plain.isascii() and plain.isdigit() and len(plain) < 19 and int(plain) < len(dataset):
            return int(plain)
        raise NotFound(
            f"no sample has the key or the number {text[:80]!r}", file=thing.path, kind="no-such-sample"
        ) from None


def python(thing: OpenItem, dataset: Dataset, state: State) -> str:
    """Return a program that reads the samples that the page shows."""
    column = "ds.columns[{!r}]" if isinstance(dataset, Documents) else "ds.costs({!r})"
    split = f", split={state['split']!r}" if "split" in state else ""
    lines = ["import numpy as np", "import feedmill as fm", "", f"ds = fm.open({thing.path!r}{split})"]
    if isinstance(dataset, Documents):
        lines[1:] = ["from feedmill.web.documents import open_documents", "", f"ds = open_documents({thing.path!r})"]
    conditions = []
    for name, (low, high) in state.ranges().items():
        limits = ((">=", low), ("<=", high))
        conditions += [f"({column.format(name)} {sign} {value!r})" for sign, value in limits if value is not None]
    numbers = f"np.flatnonzero({' & '.join(conditions)})" if conditions else "np.arange(len(ds))"
    if conditions or "sort" in state:
        lines.append(f"numbers = {numbers}")
    if "sort" in state:
        name = state["sort"].removeprefix("-")
        sign = "-" if state["sort"].startswith("-") else ""
        lines.append(f'numbers = numbers[np.argsort({sign}{column.format(name)}[numbers], kind="stable")]')
    at = state.number("at")
    if at is not None:
        lines.append(f"sample = ds[{at}]")
    elif conditions or "sort" in state:
        lines.append("samples = ds.read(numbers[:100])")
    else:
        lines.append("samples = ds.read(range(min(100, len(ds))))")
    return "\n".join(lines) + "\n"
