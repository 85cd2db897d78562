"""Build the datasets and the node of a recipe in Megatron-LM's order, also from the indices that Megatron-LM stored.

The indices are under ``--data-cache-path``. Each is a ``.npy`` file whose name begins with a hash of a description,
which is in a file beside it. The hash includes the tokenizer, which token files do not know, so indices are found by
what the descriptions say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.megatron import FORMAT, open_megatron, strip
from feedmill.formats.tokens.ordered import OrderedWindows
from feedmill.planning.mixing.blend import exact_weight
from feedmill.planning.nodes import Leaf, Node, Repeat
from feedmill.planning.orders.megatron import (
    BlendedDataset,
    GptOrder,
    GptShuffle,
    documents_of,
    samples_of,
    split_ranges,
)
from feedmill.planning.orders.nanoset import normalized
from feedmill.storage import Store, join_url, open_store

if TYPE_CHECKING:
    from feedmill.planning.recipes.fields import OrderModel
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


_DESCRIPTION = "-description.txt"
_GPT, _BLEND = "GPTDataset", "BlendedDataset"


class IndexCache:
    """The stored indices of a run.

    Args:
        folder: path or URL of the cache.
        order: the recipe's order.
    """

    def __init__(self, folder: str, order: OrderModel) -> None:
        self.folder, self.order = folder, order
        self.store = open_store(folder)

    @cached_property
    def _descriptions(self) -> dict[str, dict[str, Any]]:
        """Return all descriptions by the beginning of the names of their indices."""
        descriptions = {}
        for entry in self.store.files(suffixes=(_DESCRIPTION,)):
            try:
                about = json.loads(self.store.read(entry.path))
            except ValueError:
                about = None
            if not isinstance(about, dict):
                raise DataError(
                    "the description of stored indices is not a JSON object",
                    file=self.store.locate(entry.path),
                    kind="bad-index",
                    fix="Delete its indices, or remove 'cache' from the recipe to compute them.",
                )
            descriptions[entry.path.removesuffix("description.txt")] = about
        return descriptions

    def gpt(
        self, url: str, seed: int, samples: int | None
    ) -> Callable[[], tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
        """Return a function that loads document, sample and shuffle index of a dataset.

        Raises:
            ConfigError: the cache does not have them, or has several that differ in the path of the dataset.
        """
        wanted = {"random_seed": seed, "sequence_length": self.order.seq_len, "num_samples": samples}

        def fits(about: dict[str, Any]) -> bool:
            return self._is_of(about, url) and all(about.get(name) == value for name, value in wanted.items())

        exact = [name for name, about in self._descriptions.items() if fits(about)]
        same = [name for name in exact if strip(str(self._descriptions[name]["dataset_path"])) == strip(url)]
        names = same or exact
        paths = {self._descriptions[name]["dataset_path"] for name in names}
        words = ", ".join(f"{name} {value}" for name, value in wanted.items())
        if len(paths) != 1:
            found = f"the indices of {len(paths)} datasets of this name" if names else "no indices"
            raise self._missing(f"{found} for {_name(url)}, {self.order.part}, split {self.order.split}, {words}")
        kinds = ("document_index", "sample_index", "shuffle_index")
        return partial(_load_all, self.store, names[0], kinds)  # type: ignore[return-value]

    def blend(self, urls: Sequence[str]) -> Callable[[list[float], int | None], npt.NDArray[Any]]:
        """Return a function that loads the dataset of each sample of a blend of datasets.

        It takes the weights and the size of the blend. It raises `ConfigError` if the cache does not have it.
        """
        return partial(self._blend, [_name(url) for url in urls])

    def _blend(self, names: list[str], weights: list[float], size: int | None) -> npt.NDArray[Any]:
        for name, about in self._descriptions.items():
            parts = about.get("datasets") or []
            if (
                about.get("class") == _BLEND
                and about.get("split") == self.order.part
                and [_name(str(part.get("dataset_path"))) for part in parts] == names
                and (about.get("weights"), about.get("size")) == (weights, size)
            ):
                (index,) = _load_all(self.store, name, ("dataset_index",))
                if len(index) != (sum(weights) if size is None else size) or index.min() < 0:
                    raise _damaged(self.store, f"{name}dataset_index.npy", f"it has {len(index):,} samples")
                return index
        raise self._missing(f"no blend of {', '.join(names)} with {size} samples and the weights {weights}")

    def _is_of(self, about: dict[str, Any], url: str) -> bool:
        """Return whether a description is of a dataset with this name, and of the part and split of the run."""
        if about.get("class") != _GPT or about.get("index_split") != self.order.part:
            return False
        split = about.get("split")
        if (split is None) != (self.order.split is None) or _name(str(about.get("dataset_path"))) != _name(url):
            return False
        return split is None or split_ranges(str(split)) == split_ranges(str(self.order.split))

    def _missing(self, what: str) -> ConfigError:
        return ConfigError(
            f"the cache has {what}",
            file=self.folder,
            kind="not-prepared",
            fix="Check the settings of the recipe, or remove 'cache' from its order to compute the indices.",
        )


def _name(path: str) -> str:
    return strip(path.rstrip("/")).rpartition("/")[2]


def _load_all(store: Store, name: str, kinds: Sequence[str]) -> tuple[npt.NDArray[Any], ...]:
    return tuple(_load(store, f"{name}{kind}.npy") for kind in kinds)


def _load(store: Store, path: str) -> npt.NDArray[Any]:
    """Return a stored index, mapped. Raises `DataError` if it is no array of integers."""
    try:
        with store.local_copy(path) as local:
            index = np.load(local, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _damaged(store, path, f"it is not an array of numpy ({error})") from None
    if index.dtype.kind not in "iu":
        raise _damaged(store, path, f"its type is {index.dtype}, expected integers")
    return np.asarray(index)


def _damaged(store: Store, path: str, what: str) -> DataError:
    return DataError(
        f"the stored index cannot be used: {what}",
        file=store.locate(path),
        kind="bad-index",
        fix="Delete the indices of this dataset, or remove 'cache' from the recipe to compute them.",
    )
