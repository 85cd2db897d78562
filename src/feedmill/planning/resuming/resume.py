"""Resume with a plan that differs from the one that a state was saved with, in the three ways that can be allowed.

*A changed skip list.* The state stores the position without a skip list, right after the last sample seen. From there
on, only what the new list skips is skipped, and nothing is lost or repeated. Entries for samples that were already seen
have no effect.

*Sources that grew.* The run resumes at the same position of the new plan, which is the plan of the grown data from the
start. Sources that did not grow continue where they were, if they are combined with grown ones only by a blend. In a
shuffled source that grew, the current epoch becomes a different permutation of more samples: until it ends, samples
that were seen in it may be repeated, and others are deferred to the next epoch.

*A changed recipe.* Every position before the state's must yield the same sample in both plans, which is proven. There
are two kinds of proof that two trees of nodes yield the same samples at their first positions. *By structure*: nodes
are pure functions, so two nodes of the same kind with the same arguments are equal as far as the parts of their
children that they read are equal. Stages, sources and ends beyond the positions in question do not matter. This takes
as long for 10^12 positions as for ten. *By evaluation*: if the structure differs, both trees are evaluated at every
remaining position, up to `MOST` of them, or until one differs. If sources grew too, it is proven for the old recipe
over the grown data, so the result is that of resuming first with the grown data and then with the changed recipe.
docs/ledger.md lists the cases.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Node, Skip
from feedmill.planning.nodes.skip import Gaps
from feedmill.planning.permutation import ORDER_VERSION
from feedmill.planning.resuming.changes import explain, fingerprint_of
from feedmill.planning.resuming.outline import (
    Ordered,
    OrderedRows,
    Outline,
    data_digest,
    outline_text,
    packed,
    read_outline,
    short_name,
)


def prove(plan: Ordered, old: Outline, grown: Mapping[str, str], position: int, changes: str) -> None:
    """Prove that a plan yields the same samples as the plan of an outline at its first positions.

    Args:
        plan: the current plan.
        old: the outline of the saved run's plan.
        grown: the sources that grew, if that is allowed; the old recipe is then evaluated over the grown data.
        position: number of positions, counted without the skip list.
        changes: what changed, for the message.

    Raises:
        ConfigError: they are not the same, or that cannot be proven; the message gives the position.
    """
    if position == 0:
        return
    end = None if plan.length is None else plan.length + (plan.skip.count if plan.skip is not None else 0)
    if end is not None and end < position:
        raise _refused(position, f"the plan ends after {end:,} positions", changes)
    if old.version != ORDER_VERSION:
        raise _refused(position, "the state was saved by a release that computes the order differently", changes)
    rows = packed(plan)
    if rows is not None or old.rows is not None:
        reached = _documents(rows, old, position, changes)
        assert rows is not None  # else `_documents` has raised
        root, what, total = rows.documents.node, "document", reached
    else:
        root, what, total = plan.node.child if isinstance(plan.node, Skip) else plan.node, "position", position
    now = Outline.of(plan)
    data = dict(zip(now.names, enumerate(now.digests), strict=True))
    leaves = {}
    for leaf, (name, digest) in enumerate(zip(old.names, old.digests, strict=True)):
        number, other = data.get(name, (-1, ""))
        if digest == other or name in grown:
            leaves[leaf] = number
    try:
        node = old.over(plan, grown).node
    except ConfigError as error:
        over = "the grown data" if grown else "the data"
        raise _refused(position, f"the old recipe has no order over {over} ({error})", changes) from None
    if node.length is not None and node.length < total:
        raise _refused(position, f"the plan of the state ends after {node.length:,} {what}s", changes)
    if rows is not None and rows.packing.method == "best_fit" and not rows.stream.same_groups(node, total):
        raise _refused(position, "groups are others, so other documents are packed together", changes)
    found = first_difference(node, root, leaves, total)
    if found is None:
        return
    if not found.known:
        reason = (
            f"the first {found.position:,} {what}s of {total:,} are the same, and the rest are too many to compare one"
            " by one"
        )
        raise _refused(position, reason, changes)
    before = _sample(node, old.names, found.position)
    after = _sample(root, now.names, found.position)
    if before == after:
        after = "of other data"
    raise _refused(position, f"{what} {found.position:,} was {before} and is {after}", changes)


def _documents(plan: OrderedRows | None, old: Outline, rows: int, changes: str) -> int:
    """Return how many documents of the stream determine the first rows.

    Raises:
        ConfigError: the packing changed, or the end of the stream affects these rows.
    """
    if plan is None or old.rows is None:
        raise _refused(rows, "only one of the plans is packed into rows of tokens", changes)
    how = plan.packing
    if (how.first_order(), how.pad) != (old.rows.order, old.rows.pad):
        raise _refused(rows, "the packing of rows changed", changes)
    if how.method == "best_fit" and plan.seed != old.seed:
        raise _refused(rows, "the seed, which determines the order of packed rows, changed", changes)
    total: int = plan.map.reach(rows)
    widths, widths_before = ([each for each in later if each[0] < total] for later in (how.later, old.rows.later))
    if widths != widths_before:
        reason = f"seq_len changes in the first {total:,} documents: {_widths(widths_before)}, and is now"
        raise _refused(rows, f"{reason} {_widths(widths)}", changes)
    # Where the rows of this width end, as the whole stream does without others.
    length, before = _end(plan.documents.length, how.later, total), _end(old.rows.documents, old.rows.later, total)
    if how.method == "best_fit":
        cut = not plan.map.ends_at(total)
        if not plan.map.same_buffers(old.node, total):
            raise _refused(rows, "passes or stages end elsewhere, so other documents are packed together", changes)
    else:
        cut = int(plan.map.spans(np.array([rows - 1])).row_lengths[0]) < int(plan.widths(np.array([rows - 1]))[0])
    if (cut and before != length) or (before is not None and before < total):
        was = "did not end" if before is None else f"ended after {before:,} documents"
        raise _refused(
            rows, f"these rows depend on where the documents end: they {was}, and end now after {length:,}", changes
        )
    return total


def _end(documents: int | None, later: Sequence[tuple[int, int]], total: int) -> int | None:
    """Return where the rows of the width that has document ``total - 1`` end, counted in documents."""
    ends = [start for start, _ in later if start >= total]
    return ends[0] if ends and (documents is None or ends[0] < documents) else documents


def _widths(later: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{width:,} after {start:,}" for start, width in later) or "it stayed"


def _sample(node: Node, names: tuple[str, ...], position: int) -> str:
    located = node.locate(np.array([position]))
    return f"sample {int(located.index[0]):,} of {names[int(located.source[0])]}"


def _refused(position: int, reason: str, changes: str) -> ConfigError:
    return ConfigError(
        f"the recipe changes what the saved run has seen before position {position:,}, or may do so: {reason}; changes:"
        f" {changes}",
        kind="plan-changed",
        fix=f"Change the order only from position {position:,} on, for example with a stage that begins there (and"
        " allow_append=True if data grew), or resume with the recipe and the data of the saved run.",
    )


logger = logging.getLogger("feedmill")

MOST = 10**8
"""Maximum number of positions that are compared one by one: a minute or two, more with hundreds of sources."""

_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 14, 1 << 19  # most differences are found early; large blocks are cheaper
_LOGGED = 1 << 24


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two trees may differ.

    Attributes:
        position: the trees are the same before it.
        known: whether they differ at it; if False, no further positions were compared.
    """

    position: int
    known: bool


