"""Reproduce VLA Foundry's own sample order, window by window, to finish or compare a run that was started with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.compat.vla.options import get
from feedmill.compat.vla.run import VlaRun
from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset
from feedmill.planning.orders.vla import Batch, Cursor, Manifest, Window, read_manifest, select_window, window_batches
from feedmill.samples.vla.modalities import Modality
from feedmill.storage import join_url

_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class OriginalWindow:
    """One checkpoint window: its number, the samples selected for it, and the batches of each rank in order."""

    number: int
    selected: Window
    ranks: list[list[Batch]]

    @property
    def steps(self) -> int:
        """Number of steps in which each rank has a batch. VLA Foundry ends the window after them."""
        return min(map(len, self.ranks))


class OriginalOrder:
    """The checkpoint windows of a run in VLA Foundry's own order.

    Args:
        run: the configuration.
        samples: number of samples per window.
        ranks, workers: numbers of ranks and of workers per rank. There must be at least one worker, and the run must
            have used ``dataloader_in_order``.
        checkpoint, cursors: where to start: ``checkpoint_num``, ``curr_shard_idx_per_dataset`` and
            ``shard_shuffle_seed_per_dataset`` of a checkpoint. Default: the start of the run.
    """

    def __init__(
        self,
        run: VlaRun,
        samples: int,
        *,
        ranks: int,
        workers: int,
        checkpoint: int = 0,
        cursors: Sequence[Cursor] | None = None,
    ) -> None:
        self.run, self.samples, self.ranks, self.workers = run, samples, ranks, workers
        self.checkpoint = checkpoint
        seed = get(run.config, "hparams.seed")
        self.seed = 42 if seed is None else int(seed)
        self.cursors = tuple(cursors) if cursors else (Cursor(0, self.seed),) * len(self.manifests)
        batch = int(get(run.config, "hparams.global_batch_size"))
        self.batch = max(batch // ranks, 1)

    @cached_property
    def manifests(self) -> list[Manifest]:
        """The manifests of the datasets."""
        paths = get(self.run.config, "data.dataset_manifest") or []
        return [read_manifest(join_url(self.run.base, str(path))) for path in paths]

    @cached_property
    def _modalities(self) -> list[Modality]:
        found = self.run.modalities()
        return [found[name] for name in get(self.run.config, "data.dataset_modality")]

    @property
    def _sources(self) -> Sequence[Dataset]:
        return self.run.plan.sources

    @cached_property
    def usable(self) -> list[npt.NDArray[np.bool_]]:
        """Per dataset, bool[samples]: whether a sample can be decoded and is long enough. Reads all samples once."""
        out = []
        for source, one in zip(self._sources, self._modalities, strict=True):
            good = np.ones(len(source), bool)
            for start in range(0, len(source), _AT_ONCE):
                for number, sample in enumerate(source.read_raw(range(start, min(start + _AT_ONCE, len(source))))):
                    try:
                        one.cook(sample)
                    except DataError:
                        good[start + number] = False
            out.append(good)
        return out

    def windows(self) -> Iterator[OriginalWindow]:
        """Yield the windows; endless if ``allow_multiple_epochs`` is set.

        Raises:
            ConfigError: the data is exhausted, and epochs must not be repeated.
        """
        data = self.run.config.get("data", {})
        shuffle = data.get("shuffle", True)
        buffer, initial = data.get("shuffle_buffer_size", 2000), data.get("shuffle_initial", 500)
        cursors, number = self.cursors, self.checkpoint
        while True:
            selected = select_window(
                self.manifests,
                cursors,
                self.samples,
                workers=self.ranks * self.workers,
                weights=get(self.run.config, "data.dataset_weighting"),
                repeat=bool(data.get("allow_multiple_epochs")),
            )
            ranks = window_batches(
                self.manifests,
                selected,
                ranks=self.ranks,
                workers=self.workers,
                batch=self.batch,
                seed=self.seed,
                checkpoint=number,
                usable=self.usable,
                buffer=buffer if shuffle else 0,
                initial=initial if shuffle else 0,
            )
            yield OriginalWindow(number, selected, ranks)
            cursors, number = selected.after, number + 1

    def batches(self, window: OriginalWindow, rank: int, *, start: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the batches of a rank in a window, beginning at step `start`.

        Raises:
            ConfigError: the rank does not exist.
        """
        if not 0 <= rank < self.ranks:
            raise ConfigError(f"rank {rank} is not one of {self.ranks} ranks", kind="bad-option", fix="Count from 0.")
        for one in window.ranks[rank][start : window.steps]:
            modality = self._modalities[one.dataset]
            samples = self._sources[one.dataset].read_raw(one.samples)
            yield modality.batch([modality.cook(sample) for sample in samples])
