"""Reports of filter jobs.

Numbers of documents and spans that `filter` read, kept, changed and dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from feedmill.curation.mix.config import Stream
from feedmill.curation.mix.rules import INCLUDE
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
        computed: Attribute sets that presets needed and that were computed first.
    """

    streams: list[StreamReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stale: int = 0
    absent: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)

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
            "computed": self.computed,
        }


EXAMPLES = 3


@dataclass(slots=True)
class Counts:
    """Numbers of documents and spans of an output or a stream.

    Attributes:
        read: Documents read.
        kept: Documents kept.
        written: Documents written, including repeats.
        dropped: Documents dropped by each rule: by the first one of those that drop it.
        matched: Documents that each short rule would drop by itself, of those that ``include`` and ``exclude`` leave.
        examples: Some ids of documents dropped by each rule.
        replaced, passed: Spans replaced and skipped.
        unmatched: Rows without attributes.
        without_id: Documents without an id.
        lost: Documents that lost a value, as with Dolma; see `_check_odd`.
    """

    read: int = 0
    kept: int = 0
    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Any]] = field(default_factory=dict)
    replaced: int = 0
    passed: int = 0
    unmatched: int = 0
    without_id: int = 0
    lost: int = 0

    @classmethod
    def of(cls, stream: Stream) -> Counts:
        """Return counts with 0 for each rule, so that reports show the rules that drop nothing."""
        rules = [INCLUDE] * bool(stream.include) + [f"exclude {text}" for text in stream.exclude]
        rules += [f"keep {text}" for text in stream.keep]
        return cls(dropped=Counter(dict.fromkeys(rules, 0)))

    def drop(self, rule: str, one: Any) -> None:
        """Count a document that a rule drops."""
        self.dropped[rule] += 1
        kept = self.examples.setdefault(rule, [])
        if len(kept) < EXAMPLES:
            kept.append(one)

    def add(self, other: Counts) -> None:
        """Add the counts of another output."""
        for name in ("read", "kept", "written", "replaced", "passed", "unmatched", "without_id", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        self.matched.update(other.matched)
        for rule, ids in other.examples.items():
            kept = self.examples.setdefault(rule, [])
            kept.extend(ids[: EXAMPLES - len(kept)])

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "read": self.read,
            "kept": self.kept,
            "written": self.written,
            "dropped": dict(sorted(self.dropped.items())),
            "matched": dict(sorted(self.matched.items())),
            "examples": {rule: self.examples[rule] for rule in sorted(self.examples)},
            "replaced": self.replaced,
            "passed": self.passed,
            "unmatched": self.unmatched,
            "without_id": self.without_id,
            "lost": self.lost,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Counts:
        """Return the counts from plain data."""
        return cls(**{**data, **{name: Counter(data[name]) for name in ("dropped", "matched")}})
