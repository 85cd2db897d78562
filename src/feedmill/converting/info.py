"""What a dataset is, and which conversion made it: the work of ``feedmill info``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from feedmill.converting.proof import find_proof
from feedmill.errors import TrustError

_OF_PROOF = ("source", "source_format", "format", "samples", "verified", "digest", "skipped", "losses")


@dataclass(frozen=True, slots=True)
class InfoReport:
    """What a dataset is; `as_dict` is its whole content.

    Attributes:
        facts: format, samples, shards, bytes, splits, sample type and the like, as the format knows them;
            ``first_sample``: its key and the bytes of its parts; ``own_code``: why its own code was not run, if it has
            any; ``loss_mask`` and ``conversion`` where there is such.
    """

    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return dict(self.facts)


def info(
    path: str,
    *,
    split: str | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    trust: bool = False,
) -> InfoReport:
    """Return what a dataset is: format, samples, shards, bytes, splits, sample type and the parts of a sample.

    Args:
        path: path or URL of any dataset.
        split, dataset_config, split_config, trust: as of `feedmill.open`.

    Raises:
        FeedmillError: as opening it does; a dataset with code of its own is described without running it.
    """
    from feedmill.samples.open import open as open_dataset

    opened = partial(open_dataset, path, split=split, dataset_config=dataset_config, split_config=split_config)
    code = None
    try:
        dataset: Any = opened(trust=trust)
    except TrustError as error:  # its facts are known all the same
        dataset, code = opened(raw=True), str(error)
    facts = {**dataset.describe(), "first_sample": _first_sample(dataset), "own_code": code}
    count = getattr(dataset, "loss_mask", None)  # of token data
    if count is not None and (mask := count()) is not None:
        facts["loss_mask"] = mask
    if (proof := find_proof(path)) is not None:
        facts["conversion"] = {name: getattr(proof, name) for name in _OF_PROOF}
    return InfoReport(facts)


def _first_sample(dataset: Any) -> dict[str, Any] | None:
    """Key and parts (name -> bytes) of the first sample, or None if there is none."""
    if not len(dataset):
        return None
    sample = dataset.read_raw([0])[0]
    return {"key": sample.key, "parts": {name: len(sample.raw(name)) for name in sample}}
