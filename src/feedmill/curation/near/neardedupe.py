"""The verb ``neardedupe``."""

from __future__ import annotations

from collections.abc import Sequence

from feedmill.curation.near.job import NearReport, find_near
from feedmill.curation.near.options import NearOptions
from feedmill.curation.options import Neardedupe
from feedmill.jobs.options import verb
from feedmill.storage import paths_of


@verb(Neardedupe)
def neardedupe(options: Neardedupe) -> NearReport:
    """Return the numbers of duplicates and clusters, and the largest clusters.

    With several thresholds, the report is that of the first one, and `NearReport.others` has the others.

    Raises:
        FeedmillError: See `feedmill.curation.near.job.find_near`.
    """
    several = options.threshold if isinstance(options.threshold, Sequence) else [options.threshold]
    near = NearOptions(
        name=options.name,
        threshold=several[0],
        ngram=options.ngram,
        lower=not options.keep_case,
        punctuation=not options.keep_punctuation,
        bands=options.bands,
        rows=options.rows,
        keep=options.keep,
        removal=options.removal,
    )
    return find_near(
        paths_of(options.documents),
        near,
        thresholds=several,
        signatures=options.signatures,
        workers=options.workers,
        memory=options.memory,
        id=options.id,
        allow_empty=options.allow_empty,
        progress=options.progress,
    )
