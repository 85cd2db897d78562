"""Build the datasets and the node of a recipe in Megatron-LM's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.megatron import FORMAT, open_megatron
from feedmill.formats.tokens.ordered import OrderedWindows
from feedmill.planning.mixing.blend import exact_weight
from feedmill.planning.nodes import Leaf, Node, Repeat
from feedmill.planning.orders.megatron import BlendedDataset, GptOrder, GptShuffle, documents_of, samples_of
from feedmill.planning.orders.megatron_cache import IndexCache
from feedmill.planning.orders.nanoset import normalized
from feedmill.storage import join_url

if TYPE_CHECKING:
    from feedmill.planning.recipes.schema import RecipeModel


def cut(model: RecipeModel, datasets: Sequence[Dataset], base: str) -> list[OrderedWindows]:
    """Return the samples of the datasets of a recipe, each in the order of its documents, not yet shuffled.

    Args:
        model: the recipe.
        datasets: its sources, opened as documents.
        base: folder that the path of the cache is relative to.

    Raises:
        ConfigError: a source is not token data, or Megatron-LM does not accept the settings.
        NotFound: a source has no index of documents.
    """
    order, samples = model.order, model.samples
    assert order is not None and order.seq_len is not None and model.seed is not None  # the schema requires them
    if model.blend is None:
        sizes = [samples]
    elif (weights := _weights(model)) is None:
        sizes = [None] * len(datasets)
    else:
        assert samples is not None  # the schema requires it
        sizes = [built for _, built in samples_of(weights, samples, order.surplus)]
    partial = order.part == "valid" and not order.drop_last_partial
    found = []
    for dataset, size in zip(datasets, sizes, strict=True):
        tokens = _sequences(dataset)
        first, stop = documents_of(order.split, order.part, len(tokens))
        gpt = GptOrder(
            tokens.lengths,
            first,
            stop,
            size,
            seq_len=order.seq_len,
            seed=model.seed,
            extra=order.extra_token,
            partial=partial,
        )
        if order.cache is not None:
            gpt.cached = IndexCache(join_url(base, order.cache), order).gpt(tokens.url, model.seed, size)
        found.append(
            OrderedWindows(
                tokens,
                gpt,
                seq_len=order.seq_len,
                extra=order.extra_token,
                partial=partial,
                pad=order.pad,
                positions=order.positions,
                boundaries=order.boundaries,
            )
        )
    return found


def blended(model: RecipeModel, datasets: Sequence[OrderedWindows], leaves: Sequence[Leaf], base: str) -> Node:
    """Return the samples of a recipe in Megatron-LM's order, cut to the recipe's own length.

    Args:
        model, base: as for `cut`.
        datasets: what `cut` returned.
        leaves: a leaf for each.

    Raises:
        ConfigError: the blend draws more samples of a dataset than it has.
    """
    nodes: list[Node] = []
    for leaf, dataset in zip(leaves, datasets, strict=True):
        assert isinstance(dataset.order, GptOrder)
        nodes.append(GptShuffle(leaf, dataset.order))
    if model.blend is None:
        (node,) = nodes
    else:
        weights, size = _weights(model), model.samples
        if weights is not None:
            assert size is not None
            size = sum(planned for planned, _ in samples_of(weights, size))
            weights = normalized(weights).tolist()  # normalized again by the blend, as in Megatron-LM
        cached, order = None, model.order
        if order is not None and order.cache is not None:
            cached = IndexCache(join_url(base, order.cache), order).blend([each.url for each in datasets])
        node = BlendedDataset(nodes, weights, size, cached=cached)
    length = node.finite("a run of Megatron-LM")
    return node if model.samples is None or model.samples >= length else Repeat(node, length=model.samples)


def _weights(model: RecipeModel) -> list[float] | None:
    """Return the weights of a blend as the numbers that Megatron-LM reads; None if there are none."""
    given = [member.weight for member in model.blend or () if member.weight is not None]
    return [float(weight if isinstance(weight, int | float) else exact_weight(weight)) for weight in given] or None


def _sequences(dataset: Dataset) -> TokenDataset:
    """Return a dataset by its sequences, which are what Megatron-LM samples if documents were split into sentences."""
    if not isinstance(dataset, TokenDataset):
        raise ConfigError(
            f"the order 'megatron' needs token files, found the format {dataset.format}",
            file=dataset.url,
            kind="no-tokens",
            fix="Tokenize the data first, and give the path of the .bin file.",
        )
    dataset.need_index()
    if dataset.format != FORMAT or dataset.about.get("sequences") == len(dataset):
        return dataset
    opened = [
        open_megatron(dataset.store, shard.path, dataset.store.locate(shard.path), unit="sequences")
        for shard in dataset.shards
    ]
    shards = [shard for one in opened for shard in one.shards]
    return TokenDataset(dataset.store, shards, name=dataset.url, format=FORMAT, about=dataset.about)
