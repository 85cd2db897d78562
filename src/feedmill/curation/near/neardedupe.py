"""The ``neardedupe`` function: find near-duplicates with plain options, as ``feedmill neardedupe`` does."""

from __future__ import annotations

import os
from collections.abc import Sequence

from feedmill.curation.near.job import NearReport, find_near
from feedmill.curation.near.options import Keep, NearOptions, Removal
from feedmill.jobs.dry_run import can_run_dry
from feedmill.storage import paths_of


@can_run_dry
def neardedupe(
    documents: Sequence[str | os.PathLike[str]],
    *,
    name: str = "dup_near",
    threshold: float = 0.8,
    ngram: int = 5,
    keep: Keep = "first",
    removal: Removal = "covered",
    keep_case: bool = False,
    keep_punctuation: bool = False,
    bands: int = 0,
    rows: int = 0,
    signatures: str | None = None,
    id: str | None = None,
    allow_empty: bool = False,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    workers: int | None = None,
    progress: bool | None = None,
) -> NearReport:
    """Write attributes that mark near-duplicates: documents that are similar to one that is kept.

    Args:
        documents: Files, folders or patterns. Each path contains a folder ``documents``.
        name: Name of the attribute set.
        threshold, ngram, bands, rows: See `feedmill.curation.near.options.NearOptions`.
        keep: Document of a cluster that is not marked: ``"first"`` or ``"longest"``.
        removal: ``"covered"``: Each marked document is similar to one that is kept. ``"connected"``: All but one of the
            documents that are connected by similar pairs are marked.
        keep_case: Compare case-sensitively.
        keep_punctuation: Keep punctuation, and split words at white space only.
        signatures: Local folder that keeps the signatures, so that later documents can be compared with these.
        id: See `feedmill.curation.tag.tag`.
        allow_empty: Accept patterns without files, and files without a document.
        dry_run: Write nothing; the report has what would be written. The first documents of each file are read.
        workers: Number of workers; threads or processes, whichever are faster. Default: One per core.

    Raises:
        FeedmillError: See `feedmill.curation.near.job.find_near`.
    """
    documents = paths_of(documents)
    options = NearOptions(
        name=name,
        threshold=threshold,
        ngram=ngram,
        lower=not keep_case,
        punctuation=not keep_punctuation,
        bands=bands,
        rows=rows,
        keep=keep,
        removal=removal,
    )
    return find_near(
        documents, options, signatures=signatures, workers=workers, id=id, allow_empty=allow_empty, progress=progress
    )
