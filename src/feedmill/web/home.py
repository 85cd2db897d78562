"""The first page: what is open, and the views."""

from __future__ import annotations

from typing import Any

from feedmill.errors import FeedmillError
from feedmill.web.content import cells, facts_of
from feedmill.web.library import Library, Thing
from feedmill.web.loader import loader
from feedmill.web.pictures import first_image
from feedmill.web.runs import read_run
from feedmill.web.samples import read_each
from feedmill.web.state import State
from feedmill.web.step import shares_over, slots

_PICTURES, _ENDLESS = 6, 16_000


def home(library: Library, state: State) -> dict[str, Any]:  # noqa: ARG001
    """Return what is open as plain data."""
    return {"things": [_card(thing) for thing in library.things.values()]}


def _card(thing: Thing) -> dict[str, Any]:
    card: dict[str, Any] = {"name": thing.name, "path": thing.path, "kind": thing.kind}
    try:
        return card | _CARDS[thing.kind](thing)
    except FeedmillError as error:  # changed or gone since it was opened
        return card | {"problem": str(error)}


def _dataset(thing: Thing) -> dict[str, Any]:
    dataset = thing.dataset()
    facts = facts_of(dataset)
    count = len(dataset)
    numbers = sorted({count * n // _PICTURES for n in range(_PICTURES)}) if count else []
    pictures, text = [], None
    for number, sample in zip(numbers, read_each(dataset, numbers), strict=True):
        if isinstance(sample, FeedmillError):
            continue
        part = first_image(sample)
        if part is not None:
            pictures.append({"index": number, "part": part, "key": sample.key})
        elif text is None:
            text = next((str(value) for value in cells(sample).values() if isinstance(value, str)), None)
    return {
        "format": facts.get("format"),
        "samples": count,
        "shards": facts.get("shards"),
        "bytes": facts.get("bytes"),
        "tokens": facts.get("tokens"),
        "splits": dict(dataset.splits),
        "pictures": pictures,
        "text": text,
    }


def _recipe(thing: Thing) -> dict[str, Any]:
    plan = thing.plan
    budget = plan.length or _ENDLESS
    return {
        "sources": len(plan.names),
        "length": plan.length,
        "names": list(plan.names),
        "slots": slots(plan.names),
        "shares": shares_over(plan, budget),
        "fingerprint": plan.fingerprint,
    }


def _pipeline(thing: Thing) -> dict[str, Any]:
    found = read_run(thing.path)
    records = None if found.manifest is None else found.manifest.steps
    names = [step.name for step in (found.pipeline.steps if found.pipeline is not None else records or ())]
    return {
        "steps": len(names),
        "names": names,
        "recorded": None if records is None else len(records),
        "seconds": 0.0 if records is None else sum(record.seconds for record in records),
    }


def _telemetry(thing: Thing) -> dict[str, Any]:
    found = loader(thing, State())
    return {name: found[name] for name in ("ranks", "waiting", "age", "state")}


_CARDS = {"dataset": _dataset, "recipe": _recipe, "pipeline": _pipeline, "telemetry": _telemetry}
