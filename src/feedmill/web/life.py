"""View 4: a sample's life, from the raw line through duplicates, filter and tokens to the steps that see it."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import Any

import orjson

from feedmill.curation.mix.rules import Rules
from feedmill.curation.mix.verdict import attributes_of, stream_of
from feedmill.documents.file import kind_of
from feedmill.documents.lineage.chain import Descent, Lineages, Row, read_raw
from feedmill.documents.lineage.shards import is_shard, noun_of
from feedmill.documents.lineage.sidecar import read_lineage
from feedmill.documents.rows import load
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.planning.plan import Plan
from feedmill.storage import canonical_location, open_store, split_url
from feedmill.tracing.copies import Texts
from feedmill.tracing.document import Artefact, Document, Documents, Sighting, sightings
from feedmill.tracing.forget import report_files, report_of
from feedmill.tracing.held import Held
from feedmill.web.documents import Span, marked_text
from feedmill.web.library import OpenItem
from feedmill.web.parts import first_image, next_step, read_one, tree
from feedmill.web.results import behind
from feedmill.web.state import State
from feedmill.web.step import BATCH, MOST_BATCH, MOST_TIMES, bounded, searched, slots, steps_of

MOST_TEXT, MOST_MARKS, MOST_ROWS = 20_000, 400, 200
MOST_SEARCHED = 1 << 30
"""Bytes of raw files that are searched for an id."""


@dataclass
class _Known:
    """Data that is read once for a recipe."""

    lineages: Lineages
    held: Held
    documents: Documents

    @classmethod
    def of(cls, thing: OpenItem) -> _Known:
        known: _Known | None = thing.__dict__.get("_life")
        if known is None:
            lineages = Lineages()
            held = Held.of(thing.plan, lineages)
            known = thing.__dict__["_life"] = cls(lineages, held, Documents(held.paths, lineages))
        return known


def life(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return the life of a document as plain data: of ``document``, or of sample ``at`` of ``source``.

    Paths are whole; the page shows those in the folder of the recipe, ``base``, without it.

    Without lineage of any source, the data has only ``name``, ``label`` and ``raw``, which is None.

    Raises:
        ConfigError: the address has an invalid value.
        NotFound: there is no such document.
    """
    plan, known = thing.plan, _Known.of(thing)
    batch = bounded(state, "batch", BATCH, MOST_BATCH)
    if not known.held.paths:
        return {"name": thing.name, "label": thing.name, "raw": None}
    row, others = _asked(known, plan, state)
    (document,) = known.documents.find([f"{row.path}:{row.row + 1}"]).values()
    made = document[0]
    line = made.raw()
    steps = steps_of(plan, batch, state)
    limit = searched(plan, steps, batch)
    seen = sightings(plan, known.held, made, samples=limit, global_batch=batch)
    raw = _raw(made, line)
    raw["picture"] = _picture(plan, known, made)
    base = canonical_location(split_url(thing.path)[0]).rstrip("/") + "/"
    return {
        "name": thing.name,
        "path": thing.path,
        "batch": batch,
        "steps": steps,
        "id": raw["id"],
        "label": raw["id"] if raw["id"] is not None else f"{_short(made.file)}:{made.row + 1}",
        "document": f"{made.file}:{made.row + 1}",
        "others": [{"document": f"{other.path}:{other.row + 1}", "label": _label(other)} for other in others],
        "raw": raw,
        "copies": _copies(known, made),
        "filters": [_filtered(artefact) for artefact in made.artefacts if artefact.verb == "filter" and artefact.lines],
        "tokens": _tokens(plan, known, made),
        "seen": _seen(plan, seen, limit, batch) | {"all": limit >= min(steps * batch, plan.length or steps * batch)},
        "base": base,
        "next": next_step(
            "Remove this document: a report lists the files and steps that have it. Nothing is changed.",
            href=f"/{thing.name}/forget.zip"
            + state.link(document=f"{made.file}:{made.row + 1}", source=None, at=None, theme=None),
            label="Report for forget",
        ),
        "held": [f"{made.file}:{made.row + 1}", *made.summary()],
        "command": f"feedmill trace {thing.path} --source-document {made.file}:{made.row + 1} --global-batch {batch}",
        "forget": f"feedmill documents forget {made.file}:{made.row + 1} {thing.path} --global-batch {batch}"
        " --report FOLDER",
    }


def forget_files(thing: OpenItem, state: State) -> bytes:
    """Return what `feedmill documents forget --report` writes about the document of an address, as a ZIP archive.

    Raises:
        ConfigError: the address has an invalid value, or searching for the id would take too long.
        NotFound: there is no such document.
    """
    plan, known = thing.plan, _Known.of(thing)
    word = state.get("document", "")
    if not word or not known.held.paths:
        raise NotFound("no document is named in the address", kind="no-such-sample", fix="Give FILE:LINE or an id.")
    _refuse_large(known.documents.descent, word)
    batch = bounded(state, "batch", BATCH, MOST_BATCH)
    steps = steps_of(plan, batch, state)
    wanted, limit = min(steps * batch, plan.length or steps * batch), searched(plan, steps, batch)
    if limit < wanted:  # what must be forgotten is all of it
        raise ConfigError(
            f"the document may be in more than {MOST_TIMES:,} places of {wanted:,} positions: too many for a page",
            kind="too-large",
            fix="Use feedmill documents forget --report.",
        )
    documents = known.documents.find([word])
    report = report_of(documents, {thing.path: plan}, {thing.path: known.held}, samples=limit, global_batch=batch)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in report_files(report, {thing.path: plan}).items():
            archive.writestr(f"forget/{name}", data)
    return out.getvalue()


