"""`TaskEncoder`: the hooks of a task between samples and batches, with Energon's names.

Derive from it if a task needs more than a `transform` and a `collate` function, for example packing or cookers. The
hooks are called in this order, without and with packing:

    cook_crude_sample -> encode_sample                                              -> batch -> encode_batch
    cook_crude_sample -> preencode_sample -> [select] -> postencode_sample -> [pack] -> batch -> encode_batch

Every hook must depend only on its arguments, because samples are computed again after a resume, in any process. Random
hooks take a second parameter `rng`, a generator that depends only on the seed and the position of the sample.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from feedmill.errors import ConfigError
from feedmill.loading.batches import named_rng, now, takes_rng
from feedmill.loading.cachepool import NoCachePool
from feedmill.loading.collate import collate
from feedmill.loading.cooking import INNER, Cooker, Kitchen
from feedmill.samples.rows import note_place

if TYPE_CHECKING:
    from feedmill.loading.cachepool import CachePool

__all__ = ["Cooker", "Prepared", "PreparedRows", "TaskEncoder", "drawn", "padded", "stateless", "with_rng"]

logger = logging.getLogger("feedmill")

Function = TypeVar("Function", bound=Callable[..., Any])

_KITCHEN = "_kitchen"
TOLERANCE = "__failure_tolerance__"


def _hook(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let type checkers accept overrides with other parameter names, with or without a generator `rng`."""
    return method


def stateless(
    function: Function | None = None,
    *,
    restore_seeds: bool = False,
    failure_tolerance: int | None = None,
) -> Any:
    """Declare that a hook depends only on its arguments. Every hook must; Energon requires the declaration.

    Args:
        function: the hook; None to return a decorator.
        restore_seeds: seed the global generators of random, numpy and torch for the call, from the seed and the
            position of the sample (of the first sample, for batches and windows). Such calls run one at a time: prefer
            a parameter `rng`.
        failure_tolerance: number of consecutive failures that end the run (0: never), for the loaders of
            `feedmill.compat.energon`. Other loaders use `feedmill.loading.Substitute`.
    """
    if function is None:
        return functools.partial(stateless, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)
    if failure_tolerance is not None:
        setattr(function, TOLERANCE, failure_tolerance)
    if not restore_seeds:
        return function

    yields = inspect.isgeneratorfunction(function)

    @functools.wraps(function)
    def seeded(*arguments: Any, rng: np.random.Generator | None = None, **others: Any) -> Any:
        rng = drawn(rng)
        if rng is None:
            return function(*arguments, **others)
        with _global_seeds(int(rng.integers(1 << 32))):
            made = function(*arguments, **others)
            return list(made) if yields else made

    del seeded.__wrapped__  # inspect must see the signature of `seeded`
    setattr(seeded, INNER, function)
    return seeded


