"""Task encoders for typed samples, with the defaults of Megatron Energon.

`feedmill.compat.energon` uses them. `TypedTaskEncoder` differs from `TaskEncoder` in three ways: cookers receive crude
samples as dicts, batches have the type of their samples or a type that you name, and a `decoder` decodes the parts.
`AugmentTaskEncoder` wraps another encoder, and `Fitted` adapts one to the options of a dataset. A restore key is what a
sample, a pack or a batch carries so that a loader can make it again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.sample import Decode, Sample
from feedmill.loading.batches import now
from feedmill.loading.cooking import Kitchen
from feedmill.loading.encoder import TaskEncoder, drawn, with_rng
from feedmill.loading.failures import SkipSample
from feedmill.loading.tensors import batch_as, generic_batch, made_as
from feedmill.samples.crude import CrudeSample
from feedmill.samples.decode import SampleDecoder
from feedmill.samples.types import TypedSample

_HOOKS = "_hooks_with_rng"


class TypedTaskEncoder(TaskEncoder):
    """Hooks with Energon's defaults. The class may be subscripted with types, which have no effect at run time.

    Args:
        encoded_sample_type: type that `encode_sample` returns, with fields by name; None returns the sample unchanged.
        raw_batch_type: type that `batch` returns; None for the type of the samples.
        batch_type: type that `encode_batch` returns; None returns the batch unchanged.

    Types are dataclasses, named tuples, or dict.

    Attributes:
        decoder: decodes parts and auxiliary files; None keeps them as bytes.
    """

    _stock = True
    decoder: Decode | None = SampleDecoder()
    _encoded_sample_type: type[Any] | None = None
    _raw_batch_type: type[Any] | None = None
    _batch_type: type[Any] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[Any] | None = None,
        raw_batch_type: type[Any] | None = None,
        batch_type: type[Any] | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @property
    def current_batch_index(self) -> int:
        """Return the number of this rank's current batch, while a hook runs.

        It counts from 0 at the plan's start and does not change with a resume. With packs, groups and hooks that yield,
        it is the number of the window from which the samples are taken. Raises ConfigError if no batch has been begun.
        """
        return current("step", "batch")

    @property
    def current_sample_index(self) -> int:
        """Return the position in the plan of the current sample, while a hook runs; of the first one of a batch.

        It is the same for any ranks, workers and resumes. Raises ConfigError if no sample has been begun.
        """
        return current("position", "sample")

    def __class_getitem__(cls, _: Any) -> type[TypedTaskEncoder]:
        return cls

    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        """Return the sample made by the first matching cooker; without cookers, the crude sample as a dict."""
        key = restore_key()
        if not isinstance(sample, Sample):
            if key is not None and isinstance(sample, TypedSample):
                sample.__restore_key__ = key
            return sample
        crude = CrudeSample(sample)
        if key is not None:
            crude["__restore_key__"] = key
        return self.kitchen.cook(crude, sample, drawn(rng), self.cache) if self.cookers else crude

    def encode_sample(self, sample: Any) -> Any:
        """Return the sample as the type `encoded_sample_type`."""
        kind = self._encoded_sample_type
        return sample if kind is None or isinstance(sample, kind) else made_as(kind, sample)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:  # noqa: ARG002
        """Return one group for all samples, with the batch size of the loader; override it to group batches."""
        return None, None

    def batch(self, samples: list[Any]) -> Any:
        """Collate samples field by field: tensors are padded and stacked, other values become lists."""
        actions = {"__subflavors__": list} if isinstance(samples[0], TypedSample) else None
        kind = type(samples[0]) if self._raw_batch_type is None else self._raw_batch_type
        return self._batch(samples, kind, actions)

    def _batch(
        self,
        samples: list[Any],
        result_type: type[Any],
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        default_action: Callable[[list[Any]], Any] = generic_batch,
    ) -> Any:
        """Return samples as one batch of a type; tasks written for Energon call or override it.

        Args:
            samples: the samples.
            result_type: type of the batch.
            actions: field -> function that combines its values.
            default_action: the function of other fields.
        """
        kind = dict if issubclass(result_type, Mapping) else result_type
        return batch_as(kind, samples, actions, default_action)

    def encode_batch(self, batch: Any) -> Any:
        """Return the batch as the type `batch_type`."""
        kind = self._batch_type
        return batch if kind is None or kind == self._raw_batch_type else made_as(kind, batch)

    def overrides(self, hook: str) -> bool:
        if hook == "batch" and type(self)._batch is not TypedTaskEncoder._batch:
            return True
        return super().overrides(hook) or (hook == "encode_sample" and self._encoded_sample_type is not None)


class AugmentTaskEncoder(TypedTaskEncoder):
    """A task encoder that wraps another one, whose hooks it calls unless they are overridden."""

    _stock = True

    def __init__(self, task_encoder: TaskEncoder) -> None:
        super().__init__()
        self._task_encoder = task_encoder

    @property
    def inner(self) -> TaskEncoder:
        """Return the inner encoder."""
        return self._task_encoder

    @property
    def decoder(self) -> Decode | None:  # type: ignore[override]
        """Return the decoder of the inner encoder."""
        return getattr(self._task_encoder, "decoder", None)

    @property
    def cookers(self) -> Sequence[Any]:  # type: ignore[override]
        """Return the cookers of the inner encoder."""
        return self._task_encoder.cookers

    @property
    def kitchen(self) -> Kitchen:
        return self._task_encoder.kitchen

    @property
    def draws(self) -> bool:
        return super().draws or self._task_encoder.draws

    def _hook(self, name: str) -> Callable[..., Any]:
        """Return a hook of the inner encoder as a function of a sample and a generator."""
        hooks = self.__dict__.setdefault(_HOOKS, {})
        hook: Callable[..., Any] | None = hooks.get(name)
        if hook is None:
            hook = hooks[name] = with_rng(getattr(self._task_encoder, name))
        return hook

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != _HOOKS}

    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._hook("cook_crude_sample")(sample, drawn(rng))

    def encode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._hook("encode_sample")(sample, drawn(rng))

    def preencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._hook("preencode_sample")(sample, drawn(rng))

    def postencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._hook("postencode_sample")(sample, drawn(rng))

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        packs: list[list[Any]] = self._task_encoder.select_samples_to_pack(samples)
        return packs

    def pack_selected_samples(self, samples: Any) -> Any:
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        group: tuple[Hashable, int | None] = self._task_encoder.batch_group_criterion(sample)
        return group

    def batch(self, samples: list[Any]) -> Any:
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: Any) -> Any:
        return self._task_encoder.encode_batch(batch)

    def together(self, samples: list[Any]) -> Any:
        return self.encode_batch(self.batch(samples))

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) or self._task_encoder.overrides(hook)

    def yields(self, hook: str) -> bool:
        return super().yields(hook) or (not super().overrides(hook) and self._task_encoder.yields(hook))


def batch_of_fields(kind: type[Any], columns: dict[str, Any], positions: list[int]) -> Any:
    """Return the batch that `TypedTaskEncoder.batch` makes of samples of the type `kind`, from columns of values."""
    columns["__restore_key__"] = [(POSITION, position) for position in positions]
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            columns[name] = list(values)
        elif isinstance(values, list) and name != "__subflavors__":
            columns[name] = generic_batch(values)
    return made_as(kind, columns)


def current(name: str, what: str) -> int:
    """Return a number of the current work of this thread, see `feedmill.loading.batches.now`.

    Args:
        name: its name there; `what`: what it is the index of, for the error.

    Raises:
        ConfigError: no loader is running a hook in this thread.
    """
    value = getattr(now, name, None)
    if value is None:
        raise ConfigError(
            f"there is no current {what}: its index is known only in a hook",
            kind="unsupported",
            fix="Read it in a hook, while a loader runs.",
        )
    return int(value)


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


POSITION = "Position"
_PACK = "Pack"


def restore_key() -> tuple[str, int] | None:
    """Return the restore key of the current sample, for `positions_of`; None outside a loader."""
    position = getattr(now, "position", None)
    return None if position is None else (POSITION, position)


def positions_of(key: Any) -> list[int]:
    """Return the positions of restore keys, in their order.

    Args:
        key: a position, the restore key of a sample or batch, or a list of them.

    Raises:
        ConfigError: the value is not a restore key.
    """
    if isinstance(key, int):
        return [int(key)]
    if isinstance(key, tuple) and len(key) == 2 and key[0] == POSITION and isinstance(key[1], int):
        return [key[1]]
    if isinstance(key, list | tuple) and key and not isinstance(key[0], str):
        return [position for part in key for position in positions_of(part)]
    raise ConfigError(
        f"{key!r:.80} is not a restore key of a Feedmill loader",
        kind="bad-state",
        fix="Give the __restore_key__ of a sample or batch of a loader, or positions of the plan.",
    )


def packs_of(key: Any) -> list[tuple[int, int]] | None:
    """Return the first position of the window and the number there of each pack of a restore key; None for samples."""
    if isinstance(key, tuple) and len(key) == 3 and key[0] == _PACK:
        return [(key[1], key[2])]
    if isinstance(key, list | tuple) and key and not isinstance(key[0], str):
        found = [packs_of(one) for one in key]
        return [pack for packs in found for pack in packs or ()] if all(found) else None
    return None


def keyed(pack: Any, number: int) -> Any:
    """Set the restore key of pack `number` after the current one, if it can have one."""
    return _with_key(pack, (_PACK, now.position, now.item + number))


def keyed_as_sample(pack: Any) -> Any:
    """Set the restore key of a pack that is a row of the plan, which is that of its position."""
    return _with_key(pack, restore_key())


def _with_key(pack: Any, key: Any) -> Any:
    if isinstance(pack, dict) and "__restore_key__" in pack:
        pack["__restore_key__"] = key
    elif hasattr(pack, "__restore_key__"):
        pack.__restore_key__ = key
    return pack