def _asked(known: _Known, plan: Plan, state: State) -> tuple[Row, list[Row]]:
    """Return the raw document that an address asks for, and all of its sample."""
    word = state.get("document")
    if word is not None:
        if ":" not in word:
            _refuse_large(known.documents.descent, word)
        documents = known.documents.find([word])[word]
        rows = [Row(document.file, document.row) for document in documents]
        return rows[0], rows
    source = state.choice("source", plan.names, next(name for name, rows in known.held.of_source.items() if rows.paths))
    index = state.number("at", 0) or 0
    if index >= len(plan.source(source)):
        raise NotFound(f"{source} has {len(plan.source(source)):,} samples", kind="no-such-sample")
    rows = [raw for row in known.held.rows(source, index) for raw in known.lineages.follow(*row).raw]
    rows = [row for row in dict.fromkeys(rows) if kind_of(row.path) is not None or is_shard(row.path)]
    if not rows:
        raise NotFound(
            "it is not known from which document this sample was made",
            file=plan.source(source).url,
            record=str(index),
            kind="no-lineage",
            fix="Write the token files again with this release, which writes their lineage.",
        )
    return rows[0], rows


def _refuse_large(descent: Descent, word: str) -> None:
    """Raise `ConfigError` if searching the raw files for an id would keep a page waiting."""
    size = sum(open_store(folder).stat(name).size for folder, name in map(split_url, descent.raw))
    if size > MOST_SEARCHED:
        raise ConfigError(
            f"the raw files have {size:,} bytes: too many to search for the id {word[:80]!r} in a page",
            kind="too-large",
            fix="Give FILE:LINE, or use feedmill trace --source-document.",
        )


def _label(row: Row) -> str:
    return f"{_short(row.path)}:{row.row + 1}"


def _short(path: str) -> str:
    return path.rpartition("/")[2]


def _raw(document: Document, line: bytes) -> dict[str, Any]:
    """Return the raw line: its text with the spans of its attributes, and its other fields."""
    data: dict[str, Any] = {
        "file": document.file,
        "line": document.row + 1,
        "bytes": len(line),
        "id": None,
        "noun": noun_of(document.file, ""),
        "picture": None,
        "words": None,
        "tree": None,
        "pieces": [],
        "more": 0,
        "spans": [],
        "scores": [],
    }
    try:
        value = load(line)
    except (orjson.JSONDecodeError, ValueError, RecursionError):
        value = None
    value = value if isinstance(value, dict) else {}
    if value:
        data["tree"] = tree(value)
    text, identity = value.get("text", value.get("txt")), value.get("id")
    data["id"] = str(identity) if isinstance(identity, str | int) and identity != "" else None
    if not isinstance(text, str):
        shown = line.decode("utf-8", "replace")
        pieces, more = marked_text(shown, [], MOST_TEXT)
        return {**data, "pieces": pieces, "more": more, "characters": len(shown)}
    data["tree"] = None  # the text says it
    spans: list[Span] = []
    for name, attributes in attributes_of(Row(document.file, document.row)).items():
        for attribute, entries in attributes.items():
            _split(name, attribute, entries, len(text), spans, data["scores"])
    pieces, more = marked_text(text, sorted(spans, key=lambda span: (span.start, span.end)), MOST_TEXT)
    counts: dict[str, int] = {}
    for span in spans:
        counts[span.name] = counts.get(span.name, 0) + 1
    return {
        **data,
        "pieces": pieces,
        "more": more,
        "characters": len(text),
        "words": len(text.split()) if len(text) <= MOST_TEXT else None,
        "spans": [{"name": name, "count": count} for name, count in counts.items()],
    }


def _picture(plan: Plan, known: _Known, document: Document) -> dict[str, Any] | None:
    """Return where the picture of a document is: in the first sample of the recipe that has it."""
    places = [
        Row(document.file, document.row),
        *(Row(artefact.file, row) for artefact in document.artefacts for row in artefact.rows),
    ]
    picture = next((sample for place in places for sample in known.held.samples(*place)), None)
    if picture is None or not is_shard(places[0].path):
        return None
    part = first_image(read_one(plan.source(picture[0]), picture[1]))
    return None if part is None else {"source": picture[0], "at": picture[1], "part": part}


