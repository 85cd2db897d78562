"""Write a manifest of tar shards, and check a manifest against its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.vla.manifest import (
    DOCUMENTED,
    MANIFEST,
    Row,
    each_row,
    manifest_text,
    missing_shard,
    shard_path,
    wrong_count,
)
from feedmill.indexing.report import CheckReport
from feedmill.indexing.scanning import (
    FOUND,
    Scanned,
    checked,
    remarks_of,
    repeated_parts,
    scan_all,
    spoiled,
    trailing_data,
)
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import VerbReport
from feedmill.samples.images import IMAGE_SUFFIXES
from feedmill.storage import Entry, Store, open_store

_MOST_ALIKE = 0.9
"""If at least this fraction of samples has a part, a sample without it is a finding."""
_MOST_NAMED = 20


@dataclass(slots=True)
class ManifestReport(VerbReport):
    """The result of `write_manifest`: the manifest's path, its rows, and notes about shards."""

    path: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Return the total number of samples."""
        return sum(row.samples for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {"path": self.path, "shards": len(self.rows), "samples": self.samples, "notes": self.notes}


def write_manifest(
    folder: str,
    *,
    name: str = MANIFEST,
    form: str = DOCUMENTED,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> ManifestReport:
    """Write the manifest of all tars in a folder and its subfolders, sorted by path.

    Args:
        form: ``documented`` writes names with ``.tar``; ``code`` omits it, as VLA Foundry's code expects.
        overwrite: replace a manifest with different content.

    Raises:
        NotFound: there are no tars.
        DataError: a tar is corrupt, and its samples cannot be counted; or samples are spoiled, see `spoiled`.
        ConfigError: a different manifest exists already.
    """
    store = open_store(folder)
    entries = list(store.files(suffixes=(".tar",)))
    if not entries:
        raise NotFound(
            "there are no .tar files", file=folder, kind="missing-shard", fix="Give the folder of the shards."
        )
    report = ManifestReport(store.locate(name))
    with Progress("counting", sum(entry.size for entry in entries), "B", enabled=progress) as bar:
        for found in scan_all(store, entries, workers=workers, digest=False, rescan=True, advance=bar.advance):
            if found.scan.problem is not None and not _is_empty(found):
                raise found.scan.problem
            for problem in spoiled(store, found):
                raise problem
            report.notes += remarks_of(store, found)
            report.rows.append(Row(found.shard, len(found.scan.keys)))
    text = manifest_text(report.rows, form)
    if store.exists(name) and store.read(name) != text and not overwrite:
        raise ConfigError(
            "a manifest with different content already exists",
            file=report.path,
            kind="exists",
            fix="Inspect it with 'feedmill check', or pass --overwrite to replace it.",
        )
    store.write_bytes(name, text)
    return report


def check_manifest(
    store: Store, manifest: str, report: CheckReport, *, workers: int | None = None, progress: bool | None = None
) -> None:
    """Compare a manifest with its shards; add problems to the report."""
    rows: list[tuple[int, Row, Entry]] = []
    for number, row in enumerate(each_row(store, manifest), 1):
        if isinstance(row, ConfigError):
            report.findings.append(row)
            continue
        path = shard_path(row.shard, "")
        try:
            rows.append((number, row, store.stat(path)))
        except NotFound:
            report.findings.append(missing_shard(store, manifest, number, path))
    _note_listing(store, manifest, rows, report)
    parts = _Parts()
    seen: set[int] = set()
    entries = [entry for _, _, entry in rows]
    with Progress("checking", sum(entry.size for entry in entries), "B", enabled=progress) as bar:
        scans = checked(store, entries, workers, bar.advance)
        for (number, row, _), found in zip(rows, scans, strict=True):
            report.shards += 1
            report.bytes += found.record.size
            report.samples += len(found.scan.keys)
            report.findings += _problems(store, manifest, number, row, found)
            report.findings += spoiled(store, found)
            report.findings += repeated_parts(store, found)
            report.notes += remarks_of(store, found, closed=True, **FOUND)  # these are findings
            parts.add(store, found)
            keys = set(map(hash, found.scan.keys))
            if keys & seen:
                report.notes.append(f"{store.locate(found.shard)}: {len(keys & seen)} keys also occur in other shards")
            seen |= keys
    report.findings += parts.findings()


def _is_empty(found: Scanned) -> bool:
    return found.scan.problem is not None and found.scan.problem.kind == "no-samples"


def _note_listing(store: Store, manifest: str, rows: Sequence[tuple[int, Row, Entry]], report: CheckReport) -> None:
    """Report shards listed twice, and tars that are not listed."""
    listed = Counter(entry.path for _, _, entry in rows)
    for path, times in listed.items():
        if times > 1:
            report.notes.append(f"{store.locate(manifest)}: the shard {path!r} is listed {times} times")
    others = [entry.path for entry in store.files(suffixes=(".tar",)) if entry.path not in listed]
    if others:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        report.notes.append(f"{store.locate(manifest)}: {len(others)} tars are not listed ({shown})")


def _problems(store: Store, manifest: str, number: int, row: Row, found: Scanned) -> Iterator[FeedmillError]:
    scan = found.scan
    if scan.problem is not None and not (_is_empty(found) and not row.samples):
        yield scan.problem
    if len(scan.keys) != row.samples:
        yield wrong_count(store, manifest, number, found.shard, row.samples, len(scan.keys))
    elif not scan.closed and scan.problem is None:
        yield DataError(
            "no end-of-archive marker: the file may have been truncated between two samples",
            file=store.locate(found.shard),
            kind="no-end-marker",
            fix="Compare it with its source. Its number of samples matches the manifest.",
        )
    if scan.trailing:
        yield trailing_data(store, found)
    for key, times in Counter(scan.keys).items():
        if times > 1:
            yield DataError(
                f"{times} samples of this shard have the same key: its members are not consecutive",
                file=store.locate(found.shard),
                record=key,
                kind="duplicate-key",
                fix="Rewrite the shard with the members of each sample next to each other.",
            )


class _Parts:
    """Counts of part combinations, to find samples that lack a part that nearly all others have."""

    def __init__(self) -> None:
        self.sets: dict[frozenset[str], list[tuple[str, str, int]]] = {}
        self.counts: Counter[frozenset[str]] = Counter()

    def add(self, store: Store, found: Scanned) -> None:
        """Count the parts of each sample of a shard."""
        scan = found.scan
        ends = np.searchsorted(scan.sample, np.arange(len(scan.keys)), side="right").tolist()
        begin = 0
        for number, end in enumerate(ends):
            kinds = frozenset(map(_kind, scan.parts[begin:end]))
            begin = end
            self.counts[kinds] += 1
            examples = self.sets.setdefault(kinds, [])
            if len(examples) < _MOST_NAMED:
                examples.append((store.locate(found.shard), scan.keys[number], int(scan.starts[number])))

    def findings(self) -> Iterator[DataError]:
        """Yield an error for each sample that lacks a common part, at most 20 per combination of parts."""
        total = sum(self.counts.values())
        having: Counter[str] = Counter()
        for kinds, count in self.counts.items():
            for kind in kinds:
                having[kind] += count
        common = {kind for kind, count in having.items() if count >= _MOST_ALIKE * total}
        for kinds, samples in self.sets.items():
            missing = sorted(common - kinds)
            for file, key, offset in samples if missing else ():
                yield DataError(
                    f"the sample has no part {', '.join(missing)}, which {having[missing[0]]} of {total} samples have",
                    file=file,
                    offset=offset,
                    record=key,
                    kind="missing-field",
                    fix="Fix or remove the sample. A run that needs the part skips the sample and counts it.",
                )


def _kind(part: str) -> str:
    """Return a part's name, or ``image`` for an image of any format."""
    return "image" if part.lower() in IMAGE_SUFFIXES else part
