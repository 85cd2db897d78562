"""Megatron-LM's orders: `GPTDataset` and `BlendedDataset` (megatron-core).

A `GPTDataset` has three indices. The document index is the documents of a split, repeated for as many epochs as its
number of samples needs, shuffled as a whole; if the last epoch is used for less than 80%, it is shuffled apart. The
sample index cuts this stream of documents into windows. The shuffle index permutes the windows, those of the last
epoch apart if its documents are. All are drawn from one `RandomState` of the run's seed. Here the first two are a
`feedmill.formats.tokens.ordered.OrderedWindows`, the third is the node `GptShuffle`.

A `BlendedDataset` draws from datasets greedily (see `feedmill.kernels.order.greedy`), each sample at most once.

A recipe in this order is built from token files, also with the indices that Megatron-LM stored under
``--data-cache-path``. Each is a ``.npy`` file whose name begins with a hash of a description, which is in a file beside
it. The hash includes the tokenizer, which token files do not know, so indices are found by what the descriptions say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.megatron import FORMAT, open_megatron, strip
from feedmill.formats.tokens.ordered import OrderedWindows
from feedmill.kernels.order.greedy import greedy
from feedmill.kernels.order.mersenne import inverse
from feedmill.planning.mixing.blend import exact_weight
from feedmill.planning.nodes import Leaf, Repeat
from feedmill.planning.nodes.base import Epochs, IntArray, Node, Wrapper
from feedmill.planning.orders import countable, made_whole
from feedmill.planning.orders.nanoset import Dealt, for_children, lengths_of, normalized
from feedmill.storage import Store, join_url, open_store

if TYPE_CHECKING:
    from feedmill.planning.recipes.fields import OrderModel
    from feedmill.planning.recipes.schema import RecipeModel


PARTS = ("train", "valid", "test")
SURPLUS = 0.005
"""Megatron-LM's `mid_level_dataset_surplus`."""

_COMPARED = 1_000
"""Samples whose stored bounds are compared with the data."""

_APART = 0.8
"""Share of the last epoch from which on it is shuffled together with the others."""


def split_ranges(split: str) -> list[tuple[float, float] | None]:
    """Return begin and end of train, valid and test as fractions of the documents; None for an empty one.

    >>> split_ranges("969,30,1")[1]
    (0.969, 0.999)
    >>> split_ranges("1")
    [(0, 1.0), None, None]

    Raises:
        ConfigError: the text is not one to three numbers, or all are zero.
    """
    numbers = re.findall(r"[.0-9]+", split)
    try:
        shares = [float(number) for number in numbers]
    except ValueError:
        shares = []
    if not 1 <= len(shares) <= len(PARTS) or not sum(shares) or re.search(r"[^.0-9,;/ ]", split):
        raise ConfigError(
            f"the split {split!r} is not one to three numbers with a sum above zero",
            kind="bad-option",
            fix="Write it as in the original run, such as 969,30,1.",
        )
    shares += [0.0] * (len(PARTS) - len(shares))
    row = normalized(shares).tolist()
    return [(low, high) if low < high else None for low, high in pairwise(accumulate(row, initial=0))]


def documents_of(split: str | None, part: str, documents: int) -> tuple[int, int]:
    """Return the first document of a part of a split, and the end of its documents.

    Args:
        split: as in Megatron-LM's ``--split``; None if all documents belong to the part (blends per split).
        part: train, valid or test.
        documents: number of documents, of all parts together. In Megatron-LM, these are sequences.

    Raises:
        ConfigError: the part has no documents.
    """
    found = (0.0, 1.0) if split is None else split_ranges(split)[PARTS.index(part)]
    first, stop = (0, 0) if found is None else (round(bound * float(documents)) for bound in found)
    if first >= stop:
        raise ConfigError(
            f"the split {split} has no documents for {part!r}: the dataset has {documents:,}",
            kind="empty-source",
            fix="Give this part a larger share, or use another part.",
        )
    return first, stop


