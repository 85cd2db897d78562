"""Adapters from plans and loaders to training frameworks: each framework has one file, imported by its users only.

- `mapped.py` has `PlanDataset`, a plan by position, for libraries that index a dataset.
- `iterable.py` has `LoaderDataset`, a loader in the workers of a torch `DataLoader`.
"""
