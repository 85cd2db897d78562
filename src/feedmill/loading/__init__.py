"""Load the batches of a plan on one rank, and save and resume the position.

A position becomes a batch: `layout.py` says which positions are this rank's, `workers.py` takes the next ones,
`batches.py` reads, transforms and collates their samples, `loader.py` yields them, `progress.py` counts.

- `loader.py` has `Loader`, the entry point, and its passes. `layout.py` determines which batches or windows of the plan
  belong to this rank. `epochs.py` iterates a loader in epochs. `plan.py` has the protocols of the plans that a loader
  accepts.
- `batches.py` and `collate.py` make one batch from its positions (and log stalled ones), with the random generators of
  `generators.py`. `encoder.py`, `typed.py`, `tensors.py` and `cooking.py` do it with the hooks of a task encoder.
  `groups.py` makes packs and groups from windows of samples.
- `workers.py` prefetches batches in threads or processes, or makes them in the loop. `transfer.py` copies them to a
  device.
- `rollouts.py` has `RolloutLoader`, for what samplers append while it reads: its steps have no plan.
- `progress.py` and `checkpoint.py` save the position of a loader and resume from it.
- `failures.py` replaces samples that fail, `labels.py` reports where samples come from and `metrics.py` measures the
  time that loading takes.
- `adapters/` has what training frameworks need: datasets of torch, and one file for each framework.
- `ahead.py` and `caching.py` fetch remote data before it is needed; `cachepool.py` does so for the files that cookers
  read. `step_reader.py` reads single steps through that cache. `bench.py` implements the command of this name, and
  `options.py` has the options of both verbs, ``bench`` and ``cache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "Cooker": "loading.cooking",
    "PlanDataset": "loading.adapters.mapped",
    "RolloutLoader": "loading.rollouts",
    "Rollouts": "formats.rollouts.commits",
    "Substitute": "loading.failures",
    "Telemetry": "loading.metrics",
}
__all__ = [
    "Cooker",
    "PlanDataset",
    "RolloutLoader",
    "Rollouts",
    "Substitute",
    "Telemetry",
]

if TYPE_CHECKING:
    from feedmill.formats.rollouts.commits import Rollouts
    from feedmill.loading.adapters.mapped import PlanDataset
    from feedmill.loading.cooking import Cooker
    from feedmill.loading.failures import Substitute
    from feedmill.loading.metrics import Telemetry
    from feedmill.loading.rollouts import RolloutLoader
else:
    __getattr__, __dir__ = lazily("loading", HOMES)
