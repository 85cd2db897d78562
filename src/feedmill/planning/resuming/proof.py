"""Prove that a changed recipe yields the samples that the saved run has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Node, Skip
from feedmill.planning.packing.best_fit import BestFit
from feedmill.planning.permutation import ORDER_VERSION
from feedmill.planning.resuming.outline import Outline
from feedmill.planning.resuming.prefix import first_difference

if TYPE_CHECKING:
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.planning.plan import Plan


def prove(plan: Plan, old: Outline, grown: Mapping[str, str], position: int, changes: str) -> None:
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
    packed = cast("PackedPlan", plan) if hasattr(plan, "documents") else None
    if packed is not None or old.rows is not None:
        reached = _documents(packed, old, position, changes)
        assert packed is not None  # else `_documents` has raised
        root, what, total = packed.documents.node, "document", reached
    else:
        root, what, total = plan.node.child if isinstance(plan.node, Skip) else plan.node, "position", position
    now = Outline.of(plan)
    data = dict(zip(now.names, enumerate(now.digests), strict=True))
    leaves = {}
    for leaf, (name, digest) in enumerate(zip(old.names, old.digests, strict=True)):
        number, other = data.get(name, (-1, ""))
        if digest == other or name in grown:
            leaves[leaf] = number
    node = old.node
    if grown:
        try:
            node = old.over(plan, grown).node
        except ConfigError as error:
            raise _refused(position, f"the old recipe has no order over the grown data ({error})", changes) from None
    if node.length is not None and node.length < total:
        raise _refused(position, f"the plan of the state ends after {node.length:,} {what}s", changes)
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


def _documents(plan: PackedPlan | None, old: Outline, rows: int, changes: str) -> int:
    """Return how many documents of the stream determine the first rows.

    Raises:
        ConfigError: the packing changed, or the end of the stream affects these rows.
    """
    if plan is None or old.rows is None:
        raise _refused(rows, "only one of the plans is packed into rows of tokens", changes)
    how = plan.packing
    if (how.order(), how.pad) != (old.rows.order, old.rows.pad):
        raise _refused(rows, "the packing of rows changed", changes)
    if how.method == "best_fit" and plan.seed != old.seed:
        raise _refused(rows, "the seed, which determines the order of packed rows, changed", changes)
    total, length, before = plan.map.reach(rows), plan.documents.length, old.rows.documents
    if isinstance(plan.map, BestFit):
        cut = not plan.map.ends_at(total)
        if not plan.map.same_buffers(old.node, total):
            raise _refused(rows, "passes or stages end elsewhere, so other documents are packed together", changes)
    else:
        cut = int(plan.map.spans(np.array([rows - 1])).row_lengths[0]) < plan.width
    if (cut and before != length) or (before is not None and before < total):
        was = "did not end" if before is None else f"ended after {before:,} documents"
        raise _refused(
            rows, f"these rows depend on where the documents end: they {was}, and end now after {length:,}", changes
        )
    return total


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
