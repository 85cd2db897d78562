"""Resume with a plan that differs from the one that a state was saved with, in the three ways that can be allowed.

*A changed skip list.* The state stores the position without a skip list, right after the last sample seen. From there
on, only what the new list skips is skipped, and nothing is lost or repeated. Entries for samples that were already seen
have no effect.

*Sources that grew.* The run resumes at the same position of the new plan, which is the plan of the grown data from the
start. Sources that did not grow continue where they were, if they are combined with grown ones only by a blend. In a
shuffled source that grew, the current epoch becomes a different permutation of more samples: until it ends, samples
that were seen in it may be repeated, and others are deferred to the next epoch.

*A changed recipe.* Every position before the state's must yield the same sample in both plans, which is proven
(`feedmill.planning.resuming.prefix`). If sources grew too, it is proven for the old recipe over the grown data, so the
result is that of resuming first with the grown data and then with the changed recipe. docs/ledger.md lists the cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError
from feedmill.planning.resuming.changes import explain, fingerprint_of
from feedmill.planning.resuming.outline import Outline, data_digest, outline_text, read_outline, short_name
from feedmill.planning.resuming.proof import prove
from feedmill.planning.skip_ranges import Gaps

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan

_DATA = re.compile(r"(\d+) samples (.*)", re.DOTALL)
_MOST_NAMED = 20
_LONGEST_SKIP = 120
_NOTHING_SKIPPED = Gaps([], 1).digest(0)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Allowed differences between the plan of a state and the current one.

    Attributes:
        append: sources may have additional samples after those they had.
        skip: the skip list may differ.
        change: the recipe may differ, if the positions before the state's are proven to be the same.
    """

    append: bool = False
    skip: bool = False
    change: bool = False


def bookmark(plan: Plan, position: int) -> dict[str, Any]:
    """Return what a state stores besides position and fingerprint, so that a run can resume with a changed plan.

    ``tree`` is the outline of the plan; if the plan has nodes that an outline does not support, ``sources`` is its
    fingerprints instead. With a skip list, ``skip`` is its text in short form, ``skipped`` a digest of what it skips up
    to here, ``unskipped`` the position after the last sample seen without the list, and ``stream`` the fingerprint of
    the plan without the list.
    """
    outline = outline_text(plan)
    kept: dict[str, Any] = {"sources": dict(plan.fingerprints)} if outline is None else {"tree": outline}
    if plan.skip is None:
        return kept
    unskipped = plan.skip.after(position)
    return {
        **kept,
        "skip": _brief(plan.skip.text),
        "skipped": plan.skip.digest(unskipped),
        "unskipped": unskipped,
        "stream": fingerprint_of(_stream(plan.fingerprints)),
    }


