"""Options of the verbs that make and check indices."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from feedmill.jobs.options import Flag, Threads, WithProgress
from feedmill.samples.options import DatasetPath, Described


@dataclass(frozen=True)
class Check(Described, Threads, WithProgress):
    """Compare a dataset with its index: truncated or corrupt shards, hashes, duplicate keys, wrong offsets, counts."""

    url: DatasetPath
    _: KW_ONLY
    read_samples: Annotated[bool, Flag("Also read and decode every sample.")] = False
