"""Build the node of a recipe's `order`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedmill.planning.mixing.blend import exact_weight
from feedmill.planning.nodes import Node
from feedmill.planning.orders.modalities import ModalitiesSampler
from feedmill.planning.orders.nanoset import BlendableDataset, Nanoset

if TYPE_CHECKING:
    from feedmill.planning.recipes.schema import RecipeModel


def in_order(model: RecipeModel, nodes: Sequence[Node]) -> Node:
    """Return one epoch of a recipe's sources, each in stored order, in the order of another tool.

    Raises:
        ConfigError: the order is impossible for these sources; see `Nanoset`, `BlendableDataset`, `ModalitiesSampler`.
    """
    order, seed = model.order, model.seed
    assert order is not None and seed is not None  # the schema requires both
    if order.kind != "modalities":
        given = [member.weight for member in model.blend or () if member.weight is not None]
        # A number keeps its own rounding: the order depends on its last bit.
        weights = [float(weight if isinstance(weight, int | float) else exact_weight(weight)) for weight in given]
        if order.kind == "nanoset":
            return Nanoset(nodes, weights or None, seed)
        assert model.samples is not None  # as above
        return BlendableDataset(nodes, weights or [1.0] * len(nodes), model.samples)
    (node,) = nodes
    return ModalitiesSampler(
        node,
        order.ranks or 1,
        shuffle=order.shuffle,
        seed=seed,
        epoch=order.epoch,
        drop_last=order.drop_last,
        skip=order.skip,
        batch_size=order.batch_size,
    )
