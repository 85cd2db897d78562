"""The first page: what is open, and the views."""

from __future__ import annotations

from typing import Any

from feedmill.errors import FeedmillError
from feedmill.web.content import cells
from feedmill.web.library import Library, Thing
from feedmill.web.pictures import first_image
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
        return card | (_dataset(thing) if thing.kind == "dataset" else _recipe(thing))
    except FeedmillError as error:  # changed or gone since it was opened
        return card | {"problem": str(error)}


def _dataset(thing: Thing) -> dict[str, Any]:
    dataset = thing.dataset()
    facts = dataset.describe()
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
