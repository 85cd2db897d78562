"""Split a plan whose sources follow one another into one plan per source."""

from __future__ import annotations

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Concat, Node, Repeat
from feedmill.planning.plan import Plan


def split_by_source(plan: Plan) -> list[tuple[Plan, int]]:
    """Return one plan for each source, in order, with the number of the source.

    Raises:
        ConfigError: the plan is endless, or mixes its sources.
    """
    if plan.length is None:
        raise ConfigError("an endless plan cannot be split by source", kind="endless", fix="Set 'epochs'.")
    found: list[tuple[Plan, int]] = []
    begin = 0
    for source, length in _runs(plan.node):
        end = begin + length
        outside = [(first, stop) for first, stop in ((0, begin), (end, plan.length)) if stop > first]
        found.append((plan.skipping(outside, f"all but {plan.names[source]}") if outside else plan, source))
        begin = end
    return found


def _runs(node: Node) -> list[tuple[int, int]]:
    """Return the source and length of each run of positions."""
    if len(node.leaves) == 1:
        return [(node.leaves[0], node.finite("splitting a plan by source"))]
    if isinstance(node, Concat):
        return [run for child in node.children for run in _runs(child)]
    if isinstance(node, Repeat) and node.child.length == node.length:  # one epoch; a shuffle would mix them
        return _runs(node.child)
    raise ConfigError(
        "the plan mixes its sources", kind="bad-plan", fix="Use a validation plan, whose sources follow one another."
    )
