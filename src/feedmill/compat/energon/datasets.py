"""Energon's functions that create datasets: `get_train_dataset` and `get_val_dataset`.

Each returns an `EnergonDataset`: a plan and the arguments of a loader, for `get_savable_loader`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Required, Unpack

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.closed import closed
from feedmill.compat.energon.errors import reraise_exception, sources_of, without_effect
from feedmill.compat.energon.opening import DECODING, Opening, Words, trusts
from feedmill.compat.energon.reading import Reading
from feedmill.compat.energon.settings import HOOKS, TRAIN, VALIDATION
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.sample import Source
from feedmill.formats.settings import Fate
from feedmill.jobs.main_program import portable
from feedmill.loading.encoder import TOLERANCE, TaskEncoder
from feedmill.loading.epochs import EpochLoader
from feedmill.loading.failures import MISTAKES, Failure, Substitute
from feedmill.loading.loader import Loader
from feedmill.loading.plan import yields_rows
from feedmill.loading.transfer import has_accelerator
from feedmill.loading.typed import AugmentTaskEncoder, Fitted, TypedTaskEncoder, share
from feedmill.loading.workers import Workers
from feedmill.planning.dealing.grid import Grid, Remainder, borders_of
from feedmill.planning.nodes import Node
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.simple import recipe_for
from feedmill.samples.decode import SampleDecoder

__all__ = ["EnergonDataset", "get_train_dataset", "get_val_dataset"]

_MISTAKES = frozenset(kind.__name__ for kind in MISTAKES)
_TOLERANCE = 100
"""Default number of consecutive failures that end a run, as in Energon."""
_MAY_FAIL = (
    "cook_crude_sample",
    "encode_sample",
    "preencode_sample",
    "postencode_sample",
    "select_samples_to_pack",
    "pack_selected_samples",
    "batch",
    "encode_batch",
)
"""Hooks whose failures are counted."""


@dataclass(frozen=True, eq=False)
class EnergonDataset(SavableDataset):
    """The arguments of a loader, for `get_loader`.

    Attributes:
        plan: the samples and their order.
        task_encoder: the hooks of the task.
        worker_config: this rank and its workers.
        batch_size: samples per batch of this rank; None for single samples.
        drop_last: whether to drop an incomplete last batch.
        buffer: number of samples from which packs are selected; None for no packing.
        epoch: batches per epoch of this rank; None for all.
        restart: for validation: whether each loop begins at the first sample, and skipped samples are not replaced.
        cycle: for training with ``repeat=False``: whether the loop after the last sample begins at the first one.
    """

    plan: Plan
    task_encoder: TaskEncoder
    worker_config: WorkerConfig
    batch_size: int | None
    drop_last: bool
    buffer: int | None
    epoch: int | None
    restart: bool
    cycle: bool = False

    @property
    def single(self) -> bool:
        """Return whether the items are single samples or packs."""
        return self.batch_size is None and not self.task_encoder.groups

    def fitted(self) -> Fitted:
        """Return the task encoder in the form that the loader takes."""
        rows = yields_rows(self.plan)
        drops = self.restart and not rows
        return Fitted(self.task_encoder, single=self.single, packs=self.buffer is not None, drops=drops, rows=rows)

    def stream(self, options: LoaderOptions) -> EpochLoader:
        """Return the loader of this rank, in epochs."""
        config, encoder = self.worker_config, self.fitted()
        if options.cache_pool is not None:
            self.task_encoder.cache = options.cache_pool
        processes = options.processes
        if processes is None:
            processes = config.num_workers > 0 and encoder.has_user_code and portable(encoder, self.plan)
        loader = Loader(
            self.plan,
            self.batch_size or 1,
            rank=config.rank,
            world_size=config.world_size,
            workers=Workers(
                config.num_workers,
                processes=processes and config.num_workers > 0,
                adapt=True if options.processes is None else None,
            ),
            prefetch=options.prefetch_factor,
            task_encoder=encoder,
            buffer=encoder.window(self.buffer, self.batch_size),
            remainder="drop" if self.drop_last else "ragged",
            pin_memory=has_accelerator() and config.num_workers > 0,  # without workers, hooks stay in this thread
            on_error=on_error(config, tolerance_of(self.task_encoder)),
            seed=config.seed_offset,
            stall=options.watchdog_timeout_seconds,
        )
        return EpochLoader(loader, length=self.epoch, restart=self.restart, expected=self.steps, cycle=self.cycle)

    def can_restore_sample(self) -> bool:
        encoder = self.fitted()
        return not (encoder.groups or encoder.yields_batches)

    def __len__(self) -> int:
        return (
            self.steps
            if self.epoch is None
            else self.epoch
            if self.plan.length is None
            else min(self.epoch, self.steps)
        )

    @property
    def steps(self) -> int:
        """Number of batches of this rank in one pass over the data, if no hook skips samples."""
        config, size = self.worker_config, self.batch_size or 1
        samples = self.plan.length if yields_rows(self.plan) else None
        samples = one_pass(self.plan.node) if samples is None else samples
        window = self.fitted().window(self.buffer, self.batch_size)
        if window is not None:
            samples = share(samples, window, config.rank, config.world_size)
            return samples // size if self.drop_last else -(-samples // size)
        remainder: Remainder = "drop" if self.drop_last else "ragged"
        borders = borders_of(self.plan) if yields_rows(self.plan) else ()
        return Grid(0, samples, size, config.rank, config.world_size, remainder, borders=borders).steps or 0

    def config(self) -> dict[str, Any]:
        """Return a description as plain data."""
        return {
            "plan": self.plan.fingerprint,
            "sources": dict(self.plan.fingerprints),
            "batch_size": self.batch_size,
            "batch_drop_last": self.drop_last,
            "packing_buffer_size": self.buffer,
            "epoch": self.epoch,
            "task_encoder": type(self.task_encoder).__qualname__,
        }

    def __str__(self) -> str:
        return str(self.plan)


@closed(TRAIN, "trust")
def get_train_dataset(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: TaskEncoder | None = None,
    repeat: bool = True,
    trust: bool | None = None,
    **words: Unpack[Words],
) -> EnergonDataset:
    """Return the training data of a prepared folder, JSONL file or metadataset.

    The order is Feedmill's: shuffled in blocks and windows over the whole split, and the same for any number of ranks
    and workers. Without a shuffle buffer, only the shards are shuffled, or the sequences that they are cut into, and
    the samples of each keep their order, as in Energon.

    Args:
        path: prepared folder, JSONL file or metadataset, or the content of a metadataset.
        split_part: name of the split.
        worker_config: this rank and its workers.
        batch_size: samples per batch of this rank; None for single samples.
        batch_drop_last: whether to drop an incomplete last batch.
        packing_buffer_size: number of samples from which packs are selected; None for no packing.
        shuffle_buffer_size: None, 0 or 1 for no buffer; the value of others has no effect.
        max_samples_per_sequence: without a buffer, samples of the sequences that shards are cut into; None for whole
            shards.
        parallel_shard_iters: without a buffer, shards or sequences that are read side by side; 16 by default.
        shuffle_over_epochs_multiplier: passes of a loop, each a permutation, with ``repeat=False``; None for the stored
            order, -1 for a loop without end.
        virtual_epoch_length: number of batches after which a loop ends; the next loop continues. 0 for no limit.
        task_encoder: the hooks of the task.
        repeat: whether to repeat the data endlessly. If false, a loop ends after one pass, and the next one begins at
            the first sample, in the same order.
        trust: whether to run code that the data names: joiners, sample loaders, custom sample types and factories, and
            pickles (unless the task encoder has its own `decoder`). None for no, unless the environment variable
            ``FEEDMILL_ENERGON_TRUST`` is 1.
        words: further keywords, see `Words`; docs/migration/energon.md lists all.

    Raises:
        ConfigError, NotFound, TrustError: as `Recipe.load` and `Recipe.plan`; or a keyword is unsupported.
        TypeError: a keyword is unknown.
    """
    encoder, opening = _opening(task_encoder, words, trusts(trust))
    asked, dataset = opening.asked(path, split_part, shuffle_over_epochs_multiplier, words, look=not repeat)
    reading = Reading(
        shuffle_over_epochs=shuffle_over_epochs_multiplier,
        parallel_shard_iters=parallel_shard_iters,
        max_samples_per_sequence=max_samples_per_sequence,
    )
    buffered = shuffle_buffer_size is not None and shuffle_buffer_size > 1
    if shuffle_over_epochs_multiplier is None and buffered:
        without_effect("shuffle_buffer_size", "shuffle_over_epochs_multiplier=None keeps the stored order")
    if shuffle_over_epochs_multiplier == -1:
        without_effect("shuffle_over_epochs_multiplier=-1", "each epoch is a permutation")
    shuffle = None if buffered and shuffle_over_epochs_multiplier is not None else reading.shuffle
    passes = 1 if dataset is None else reading.described(dataset.opened.order).epochs
    recipe = recipe_for(
        path,
        split=split_part,
        seed=worker_config.seed_offset,
        shuffle=shuffle,
        epochs=None if repeat else passes,
        dataset_config=words.get("dataset_config"),
        split_config=words.get("split_config"),
        asked=asked,
    )
    plan = recipe.plan(opening, trust=opening.trust)
    return EnergonDataset(
        plan,
        encoder,
        worker_config,
        batch_size,
        batch_drop_last,
        _buffer(plan, encoder, packing_buffer_size),
        virtual_epoch_length or None,
        False,
        cycle=not repeat,
    )


class Validation(Words, total=False):
    """Keywords of `get_val_dataset`, for `get_val_datasets`."""

    split_part: str
    worker_config: Required[WorkerConfig]
    batch_size: Required[int | None]
    batch_drop_last: bool
    packing_buffer_size: int | None
    limit: int | None
    task_encoder: TaskEncoder | None
    trust: bool | None


@closed(VALIDATION, "trust")
def get_val_dataset(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder | None = None,
    trust: bool | None = None,
    **words: Unpack[Words],
) -> EnergonDataset:
    """Return the validation data: all samples of a split in stored order, one dataset after another.

    Each loop begins at the first sample. For the other arguments and the errors, see `get_train_dataset`.

    Args:
        limit: number of batches of this rank after which a loop ends; None for all.
    """
    encoder, opening = _opening(task_encoder, words, trusts(trust))
    asked, _ = opening.asked(path, split_part, 1, words)
    recipe = recipe_for(
        path,
        split=split_part,
        mode="validation",
        seed=worker_config.seed_offset,
        dataset_config=words.get("dataset_config"),
        split_config=words.get("split_config"),
        asked=asked,
    )
    plan = recipe.plan(opening, trust=opening.trust)
    buffer = _buffer(plan, encoder, packing_buffer_size)
    return EnergonDataset(plan, encoder, worker_config, batch_size, batch_drop_last, buffer, limit or None, True)


def _buffer(plan: Plan, encoder: TaskEncoder, asked: int | None) -> int | None:
    """Return the buffer from which packs are selected; None if the plan packs.

    Raises:
        ConfigError: the plan packs samples, and no hook makes a pack of them.
    """
    if not yields_rows(plan):
        return asked
    if not encoder.overrides("pack_selected_samples"):
        raise ConfigError(
            "the recipe packs samples into rows, and the task encoder does not say what a row becomes",
            kind="bad-hook",
            fix="Override pack_selected_samples, or remove 'pack' from the recipe.",
        )
    if asked is not None:
        without_effect("packing_buffer_size", "the recipe's 'pack' has planned the rows")
    return None


def one_pass(node: Node) -> int:
    """Return the number of samples of a plan in which no source repeats, at most: those of all sources of a blend."""
    if node.length is not None:
        return node.length
    return sum(map(one_pass, node.children))


def _opening(encoder: TaskEncoder | None, words: Words, trust: bool) -> tuple[TaskEncoder, Opening]:
    """Return the encoder, with a decoder for deprecated decoding words, and what opens the datasets."""
    made = TypedTaskEncoder() if encoder is None else encoder
    check_hooks(made)
    decoding = {name: given for name, given in words.items() if name in DECODING and given is not None}
    if words.get("auto_decode") is False:
        made.decoder = None  # type: ignore[attr-defined]
    elif decoding:
        made.decoder = SampleDecoder(**decoding)  # type: ignore[attr-defined, arg-type]
    decoder = getattr(made, "decoder", None)
    if trust and decoder is TypedTaskEncoder.decoder:  # another decoder has a separate `trust`
        decoder = SampleDecoder(trust=True)
    decode = decoder if decoder is None or callable(decoder) else decoder.decode
    return made, Opening(decode, trust, words.get("part_filter"), words.get("sample_type"))


def check_hooks(encoder: TaskEncoder) -> None:
    """Raise `ConfigError` for hooks of Energon's pipeline: Feedmill never calls them, so data would differ."""
    own = [name for name in HOOKS.names(Fate.REFUSED) if hasattr(encoder, name)]
    taken = inspect.signature(encoder.cook_crude_sample).parameters
    if "cooker" in taken or "aux" in taken:
        raise ConfigError(
            f"{type(encoder).__name__}.cook_crude_sample is unsupported: it takes a sample, and a generator 'rng'",
            kind="unsupported",
            fix="Write a Cooker, which gets auxiliary data by its parameters.",
        )
    hooks = sorted({*own, *(name for name in dir(encoder) if name.startswith("build_"))})
    if hooks:
        raise ConfigError(
            f"{type(encoder).__name__}.{hooks[0]} is unsupported: Feedmill does not build a pipeline of datasets",
            kind="unsupported",
            fix="Remove it, and override the hooks of samples and batches, or use feedmill.Recipe.",
        )


