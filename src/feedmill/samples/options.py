"""Options of opening a dataset, and of ``preview``."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

from feedmill.jobs.options import Arg, Flag, Opt, Options, Path

DatasetPath = Annotated[Path, Arg("PATH", "A dataset: folder, tar or JSONL file; a path or a URL.")]
DatasetConfig = Annotated[str | None, Opt("FILE", "File in .nv-meta to use instead of dataset.yaml.")]
Split = Annotated[str | None, Opt("NAME", "Split to open (train, val, test, ...).")]


class Trust(Options, kw_only=True):
    """Datasets that may have code."""

    trust: Annotated[bool, Flag("Allow the dataset to run its own code (sample_loader.py, pickles).")] = False


class Described(Trust, kw_only=True):
    """How the samples of a prepared dataset are described."""

    dataset_config: DatasetConfig = None
    split_config: Annotated[str | None, Opt("FILE", "File in .nv-meta to use instead of split.yaml.")] = None

    def description(self) -> dict[str, Any]:
        """Return these options, for `feedmill.open`."""
        return {name: getattr(self, name) for name in ("dataset_config", "split_config", "trust")}


class Preview(Described):
    """Show samples: key, source, and each part as text."""

    path: DatasetPath
    _: KW_ONLY
    count: Annotated[int, Opt("N", "Number of samples to show.", "-n", min=1)] = 3
    start: Annotated[int, Opt("N", "Index of the first sample, from 0.", min=0)] = 0
    sheet: Annotated[Path | None, Opt("FILE", "Write the images of the samples to one picture.")] = None
    split: Split = None


class Info(Described):
    """Describe a dataset: format, samples, shards, bytes, splits, sample type and the parts of a sample."""

    path: DatasetPath
    _: KW_ONLY
    split: Split = None
