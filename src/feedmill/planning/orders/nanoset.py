"""Nanotron's orders: the documented `Nanoset`, and the `BlendableDataset` that its trainer uses since April 2025.

Both draw samples from datasets greedily (see `feedmill.kernels.order.greedy`). An epoch of a Nanoset has the number of
samples of all its datasets together; draw ``c`` of a dataset is its sample ``c mod length``. The epoch is shuffled by
numpy's `RandomState(seed)` and repeated in the same order. A BlendableDataset draws the whole run, is not shuffled, and
fails if a dataset would be read twice.

The epoch of a Nanoset is one permutation of all draws, numbered dataset by dataset: 4 bytes per sample on first use,
and 4 more when the inverse is first needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.order.greedy import greedy, ranks
from feedmill.kernels.order.mersenne import inverse, shuffle
from feedmill.planning.nodes.base import NOWHERE, Epochs, IntArray, Junction, Leaf, Node
from feedmill.planning.orders import countable, made_whole

DEFAULT_SEED = 1234
"""Nanotron's `random_seed`."""


def normalized(weights: Sequence[float] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return weights divided by their sum, added as numpy does: the rounding of that sum decides ties.

    Raises:
        ConfigError: a weight is negative or not finite, or all are zero.
    """
    row = _checked(weights)
    return row / np.sum(row)


class Dealt(Junction):
    """One epoch of greedy draws from finite children.

    Attributes:
        length: draws per epoch.
        weights: float64[children], as used.
    """

    length: int
    in_slices = True
    scatters = True
    _title: str

    def __init__(
        self,
        children: Sequence[Node],
        weights: npt.NDArray[np.float64],
        length: int,
        given: Sequence[float] | None,
    ) -> None:
        super().__init__(children)
        self.length, self.weights = countable(length), weights
        self._given = None if given is None else [float(weight) for weight in given]
        self._sizes = np.array([child.finite(self._title) for child in children], np.int64)

    def arguments(self) -> dict[str, Any]:
        # Normalizing twice may change the last bit of a weight, which decides ties: keep them as given.
        own = {name: getattr(self, name) for name in (*self.args, *self.options) if name != "weights"}
        return {**own, "weights": self._given}

    @cached_property
    def _draws(self) -> tuple[npt.NDArray[Any], IntArray]:
        """Return the number of the draw at each position, numbered child by child; and draws per child, int64."""
        with made_whole(self.length):
            choice, counts = self._choose()
            order = ranks(choice, counts)
            del choice
            self._shuffle(order)
        return order, counts

    @cached_property
    def _inverse(self) -> npt.NDArray[Any]:
        """Return the position of each draw."""
        with made_whole(self.length):
            return inverse(self._draws[0])

    @cached_property
    def _rounds(self) -> IntArray:
        """Return how often an epoch begins each child, int64[children]; at least 1, to allow division."""
        _, counts = self._draws
        return np.asarray(np.maximum(1, -(-counts // self._sizes)), np.int64)

    def _choose(self) -> tuple[npt.NDArray[Any], IntArray]:
        """Return the child of each draw of one epoch, and draws per child."""
        return greedy(self.weights, self.length)

    def _shuffle(self, order: npt.NDArray[Any]) -> None:
        """Shuffle the draws of one epoch in place, if the order is shuffled."""

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[Any], IntArray, Epochs]:
        order, counts = self._draws
        ends = np.cumsum(counts)
        draw = order[positions].astype(np.int64)
        child = np.searchsorted(ends, draw, side="right")
        draw -= (ends - counts)[child]
        if (self._rounds == 1).all():
            return child, draw, epochs
        rounds, inner = np.divmod(draw, self._sizes[child])
        return child, inner, epochs * self._rounds[child] + rounds

    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        _, counts = self._draws
        own, rounds = np.divmod(epochs, self._rounds[child])
        draw = rounds * self._sizes[child] + positions
        lost = draw >= counts[child]
        draw += (np.cumsum(counts) - counts)[child]
        found = self._inverse[np.where(lost, 0, draw)].astype(np.int64)
        return np.where(lost, NOWHERE, found), own

    def draws(self, total: int) -> Sequence[int]:
        order, counts = self._draws
        epochs, rest = divmod(total, self.length)
        # Draws are numbered child by child, so those below a child's end are its own and those of children before it.
        below = [int(np.count_nonzero(order[:rest] < end)) for end in np.cumsum(counts)[:-1].tolist()]
        parts = np.diff([0, *below, rest]).tolist()
        return [epochs * count + part for count, part in zip(counts.tolist(), parts, strict=True)]

    def reach(self, total: int) -> Sequence[int]:
        epochs = -(-total // self.length)
        sizes = zip(self._rounds.tolist(), self._sizes.tolist(), strict=True)
        return [epochs * rounds * size for rounds, size in sizes]

    def describe(self) -> str:
        shares = [f"{weight:.4g}" for weight in self.weights[:8]] + ["..."] * (len(self.weights) > 8)
        return f"{self._title} " + " : ".join(shares)

    def identity(self) -> str:
        exact = " ".join([*map(float.hex, self.weights.tolist()), *map(str, self._sizes.tolist())])
        return f"{self._title} {hashlib.blake2b(exact.encode(), digest_size=8).hexdigest()} of {self.length}"


class Nanoset(Dealt):
    """One epoch of the order of Nanotron's `Nanoset`; all epochs are the same.

    `Repeat(nanoset, length=train_split_num_samples)` is the whole run.

    Args:
        children: the datasets (`Leaf`) in the order of Nanotron's `dataset_folder`.
        weights: one per child; None for their lengths, which yields each sample once.
        seed: Nanotron's `random_seed`.
        normalize: divide the weights by their sum, as Nanotron does. If False, they are used unchanged, as in the
            worked example of Nanotron's documentation.

    Raises:
        ConfigError: there are no children, a child is endless, or Nanotron does not accept the weights or the seed.
    """

    _title = "nanoset"
    tag = "nanoset"
    args = ("seed", "weights")
    options: ClassVar[Mapping[str, Any]] = {"normalize": False}

    def __init__(
        self,
        children: Sequence[Node],
        weights: Sequence[float] | None = None,
        seed: int = DEFAULT_SEED,
        *,
        normalize: bool = True,
    ) -> None:
        sizes = lengths_of(children, self._title)
        row = for_children(sizes if weights is None else weights, len(sizes))
        if not 0 <= seed < 2**32:
            raise ConfigError(
                f"a Nanoset cannot have the seed {seed}",
                kind="bad-option",
                fix="Give the run's own seed, a number from 0 to 2^32 - 1.",
            )
        self.seed, self.normalize = seed, normalize
        super().__init__(children, normalized(row) if normalize else row, sum(sizes), weights)

    def _shuffle(self, order: npt.NDArray[Any]) -> None:
        shuffle(order, self.seed)

    def identity(self) -> str:
        return f"{super().identity()} seed {self.seed}"


class BlendableDataset(Dealt):
    """The order of Nanotron's `BlendableDataset`: greedy draws for a whole run, unshuffled, no sample twice.

    Args:
        children: the datasets in the order of Nanotron's `dataset_folder`.
        weights: one per child; they are normalized.
        length: samples of the run, training steps times the global batch.

    Raises:
        ConfigError: as `Nanoset`; or the run draws more samples from a child than it has, for which Nanotron fails with
            an IndexError during training.
    """

    _title = "blendable dataset"
    tag = "blendable"
    args = ("weights", "length")

    def __init__(self, children: Sequence[Node], weights: Sequence[float], length: int) -> None:
        sizes = lengths_of(children, self._title)
        row = for_children(weights, len(sizes))
        if length < 1:
            raise ConfigError("a run needs at least one sample", kind="empty-source", fix="Give the run's samples.")
        super().__init__(children, normalized(row), length, weights)
        _, counts = self._draws
        for number in np.flatnonzero(counts > self._sizes).tolist():
            raise ConfigError(
                f"a run of {length:,} samples draws {counts[number]:,} from dataset {number},"
                f" which has {sizes[number]:,} and is not read twice",
                kind="too-many-repeats",
                fix="Use fewer samples, lower its weight, or use a 'Nanoset', which repeats.",
            )


def nanoset_index(
    lengths: Sequence[int],
    weights: Sequence[float] | None = None,
    samples: int | None = None,
    seed: int = DEFAULT_SEED,
    *,
    normalize: bool = True,
) -> tuple[IntArray, IntArray]:
    """Return Nanotron's `dataset_index` and `dataset_sample_index`, int64[samples] each.

    Args:
        lengths: samples of each dataset.
        weights, seed, normalize: as for `Nanoset`.
        samples: Nanotron's `train_split_num_samples`; one epoch by default.

    >>> dataset, sample = nanoset_index([8, 2, 5, 5], [0.1, 0.5, 0.3, 0.1], 70, normalize=False)
    >>> dataset[:10].tolist(), sample[:10].tolist()
    ([1, 1, 0, 2, 3, 1, 3, 1, 2, 2], [1, 0, 0, 4, 1, 0, 0, 0, 2, 0])
    """
    nanoset = Nanoset([Leaf(i, length) for i, length in enumerate(lengths)], weights, seed, normalize=normalize)
    located = nanoset.locate(np.arange(nanoset.length if samples is None else samples) % nanoset.length)
    return located.source.astype(np.int64), located.index


def lengths_of(children: Sequence[Node], title: str) -> list[int]:
    """Return the lengths of children. Raises `ConfigError` if there are none, or one is endless."""
    if not children:
        raise ConfigError(f"a {title} of no datasets", kind="empty-source", fix="Give at least one dataset.")
    return [child.finite(f"a {title}") for child in children]


def for_children(weights: Sequence[float], count: int) -> npt.NDArray[np.float64]:
    """Return valid weights. Raises `ConfigError` unless there is one for each child."""
    if len(weights) != count:
        raise ConfigError(
            f"{count} datasets and {len(weights)} weights",
            kind="bad-recipe",
            fix="Give one weight for each dataset, in the same order.",
        )
    return _checked(weights)


def _checked(weights: Sequence[float] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    try:
        row = np.array(weights, np.float64)
    except (TypeError, ValueError):
        raise _bad_weights(weights, "are not all numbers") from None
    if not np.isfinite(row).all() or (row < 0).any() or not isfinite(sum(row.tolist())):
        raise _bad_weights(weights, "are not all finite and non-negative")
    if not row.any():
        raise _bad_weights(weights, "add up to zero")
    return row


def _bad_weights(weights: Any, why: str) -> ConfigError:
    return ConfigError(
        f"the weights {str(list(weights))[:80]} {why}",
        kind="bad-recipe",
        fix="Give plain numbers such as 0.8, at least one above 0, written as in the original run.",
    )
