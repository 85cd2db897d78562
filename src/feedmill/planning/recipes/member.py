"""Helpers for the members of a recipe: names, lines for errors, ranges, shuffles, parts of joins, auxiliary data."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.base import Order
from feedmill.planning.dialects import Place
from feedmill.planning.nodes import Curriculum, Groups, Leaf, Node, Repeat, shuffled
from feedmill.planning.nodes.base import unique_names
from feedmill.planning.nodes.groups import bounds_of_groups
from feedmill.planning.nodes.ranking import ranking_of, values_of
from feedmill.planning.nodes.shuffle import usual_block
from feedmill.planning.permutation import derive
from feedmill.planning.recipes.read import kind_of
from feedmill.storage import join_url

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.formats.energon.join import JoinSide
    from feedmill.planning.recipes.fields import GroupsModel, JoinPart, ShuffleModel
    from feedmill.planning.recipes.read import Parsed
    from feedmill.planning.recipes.schema import Member

logger = logging.getLogger("feedmill")

_SUFFIX = re.compile(r"\.[A-Za-z]\w*$")


def join_parts(open_part: Callable[[JoinPart, Mapping[str, Any] | None], Dataset], member: Member) -> list[JoinSide]:
    """Return the opened datasets of a join. Raises `ConfigError` if one has no index of its keys."""
    from feedmill.formats.energon.join import JoinSide

    assert member.join is not None
    parts = member.join.values() if isinstance(member.join, dict) else member.join
    return [JoinSide.of(open_part(part, member.subflavors), part.nonmatch) for part in parts]


def join_folder(recipe: Parsed, member: Member) -> str | None:
    """Return the folder of the prepared rows of a join; None for a recipe that was not read from a file."""
    if member.prepared is not None:
        return join_url(recipe.base, member.prepared)
    return None if recipe.file is None else f"{recipe.file}.cache"


def aux_is_there(url: str) -> bool:
    """Return whether an auxiliary source exists; sources in object stores are assumed to exist."""
    path = url.removeprefix("filesystem://").removeprefix("file://")
    return "://" in path or os.path.exists(path)


def aux_url(base: str, url: str) -> str:
    """Return an auxiliary source's URL; paths are relative to the recipe, with ``filesystem://`` too."""
    scheme, mark, path = url.partition("filesystem://")
    return f"{mark}{join_url(base, path)}" if mark and not scheme else join_url(base, url)


def as_described(shuffle: ShuffleModel | None, dataset: Dataset) -> ShuffleModel | None:
    """Return a recipe's shuffle with what the dataset's description says of the order; a recipe in order stays so."""
    said = dataset.opened.order
    if shuffle is None or shuffle.kind == "none" or said == Order():
        return shuffle
    if (said.passes or 1) < 0:
        logger.warning(
            "%s: 'shuffle_over_epochs: -1' has no effect: each epoch is a permutation of the samples", dataset.url
        )
    if not said.shuffles:
        return type(shuffle)(kind="none")
    if shuffle.kind != "shards":
        return shuffle
    return shuffle.model_copy(
        update={"parallel": said.parallel or shuffle.parallel, "sequence": said.sequence or shuffle.sequence}
    )


@contextmanager
def recipe_line(recipe: Parsed, place: Place) -> Iterator[None]:
    """Set ``file:line`` of this place of the recipe on a `ConfigError` that has no file yet."""
    try:
        yield
    except ConfigError as error:
        error.file = error.file or recipe.where(place)
        raise


def shuffle_as(node: Node, shuffle: ShuffleModel | None, seed: int, name: str, sources: Sequence[Dataset] = ()) -> Node:
    """Return the node with a recipe's shuffle; the shuffle key is derived from the seed and the name.

    Args:
        sources: the datasets of the leaves by number, whose shards a shuffle of shards permutes.
    """
    if shuffle is None:
        return node
    if shuffle.kind != "none" and (inner := _ordered(node)) is not None:
        raise ConfigError(
            f"this shuffle would undo the order of a source below it ({inner.describe()})",
            kind="bad-recipe",
            fix="Set 'shuffle: none' here, and a 'shuffle' on the other sources.",
        )
    key = derive(seed, "shuffle", name)
    return shuffled(node, key=key, sources=sources, **shuffle.model_dump())


def _ordered(node: Node) -> Node | None:
    """Return a node with a curriculum or groups among those that a shuffle of this one would rearrange."""
    if isinstance(node, Curriculum | Groups):
        return node
    return next((inner for child in node.children if (inner := _ordered(child)) is not None), None)


def ordered(
    node: Node, member: Member, shuffle: ShuffleModel | None, seed: int, name: str, sources: Sequence[Dataset]
) -> Node:
    """Return a member with a `curriculum` or `groups`; the key is derived from the seed and the name.

    Args:
        node: its samples in stored order.
        shuffle: the shuffle of its groups.
        sources: the datasets of the leaves by number.
    """
    order: list[Any] = ["none" if shuffle is None else shuffle.kind]
    if member.curriculum is not None:
        model = member.curriculum
        order = ["curriculum", model.by, model.from_, model.window]
    elif shuffle is not None and shuffle.kind == "block":
        order += [shuffle.block or usual_block(node, sources), shuffle.window]
    if member.groups is not None:
        by, size, within = member.groups.by, member.groups.size, member.groups.within
        return Groups.made(node, derive(seed, "groups", name), order, size, by, within, sources)
    _, by, begin, window = order
    return Curriculum(node, derive(seed, "curriculum", name), by, begin, window, ranking=ranking_of(node, by, sources))


