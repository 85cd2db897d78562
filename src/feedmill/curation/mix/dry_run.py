"""Dry runs of filter jobs: the outputs, and the rules applied to the first documents of some files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from feedmill.curation.mix.config import Stream
from feedmill.curation.mix.counts import Counts
from feedmill.curation.mix.merging import Shard
from feedmill.curation.mix.report import MixReport, StreamReport
from feedmill.curation.mix.shard import mixed
from feedmill.documents.file import DocumentFile
from feedmill.jobs.dry_run import DryRun
from feedmill.storage import join_url, open_store

SAMPLE = 200
"""Number of documents of a file that a dry run reads."""


def some(plan: Sequence[Shard]) -> list[DocumentFile]:
    """Return the files of a stream that a dry run reads: the first, the middle and the last one."""
    files = [file for shard in plan for file in shard.files]
    return [files[n] for n in sorted({0, len(files) // 2, len(files) - 1})]


def try_rules(
    dry: DryRun, stream: Stream, plan: Sequence[Shard], is_finished: Callable[[Shard], bool], report: MixReport
) -> tuple[StreamReport, bool]:
    """Add a stream to a dry run and to the report; return its report, and whether all of its documents were read."""
    counts = Counts.of(stream)
    files = some(plan)
    whole = len(files) == sum(len(shard.files) for shard in plan)
    for file in files:
        before = counts.read
        for _ in mixed(Shard(stream, plan[0].config, (file,), plan[0].path, plan[0].kind), counts, SAMPLE):
            pass
        whole = whole and counts.read - before < SAMPLE
    if not counts.read:
        report.warnings.append(f"stream {stream.name}: no documents in {', '.join(file.name for file in files)}")
    outputs = [join_url(stream.output, shard.path) for shard in plan]
    inputs = sum(len(shard.files) for shard in plan)
    one = StreamReport(stream.name, inputs, outputs, counts, replaces=bool(stream.replacements))
    store = open_store(stream.output)
    for shard in plan:
        if is_finished(shard):
            one.finished_before += 1
            continue
        for file in shard.files:
            beside = file.store().entries([file.attributes(name) for name in stream.attributes])
            dry.reads((file.size, *(entry.size for entry in beside if entry is not None)))
        dry.writes(store, shard.path)
    if one.finished_before:
        dry.skipped[f"outputs of stream {stream.name} that are up to date"] = one.finished_before
    report.streams.append(one)
    return one, whole
