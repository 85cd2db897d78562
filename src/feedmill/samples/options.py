"""Options of opening a dataset, and of ``preview``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from feedmill.jobs.options import Arg, Flag, Opt, Options, Path

DatasetPath = Annotated[Path, Arg("PATH", "A dataset: folder, tar or JSONL file; a path or a URL.")]
Split = Annotated[str | None, Opt("NAME", "Split to open (train, val, test, ...).")]


@dataclass(frozen=True, kw_only=True)
class Trust(Options):
    """Datasets that may have code."""

    trust: Annotated[bool, Flag("Allow the dataset to run its own code (sample_loader.py, pickles).")] = False


@dataclass(frozen=True, kw_only=True)
class Described(Trust):
    """How the samples of a prepared dataset are described."""

    dataset_config: Annotated[str | None, Opt("FILE", "File in .nv-meta to use instead of dataset.yaml.")] = None
    split_config: Annotated[str | None, Opt("FILE", "File in .nv-meta to use instead of split.yaml.")] = None

    def description(self) -> dict[str, Any]:
        """Return these options, for `feedmill.open`."""
        return {name: getattr(self, name) for name in ("dataset_config", "split_config", "trust")}
