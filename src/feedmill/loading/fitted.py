"""`Fitted`: adapts a task encoder to the options of a dataset, as Megatron Energon's loaders do."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.loading.encoder import TaskEncoder, drawn
from feedmill.loading.failures import SkipSample
from feedmill.loading.restore_keys import keyed, keyed_as_sample
from feedmill.loading.typed import AugmentTaskEncoder, TypedTaskEncoder, batch_of_fields

_OF_SAMPLES = ("cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample")
_OF_PACKS = ("postencode_sample", "pack_selected_samples")
_WINDOW, _SINGLES = 64, 8


class _Several(list[Any]):
    """The encoded samples that a hook yielded for one sample."""


class Fitted(AugmentTaskEncoder):
    """Adapter from the task encoder of the user to the options of one dataset.

    Args:
        task_encoder: the encoder of the user.
        single: yield samples (or packs) one by one, without `batch` and `encode_batch`.
        packs: pack online; without it the packing hooks are not used.
        rows: the plan yields rows of samples, each of which is a pack.
        drops: drop the samples that hooks skip, as validation requires, so that no other sample counts twice. Without
            it, as in training, a substitute replaces them. No effect with packs and groups.

    Every hook but `select_samples_to_pack` and `batch_group_criterion` may be a generator. A hook of samples or packs
    then yields several of them, or none; they are batched in their order. A hook of batches yields several batches.
    """

    _stock = True

    def __init__(
        self, task_encoder: TaskEncoder, *, single: bool, packs: bool, drops: bool = False, rows: bool = False
    ) -> None:
        super().__init__(task_encoder)
        self._single, self._rows = single, rows
        self._of_samples = [hook for hook in _OF_SAMPLES if task_encoder.yields(hook)]
        if packs and "postencode_sample" in self._of_samples:
            self._of_samples.remove("postencode_sample")  # of selected samples, and called by the packing
        self._drops = drops and not packs and not task_encoder.groups and task_encoder.has_user_code
        self._packs = packs

    @property
    def cache(self) -> Any:  # type: ignore[override]
        """Return the cache pool of the inner encoder."""
        return self._task_encoder.cache

    @property
    def unfolds(self) -> bool:
        return bool(self._of_samples) or self._drops

    @property
    def yields_batches(self) -> bool:
        return not self._single and any(map(self._task_encoder.yields, ("batch", "encode_batch")))

    @property
    def packs(self) -> bool:
        return self._packs or (self.unfolds and not self._task_encoder.groups)

    @property
    def groups(self) -> bool:
        return not self.packs and (self._task_encoder.groups or self.yields_batches)

    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        try:
            made = super().cook_crude_sample(sample, rng)
            return _Several(made) if "cook_crude_sample" in self._of_samples else made
        except SkipSample:
            if not self._drops:
                raise
            return _Several()

    def encode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._several("encode_sample", sample, rng) if self.unfolds else super().encode_sample(sample, rng)

    def preencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        if not self.unfolds:
            return super().preencode_sample(sample, rng)
        made = self._several("preencode_sample", sample, rng)
        return made if self._packs else self._several("postencode_sample", made, rng)

    def _several(self, name: str, sample: Any, rng: np.random.Generator | None = None) -> _Several:
        """Return the samples that a hook makes of a sample, or of those that an earlier hook made, in any number."""
        hook, rng, several = self._hook(name), drawn(rng), _Several()
        for one in sample if isinstance(sample, _Several) else (sample,):
            try:
                made = hook(one, rng)
                several += made if name in self._of_samples else (made,)
            except SkipSample:
                if not (self._drops or isinstance(sample, _Several)):
                    raise
        return several

    def postencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        done = self.unfolds and not self._packs
        return sample if done else super().postencode_sample(sample, rng)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return super().select_samples_to_pack(samples) if self._packs else [[sample] for sample in samples]

    def pack_selected_samples(self, samples: Any) -> Any:
        if self._rows:
            return keyed_as_sample(super().pack_selected_samples(samples))
        if not self._packs:
            return keyed(samples[0], 0)
        made = super().pack_selected_samples(samples)
        if self.yields("pack_selected_samples"):
            return [keyed(pack, number) for number, pack in enumerate(made)]
        return keyed(made, 0)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        return super().batch_group_criterion(sample) if self._task_encoder.groups else ("", None)

    def yields(self, hook: str) -> bool:
        return (hook not in _OF_PACKS or self._packs or self._rows) and super().yields(hook)

    def together(self, samples: list[Any]) -> Any:
        if self._single and not self.groups:
            return samples[0]
        if not self.yields_batches:
            return super().together(samples)
        made = self.batch(samples)
        batches = map(self.encode_batch, made if self.yields("batch") else (made,))
        return [one for batch in batches for one in batch] if self.yields("encode_batch") else list(batches)

    @property
    def of_fields(self) -> Callable[[type[Any], dict[str, Any], list[int]], Any] | None:
        """Return `batch_of_fields` if batches are made and the encoder has no hook, cooker or type; otherwise None."""
        inner = self._task_encoder
        if self._single or self.packs or self.groups or inner.has_user_code or not isinstance(inner, TypedTaskEncoder):
            return None
        typed = isinstance(inner, AugmentTaskEncoder) or inner._raw_batch_type or inner._batch_type
        return None if typed else batch_of_fields

    def check(self) -> None:
        if self._packs and not (self.overrides("select_samples_to_pack") and self.overrides("pack_selected_samples")):
            raise ConfigError(
                "packing requires both select_samples_to_pack and pack_selected_samples: one of them is missing",
                fix="Override both, or omit packing_buffer_size.",
            )
        if self._packs and self._task_encoder.groups:
            raise ConfigError(
                "packing and grouping cannot be combined", fix="Override batch_group_criterion, or omit the buffer."
            )
        if self._packs:
            super().check()

    def window(self, buffer: int | None, batch_size: int | None) -> int | None:
        """Return the argument `buffer` of the loader: that of packs, or a default for groups and hooks that yield."""
        if self._packs:
            return buffer
        if self._drops and not self._of_samples and not self.yields_batches:
            return batch_size or _SINGLES  # as small as batches, so that ranks get nearly equal numbers
        return _WINDOW * (batch_size or 1) if self.packs or self.groups else None


def share(length: int, window: int, rank: int, world_size: int) -> int:
    """Return the number of positions of a rank, if windows of a plan of `length` positions are dealt one by one."""
    windows = -(-length // window)
    mine = len(range(rank, windows, world_size))
    has_last = windows > 0 and (windows - 1) % world_size == rank
    return mine * window - (windows * window - length if has_last else 0)