def _split(name: str, attribute: str, entries: Any, size: int, spans: list[Span], scores: list[dict[str, Any]]) -> None:
    """Add the spans of an attribute that mark parts of the text, and the score of one that marks all of it."""
    entries = entries if isinstance(entries, list) else []
    whole = [
        entry for entry in entries if isinstance(entry, list) and len(entry) == 3 and entry[0] == 0 and entry[1] >= size
    ]
    for entry in entries:
        if isinstance(entry, list) and len(entry) == 3 and entry not in whole and 0 <= entry[0] < entry[1] <= size:
            spans.append(Span(int(entry[0]), int(entry[1]), attribute, float(entry[2])))
    if whole or not entries:
        scores.append({"set": name, "name": attribute, "value": whole[0][2] if whole else None})


def _copies(known: _Known, document: Document) -> dict[str, Any]:
    """Return the copies of the document, each with what became of it."""
    data: dict[str, Any] = {"rows": [], "whole": True, "problem": None, "searching": False}
    try:
        texts = behind(known, "_texts", lambda: Texts(known.documents.descent.raw)).result()
    except FeedmillError as error:
        return {**data, "whole": False, "problem": str(error)}
    if texts is None:
        return {**data, "searching": True}
    rows = []
    for copy in texts.copies(Row(document.file, document.row)):
        outputs = [made for made in known.documents.descent.made_from(*copy.row) if made.verb == "filter"]
        kept = None if not outputs else any(made.rows for made in outputs)
        rows.append(
            {
                "document": f"{copy.row.path}:{copy.row.row + 1}",
                "label": _label(copy.row),
                "id": copy.id,
                "characters": copy.characters,
                "same": copy.same,
                "kept": kept,
            }
        )
    return {**data, "rows": rows, "whole": texts.whole}


def _filtered(made: Artefact) -> dict[str, Any]:
    """Return what a filter did to the document: each rule with its result."""
    data: dict[str, Any] = {
        "file": made.file,
        "kept": bool(made.rows),
        "lines": [row + 1 for row in made.rows],
        "dropped": made.dropped,
        "rules": [],
        "problem": None,
    }
    try:
        lineage = read_lineage(made.file)
        if lineage is not None and "include" in lineage.header.options:
            data["rules"] = _rules(lineage.header.options, Row(made.source, made.source_row))
    except (FeedmillError, orjson.JSONDecodeError) as error:
        data["problem"] = str(error)
    return data


def _rules(options: dict[str, Any], row: Row) -> list[dict[str, Any]]:
    stream = stream_of(options)
    document = load(read_raw(row.path, [row.row])[row.row])
    merged = dict(document.get("attributes") or {})
    for attributes in attributes_of(row, stream.attributes).values():
        merged.update(attributes)
    document["attributes"] = merged
    rules = Rules(stream, exact=bool(options.get("exact")))
    rows = [
        {"kind": "include", "rule": text, "true": bool(rule(document))}
        for text, rule in zip(stream.include, rules.include, strict=True)
    ]
    rows += [{"kind": "exclude", "rule": text, "true": bool(rule(document))} for text, rule in rules.exclude]
    rows += [{"kind": "keep", "rule": text, "true": not limit.violated(document)} for text, limit in rules.keep]
    if stream.min_text_length:
        rows.append({"kind": "at least", "rule": f"{stream.min_text_length:,} bytes of text", "true": None})
    rows += [{"kind": "replace", "rule": replacement.span, "true": None} for replacement in stream.replacements]
    return rows


def _tokens(plan: Plan, known: _Known, document: Document) -> list[dict[str, Any]]:
    """Return the rows of token files that hold the document, with the samples that they are in the recipe."""
    colors, rows = slots(plan.names), []
    for made in document.artefacts:
        if made.verb == "filter" and made.lines:
            continue  # shown with its rules
        entry: dict[str, Any] = {"file": made.file, "verb": made.verb, "rows": made.rows[:MOST_ROWS], "samples": []}
        entry["shown"] = f"{made.noun} {made.shown}"
        for row in made.rows[:MOST_ROWS]:
            for source, index in known.held.samples(made.file, row):
                dataset = plan.source(source)
                where = dataset.locate(index)
                lengths = getattr(dataset, "lengths", None)
                entry["samples"].append(
                    {
                        "source": source,
                        "slot": colors[source],
                        "index": index,
                        "offset": where.offset,
                        "tokens": None if lengths is None else int(lengths[index]),
                    }
                )
        entry["dropped"] = made.dropped
        rows.append(entry)
    return rows


def _seen(plan: Plan, seen: list[Sighting], limit: int, batch: int) -> dict[str, Any]:
    colors = slots(plan.names)
    rows = [
        {
            "step": document.position // batch,
            "position": document.position,
            "source": document.source,
            "slot": colors[document.source],
            "epoch": document.epoch,
            "span": document.span,
            "x": round(100 * document.position / max(limit, 1), 3),
        }
        for document in seen
    ]
    return {
        "times": len({(row["position"], row["source"]) for row in rows}),
        "pieces": len(rows),
        "of": limit,
        "marks": rows[:MOST_MARKS],
        "rows": rows[:MOST_ROWS],
        "first": rows[0]["step"] if rows else None,
        "last": rows[-1]["step"] if rows else None,
    }
