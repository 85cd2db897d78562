"""View 1: the samples of a dataset, as a grid or a table, with histograms, filters, search and one sample opened."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.episodes import Episodic
from feedmill.formats.sample import Sample
from feedmill.samples.text import human_size
from feedmill.tokens.pieces import has_tokens, pieces_of, tokenizer_of
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.web.columns import Columns, Fields, read_each
from feedmill.web.documents import Documents, marked_text, short
from feedmill.web.episodes import about_episode, episode_of
from feedmill.web.invisible import one_line
from feedmill.web.library import OpenItem
from feedmill.web.parts import (
    TOO_LARGE,
    all_text,
    cells,
    facts_of,
    first_image,
    next_step,
    read_one,
    shown_parts,
    title_of,
    tree,
)
from feedmill.web.state import State

TILES, ROWS = 60, 100
MOST_TEXT = 20_000
_AT_ONCE, _MOST_COLUMNS, _BEGINNING = 256, 8, 60
_SEARCH_SECONDS = 2.0
_MOST_VALUES, _MOST_FACETS, _AROUND = 8, 6, 16
MOST_MARKS = 100_000
_WORDS = re.compile(r"[A-Za-z][A-Za-z ]*")

_OF_COPIES = ("dup", "near", "dup_near", "dup_meaning")
"""Attributes that mark documents as copies, by their last word."""


def samples(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return a page of samples as plain data.

    Raises:
        ConfigError: the address has an unknown column or an invalid value.
        NotFound: there is no such split or sample.
    """
    whole = thing.dataset()
    split = state.get("split")
    dataset, columns = thing.dataset(split), thing.columns(split)
    fields = _fields(thing, columns, state)
    if fields is not None:
        columns = fields.with_numbers_of(columns)
    chosen = columns.selected(state)
    if fields is not None:
        chosen = fields.selected(state, chosen, len(dataset))
    if "marked" in state:
        chosen = _marked(thing, dataset, chosen)
    searched = _search(dataset, chosen, state["q"]) if "q" in state else None
    if searched is not None:
        chosen = searched["found"]
    count = found = len(dataset) if chosen is None else len(chosen)
    pictures = bool(len(dataset)) and _has_pictures(dataset)
    episodes = isinstance(dataset, Episodic) and bool(len(dataset))
    layouts = ("episodes", "grid", "table") if episodes else ("grid", "table")
    layout = state.choice("as", layouts, "episodes" if episodes else "grid" if pictures else "table")
    at = state.number("at")
    if layout == "episodes" and isinstance(dataset, Episodic):
        chosen, at = _firsts(dataset, chosen), _first_of(dataset, at)
        count = len(chosen)
    size = ROWS if layout == "table" else TILES
    place = _place(chosen, at, len(dataset))
    page = state.number("page", 1 if place is None else place // size + 1, least=1) or 1
    numbers = _numbers(chosen, count, (page - 1) * size, size)
    facts = facts_of(dataset)
    rows = _rows(thing, dataset, numbers, columns, layout, state)
    opened = None if at is None else _opened(thing, dataset, chosen, place, state)
    if not thing.fields_begun(split):
        thing.begin_fields(split)
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
        "selected": found,
        "layout": layout,
        "layouts": layouts,
        "episodes": count if layout == "episodes" else None,
        "page": page,
        "pages": max(1, -(-count // size)),
        "search": None if searched is None else {k: v for k, v in searched.items() if k != "found"},
        "facets": [{"name": name, "label": short(name), **columns.histogram(name, state)} for name in columns.names],
        "values": [] if fields is None else _values(fields, state),
        "fields": None if fields is None else {"read": fields.read, "of": len(dataset)},
        "measures": thing.columns(split).names,
        "marked": len(thing.marks),
        "problems": columns.problems,
        "incomplete": facts.get("problem"),
        "skipped": dataset.skipped if isinstance(dataset, Documents) else [],
        "unread": isinstance(dataset, Documents) and dataset.unread,
        "sets": dataset.sets if isinstance(dataset, Documents) else [],
        "limits": _limits(state),
        "rows": rows,
        "current": at,
        "opened": opened,
        "python": python(thing, dataset, state, fields),
        "next": _next(thing, dataset, columns, state),
    }


def _fields(thing: OpenItem, columns: Columns, state: State) -> Fields | None:
    """Return the fields of the samples; None while they are read, unless the address needs them."""
    named = {*state.ranges(), state.get("sort", "").removeprefix("-")} - {""}
    needed = bool(state.chosen()) or not named <= {*columns.names}
    if not needed and not thing.fields_begun(state.get("split")):
        return None  # the samples first: they are read after the rows of the first page
    return thing.fields(state.get("split"), wait=needed)


def _values(fields: Fields, state: State) -> list[dict[str, Any]]:
    """Return the fields with few values: each value, how many samples have it, and whether it is chosen."""
    chosen, rows = state.chosen(), []
    for name, facet in fields.facets.items():
        pairs = list(zip(facet.values, facet.counts, strict=True))
        shown = pairs[:_MOST_VALUES] + [pair for pair in pairs[_MOST_VALUES:] if pair[0] == chosen.get(name)]
        values = [{"value": value, "count": count, "chosen": chosen.get(name) == value} for value, count in shown]
        rows.append({"name": name, "values": values, "more": len(pairs) - len(shown)})
    return rows


def _marked(thing: OpenItem, dataset: Dataset, chosen: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Return the marked samples among the chosen ones."""
    numbers = []
    for key in thing.marks:
        with contextlib.suppress(FeedmillError, ValueError):  # of another split
            numbers.append(dataset.find(key))
    marked = np.array(numbers, np.int64)
    return np.sort(marked) if chosen is None else chosen[np.isin(chosen, marked)]


def _firsts(dataset: Episodic, chosen: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Return the first frames of the episodes that have chosen frames."""
    starts = np.asarray(dataset.episode_starts, np.int64)
    if chosen is None:
        return starts
    places = dataset.episodes_of(np.asarray(chosen, np.int64))
    return starts[list(dict.fromkeys(places.tolist()))]


def _first_of(dataset: Episodic, number: int | None) -> int | None:
    """Return the first frame of the episode of a frame."""
    if number is None or not 0 <= number < len(dataset):
        return number
    return int(dataset.bounds(np.asarray([number], np.int64))[0][0])


def _next(thing: OpenItem, dataset: Dataset, columns: Columns, state: State) -> dict[str, Any]:
    """Return what to do next with these samples."""
    if thing.marks:
        count = len(thing.marks)
        noun = "sample is" if count == 1 else "samples are"
        text = f"{count:,} {noun} marked. A recipe with this skip list never draws them."
        return next_step(text, href=f"/{thing.name}/skip.yaml", label="Download skip list")
    if isinstance(dataset, Documents):
        for name in columns.names:
            if short(name) not in _OF_COPIES:
                continue
            copies = int((np.nan_to_num(columns[name]) > 0).sum())
            if copies:
                share = f"{copies:,} of {len(dataset):,} documents, {copies / len(dataset):.1%},"
                text = f"{share} are marked duplicates ({short(name)})."
                query = State([(f"max.{name}", "0")]).link()
                return next_step(text, href=f"/{thing.name}/filters{query}", label="Copy the filter")
        if not dataset.sets:
            return next_step("Score the documents to filter them:", code=f"feedmill tag {thing.path} -t gopher_v2")
        return next_step(
            "See what limits on the scores keep and drop.", href=f"/{thing.name}/filters", label="Set limits"
        )
    if "q" in state or state.ranges() or state.chosen():
        return next_step("Read the same samples in a program.", href="#python", label="Copy as Python")
    return next_step(
        "Check every shard before you train on it.", href=f"/{thing.name}/health", label="Check the shards"
    )


def mark(thing: OpenItem, state: State, action: str, key: str) -> None:
    """Mark or unmark a sample, or all that the address selects, in memory.

    Raises:
        ConfigError: the action is unknown, or there would be more than 100,000 marks.
        NotFound: there is no such sample.
    """
    dataset = thing.dataset(state.get("split"))
    if action == "none":
        thing.marks.clear()
    elif action == "all":
        data = samples(thing, State([*state.items(), ("as", "table"), ("page", "1")]))
        if data["selected"] + len(thing.marks) > MOST_MARKS:
            what = f"{data['selected']:,} samples are selected, and at most {MOST_MARKS:,} can be marked"
            raise ConfigError(what, kind="too-large", fix="Narrow the samples by a filter first.")
        for page in range(1, data["pages"] + 1):
            rows = samples(thing, State([*state.items(), ("as", "table"), ("page", str(page))]))["rows"]
            thing.marks |= dict.fromkeys(row["key"] for row in rows)
    elif action in ("mark", "unmark"):
        dataset.find(key)
        if action == "unmark":
            thing.marks.pop(key, None)
        elif len(thing.marks) < MOST_MARKS:
            thing.marks[key] = None
    else:
        raise ConfigError(f"{action[:40]!r} is no action", kind="bad-option", fix="Use mark, unmark, all or none.")


def skip_list(thing: OpenItem) -> str:
    """Return the marked samples as the key ``skip`` of a recipe. Raises `ConfigError` if none is marked."""
    import yaml

    _refuse_unmarked(thing)
    url, names = thing.dataset().url, []
    for other in thing.others.values():
        if other.kind == "recipe":
            names += [name for name in other.plan.names if getattr(other.plan.source(name), "url", None) == url]
    name = names[0] if names else re.sub(r"\.[^.]*$", "", thing.name)
    head = (
        f"# {len(thing.marks):,} samples of {thing.path}. Add this to the outermost recipe that you start a run with.\n"
    )
    tree = {"skip": [{"source": name, "keys": list(thing.marks)}]}
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000)


def marked_keys(thing: OpenItem) -> str:
    """Return the keys of the marked samples, one on each line. Raises `ConfigError` if none is marked."""
    _refuse_unmarked(thing)
    return "".join(f"{key}\n" for key in thing.marks)


def _refuse_unmarked(thing: OpenItem) -> None:
    if not thing.marks:
        raise ConfigError("no sample is marked", file=thing.path, kind="bad-option", fix="Open one and mark it, key x.")


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


def _rows(
    thing: OpenItem, dataset: Dataset, numbers: list[int], columns: Columns, layout: str, state: State
) -> list[dict[str, Any]]:
    field_map = facts_of(dataset).get("field_map")
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
                row["title"] = row["cells"]["input_ids"]
            else:
                row["title"] = title_of(sample, field_map)
            if "q" in state:
                row["match"] = match_of(sample, state["q"])
            if layout != "table":
                row["picture"] = first_image(sample)
            if layout == "episodes":
                row["episode"] = about_episode(dataset, number)
        row["marked"] = row["key"] in thing.marks
        rows.append(row)
    return rows


def _words(thing: OpenItem, dataset: Dataset) -> Tokenizer | None:
    """Return the tokenizer of token files, if it is on this machine."""
    try:
        return tokenizer_of(dataset, thing.tokenizers) if has_tokens(dataset) else None
    except FeedmillError:  # the opened sample says why
        return None


def match_of(sample: Sample, text: str) -> dict[str, Any] | None:
    """Return the first place of a text in a sample: the field, and the words around it; None if only its key has it."""
    wanted = text.casefold()
    for name, value in all_text(sample):
        at = value.casefold().find(wanted)
        if at >= 0:
            first, stop = max(0, at - _AROUND), at + len(text) + 6 * _AROUND
            words = one_line(value[first:stop])
            return {"field": name, "text": f"{'…' if first else ''}{words}{'…' if stop < len(value) else ''}"}
    return None


def column_names(
    rows: Sequence[dict[str, Any]], facets: Sequence[dict[str, Any]] = (), chosen: str | None = None
) -> dict[str, bool]:
    """Return the columns that a table can have, and whether it has them: those chosen, else as many as fit.

    They are the cells of the samples, most frequent first, then the columns of the index and of the fields.
    """
    counts: dict[str, int] = {}
    for row in rows:
        for name in row.get("cells", ()):
            counts[name] = counts.get(name, 0) + 1
    cells = sorted(counts, key=lambda name: -counts[name])
    others = [facet["name"] for facet in facets if facet["name"] not in counts]
    shown = {*cells[:_MOST_COLUMNS], *others[:_MOST_FACETS]} if chosen is None else {*chosen.split(",")}
    return {name: name in shown for name in [*cells, *others]}


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
        "title": title_of(sample, facts_of(dataset).get("field_map")),
        "marked": sample.key in thing.marks,
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
    whole = len(numbers)
    if isinstance(dataset, Documents) and _WORDS.fullmatch(text):
        numbers = dataset.having(numbers, text)
    wanted, found, read = text.casefold(), [], 0
    end = time.monotonic() + _SEARCH_SECONDS
    while read < len(numbers) and time.monotonic() < end:
        block = numbers[read : read + _AT_ONCE]
        for number, sample in zip(block.tolist(), read_each(dataset, block.tolist()), strict=True):
            if not isinstance(sample, FeedmillError) and any(wanted in t.casefold() for _, t in all_text(sample)):
                found.append(number)
        read += len(block)
    read = whole if read >= len(numbers) else read
    return {"text": text, "found": np.array(found, np.int64), "read": read, "of": whole, "by": "text"}


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


def python(thing: OpenItem, dataset: Dataset, state: State, fields: Fields | None) -> str:
    """Return a program that reads the samples that the page shows."""
    numbers_of = {} if fields is None else {name: fields.places[name] for name in fields.numbers}
    places = {} if fields is None else fields.places
    column = "ds.columns[{!r}]" if isinstance(dataset, Documents) else "ds.costs({!r})"
    split = f", split={state['split']!r}" if "split" in state else ""
    lines = ["import numpy as np", "import feedmill as fm", "", f"ds = fm.open({thing.path!r}{split})"]
    if isinstance(dataset, Documents):
        lines[1:] = ["from feedmill.web.documents import open_documents", "", f"ds = open_documents({thing.path!r})"]
    own = {*numbers_of} - {*thing.columns(state.get("split")).names}

    def numbers_in(name: str) -> str:
        if name not in own:
            return column.format(name)
        part, inner = numbers_of[name]
        value = f"s[{part!r}]" if inner is None else f"s[{part!r}].get({inner!r}, np.nan)"
        return f"np.array([{value} for s in ds.read_raw(range(len(ds)))], float)"

    conditions = []
    for name, (low, high) in state.ranges().items():
        limits = ((">=", low), ("<=", high))
        conditions += [f"({numbers_in(name)} {sign} {value!r})" for sign, value in limits if value is not None]
    for name, value in state.chosen().items():
        part, inner = places.get(name, (name, None))
        item = f"s[{part!r}]" if inner is None else f"s[{part!r}].get({inner!r})"
        conditions.append(f"np.array([str({item}) == {value!r} for s in ds.read_raw(range(len(ds)))])")
    numbers = f"np.flatnonzero({' & '.join(conditions)})" if conditions else "np.arange(len(ds))"
    if conditions or "sort" in state:
        lines.append(f"numbers = {numbers}")
    if "sort" in state:
        name = state["sort"].removeprefix("-")
        sign = "-" if state["sort"].startswith("-") else ""
        lines.append(f'numbers = numbers[np.argsort({sign}{numbers_in(name)}[numbers], kind="stable")]')
    at = state.number("at")
    if at is not None:
        lines.append(f"sample = ds[{at}]")
    elif conditions or "sort" in state:
        lines.append("samples = ds.read(numbers[:100])")
    else:
        lines.append("samples = ds.read(range(min(100, len(ds))))")
    return "\n".join(lines) + "\n"
