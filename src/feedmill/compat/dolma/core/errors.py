"""Dolma's errors. Those that Feedmill raises are its own: `DolmaError` catches all of them."""

from feedmill.errors import ConfigError as DolmaConfigError
from feedmill.errors import FeedmillError as DolmaError

__all__ = [
    "DolmaConfigError",
    "DolmaError",
    "DolmaFatalError",
    "DolmaRetryableFailure",
    "DolmaRustPipelineError",
    "DolmaShardError",
]

DolmaFatalError = DolmaRustPipelineError = DolmaShardError = DolmaError


class DolmaRetryableFailure(DolmaError):
    """Raised by ``process_single`` to be called again, see `feedmill.compat.dolma.core.parallel`."""