def first_difference(old: Node, new: Node, leaves: Mapping[int, int], total: int) -> Difference | None:
    """Return where two trees differ in their first positions; None if these are proven to be the same.

    Args:
        old, new: the roots; neither ends before `total`.
        leaves: number of an old leaf -> number of the new leaf with the same data, if there is one.
        total: number of positions.
    """
    begin = same_until(old, new, leaves, total)
    if begin == total:
        return None
    home = np.full(max(old.leaves) + 1, -1, np.int64)
    for before, now in leaves.items():
        home[before] = now
    start, end, size, logged = begin, min(total, begin + MOST), _FIRST_BLOCK, begin + _LOGGED
    while start < end:
        positions = np.arange(start, min(start + size, end), dtype=np.int64)
        was, is_now = old.locate(positions), new.locate(positions)
        differs = (home[was.source] != is_now.source) | (was.index != is_now.index)
        if differs.any():
            return Difference(start + int(differs.argmax()), True)
        start, size = start + len(positions), min(2 * size, _LARGEST_BLOCK)
        if start >= logged:
            logger.info("comparing the recipe with that of the state: %d of %d positions", start - begin, end - begin)
            logged = start + _LOGGED
    return None if end == total else Difference(end, False)


def same_until(old: Node, new: Node, leaves: Mapping[int, int], total: int) -> int:
    """Return how many of the first positions are the same by structure: all, or about as many as can be shown."""
    if _same(old, new, leaves, total):
        return total
    shown, too_many = 0, total
    while too_many - shown > 1:
        middle = (shown + too_many) // 2
        if _same(old, new, leaves, middle):
            shown = middle
        else:
            too_many = middle
    return shown


def _same(old: Node, new: Node, leaves: Mapping[int, int], total: int) -> bool:
    """Return whether the structure shows that the first `total` positions of two nodes' streams are the same."""
    if total == 0:
        return True
    old, new = old.stream, new.stream
    if isinstance(old, Leaf) and isinstance(new, Leaf):
        return leaves.get(old.number) == new.number and old.length == new.length
    pairs = old.stream_prefix(new, total)
    return pairs is not None and all(_same(a, b, leaves, used) for a, b, used in pairs)


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