class TaskEncoder:
    """Hooks between the data and the training loop; override those that your task needs.

    Attributes:
        cookers: cookers of crude data; the first that matches the dataset of a sample is used.
        cache: the cache pool, passed to cookers that have a parameter `cache`.
    """

    _stock = True
    cookers: Sequence[Cooker] = ()
    cache: CachePool = NoCachePool()

    @_hook
    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        """Return a sample of the task's type, made by the first matching cooker; without cookers, the sample itself.

        Raises:
            ConfigError: no cooker matches, or one requires auxiliary data that its dataset does not have.
            DataError: the cooker failed; the message names it and the sample.
        """
        return self.kitchen.cook(sample, sample, drawn(rng), self.cache) if self.cookers else sample

    @property
    def kitchen(self) -> Kitchen:
        """Return the object that runs the cookers and keeps auxiliary data open."""
        kitchen: Kitchen | None = self.__dict__.get(_KITCHEN)
        if kitchen is None:
            kitchen = self.__dict__[_KITCHEN] = self.__dict__.setdefault(_KITCHEN, Kitchen(self.cookers))
        return kitchen

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _KITCHEN}

    @_hook
    def encode_sample(self, sample: Any) -> Any:
        """Encode a sample for batching; returns the sample itself unless overridden."""
        return sample

    @_hook
    def preencode_sample(self, sample: Any) -> Any:
        """With packing: encode what the selection of packs needs, at least a length. Default: `encode_sample`."""
        return sample

    @_hook
    def postencode_sample(self, sample: Any) -> Any:
        """With packing: finish the encoding of a selected sample."""
        return sample

    @_hook
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """With packing while loading: select groups of buffered samples, each of which becomes a pack.

        Called again for the remaining samples until nothing is selected; samples that are never selected are skipped
        and counted."""
        raise NotImplementedError

    @_hook
    def pack_selected_samples(self, samples: Any) -> Any:
        """With packing: build one pack from the selected samples.

        If the recipe packs samples (``lengths`` and ``pack``), `samples` is a `feedmill.samples.SampleRow` of encoded
        samples, which is read like a list. `select_samples_to_pack` is then not called, and there is no buffer."""
        raise NotImplementedError

    @_hook
    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """With grouping: return the key of the group of a sample, and the batch size of that group.

        Samples with equal keys are batched together. A batch size of None stands for that of the loader."""
        raise NotImplementedError

    @_hook
    def batch(self, samples: list[Any]) -> Any:
        """Collate encoded samples or packs; arrays of different shapes are padded with zeros to the largest."""
        return padded(samples)

    @_hook
    def encode_batch(self, batch: Any) -> Any:
        """Encode a batch for the training loop; returns the batch itself unless overridden."""
        return batch

    def overrides(self, hook: str) -> bool:
        """Return whether the task overrides a hook."""
        owner = next(cls for cls in type(self).__mro__ if hook in cls.__dict__)
        return "_stock" not in owner.__dict__

    def yields(self, hook: str) -> bool:
        """Return whether a hook is a generator function. Only the loaders of `feedmill.compat.energon` allow that."""
        function = getattr(self, hook)
        return inspect.isgeneratorfunction(getattr(function, INNER, function))

    @property
    def unfolds(self) -> bool:
        """Return whether the transform returns lists of encoded samples, one per sample."""
        return False

    @property
    def yields_batches(self) -> bool:
        """Return whether `together` returns a list of batches."""
        return False

    @property
    def has_user_code(self) -> bool:
        """Return whether the task overrides a hook of samples or batches, or has a cooker."""
        hooks = (*_OF_SAMPLES, *_HOOKS, "batch", "encode_batch")
        return bool(self.cookers) or any(map(self.overrides, hooks))

    @property
    def draws(self) -> bool:
        """Return whether a hook of samples, or a cooker, takes a random generator."""
        overridden = (hook for hook in _OF_SAMPLES if TaskEncoder.overrides(self, hook))
        inherited = (cls.__dict__.get(hook) for cls in type(self).__mro__ for hook in _OF_SAMPLES)
        return (
            any(_wants_rng(getattr(self, hook)) for hook in overridden)
            or any(hasattr(hook, INNER) for hook in inherited)  # which an overriding hook may call
            or any("rng" in cooker.parameters[1] for cooker in self.cookers)
        )

    @property
    def packs(self) -> bool:
        """Return whether samples are packed online."""
        return self.overrides("select_samples_to_pack")

    @property
    def groups(self) -> bool:
        """Return whether batches are grouped by a criterion."""
        return self.overrides("batch_group_criterion")

    @property
    def of_fields(self) -> Callable[[type[Any], dict[str, Any], list[int]], Any] | None:
        """Return the function that makes a batch from columns, see `BatchMaker`; None if a hook needs samples."""
        return None

    def check(self) -> None:
        """Raise `ConfigError` for hooks that exclude each other."""
        own = {name for name in _HOOKS if self.overrides(name)}
        if self.packs != ("pack_selected_samples" in own):
            raise ConfigError(
                "packing requires both select_samples_to_pack and pack_selected_samples: one of them is missing",
                fix="Override both, or neither.",
            )
        if self.packs and self.groups:
            raise ConfigError(
                "packing and grouping cannot be combined", fix="Override batch_group_criterion, or the packing hooks."
            )
        if "encode_sample" in own and own & {"preencode_sample", "postencode_sample"}:
            raise ConfigError(
                "encode_sample cannot be combined with preencode_sample or postencode_sample",
                fix="Override encode_sample alone, or the other two.",
            )

    def together(self, samples: list[Any]) -> Any:
        """Return a batch as the training loop gets it."""
        return self.encode_batch(self.batch(samples))


_HOOKS = (
    "encode_sample",
    "preencode_sample",
    "postencode_sample",
    "select_samples_to_pack",
    "pack_selected_samples",
    "batch_group_criterion",
)


_OF_SAMPLES = ("cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample")
_PACK = "pack_selected_samples"
_NONE: Any = None


class Prepared:
    """The transform of a task encoder: runs the hooks of samples. Called with (sample, rng)."""

    def __init__(self, encoder: TaskEncoder) -> None:
        self.encoder = encoder
        self._hooks: list[Callable[..., Any]] | None = None
        if not encoder.draws:  # creating a generator takes longer than a small hook
            self.__signature__ = inspect.Signature([inspect.Parameter("sample", inspect.Parameter.POSITIONAL_ONLY)])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hooks": None}

    def __call__(self, sample: Any, rng: np.random.Generator = _NONE) -> Any:
        if self._hooks is None:
            self._hooks = list(self._listed())  # at once: other threads call this at the same time
        for hook in self._hooks:
            sample = hook(sample, rng)
        return sample

    def _listed(self) -> Iterator[Callable[..., Any]]:
        encoder = self.encoder
        yield with_rng(encoder.cook_crude_sample)
        if encoder.overrides("encode_sample"):
            yield with_rng(encoder.encode_sample)
        else:
            yield with_rng(encoder.preencode_sample)
            if not encoder.packs:
                yield with_rng(encoder.postencode_sample)


