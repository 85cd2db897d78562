"""The verb ``neardedupe``."""

from __future__ import annotations

from feedmill.curation.near.job import NearReport, find_near
from feedmill.curation.near.options import NearOptions
from feedmill.curation.options import Neardedupe
from feedmill.jobs.options import verb
from feedmill.storage import paths_of


@verb(Neardedupe)
def neardedupe(options: Neardedupe) -> NearReport:
    """Return the numbers of duplicates and clusters, and the largest clusters.

    Raises:
        FeedmillError: See `feedmill.curation.near.job.find_near`.
    """
    near = NearOptions(
        name=options.name,
        threshold=options.threshold,
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
        signatures=options.signatures,
        workers=options.workers,
        id=options.id,
        allow_empty=options.allow_empty,
        progress=options.progress,
    )
