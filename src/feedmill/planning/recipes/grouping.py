"""Blends in runs of samples with one value of a field: each source is split into one source per value."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.mixing.blend import normalize
from feedmill.planning.nodes import Blend, Leaf, Node, Subset
from feedmill.planning.recipes.member import as_described, names_of, recipe_line, shuffle_as, within
from feedmill.planning.tokens import per_sample
from feedmill.samples.views import SelectedDataset

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.planning.recipes.compile import Walk
    from feedmill.planning.recipes.fields import HomogeneousModel
    from feedmill.planning.recipes.schema import Member, RecipeModel

MOST_VALUES = 1024
"""Maximum number of values per source; a field with more is continuous and cannot group samples."""


def by_field(walk: Walk, model: RecipeModel, wanted: HomogeneousModel) -> Node:
    """Return a blend of values in ascending order, each of them a blend of the sources' samples with that value.

    The sources are named ``NAME[FIELD=VALUE]``. A value's weight is the sum over sources of the source's weight times
    the value's share of its samples, as an exact fraction. Within a value, the sources are weighted by these products.

    Raises:
        ConfigError: a source is token data, lacks the field, or has too many values of it.
    """
    by, members = wanted.by, model.blend or []
    streams: list[dict[int, tuple[Fraction, Node]]] = []  # of each member: value -> its share, and its samples
    for number, (member, name) in enumerate(zip(members, names_of(members), strict=True)):
        here = ("blend", number)
        with recipe_line(walk.file, here):
            found = {}
            for value, share, selected in _split(walk.source(member, here), member, by):
                own = f"{name}[{by}={value}]"
                leaf = walk.compiler.leaf(selected, own, walk.file.where(here))
                shuffle = member.shuffle or as_described(model.shuffle, selected)
                node = shuffle_as(leaf, shuffle, walk.seed, own, walk.compiler.sources)
                if node.length is not None or member.epochs or member.max_repeats:
                    node = walk.repeat(node, member, here, own, member.epochs)
                found[value] = share, node
            streams.append(found)
    weights = [1 if member.weight is None else member.weight for member in members]
    with recipe_line(walk.file, ("blend",)):
        shares = normalize(weights)
        if model.unit == "tokens":
            shares = per_sample(weights, lambda i: _mean(walk, streams[i], i))
        totals: dict[int, Fraction] = {}
        groups: list[Node] = []
        for value in sorted({value for found in streams for value in found}):
            having = [number for number, found in enumerate(streams) if value in found]
            parts = [shares[number] * streams[number][value][0] for number in having]
            totals[value] = sum(parts, Fraction(0))
            # If all sources of a value have weight 0, it is never drawn, and its inner weights do not matter.
            groups.append(Blend([streams[n][value][1] for n in having], parts if totals[value] else [1] * len(having)))
        walk.compiler.groups = [f"{by}={value}" for value in totals]
    with recipe_line(walk.file, ("blend",) if model.samples is None else ("samples",)):
        return Blend(groups, list(totals.values()), length=model.samples, run_length=wanted.samples)


def _split(dataset: Dataset, member: Member, by: str) -> Iterator[tuple[int, Fraction, SelectedDataset]]:
    """Yield each value of the field in ascending order, with its share of the member's samples, and these samples."""
    if isinstance(dataset, TokenDataset | WindowDataset):
        raise _invalid(f"{dataset.url} is token data, which has no fields", "Use homogeneous by 'source'.")
    values = dataset.costs(by)
    if values is None:
        fields = ", ".join(dataset.cost_fields) or "none"
        raise _invalid(
            f"{dataset.url} has no numeric field {by!r} (its numeric fields: {fields})",
            dataset.costs_advice(by),
        )
    start, stop = 0, len(dataset)
    if member.ranges:
        cut = Subset(Leaf(0, stop), *within(member.ranges, stop))  # rejects an empty range
        start, stop = cut.start, cut.start + cut.length
    found, group, counts = np.unique(values[start:stop], return_inverse=True, return_counts=True)
    if len(found) > MOST_VALUES:
        raise _invalid(
            f"{dataset.url} has {len(found):,} values of {by!r}, from {found[0]:,} to {found[-1]:,}: batches of one"
            f" value allow at most {MOST_VALUES:,}",
            "Store a field with a bucket number, and use that field.",
        )
    order, end = np.argsort(group, kind="stable"), 0
    for value, count in zip(found.tolist(), counts.tolist(), strict=True):
        numbers, end = order[end : end + count] + start, end + count
        yield value, Fraction(count, stop - start), SelectedDataset(dataset, numbers, f"{by}={value}")


def _mean(walk: Walk, streams: dict[int, tuple[Fraction, Node]], number: int) -> Fraction:
    """Return the mean tokens per sample of a member."""
    return sum((share * walk.mean(node, ("blend", number)) for share, node in streams.values()), Fraction(0))


def _invalid(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-homogeneous", fix=fix)
