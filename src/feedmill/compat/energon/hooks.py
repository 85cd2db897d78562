"""Task encoders that add the function of a wrapper to the task encoder of its dataset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from feedmill.loading.encoder import TaskEncoder, drawn
from feedmill.loading.failures import SkipSample
from feedmill.loading.typed import AugmentTaskEncoder

_BEFORE_PACKING = ("encode_sample", "preencode_sample", "postencode_sample")


class _Over(AugmentTaskEncoder):
    """An encoder over another one, whose hooks of single samples it calls as one."""

    _stock = True
    _whole = "encode_sample"
    failure_tolerance: int = 100

    def _encoded(self, sample: Any, rng: np.random.Generator | None) -> Any:
        """Return the sample, or the samples that were yielded, after all hooks of single samples."""
        rng = drawn(rng)
        if self._task_encoder.overrides("encode_sample"):
            return self._hook("encode_sample")(sample, rng)
        before, after = self._hook("preencode_sample"), self._hook("postencode_sample")
        first, second = map(self._task_encoder.yields, ("preencode_sample", "postencode_sample"))
        made = before(sample, rng)
        if not first and not second:
            return after(made, rng)
        return _each(made if first else [made], lambda one: after(one, rng), second)

    def yields(self, hook: str) -> bool:
        if hook == self._whole:
            return any(map(self._task_encoder.yields, _BEFORE_PACKING))
        return False if hook in _BEFORE_PACKING else super().yields(hook)

    def overrides(self, hook: str) -> bool:
        if hook in _BEFORE_PACKING:
            return hook == self._whole
        return super().overrides(hook)


class Mapping(_Over):
    """Calls a function with each encoded sample.

    Args:
        task_encoder: the inner encoder.
        function: maps a sample. It may raise `SkipSample` or yield.
    """

    def __init__(self, task_encoder: TaskEncoder, function: Callable[[Any], Any]) -> None:
        super().__init__(task_encoder)
        self.function = function
        self._yields = inspect.isgeneratorfunction(getattr(function, "__seeded_function__", function))

    def encode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        made = self._encoded(sample, rng)
        return _each(made, self.function, self._yields) if super().yields("encode_sample") else self.function(made)

    def yields(self, hook: str) -> bool:
        return super().yields(hook) or (hook == "encode_sample" and self._yields)


class Filtering:
    """A function that returns a sample, or skips it.

    Args:
        keep: returns whether to keep a sample.
    """

    def __init__(self, keep: Callable[[Any], bool]) -> None:
        self.keep = keep

    def __call__(self, sample: Any) -> Any:
        if not self.keep(sample):
            raise SkipSample
        return sample


class Batching(AugmentTaskEncoder):
    """Makes batches by a function.

    Args:
        task_encoder: the inner encoder, for single samples.
        batcher: list of samples -> batch.
    """

    failure_tolerance: int = 100

    def __init__(self, task_encoder: TaskEncoder, batcher: Callable[[list[Any]], Any]) -> None:
        super().__init__(task_encoder)
        self.batcher = batcher

    def batch(self, samples: list[Any]) -> Any:
        return self.batcher(samples)

    def encode_batch(self, batch: Any) -> Any:
        return batch

    def yields(self, hook: str) -> bool:
        if hook in ("batch", "encode_batch"):
            return hook == "batch" and inspect.isgeneratorfunction(self.batcher)
        return super().yields(hook)


class Grouping(Batching):
    """Makes batches of samples with equal keys.

    Args:
        task_encoder: the inner encoder, for single samples.
        key_of: sample -> (key, batch size or None).
        size: samples per batch; None for the size that `key_of` returns.
        batcher: list of samples -> batch.
    """

    def __init__(
        self,
        task_encoder: TaskEncoder,
        key_of: Callable[[Any], tuple[Hashable, int | None]],
        size: int | None,
        batcher: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(task_encoder, batcher)
        self.key_of, self.size = key_of, size

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        key, size = self.key_of(sample)
        return key, size if self.size is None else self.size


class Packing(_Over):
    """Packs encoded samples.

    Args:
        task_encoder: the inner encoder, for single samples.
        select: samples -> list of the samples of each pack.
        pack: samples of a pack -> pack.
        finish: finishes the encoding of a selected sample; None for nothing.
    """

    _whole = "preencode_sample"

    def __init__(
        self,
        task_encoder: TaskEncoder,
        select: Callable[[list[Any]], list[list[Any]]],
        pack: Callable[[list[Any]], Any],
        finish: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(task_encoder)
        self.select, self.pack, self.finish = select, pack, finish

    def preencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._encoded(sample, rng)

    def postencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:  # noqa: ARG002
        return sample if self.finish is None else self.finish(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return self.select(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return self.pack(samples)

    def overrides(self, hook: str) -> bool:
        return self.finish is not None if hook == "postencode_sample" else super().overrides(hook)

    def yields(self, hook: str) -> bool:
        own = {"postencode_sample": self.finish, "pack_selected_samples": self.pack}
        return inspect.isgeneratorfunction(own[hook]) if hook in own else super().yields(hook)


def _each(items: Any, function: Callable[[Any], Any], yields: bool) -> Iterator[Any]:
    """Yield the results of a function, which may skip items or yield several."""
    for item in items:
        try:
            made = function(item)
            yield from made if yields else (made,)
        except SkipSample:
            continue
