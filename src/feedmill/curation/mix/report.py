"""Reports of filter jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedmill.curation.mix.counts import Counts
from feedmill.jobs.dry_run import JobReport


@dataclass(slots=True)
class StreamReport:
    """Results of one stream; in a dry run, of the documents that were read."""

    name: str
    inputs: int
    outputs: list[str]
    counts: Counts
    finished_before: int = 0
    replaces: bool = False


@dataclass(slots=True)
class MixReport(JobReport):
    """Report of a filter run.

    Attributes:
        streams: Results of each stream.
        stale: Number of attribute files that were computed from other documents, if allowed.
        absent: Attributes that rules name and that their sets can have, but no row has.
    """

    streams: list[StreamReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stale: int = 0
    absent: list[str] = field(default_factory=list)

    def written_files(self) -> list[str]:
        """See `JobReport`."""
        return [path for stream in self.streams for path in stream.outputs]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        streams = [
            {
                "name": stream.name,
                "inputs": stream.inputs,
                "outputs": stream.outputs,
                "finished_before": stream.finished_before,
                **stream.counts.as_dict(),
            }
            for stream in self.streams
        ]
        return {
            "streams": streams,
            "warnings": self.warnings,
            "dry_run": self.planned(),
            "stale": self.stale,
            "absent": self.absent,
        }
