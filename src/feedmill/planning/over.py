"""Trees over datasets without a recipe: the nodes, datasets and names of `Plan.over`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from feedmill.errors import ConfigError
from feedmill.planning.names import unique_names
from feedmill.planning.nodes import Blend, Concat, Leaf, Node, Repeat, shuffled
from feedmill.planning.nodes.repeat import epochs_of
from feedmill.planning.permutation import derive

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset

ShuffleKind = Literal["none", "global", "block", "shards"]


class Over(NamedTuple):
    """The root of a tree, and its datasets with their names; arguments of `Plan`."""

    node: Node
    sources: list[Dataset]
    names: list[str]


def tree_over(
    datasets: Dataset | str | os.PathLike[str] | Sequence[Dataset | str | os.PathLike[str]],
    weights: Sequence[Any] | None,
    shuffle: ShuffleKind | Mapping[str, Any] | None,
    seed: int,
    epochs: int | float | str | None,
) -> Over:
    """Return the tree of a plan over datasets, which are opened if they are paths. Arguments, errors: `Plan.over`."""
    from feedmill.formats.base import Dataset
    from feedmill.samples.open import open as open_dataset

    given = list(datasets) if isinstance(datasets, Sequence) and not isinstance(datasets, str) else [datasets]
    several = [open_dataset(one) if isinstance(one, str | os.PathLike) else one for one in given]
    others = [one for one in several if not isinstance(one, Dataset)]
    if others:
        raise ConfigError(
            f"{type(others[0]).__name__} is not a dataset",
            kind="no-dataset",
            fix="Give datasets, their paths, or a list of them.",
        )
    options = None if shuffle is None else _shuffle_options(shuffle)
    names = unique_names([dataset.url.rstrip("/").rpartition("/")[2] for dataset in several])
    leaves = [_leaf(number, dataset) for number, dataset in enumerate(several)]
    if weights is None:
        together = leaves[0] if len(leaves) == 1 else Concat(leaves)
        asked = options or _usual(several)
        order = shuffled(together, key=derive(seed, "shuffle", *names), sources=several, **asked)
        return Over(Repeat(order, epochs), several, names)
    if epochs is not None and len(leaves) > 1:
        raise ConfigError(
            "a blend has no epochs: its sources end at different times",
            kind="bad-epochs",
            fix="Omit 'epochs', and stop after the number of samples you need.",
        )
    streams = [
        Repeat(shuffled(leaf, key=derive(seed, "shuffle", name), sources=several, **(options or _usual([dataset]))))
        for leaf, name, dataset in zip(leaves, names, several, strict=True)
    ]
    length = None if epochs is None else epochs_of(epochs, leaves[0].length)[1]
    return Over(Blend(streams, weights, length=length), several, names)


def _usual(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the shuffle of datasets if none is asked for: ``none`` for a single one whose description says so."""
    stored = len(datasets) == 1 and not datasets[0].opened.order.shuffles
    return {"kind": "none" if stored else "block"}


def _shuffle_options(shuffle: ShuffleKind | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `shuffled` of what a recipe takes as well: a kind, or a mapping with its options."""
    if not isinstance(shuffle, Mapping):
        return {"kind": shuffle}
    from pydantic import ValidationError

    from feedmill.planning.recipes.fields import ShuffleModel  # slow to import

    try:
        return ShuffleModel.model_validate(dict(shuffle)).model_dump()
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        where = ".".join(map(str, found["loc"]))
        raise ConfigError(
            f"the shuffle {dict(shuffle)!r:.80} is invalid{f' at {where!r}' if where else ''}: {found['msg']}",
            kind="bad-shuffle",
            fix="Write it as in a recipe, such as {'kind': 'block', 'block': 256} or {'kind': 'shards'}.",
        ) from None


def _leaf(number: int, dataset: Dataset) -> Leaf:
    if not len(dataset):
        raise ConfigError("the dataset has no samples", file=dataset.url, kind="empty-source", fix="Remove it.")
    return Leaf(number, len(dataset))
