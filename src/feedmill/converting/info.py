"""Describe a dataset, and the conversion that wrote it: the implementation of ``feedmill show``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from feedmill.converting.job import find_proof
from feedmill.errors import DataError, TrustError
from feedmill.formats.rollouts.commits import Rollouts, is_rollouts
from feedmill.formats.sample import Sample
from feedmill.formats.tables import PARQUET
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.samples.options import Info

_OF_PROOF = ("source", "source_format", "format", "samples", "verified", "digest", "skipped", "losses")


@dataclass(frozen=True, slots=True)
class InfoReport(VerbReport):
    """Description of a dataset.

    Attributes:
        facts: format, samples, shards, bytes, splits, sample type and further facts of the format;
            ``first_sample``: key and bytes per part, None if it cannot be read; ``own_code``: why code of the dataset
            was not run, if it has any; ``loss_mask``, ``conversion`` and ``rollouts``, if present.
    """

    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return dict(self.facts)


@verb(Info)
def info(options: Info) -> InfoReport:
    """Return the facts. A dataset that contains code is described without running it.

    Raises:
        FeedmillError: as for `feedmill.open`. A dataset that contains code is described without running it.
    """
    from feedmill.samples.open import open as open_dataset

    path = os.fspath(options.path)
    opened = partial(
        open_dataset,
        path,
        split=options.split,
        dataset_config=options.dataset_config,
        split_config=options.split_config,
    )
    code = None
    try:
        dataset: Any = opened(trust=options.trust)
    except TrustError as error:  # the facts are available without running its code
        dataset, code = opened(raw=True), str(error)
    facts = {**dataset.describe(), "first_sample": _first_sample(dataset), "own_code": code}
    if dataset.format == PARQUET.name and not path.endswith(PARQUET.files) and is_rollouts(dataset.store):
        facts["rollouts"] = Rollouts(path).about()
    count = getattr(dataset, "loss_mask", None)  # of token data
    if count is not None and (mask := count()) is not None:
        facts["loss_mask"] = mask
    if (proof := find_proof(path)) is not None:
        facts["conversion"] = {name: getattr(proof, name) for name in _OF_PROOF}
    return InfoReport(facts)


def _first_sample(dataset: Any) -> dict[str, Any] | None:
    """Return key and parts (name -> bytes, None if unreadable) of the first sample; None if the dataset is empty."""
    if not len(dataset):
        return None
    sample = dataset.read_raw([0])[0]
    return {"key": sample.key, "parts": {name: _size(sample, name) for name in sample}}


def _size(sample: Sample, name: str) -> int | None:
    """Return the bytes of a part, or None if it has a value that cannot be read; the others are still facts."""
    try:
        return len(sample.raw(name))
    except DataError:
        return None