class PreparedRows(Prepared):
    """The transform of a task encoder for rows of samples: runs the hooks of each sample, and that of the pack.

    Raises:
        ConfigError: the encoder groups, or a hook of samples or packs yields several: a row is one pack.
    """

    def __init__(self, encoder: TaskEncoder) -> None:
        super().__init__(encoder)
        if encoder.packs:
            logger.info("select_samples_to_pack is not called: the plan has packed the samples into rows")
        if encoder.groups:
            raise ConfigError(
                "rows of samples cannot be grouped: the plan has made them",
                kind="unsupported",
                fix="Remove batch_group_criterion, or 'pack' from the recipe.",
            )
        yielding = [hook for hook in (*_OF_SAMPLES, _PACK) if encoder.yields(hook)]
        if yielding:
            raise ConfigError(
                f"{yielding[0]} yields any number of samples, and the plan has counted one of each in its row",
                kind="unsupported",
                fix="Return one sample, or remove 'pack' from the recipe.",
            )
        if encoder.overrides(_PACK):
            hook = getattr(encoder, _PACK)
            if _wants_rng(hook) or hasattr(hook, INNER):
                self.__dict__.pop("__signature__", None)  # then the generator is made

    def __call__(self, row: Any, rng: np.random.Generator = _NONE) -> Any:
        run = super().__call__
        samples = []
        for number, sample in enumerate(row.samples):
            try:
                samples.append(run(sample, rng))
            except Exception as error:
                note_place(error, number)
                raise
        encoded = replace(row, samples=samples)
        return with_rng(self.encoder.pack_selected_samples)(encoded, rng) if self.encoder.overrides(_PACK) else encoded

    def _listed(self) -> Iterator[Callable[..., Any]]:
        yield from super()._listed()
        encoder = self.encoder
        if encoder.packs and not encoder.overrides("encode_sample"):  # else it is there already
            yield with_rng(encoder.postencode_sample)


def drawn(rng: np.random.Generator | None) -> Any:
    """Return the given generator, or that of the current sample if a hook was called without one; None outside a
    loader."""
    return getattr(now, "rng", None) if rng is None else rng


def _wants_rng(hook: Callable[..., Any]) -> bool:
    return named_rng(hook) or takes_rng(hook)


def with_rng(hook: Callable[..., Any]) -> Callable[[Any, np.random.Generator], Any]:
    """Return the hook as a function of a sample and a generator, which is dropped if the hook does not take one."""
    if named_rng(hook):
        return lambda sample, rng: hook(sample, rng=rng)
    return hook if takes_rng(hook) else lambda sample, _: hook(sample)


def padded(samples: Sequence[Any]) -> Any:
    """Collate as `feedmill.loading.collate.collate`, but pad arrays of different shapes with zeros at their ends.

    Arrays (and tensors) must have the same number of dimensions and the same dtype; others stay a list.
    """
    batch = collate(samples)
    if isinstance(batch, dict):
        return {name: _padded(values) for name, values in batch.items()}
    return tuple(map(_padded, batch)) if isinstance(batch, tuple) else _padded(batch)


def _padded(values: Any) -> Any:
    if type(values) is dict:
        return {name: _padded(column) for name, column in values.items()}
    if not isinstance(values, list) or not values:
        return values
    torch = sys.modules.get("torch")
    tensors = torch is not None and all(isinstance(value, torch.Tensor) for value in values)
    if not tensors and not all(isinstance(value, np.ndarray) for value in values):
        return values
    if len({(value.ndim, value.dtype) for value in values}) > 1 or values[0].dtype == object or values[0].ndim == 0:
        return values
    new: Any = torch.zeros if tensors and torch is not None else np.zeros
    from feedmill.samples.vla.columns import filled

    return filled(values, functools.partial(new, dtype=values[0].dtype))


_seeding = threading.RLock()


@contextlib.contextmanager
def _global_seeds(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    torch = sys.modules.get("torch")
    with _seeding:
        import random

        before, numpy_before = random.getstate(), np.random.get_state()
        torch_before = None if torch is None else torch.get_rng_state()
        random.seed(seed)
        np.random.seed(seed)
        if torch is not None:
            torch.default_generator.manual_seed(seed)  # not those of devices, from which training draws
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(numpy_before)
            if torch is not None:
                torch.set_rng_state(torch_before)