def bookmark(plan: Ordered, position: int) -> dict[str, Any]:
    """Return what a state stores besides position and fingerprint, so that a run can resume with a changed plan.

    A plan of packed samples adds ``counted_by``, what counts their lengths.

    ``tree`` is the outline of the plan; it is missing if a node's class declares no `Node.tag`. With a skip list,
    ``skip`` is its text in short form, ``skipped`` a digest of what it skips up to here, ``unskipped`` the position
    after the last sample seen without the list, and ``stream`` the fingerprint of the plan without the list.
    """
    outline = outline_text(plan)
    kept: dict[str, Any] = {} if outline is None else {"tree": outline}
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


def reopened(plan: Ordered, state: Mapping[str, Any], allowed: Allowed, proven: dict[str, int]) -> int:
    """Return the position of `plan` at which a run resumes from a `state` that was saved with a different plan.

    Args:
        plan: the current plan.
        state: ``plan`` and ``position``, and the result of `bookmark`.
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
        if "tree" not in state:
            raise _without_outline(plan, state)
        outline = _with_names(read_outline(state["tree"]), plan.names)
        changes, grown = _compared(plan, outline)
        changes += explain(state.get("counted_by", {}), getattr(plan, "counted_by", {}))
        if not changes and not grown:
            changes = [f"its fingerprint was {state['plan']} and is {plan.fingerprint}"]
    lacking = {"allow_append=True": grown and not allowed.append, "allow_skip=True": skip and not skip_allowed}
    flags = [flag for flag, lacks in lacking.items() if lacks]
    phrases = [*grown.values(), *changes] if not allowed.append else changes
    if allowed.change and (changes or (grown and not allowed.append)) and not lacking["allow_skip=True"]:
        assert outline is not None  # there are changes
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


def _compared(plan: Ordered, old: Outline) -> tuple[list[str], dict[str, str]]:
    """Return what differs from the plan of an outline: the changes other than growth, and the sources that grew."""
    now = Outline.of(plan)
    saved = {name: (count, digest) for name, count, digest in zip(old.names, old.counts, old.digests, strict=True)}
    if old.rows is None:
        grown, doubts = _growth(plan, saved)
        if grown:
            try:
                old = old.over(plan, grown)
            except ConfigError as error:
                doubts.append(f"the old recipe has no order over the grown data ({error})")
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


def _growth(plan: Ordered, saved: Mapping[str, tuple[int, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the sources that grew, with a phrase for each, and phrases for those whose growth cannot be proven."""
    grown, doubts = {}, []
    for name, dataset in zip(plan.names, plan.sources, strict=True):
        count, digest = saved.get(name, (0, ""))
        if not 0 < count < len(dataset):
            continue
        first = dataset.fingerprint_of_first(count)
        if first is not None and data_digest(first) == digest:
            grown[name] = f"{name} grew from {count:,} to {len(dataset):,} samples"
        else:
            doubts.append(f"the first {count:,} samples of {name} cannot be shown to be those of the saved run")
    return grown, doubts


def _with_names(outline: Outline, names: Sequence[str]) -> Outline:
    """Return the outline with shortened names replaced by those of the current plan."""
    whole = {short_name(name): name for name in names}
    return replace(outline, names=tuple(whole.get(name, name) for name in outline.names))


def _skip_change(plan: Ordered, state: Mapping[str, Any]) -> str:
    """Return how the skip list changed; empty if it did not."""
    was, now = state.get("skip"), None if plan.skip is None else _brief(plan.skip.text)
    return "" if was == now else f"skip was {was or 'nothing'}, is now {now or 'nothing'}"


def _same_skips(plan: Ordered, state: Mapping[str, Any], unskipped: int) -> bool:
    """Return whether the same positions are known to be skipped before the state's position."""
    known = "skipped" in state or "unskipped" not in state
    now = _NOTHING_SKIPPED if plan.skip is None else plan.skip.digest(unskipped)
    return known and state.get("skipped", _NOTHING_SKIPPED) == now


def _brief(skip: str) -> str:
    """Return a skip list as stored in a state: long ones are cut and end with a digest."""
    if len(skip) <= _LONGEST_SKIP:
        return skip
    return f"{skip[:_LONGEST_SKIP]}... ({data_digest(skip)})"


def _without_outline(plan: Ordered, state: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"the plan of this state has the fingerprint {state['plan']}, and this plan has {plan.fingerprint}; what"
        " changed is not known, because a class of nodes in its tree declares no 'tag'",
        kind="plan-changed",
        fix="Resume with the plan of the saved run, or give the class a 'tag' and its 'args'"
        " (feedmill.planning.nodes.base.Node) before the next run.",
    )


def _stream(parts: Mapping[str, str]) -> dict[str, str]:
    return {part: value for part, value in parts.items() if part != "skip"}
