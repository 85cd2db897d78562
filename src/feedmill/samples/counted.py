"""Samples with the tokens that a model's processor makes of them: what packs images, video and sound beside text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.formats.base import Dataset, Indices
from feedmill.formats.batches import Batch, Want
from feedmill.formats.mediatable import MediaTable
from feedmill.samples.views import DatasetView

Int64s = npt.NDArray[np.int64]


class Refused(NamedTuple):
    """Samples without a length, for one reason.

    Attributes:
        keys: of the first of them.
    """

    reason: str
    samples: int
    keys: list[str]

    def __str__(self) -> str:
        return f"{self.reason}: {self.samples:,} ({', '.join(self.keys)})"


@dataclass(frozen=True)
class SampleLengths:
    """The tokens of the samples of a dataset, and what else limits which of them share a row.

    Attributes:
        tokens: int32[samples]; -1 for samples without a length.
        refused: why these have none, the most frequent reason first.
        media: int64[samples], images, videos and sounds of each sample that the model gets.
        identity: what determines the tokens, by name: the processor's files, the tokenizer, the texts, and the rules.
        look: returns patches of the vision tower by sample, and their squares, see `ProcessorRules.vision`; raises
            `ConfigError` if they are not known.
    """

    tokens: npt.NDArray[np.int32]
    refused: Sequence[Refused]
    media: Int64s
    identity: Mapping[str, str]
    look: Callable[[], tuple[Int64s, Int64s]]

    @cached_property
    def vision(self) -> tuple[Int64s, Int64s]:
        """Return what `look` does, int64[samples] both."""
        return self.look()


class CountedDataset(DatasetView):
    """A dataset of samples whose tokens are known; it reads, decodes and locates them.

    Its `lengths` are 0 for samples without a length: they are in no row.

    Args:
        dataset: a dataset that is not token data.
        counts: the tokens of its samples.
        again: counts them in another process, which finds them in the cache folder.
    """

    format = "counted"

    def __init__(self, dataset: Dataset, counts: SampleLengths, again: Callable[[Dataset], SampleLengths]) -> None:
        super().__init__(dataset)
        self.counts, self.again = counts, again

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _counted_again, (self.dataset, self.again)

    def opened_as(self, **changes: Any) -> CountedDataset:
        return CountedDataset(self.dataset.opened_as(**changes), self.counts, self.again)

    @cached_property
    def lengths(self) -> Int64s:
        """Return the tokens of each sample, int64[len]; 0 for those without a length."""
        return np.maximum(self.counts.tokens, 0).astype(np.int64)

    def select(self, indices: Any) -> Dataset:
        return self._over(self.dataset.select(indices))

    def filter(self, function: Callable[[Any], Any], *, progress: bool = True) -> Dataset:
        return self._over(self.dataset.filter(function, progress=progress))

    def _over(self, dataset: Dataset) -> CountedDataset:
        return CountedDataset(dataset, self.again(dataset), self.again)

    def read_keyed(self, indices: Indices) -> tuple[list[Any], list[str]]:
        """Return samples in bulk, as `read` does, and their keys."""
        raw = self.dataset.read_raw(indices)
        keys = [sample.key for sample in raw]  # before the view, which may change samples
        return self.dataset._viewed(raw), keys

    def read(self, indices: Indices) -> list[Any]:
        return self.dataset.read(indices)

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        return self.dataset.read_batch(indices, want)

    @property
    def shuffle_block(self) -> int | None:
        return self.dataset.shuffle_block

    @property
    def stored_length(self) -> int:
        return self.dataset.stored_length

    def kept_before(self, stored: int) -> int:
        return self.dataset.kept_before(stored)

    def fingerprint(self) -> str:
        return self.dataset.fingerprint()

    def fingerprint_of_first(self, count: int) -> str | None:
        return self.dataset.fingerprint_of_first(count)

    def media_table(self) -> MediaTable:
        return self.dataset.media_table()

    def describe(self) -> dict[str, Any]:
        return {**self.dataset.describe(), "counted": dict(self.counts.identity)}

    @property
    def remarks(self) -> Sequence[str]:
        return self.dataset.remarks


def _counted_again(dataset: Dataset, again: Callable[[Dataset], SampleLengths]) -> CountedDataset:
    return CountedDataset(dataset, again(dataset), again)