def tolerance_of(encoder: TaskEncoder) -> int | None:
    """Return the number of consecutive failures that end the run: the smallest tolerance of the hooks and cookers."""
    declared: list[int] = []
    of_wrappers: list[int] = []
    while True:
        hooks = [getattr(encoder, name, None) for name in _MAY_FAIL] + [cooker.cook for cooker in encoder.cookers]
        declared += [getattr(hook, TOLERANCE) for hook in hooks if hasattr(hook, TOLERANCE)]
        if hasattr(encoder, "failure_tolerance"):  # of a wrapper, whose function is a hook
            of_wrappers.append(encoder.failure_tolerance)
        if not isinstance(encoder, AugmentTaskEncoder):
            break
        encoder = encoder.inner
    allowed = declared or [getattr(encoder, "__default_failure_tolerance__", _TOLERANCE)]
    return min((number for number in allowed + of_wrappers if number), default=None)


def on_error(config: WorkerConfig, in_a_row: int | None) -> Literal["raise"] | Substitute:
    """Return the error policy of a loader that calls the handler of `config`.

    The handler is called with the exception that was raised, the sample that was read, and its locations. If hooks of
    batches raised it, the sample is in a list, as Energon's handlers get batches as lists. If a worker process could
    not send the exception or the sample, the handler gets a `DataError` and the key instead.
    """
    if config.global_error_handler is reraise_exception:
        return "raise"
    handler = config.global_error_handler

    def call_handler(failure: Failure) -> str | None:
        if failure.kind in _MISTAKES:
            return "raise"
        sample: Any = failure.key if failure.sample is None else failure.sample
        error = failure.exception or DataError(failure.error, kind=failure.kind)
        sources = sources_of(sample) or [_source(failure)]
        of_batch = failure.stage == "collate" and not isinstance(error, FeedmillError)  # which decoding raises, too
        handler(error, [sample] if of_batch else sample, sources)
        return None

    return Substitute(handler=call_handler, in_a_row=in_a_row)


def _source(failure: Failure) -> Source:
    return Source(str(failure.source), failure.file or "", failure.offset or 0, 0, failure.index, failure.key or "")
