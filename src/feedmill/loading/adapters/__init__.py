"""Adapters from plans and loaders to training frameworks: each framework has one file, imported by its users only.

- `mapped.py` has `PlanDataset`, a plan by position, for libraries that index a dataset.
- `iterable.py` has `LoaderDataset`, a loader in the workers of a torch `DataLoader`.
- `tracked.py` has `TrackedBatches`, the state after the batches that were used, for trainers that take batches ahead.
- `lightning.py`, `transformers.py`, `torchtitan.py`, `torchtune.py`, `olmo_core.py`, `megatron.py`, and `jax.py`
  (Orbax, Grain).
- `lerobot.py` and `vla_foundry.py` replace names in scripts that make their data loader themselves.

docs/training.md lists the versions. `examples/trainers` has a program for each.
"""
