"""Energon's names for the errors of samples, and the handlers that `WorkerConfig` takes."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from feedmill.errors import FeedmillError
from feedmill.loading.failures import SkipSample

__all__ = ["FatalSampleError", "SkipSample", "log_exception", "reraise_exception", "sources_of"]

FatalSampleError = FeedmillError

_log = logging.getLogger("feedmill.energon")


def log_exception(exception: Exception, sample: Any = None, sources: Any = None) -> None:
    """Log a failed sample as a warning; the loader then replaces it with a substitute. The default handler.

    Args:
        exception: the error.
        sample: the key of the sample.
        sources: the locations of the sample.
    """
    where = "; ".join(f"{source.where} {', '.join(source.names)}" for source in sources or ())
    _log.warning("a substitute replaces the sample %r (%s): %s", sample, where, exception)


def reraise_exception(exception: Exception, sample: Any = None, sources: Any = None) -> None:  # noqa: ARG001
    """Raise the error of a failed sample, which ends the iteration.

    Args:
        exception: the error.
        sample: ignored.
        sources: ignored.
    """
    raise exception


def sources_of(sample: Any) -> list[Any] | None:
    """Return the locations that a sample or a list of samples has; None if it has none."""
    if isinstance(sample, list):
        found = [source for one in sample for source in sources_of(one) or ()]
    elif isinstance(sample, dict):
        found = list(sample.get("__sources__") or ())
    else:
        found = list(getattr(sample, "__sources__", None) or ())
    return found or None


def without_effect(option: str, why: str, *, level: int = 4) -> None:
    """Warn that an option of Energon has no effect.

    Args:
        option: the option, or several of them.
        why: the reason, or what to use instead.
        level: frames between the caller whose line is shown and the warning.
    """
    warnings.warn(f"{option} has no effect: {why} (docs/migration/energon.md)", UserWarning, stacklevel=level)