class GptOrder:
    """The indices of one `GPTDataset`, computed when first needed.

    They take 4 bytes for each document of each epoch and 4 for each sample, and 4 more for the inverse.

    Args:
        lengths: int[documents], tokens of each document of the dataset.
        first, stop: the documents of the split.
        samples: minimum number of samples; None for one epoch.
        seq_len: Megatron-LM's `sequence_length`.
        seed: its `random_seed`.
        extra: its `add_extra_token_to_sequence`.
        partial: keep the last window if it is incomplete (`drop_last_partial_validation_sequence=False`).

    Attributes:
        epochs: number of passes over the documents.
        tokens: tokens of all passes.
        windows: number of samples.
        before: number of samples that are shuffled first, apart from those of the last epoch; else `windows`.
        apart: whether the last epoch is shuffled apart.
        cached: if set, returns document index, sample index and shuffle index as Megatron-LM stored them.

    Raises:
        ConfigError: there are no tokens or samples, or Megatron-LM does not accept the settings.
    """

    def __init__(
        self,
        lengths: npt.NDArray[Any],
        first: int,
        stop: int,
        samples: int | None,
        *,
        seq_len: int,
        seed: int,
        extra: bool = True,
        partial: bool = False,
    ) -> None:
        if not 0 <= seed < 2**32 or stop > 2**31:
            what = f"cannot have the seed {seed}" if stop <= 2**31 else f"cannot have {stop:,} documents"
            raise ConfigError(
                f"a GPTDataset {what}",
                kind="bad-option",
                fix="Use a seed from 0 to 2^32 - 1, and up to 2^31 documents.",
            )
        self.first, self.stop, self.seed, self.seq_len, self.extra = first, stop, seed, seq_len, int(extra)
        each = int(np.sum(lengths[first:stop], dtype=np.int64))
        wanted = 0 if samples is None else samples * seq_len + self.extra
        self.epochs = max(1, -(-wanted // each)) if each else 0
        self.tokens = countable(self.epochs * each)
        whole = max(self.tokens - self.extra, 0)
        # Megatron-LM's kernel divides in float32 here, which rounds from 2^24 tokens on.
        self.windows = ceil(np.float32(whole) / np.float32(seq_len)) if partial else whole // seq_len
        if not self.windows:
            raise ConfigError(
                f"the documents have {each:,} tokens, not enough for one sample of {seq_len + self.extra}",
                kind="empty-source",
                fix="Use a smaller seq_len, request more samples, or check the split.",
            )
        before = ((self.epochs - 1) * each - self.extra) // seq_len
        last, per_epoch = (samples or 0) - before, (each - self.extra) // seq_len
        if self.epochs > 1 and not 0 <= last <= per_epoch + 1:
            raise ConfigError(
                f"{samples:,} samples of {seq_len} tokens need {last:,} of the last of {self.epochs} epochs, which has"
                f" {per_epoch:,}",
                kind="bad-recipe",
                fix="Megatron-LM stops at such a number of samples too: change it, or use more documents.",
            )
        self.apart = self.epochs > 1 and last < int(_APART * per_epoch)
        self.before = before if self.apart else self.windows
        self._lengths = lengths
        self.cached: Callable[[], tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] | None = None

    NUMBERS = ("first", "stop", "epochs", "windows", "before", "seed", "seq_len", "extra")
    """The attributes that determine the shuffle index."""

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> GptOrder:
        """Return an order from its `NUMBERS`, without the lengths of its documents."""
        order = cls.__new__(cls)
        for name in cls.NUMBERS:
            setattr(order, name, int(numbers[name]))
        order.apart, order.cached = order.before != order.windows, None
        return order

    @property
    def identity(self) -> str:
        """Return everything that determines the order, without the documents themselves."""
        apart = " apart" if self.apart else ""
        size = f"{self.windows} of {self.seq_len} + {self.extra}"
        return f"gpt [{self.first}, {self.stop}) x {self.epochs}{apart} seed {self.seed} {size}"

    @property
    def documents(self) -> npt.NDArray[Any]:
        """Return Megatron-LM's document index, int32[documents of all epochs]."""
        return self._indices[0]

    @property
    def shuffle(self) -> npt.NDArray[Any]:
        """Return Megatron-LM's shuffle index: the window at each position, uint32 or int64 [windows]."""
        return self._indices[1]

    @cached_property
    def backward(self) -> npt.NDArray[Any]:
        """Return the position of each window."""
        with made_whole(self.windows):
            return inverse(np.asarray(self.shuffle))

    @cached_property
    def _indices(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if self.cached is not None:
            return self._checked(*self.cached())
        with made_whole((self.stop - self.first) * self.epochs + self.windows):
            generator = np.random.RandomState(self.seed)
            each = np.arange(self.first, self.stop, dtype=np.int32)
            passes = [self.epochs - 1, 1] if self.apart else [self.epochs]
            documents = [_shuffled(np.tile(each, count), generator) for count in passes]
            # Beyond 32 bits, numpy draws other random numbers: the type decides nothing else.
            kind = np.int64 if self.windows >= 2**32 - 2 else np.uint32
            bounds = dict.fromkeys((0, self.before, self.windows))  # the last two are equal unless it is apart
            order = [_shuffled(np.arange(low, high, dtype=kind), generator) for low, high in pairwise(bounds)]
        return np.concatenate(documents), np.concatenate(order)

    def _checked(
        self, documents: npt.NDArray[Any], samples: npt.NDArray[Any], order: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return stored indices, compared with the data at some samples. Raises `DataError` if they do not fit."""
        shapes = documents.shape, samples.shape, order.shape
        wanted = ((self.stop - self.first) * self.epochs,), (self.windows + 1, 2), (self.windows,)
        fits = shapes == wanted
        if fits:
            rows = np.unique(np.linspace(0, self.windows, min(self.windows + 1, _COMPARED)).astype(np.int64))
            document, offset = samples[rows].astype(np.int64).T
            ends = np.cumsum(self._lengths[documents])
            begin = np.where(document > 0, ends[document - 1], 0) + offset
            fits = np.array_equal(begin, np.minimum(rows * self.seq_len, self.tokens - self.extra))
        if not fits:
            raise DataError(
                f"the stored indices have the shapes {shapes}, expected {wanted} and bounds of {self.seq_len} tokens",
                kind="bad-index",
                fix="They belong to other token files or settings: check the recipe, or remove its 'cache'.",
            )
        return documents, order

    def __getstate__(self) -> dict[str, Any]:
        # Another process computes or maps the indices itself.
        return {name: value for name, value in self.__dict__.items() if name not in ("_indices", "backward")}


def _shuffled(row: npt.NDArray[Any], generator: np.random.RandomState) -> npt.NDArray[Any]:
    generator.shuffle(row)
    return row


class GptShuffle(Wrapper):
    """The shuffle index of a `GPTDataset`, over a leaf of its windows. Every epoch has the same order."""

    length: int
    in_slices = True
    scatters = True
    tag = "gpt"
    args = GptOrder.NUMBERS

    def __init__(self, child: Node, order: GptOrder) -> None:
        super().__init__(child)
        self.length = child.finite("a GPTDataset")
        if self.length != order.windows:
            raise ConfigError(f"the order has {order.windows:,} samples, the dataset {self.length:,}", kind="bad-plan")
        self.order = order

    @classmethod
    def of(cls, children: Sequence[Node], arguments: Mapping[str, Any]) -> Node:
        (child,) = children
        return cls(child, GptOrder.of(arguments))

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self.order, name) for name in self.args}

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return np.asarray(self.order.shuffle[positions], np.int64), epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return np.asarray(self.order.backward[positions], np.int64), epochs

    def reach(self, total: int) -> list[int]:
        return [-(-total // self.length) * self.length]

    def describe(self) -> str:
        order = self.order
        apart = ", the last apart" if order.apart else ""
        passes = "1 epoch" if order.epochs == 1 else f"{order.epochs} epochs"
        return f"gpt shuffle seed {order.seed}, {passes} of documents {order.first:,} to {order.stop:,}{apart}"

    def identity(self) -> str:
        return self.order.identity


class BlendedDataset(Dealt):
    """The order of Megatron-LM's `BlendedDataset`: greedy draws, no sample twice.

    Args:
        children: the datasets.
        weights: one per child, above zero; None for their lengths.
        size: number of samples; without weights, at most those of all children. None, without weights, draws every
            sample of every child.
        cached: returns the child of each draw, integers[draws], from the weights as used and the size, instead of the
            greedy rule.

    Raises:
        ConfigError: there are no children, a child is endless, a weight is invalid, or the blend draws more samples
            from a child than it has, for which Megatron-LM raises an IndexError.
    """

    _title = "megatron blend"
    tag = "megatron"
    args = ("weights", "size")

    def __init__(
        self,
        children: Sequence[Node],
        weights: Sequence[float] | None = None,
        size: int | None = None,
        *,
        cached: Callable[[list[float], int | None], npt.NDArray[Any]] | None = None,
    ) -> None:
        sizes = lengths_of(children, self._title)
        row = for_children(sizes if weights is None else weights, len(sizes))
        if (row <= 0).any():
            raise ConfigError(
                "a weight of a Megatron-LM blend is zero",
                kind="bad-recipe",
                fix="Remove the dataset, as Megatron-LM requires.",
            )
        if weights is not None and size is None:
            raise ConfigError("a blend with weights needs a number of samples", kind="endless", fix="Give 'samples'.")
        self._whole, self._cached = size is None, cached
        self.size = size
        if weights is None:
            size = min(sum(sizes), sum(sizes) if size is None else size)
        super().__init__(children, normalized(row), size or 0, weights)
        _, counts = self._draws
        for number in np.flatnonzero(counts > self._sizes).tolist():
            raise ConfigError(
                f"the blend draws {counts[number]:,} samples from dataset {number}, which has {sizes[number]:,}",
                kind="too-many-repeats",
                fix="Raise 'surplus' of the order (mid_level_dataset_surplus), as in the original run.",
            )

    def _choose(self) -> tuple[npt.NDArray[Any], IntArray]:
        if self._cached is None:
            return greedy(self.weights, self.length, self._sizes if self._whole else None)
        used = self._sizes if self._whole else self.weights
        choice = self._cached(used.tolist(), None if self._whole else self.length)
        return choice, np.bincount(choice, minlength=len(self._sizes))


def samples_of(weights: Sequence[float], samples: int, surplus: float = SURPLUS) -> list[tuple[int, int]]:
    """Return for each dataset of a blend the samples that are planned for it, and those that it is built with.

    Args:
        weights: as given; they are normalized.
        samples: samples that the run needs.
        surplus: Megatron-LM's `mid_level_dataset_surplus`.

    >>> samples_of([3, 7], 200)
    [(60, 61), (140, 141)]
    """
    planned = [ceil(samples * weight) for weight in normalized(weights).tolist()]
    return [(count, ceil(count * (1 + surplus))) for count in planned]


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