def reopened(plan: Plan, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:
    """Return the position of `plan` at which a run resumes from a `state` that was saved with a different plan.

    Args:
        plan: the current plan.
        state: ``plan`` and ``position``, and the result of `bookmark`; or ``sources`` as saved by older releases.
        allowed: the allowed differences.
        proven: outline -> position up to which its plan was proven to be the same as this one; updated in place.

    Raises:
        ConfigError: a change is not supported or not allowed, or the order before the position differs; the message
            names the change.
    """
    unskipped = int(state.get("unskipped", state["position"]))
    skip = _skip_change(plan, state)
    skip_allowed = allowed.skip or (allowed.change and _same_skips(plan, state, unskipped))
    outline: Outline | None = None
    changes, grown = list[str](), dict[str, str]()
    if fingerprint_of(_stream(plan.fingerprints)) != state.get("stream", state["plan"]):
        if "tree" in state:
            outline = _with_names(read_outline(state["tree"]), plan.names)
            changes, grown = _compared(plan, outline)
        else:
            changes, grown = _compared_texts(plan, state)
        if not changes and not grown:
            changes = [f"its fingerprint was {state['plan']} and is {plan.fingerprint}"]
    lacking = {"allow_append=True": grown and not allowed.append, "allow_skip=True": skip and not skip_allowed}
    flags = [flag for flag, lacks in lacking.items() if lacks]
    phrases = [*grown.values(), *changes] if not allowed.append else changes
    if allowed.change and (changes or (grown and not allowed.append)) and not lacking["allow_skip=True"]:
        if outline is None:
            raise _without_outline(phrases)
        if proven.get(state["tree"], -1) < unskipped:
            prove(plan, outline, grown if allowed.append else {}, unskipped, named(phrases))
            proven[state["tree"]] = unskipped
    elif changes or flags:
        raise changed([*phrases, *([skip] if skip and not skip_allowed else [])], flags, bool(changes), unskipped)
    return unskipped - (plan.skip.skipped(unskipped) if plan.skip is not None else 0)


def changed(
    changes: Sequence[str], flags: Sequence[str] = (), recipe: bool = False, position: int | None = None
) -> ConfigError:
    """Return the error for a plan that differs from that of the state.

    Args:
        changes: what changed.
        flags: arguments that would allow it.
        recipe: whether the recipe changed, which no flag allows without a proof.
        position: position of the state, if a proof can be attempted.
    """
    fix = "Resume with the recipe and the data of the saved run, or start without a state."
    if recipe and position is not None:
        options = ", ".join([*flags, "allow_change=True"])
        fix += (
            f" If the order changes only from position {position:,} on, load_state_dict(state, {options}) proves it and"
            " resumes (docs/ledger.md)."
        )
    elif flags:
        fix = f"If this is intended, load_state_dict(state, {', '.join(flags)}) resumes from here (docs/ledger.md)."
    return ConfigError(
        f"the plan is not the one that this state was saved with: {named(changes)}", kind="plan-changed", fix=fix
    )


def named(changes: Sequence[str]) -> str:
    """Return the changes in one line: changes of data and added or removed sources first, then changes of weights."""
    ordered = sorted(changes, key=lambda change: change.startswith("source ") and " was " in change)
    more = [f"and {len(ordered) - _MOST_NAMED:,} more changes"] if len(ordered) > _MOST_NAMED else []
    return "; ".join(ordered[:_MOST_NAMED] + more)


def differing(parts: Mapping[str, str], kept: str) -> list[str]:
    """Return which components of a plan's fingerprints changed, from the four digits per component of older states."""
    if not kept:
        return []
    if len(kept) != 4 * len(parts):
        return [f"it had {len(kept) // 4} parts (order, seed, and two for each source), now it has {len(parts)}"]
    return [
        f"{part} changed"
        for at, (part, value) in enumerate(parts.items())
        if kept[4 * at : 4 * at + 4]
        != blake2b(f"{part}={value}".encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()
    ]


def _compared(plan: Plan, old: Outline) -> tuple[list[str], dict[str, str]]:
    """Return what differs from the plan of an outline: the changes other than growth, and the sources that grew."""
    now = Outline.of(plan)
    saved = {name: (count, digest) for name, count, digest in zip(old.names, old.counts, old.digests, strict=True)}
    if old.rows is None:
        grown, doubts = _growth(plan, saved, lambda data, digest: data_digest(data) == digest)
    else:
        sizes = dict(zip(now.names, now.counts, strict=True))
        more = [name for name, (count, _) in saved.items() if count < sizes.get(name, 0)]
        grown, doubts = (
            {},
            [f"{name} has more samples, and packed rows cannot resume with data that grew" for name in more],
        )
    parts = now.parts()
    same = {f"data of {name}": parts[f"data of {name}"] for name in grown}
    return explain({**old.parts(), **same}, parts) + doubts, grown


def _compared_texts(plan: Plan, state: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return what `_compared` returns, for a state without an outline."""
    old = dict(state["sources"])
    if not old:
        return differing(plan.fingerprints, str(state.get("parts", ""))), {}
    saved = {}
    for name in plan.names:
        was = _DATA.fullmatch(old.get(f"data of {name}", ""))
        if was is not None:
            saved[name] = int(was[1]), was[2]
    grown, doubts = _growth(plan, saved, lambda data, fingerprint: data == fingerprint)
    same = {part: value for part, value in plan.fingerprints.items() if part == "skip" or part[8:] in grown}
    return plan.explain_change({**_stream(old), **same}) + doubts, grown


def _growth(
    plan: Plan, saved: Mapping[str, tuple[int, str]], matches: Callable[[str, str], bool]
) -> tuple[dict[str, str], list[str]]:
    """Return the sources that grew, with a phrase for each, and phrases for those whose growth cannot be proven."""
    grown, doubts = {}, []
    for name, dataset in zip(plan.names, plan.sources, strict=True):
        count, data = saved.get(name, (0, ""))
        if not 0 < count < len(dataset):
            continue
        first = dataset.fingerprint_of_first(count)
        if first is not None and matches(first, data):
            grown[name] = f"{name} grew from {count:,} to {len(dataset):,} samples"
        else:
            doubts.append(f"the first {count:,} samples of {name} cannot be shown to be those of the saved run")
    return grown, doubts


def _with_names(outline: Outline, names: Sequence[str]) -> Outline:
    """Return the outline with shortened names replaced by those of the current plan."""
    whole = {short_name(name): name for name in names}
    return replace(outline, names=tuple(whole.get(name, name) for name in outline.names))


def _skip_change(plan: Plan, state: Mapping[str, Any]) -> str:
    """Return how the skip list changed; empty if it did not."""
    now = None if plan.skip is None else plan.skip.text
    if "tree" in state or "skip" in state:
        was, now = state.get("skip"), None if now is None else _brief(now)
    elif state["sources"]:
        was = state["sources"].get("skip")
    else:  # an older state of many sources: if nothing else changed, it was the skip list
        same = fingerprint_of(_stream(plan.fingerprints)) == state.get("stream", state["plan"])
        was = "another" if same else now
    return "" if was == now else f"skip was {was or 'nothing'}, is now {now or 'nothing'}"


def _same_skips(plan: Plan, state: Mapping[str, Any], unskipped: int) -> bool:
    """Return whether the same positions are known to be skipped before the state's position."""
    known = "skipped" in state or "unskipped" not in state
    now = _NOTHING_SKIPPED if plan.skip is None else plan.skip.digest(unskipped)
    return known and state.get("skipped", _NOTHING_SKIPPED) == now


def _brief(skip: str) -> str:
    """Return a skip list as stored in a state: long ones are cut and end with a digest."""
    if len(skip) <= _LONGEST_SKIP:
        return skip
    return f"{skip[:_LONGEST_SKIP]}... ({data_digest(skip)})"


def _without_outline(changes: Sequence[str]) -> ConfigError:
    return ConfigError(
        "the state does not contain the recipe that it was saved with, so the order before its position cannot be"
        f" proven to be the same: {named(changes)}",
        kind="plan-changed",
        fix="Load it with the recipe and the data of the saved run, save a state with this release, and then change"
        " the recipe.",
    )


def _stream(parts: Mapping[str, str]) -> dict[str, str]:
    return {part: value for part, value in parts.items() if part != "skip"}
