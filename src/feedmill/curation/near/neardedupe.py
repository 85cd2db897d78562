"""The verb ``dedupe --near``."""

from __future__ import annotations

from feedmill.curation.near.job import find_near
from feedmill.curation.near.options import NearReport
from feedmill.curation.options import Neardedupe
from feedmill.jobs.options import verb


@verb(Neardedupe)
def neardedupe(options: Neardedupe) -> NearReport:
    """Return the numbers of duplicates and clusters, and the largest clusters.

    With several thresholds, the report is that of the first one, and `NearReport.others` has the others.

    Raises:
        FeedmillError: See `feedmill.curation.near.job.find_near`.
    """
    return find_near(options)
