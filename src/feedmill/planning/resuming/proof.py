"""Prove that a changed recipe yields the samples that the saved run has seen. Nothing is sampled.

There are two kinds of proof that two trees of nodes yield the same samples at their first positions. *By structure*:
nodes are pure functions, so two nodes of the same kind with the same arguments are equal as far as the parts of their
children that they read are equal. Stages, sources and ends beyond the positions in question do not matter. This takes
as long for 10^12 positions as for ten. *By evaluation*: if the structure differs, both trees are evaluated at every
remaining position, up to `MOST` of them, or until one differs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Node, Skip
from feedmill.planning.permutation import ORDER_VERSION
from feedmill.planning.resuming.outline import Ordered, OrderedRows, Outline, packed


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
