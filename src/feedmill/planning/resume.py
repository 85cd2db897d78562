"""Going on with a plan that differs from the one a state was saved with, in the two ways that may be allowed.

*Another skip list.* The position is kept as it counts without a skip list, right after the last sample seen. From
there on nothing is lost or repeated but what the new list leaves out; entries for what was seen already do nothing.

*Sources that grew.* The run goes on at the same position of the new plan, which is the plan of the grown data from the
start on. The sources that did not grow go on where they were, if nothing mixes them with one that grew but a blend.
In a grown source that is shuffled, the epoch under way is another permutation of more samples: until it ends, samples
that were seen in it may come again, and others wait for the next epoch. docs/ledger.md has the cases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from feedmill.errors import ConfigError
from feedmill.planning.plan import Plan, fingerprint_of

MOST_PARTS = 160
_DATA = re.compile(r"(\d+) samples (.*)", re.DOTALL)


def bookmark(plan: Plan, position: int) -> dict[str, Any]:
    """What a state keeps beside position and fingerprint, so that the skip list may change: nothing without one.

    ``unskipped`` is the position after the last sample seen, without the skip list; ``stream`` is the fingerprint of
    the plan without it.
    """
    if plan.skip is None:
        return {}
    return {"unskipped": plan.skip.after(position), "stream": fingerprint_of(_stream(plan.fingerprints))}


def digests(parts: Mapping[str, str]) -> str:
    """Four digits a part, in order: what a state keeps of fingerprints that are too long for it (if not too many)."""
    if len(parts) > MOST_PARTS:
        return ""
    return "".join(
        blake2b(f"{part}={said}".encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()
        for part, said in parts.items()
    )


def differing(parts: Mapping[str, str], kept: str) -> list[str]:
    """Which parts are not those that `kept`, from `digests`, was made of."""
    before, now = len(kept) // 4, digests(parts)
    if kept and len(now) != len(kept):
        return [f"it had {before} parts (order, seed, and two for each source), now it has {len(parts)}"]
    return [
        f"{part} changed"
        for at, part in enumerate(parts)
        if kept and kept[4 * at : 4 * at + 4] != now[4 * at : 4 * at + 4]
    ]


def reopened(plan: Plan, state: Mapping[str, Any], *, allow_append: bool, allow_skip: bool) -> int:
    """The position of `plan` at which a run goes on whose `state` was saved with another plan.

    Args:
        state: ``plan``, ``position`` and ``sources`` as `Plan.fingerprint`, the position and `Plan.fingerprints` (or
            nothing) were then, and what `bookmark` gave.
        allow_append: sources may have more samples, behind those they had.
        allow_skip: the skip list may be another.

    Raises:
        ConfigError: something else changed, or what changed is not allowed; the message names it.
    """
    new, old = dict(plan.fingerprints), dict(state["sources"])
    skip, grown, refused = "", dict[str, str](), list[str]()
    same_stream = fingerprint_of(_stream(new)) == state.get("stream", state["plan"])
    if old.get("skip") != new.get("skip") if old else same_stream:
        before = old.get("skip", "nothing" if old else "another")
        skip = f"skip was {before}, is now {new.get('skip', 'nothing')}"
    if same_stream:
        pass
    elif old:
        grown, doubts = _growth(plan, old)
        same = {part: new[part] for part in grown}
        refused = plan.explain_change({**_stream(old), **same, **_skip(new)}) + doubts
    else:  # too many sources for the state to say all of them
        named = differing(new, str(state.get("parts", "")))
        refused = named or [f"its fingerprint was {state['plan']} and is {plan.fingerprint}"]
    flags = []
    if grown and not allow_append:
        flags.append("allow_append=True")
    if skip and not allow_skip:
        flags.append("allow_skip=True")
    if refused or flags:
        flags = [] if refused else flags
        changes = [*refused, *([] if allow_append else grown.values()), *([skip] if skip and not allow_skip else [])]
        raise changed(changes, flags)
    unskipped = int(state.get("unskipped", state["position"]))
    return unskipped - (plan.skip.skipped(unskipped) if plan.skip is not None else 0)


def changed(changes: Sequence[str], flags: Sequence[str] = ()) -> ConfigError:
    """The error for a plan that is not that of the state; `flags` would allow all of the changes."""
    fix = "Resume with the recipe and the data of the saved run, or begin without a state."
    if flags:
        fix = f"If that is meant, load_state_dict(state, {', '.join(flags)}) goes on from here (docs/ledger.md)."
    return ConfigError(
        f"the plan is not the one that this state was saved with: {'; '.join(changes)}", kind="plan-changed", fix=fix
    )


def _growth(plan: Plan, old: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The parts of the fingerprint where data grew, with what happened; and where it changed in another way."""
    grown, doubts = {}, []
    for name, dataset in zip(plan.names, plan.sources, strict=True):
        part = f"data of {name}"
        was = _DATA.fullmatch(old.get(part, ""))
        if was is None or old[part] == plan.fingerprints[part]:
            continue
        count = int(was[1])
        if count < len(dataset) and dataset.fingerprint_of_first(count) == was[2]:
            grown[part] = f"{name} grew from {count:,} to {len(dataset):,} samples"
        elif count < len(dataset):
            doubts.append(f"the first {count:,} samples of {name} cannot be shown to be those of the saved run")
    return grown, doubts


def _stream(parts: Mapping[str, str]) -> dict[str, str]:
    return {part: said for part, said in parts.items() if part != "skip"}


def _skip(parts: Mapping[str, str]) -> dict[str, str]:
    return {part: said for part, said in parts.items() if part == "skip"}
