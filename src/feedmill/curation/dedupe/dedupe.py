"""The verb ``dedupe``, and ``dedupe --near``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.curation.dedupe.job import DedupeReport, find_duplicates
from feedmill.curation.options import SUBSTRINGS, UNITS, Dedupe, DedupeOrNear, Neardedupe
from feedmill.errors import ConfigError
from feedmill.jobs.options import verb

if TYPE_CHECKING:
    from feedmill.curation.near.options import NearReport

_UNITS = {name: [unit for unit, own in UNITS.items() if name in own] for own in UNITS.values() for name in own}
"""The units for which an option has an effect."""


@verb(DedupeOrNear)
def dedupe(options: DedupeOrNear) -> DedupeReport | NearReport:
    """Return the numbers of duplicates; of near-duplicates also the clusters and the largest of them.

    With several thresholds, the report is that of the first one, and `NearReport.others` has the others.

    Raises:
        ConfigError: Options exclude each other, or have no effect for this unit.
        FeedmillError: See `feedmill.curation.dedupe.job.find_duplicates`, and `feedmill.curation.near.job.find_near`.
    """
    chosen = options.chosen()
    if isinstance(chosen, Neardedupe):
        from feedmill.curation.near.job import find_near

        return find_near(chosen)
    _check(chosen)
    return find_duplicates(chosen)


def _check(options: Dedupe) -> None:
    """Raise `ConfigError` if options exclude each other, or have no effect for this unit."""
    for name, units in _UNITS.items():
        if getattr(options, name) is not None and options.by not in units:
            raise ConfigError(f"--{name} requires --by {' or '.join(units)}", fix="Remove the option, or change --by.")
    if options.every_copy and options.by != SUBSTRINGS:
        raise ConfigError("--every-copy requires --by substrings", fix="Remove the option, or change --by.")
    if options.every_copy and options.against:
        raise ConfigError(
            "--every-copy cannot be combined with --against, which compares no document with a first one",
            fix="Remove --every-copy: every copy of the other documents is marked.",
        )
    if options.by == SUBSTRINGS:
        for name in ("min_length", "min_words", "keep_empty", "bloom"):
            if getattr(options, name):
                option = name.replace("_", "-")
                fix = (
                    "Use --length, the length of the shortest passage."
                    if name == "min_length"
                    else "Remove one of them."
                )
                raise ConfigError(f"--{option} cannot be combined with --by {SUBSTRINGS}", fix=fix)
    if options.bloom is None and (options.items or options.read_only or options.false_positives is not None):
        raise ConfigError(
            "--items, --false-positives and --read-only require a Bloom filter", fix="Pass its file with --bloom."
        )
    if options.items and options.read_only:
        raise ConfigError("--items requires a new filter, and --read-only an existing one", fix="Use one of them.")