def grouped_range(groups: GroupsModel, dataset: Dataset, start: int, stop: int) -> tuple[int, int]:
    """Return a subset of whole groups: both bounds are moved down to the first sample of their group.

    So subsets that follow one another still do, and have each group once. A subset to the end of a dataset keeps its
    end; that the last group is complete is checked where groups are made.

    Raises:
        ConfigError: the subset is within one group.
    """
    size = len(dataset)
    if not 0 <= start < stop <= size:
        return start, stop  # an error of the node
    if groups.size is not None:
        first, end = start // groups.size * groups.size, stop if stop == size else stop // groups.size * groups.size
    else:
        assert groups.by is not None  # the schema requires one of the two
        firsts = bounds_of_groups(values_of(Leaf(0, size), groups.by, [dataset], texts=True), groups.by)
        first, end = firsts[np.searchsorted(firsts, [start, stop], side="right") - 1].tolist()
    if first == end:
        raise ConfigError(
            f"the subset [{start:,}, {stop:,}) ends within the group that begins at {first:,}, and has no whole one",
            kind="bad-recipe",
            fix="Use a larger subset.",
        )
    return first, end


def moved_range(start: int, stop: int, first: int, end: int) -> str:
    """Return what happened to a subset that is not whole groups."""
    parts = [
        f"{count:,} samples {how}"
        for count, how in (
            (start - first, "before it are added, whose group it begins in"),
            (stop - end, "at its end are left out, whose group continues"),
        )
        if count
    ]
    return f"the subset [{start:,}, {stop:,}) is [{first:,}, {end:,}), which is whole groups: {', '.join(parts)}"


def whole_groups(node: Repeat, name: str) -> Repeat:
    """Return a repetition that ends with a whole group: with the last one that it has all of.

    Raises:
        ConfigError: it has no whole group.
    """
    if node.group == 1 or node.length is None:
        return node
    length = node.whole(node.length)
    if length == node.length:
        return node
    if not length:
        raise no_whole_group(node, node.length)
    logger.warning("%s", rounded(name or "the recipe", node.length, length, node))
    return Repeat(node.child, length=length, max_repeats=node.max_repeats, name=node.name)


def no_whole_group(node: Node, length: int) -> ConfigError:
    """Return the error for a length in which no group fits."""
    return ConfigError(
        f"{length:,} samples are less than one group ({node.described_groups()})",
        kind="bad-recipe",
        fix="Use more samples.",
    )


def rounded(name: str, asked: int, length: int, node: Node) -> str:
    """Return what happened to a length that is not whole groups."""
    return (
        f"{name}: {asked:,} samples are {length:,}, which are whole groups ({node.described_groups()}):"
        f" {asked - length:,} of the last group are left out"
    )


def within(ranges: Sequence[tuple[int | str, int | str]], size: int) -> tuple[int, int]:
    """Return first and end of nested ranges of `size` samples; each range applies to the result of the previous one.

    Successive percentages are multiplied exactly and rounded down once, at the end.

    >>> within([(1, 8), ("20%", "80%"), ("0%", "50%")], 10)
    (2, 4)
    """
    first, end = Fraction(0), Fraction(size)
    for start, stop in ranges:
        if isinstance(start, int) or isinstance(stop, int):
            first, end = Fraction(int(first)), Fraction(int(end))
        left = end - first
        first, end = _bound(start, first, end), _bound(stop, first, end)
        if len(ranges) > 1 and not 0 <= end - first <= left:
            raise ConfigError(
                f"the subset [{start}, {stop}] is outside the {int(left):,} samples that remain of {size:,}",
                kind="bad-recipe",
                fix="Each range of a subset applies to the result of the previous one.",
            )
    return int(first), int(end)


def bounds_of(recipe: Parsed, member: Member, dataset: Dataset) -> tuple[int, int]:
    """Return first and end of the subset of a member among the samples of its dataset."""
    if not (recipe.marks is not None and getattr(recipe.marks, "counts_excluded", False)):
        return within(member.ranges, len(dataset))
    first, end = within(member.ranges, dataset.stored_length)
    if not 0 <= first <= end <= dataset.stored_length:
        return first, end  # an error of the node
    return dataset.kept_before(first), dataset.kept_before(end)


def _bound(bound: int | str, first: Fraction, end: Fraction) -> Fraction:
    if isinstance(bound, int):
        return first + bound
    return end if bound == "end" else first + (end - first) * Fraction(bound.removesuffix("%")) / 100


def names_of(members: Sequence[Member]) -> list[str]:
    """Return a name for each member: its own, or a unique name made from its path."""
    own_names = [member.name or (None if member.cells is None else member.cells.of.name) for member in members]
    given = [name for name in own_names if name]
    made = [_SUFFIX.sub("", _title(member)) for member, name in zip(members, own_names, strict=True) if not name]
    names = unique_names([*given, *made])
    own, free = iter(names[: len(given)]), iter(names[len(given) :])
    return [next(own) if name else next(free) for name in own_names]


def _title(member: Member) -> str:
    path = member.path or member.recipe or (None if member.cells is None else member.cells.of.path)
    if path:
        return path.rstrip("/").rpartition("/")[2]
    return "join" if member.join is not None else kind_of(member)
