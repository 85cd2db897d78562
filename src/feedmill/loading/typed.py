"""Task encoders for typed samples, with the defaults of Megatron Energon.

`feedmill.compat.energon` uses them. `TypedTaskEncoder` differs from `TaskEncoder` in three ways: cookers receive crude
samples as dicts, batches have the type of their samples or a type that you name, and a `decoder` decodes the parts.
`AugmentTaskEncoder` wraps another encoder. `feedmill.loading.fitted` adapts one to the options of a dataset.
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
from feedmill.loading.restore_keys import POSITION, restore_key
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
