"""Bases of Energon's wrappers of datasets (`feedmill.compat.energon.views`, `feedmill.compat.energon.views`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.streams import Stream
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError

_NOT_CALLED = ("__iter__", "save_state", "restore_state", "reset_state_own", "restore_sample", "worker_has_samples")
"""Methods of Energon's datasets that subclasses of a wrapper may override there."""


class BaseWrapperDataset(SavableDataset):
    """A view of one or more datasets.

    Args:
        datasets: the dataset or datasets.
        worker_config: must equal that of the datasets.

    Raises:
        ConfigError: it differs, or a subclass overrides a method of Energon that Feedmill does not call.
    """

    def __init__(self, datasets: SavableDataset | Iterable[SavableDataset], *, worker_config: WorkerConfig) -> None:
        for name in _NOT_CALLED:
            if getattr(type(self), name, None) is not getattr(SavableDataset, name, None):
                raise ConfigError(
                    f"{type(self).__name__}.{name} is unsupported: Feedmill does not call it",
                    kind="unsupported",
                    fix="Give a function to MapDataset, FilterDataset or IterMapDataset.",
                )
        given = [datasets] if isinstance(datasets, SavableDataset) else datasets
        self.datasets: tuple[SavableDataset, ...] = tuple(given)
        self.worker_config = worker_config
        for dataset in self.datasets:
            if dataset.worker_config != worker_config:
                raise ConfigError(
                    f"worker_config differs from that of the {type(dataset).__name__}",
                    fix="Give all datasets of a wrapper the same worker_config.",
                )

    @property
    def dataset(self) -> SavableDataset:
        """Return the only inner dataset. Raises ConfigError if there are several."""
        if len(self.datasets) != 1:
            raise ConfigError(f"{type(self).__name__} has {len(self.datasets)} datasets", fix="Use `datasets`.")
        return self.datasets[0]

    def plain(self) -> EnergonDataset | None:
        """Return this view as a plan with other hooks; None if it is none."""
        return None

    def stream(self, options: LoaderOptions) -> Stream:
        plain = self.plain()
        return self._stream(options) if plain is None else plain.stream(options)

    @abstractmethod
    def _stream(self, options: LoaderOptions) -> Stream:
        """Return the stream if there is no plain form."""

    def __len__(self) -> int:
        plain = self.plain()
        return len(self._stream(LoaderOptions())) if plain is None else len(plain)

    def can_restore_sample(self) -> bool:
        plain = self.plain()
        return plain is not None and plain.can_restore_sample()

    def config(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "datasets": [dataset.config() for dataset in self.datasets]}

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.datasets))})"


class OfSamples(BaseWrapperDataset):
    """A wrapper of one dataset that is hooks of the task encoder if the dataset is an unbatched plan."""

    def _unbatched(self) -> EnergonDataset | None:
        inner = plain_of(self.dataset)
        return inner if inner is not None and inner.single and inner.buffer is None else None


def plain_of(dataset: SavableDataset) -> EnergonDataset | None:
    """Return a dataset as a plan with hooks; None if it is none."""
    if isinstance(dataset, BaseWrapperDataset):
        return dataset.plain()
    return dataset if isinstance(dataset, EnergonDataset) else None
