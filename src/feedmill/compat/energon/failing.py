"""What the loaders of this package do with samples that fail: Energon's handlers and tolerances."""

from __future__ import annotations

from typing import Any, Literal

from feedmill.compat.energon.errors import reraise_exception, sources_of
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.sample import Source
from feedmill.loading.encoder import TOLERANCE, TaskEncoder
from feedmill.loading.failures import MISTAKES, Failure, Substitute
from feedmill.loading.typed import AugmentTaskEncoder

_MISTAKES = frozenset(kind.__name__ for kind in MISTAKES)
_TOLERANCE = 100
"""Default number of consecutive failures that end a run, as in Energon."""
_HOOKS = (
    "cook_crude_sample",
    "encode_sample",
    "preencode_sample",
    "postencode_sample",
    "select_samples_to_pack",
    "pack_selected_samples",
    "batch",
    "encode_batch",
)


def tolerance_of(encoder: TaskEncoder) -> int | None:
    """Return the number of consecutive failures that end the run: the smallest tolerance of the hooks and cookers."""
    declared: list[int] = []
    of_wrappers: list[int] = []
    while True:
        hooks = [getattr(encoder, name, None) for name in _HOOKS] + [cooker.cook for cooker in encoder.cookers]
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
