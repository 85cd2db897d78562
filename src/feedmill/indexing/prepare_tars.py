"""Prepare a folder of tar shards: index every sample, divide shards into splits, write the dataset description.

Nothing is written before every shard has been scanned, and each file is published as a whole. A run that fails, is
killed or runs out of disk space leaves the old index unchanged. Running the same command again reuses the scans of a
killed run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

from feedmill.errors import PATTERN_ERRORS, ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.energon import all_offsets, database, sidecar
from feedmill.formats.energon import index as energon_index
from feedmill.formats.energon import members as energon_members
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.media import write_tables
from feedmill.formats.energon.sidecar import Splits, read_splits
from feedmill.formats.sniff import import_way, sniff
from feedmill.formats.tar.finished import SHARDS, left_shards
from feedmill.formats.tar.names import expand
from feedmill.formats.tar.strays import regroup
from feedmill.indexing import splitting
from feedmill.indexing.options import Prepare
from feedmill.indexing.prepare_media import Gathered, gather
from feedmill.indexing.report import PrepareReport
from feedmill.indexing.scanning import Scanned, check_names, remarks_of, scan_all, spoiled
from feedmill.jobs.dry_run import DryRun, active
from feedmill.jobs.engine import part_name
from feedmill.jobs.journal import Journal, Units
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.jobs.progress import Progress
from feedmill.jobs.threads import ordered_map, runs_of
from feedmill.jobs.work import alone, settle
from feedmill.samples.description import check_parts, describe_type, loader_template
from feedmill.samples.media import MediaFilter
from feedmill.samples.mediacollection import MEDIA, MediaNotes, remarks
from feedmill.storage import Entry, Store, open_store

SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.zst")
FINISH = "Run that command again to finish it, or delete its shards."
MAX_PARTS = 50
"""Maximum number of distinct part names in the report."""


def prepare_tars(url: str, options: Prepare) -> PrepareReport:
    """Index a folder of tar shards; see `feedmill.prepare`."""
    ratio, patterns, exact = options.split_ratio, options.split_parts, options.energon_exact
    listed, name = options.tar_index_only, options.dataset_yaml_name
    store = open_store(url)
    settle(store, indexed=store.exists(energon.INFO) or store.exists(energon.INFO_YAML))
    report = PrepareReport(url)
    with alone(store) as place:
        entries = _chosen(store, options.exclude, options.shards, report, listed=listed, exact=exact)
        _check_names(store, entries, divided=ratio is not None or bool(patterns))
        if active() is None:
            _check_writable(store)
        energon_write.check_description_name(store, name)
        shuffle = options.shuffle_tars
        dividing = partial(_splits, store, ratio=ratio, patterns=patterns, shuffle=shuffle, exact=exact)
        if not listed:
            dividing([entry.path for entry in entries])  # reject invalid options before the scan
        description = None
        if options.sample_type is not None:
            description = describe_type(options.sample_type, options.field_map)
        shard_units, notes = Units(place, SHARDS, part_name()), MediaNotes(Units(place, MEDIA))
        try:
            hashing = options.digest and active() is None
            scanned = _scan(
                store,
                entries,
                shard_units,
                place,
                report,
                skip_bad=skips(on_error_policy(options.on_error)),
                strays=not exact,
                workers=options.workers,
                digest=hashing,
                rescan=options.rescan,
                progress=options.progress,
            )
            kept = [shard.shard for shard in scanned]
            splits = None if listed else dividing(kept)
            if splits is not None and ratio is None and not patterns:
                present = read_splits(store) or Splits()
                report.warnings += splitting.leaving(present.parts, kept)
                report.warnings += splitting.in_none(splits, {*kept} - present.shards_out)
            if splits is not None and ratio is not None and not patterns:
                sizes = {name: len(names) for name, names in splits.items()}
                numbers = splitting.ratio_of(ratio)
                report.warnings += splitting.empty_splits(sizes, numbers, "shards", cumulative=exact)
            if options.field_map and len(report.parts) < MAX_PARTS:
                check_parts(options.field_map, report.parts)
            shard_units.sync()  # marks the index as incomplete, so it must be durable before the index is written
            gathered = _media(store, scanned, options.media, notes, options.workers, report, options.progress)
            if (dry := active()) is not None:
                plan_all(dry, store, scanned, report, splits, None if description is None else name)
            else:
                write_all(store, scanned, splits, gathered)
                if description is not None:
                    write_description(store, description, name, report.parts)
                energon_write.match_modes(store, kept)
        finally:
            shard_units.close()
            notes.units.close()
        shard_units.clear()
        notes.units.clear()
        parts = splits if splits is not None else (read_splits(store) or Splits()).parts
        report.splits = {name: len(names) for name, names in parts.items()}
        if dry is not None:
            dry.counts["shards per split"] = ", ".join(f"{name} {count}" for name, count in report.splits.items())
    return report


def _chosen(
    store: Store,
    exclude: str | None,
    shards: Sequence[str] | None,
    report: PrepareReport,
    *,
    listed: bool,
    exact: bool,
) -> list[Entry]:
    """Return the shards to index, in the order of the index. Raises `NotFound` if none is left."""
    old = _old_info(store, required=listed)
    entries = find_shards(store, exclude, order=list(old) if listed or not exact else ())
    if listed:
        entries = _listed(store, entries, old)
    elif shards is None:
        verb, left = unfinished_shards(store)
        half = [entry.path for entry in entries if entry.path in left and entry.path not in old]
        entries = [entry for entry in entries if entry.path not in half]
        if half:
            report.warnings.append(
                f"{store.locate(half[0])}: not indexed, like {len(half) - 1} more shards: an interrupted '{verb}' wrote"
                f" them. {FINISH}"
            )
    if shards is not None:
        wanted = set(shards)
        chosen = [entry for entry in entries if entry.path in wanted]
        if entries and len(chosen) < len(wanted):
            missing = min(wanted - {entry.path for entry in chosen})
            raise NotFound(
                "there is no such shard to index",
                file=store.locate(missing),
                kind="missing-shard",
                fix=f"Name shards by their paths below the dataset, such as {entries[0].path!r}.",
            )
        entries = chosen
    if not entries:
        raise NotFound(
            "all shards that the index lists are missing",
            file=store.url,
            kind="missing-shard",
            fix="Restore them, or run 'feedmill prepare' to index the shards that exist.",
        )
    return entries


def unfinished_shards(store: Store) -> tuple[str, set[str]]:
    """Return the verb of the unfinished job on a dataset, and the shards that it wrote. Raises as `Journal`."""
    job = Journal(store).job
    left = set() if job is None else {*left_shards(store, job)}
    return (str(job["identity"].get("verb", "write")) if job is not None and left else ""), left


def _old_info(store: Store, *, required: bool) -> dict[str, int]:
    try:
        return energon.read_info(store)
    except NotFound:
        if required:
            raise
    except DataError:
        if required:
            raise
    return {}


def _listed(store: Store, entries: Sequence[Entry], old: Iterable[str]) -> list[Entry]:
    """Return the shards that the index lists, in its order. Raises `NotFound` if one is missing."""
    by_path = {entry.path: entry for entry in entries}
    for shard in old:
        if shard not in by_path:
            raise NotFound(
                "the index lists this shard, but the file is missing",
                file=store.locate(shard),
                kind="missing-shard",
                fix="Restore it, or run 'feedmill prepare' to index the shards that exist.",
            )
    return [by_path[shard] for shard in old]


def find_shards(store: Store, exclude: str | None = None, order: Sequence[str] = ()) -> list[Entry]:
    """Return the tar shards of a folder: those of `order` first, in that order, then the others sorted by path.

    Raises:
        NotFound: there are none.
        ConfigError: `exclude` is not a regular expression.
    """
    try:
        unwanted = re.compile(exclude) if exclude else None
    except PATTERN_ERRORS as error:
        raise ConfigError(f"{exclude!r} is not a regular expression ({error})", kind="bad-pattern") from None
    by_path = {e.path: e for e in store.files(suffixes=SUFFIXES) if not (unwanted and unwanted.search(e.path))}
    if not by_path:
        raise NotFound(
            "no tar files in this folder" + (f" except those excluded by {exclude!r}" if unwanted else ""),
            file=store.url,
            kind="missing-shard",
            fix=_other_way(store),
        )
    known = [by_path.pop(path) for path in order if path in by_path]
    return known + list(by_path.values())


def _other_way(store: Store) -> str:
    """Return what to do with a folder without tars."""
    try:
        kind = sniff(store.url).kind
    except FeedmillError:
        return import_way(entry.path for entry in store.files()) or "Check the path; shards must end in .tar."
    return (
        f"The dataset has the format {kind} and needs no index: open it as it is."
        f" 'feedmill convert {store.url} OUT --to webdataset' writes shards of it, which can be prepared."
    )


def _check_names(store: Store, entries: Sequence[Entry], *, divided: bool) -> None:
    """Raise `ConfigError` for a shard name that the index, or the split file if one is written, cannot represent."""
    for entry in entries:
        if not entry.path.isascii() and entry.path.encode(errors="replace").decode() != entry.path:
            why = "is not valid UTF-8"
        elif divided and expand(entry.path) != [entry.path]:
            why = "contains braces, which a split file would expand to other names"
        else:
            continue
        raise ConfigError(
            f"invalid shard name: it {why}",
            file=store.locate(entry.path),
            kind="bad-name",
            fix="Rename it, or skip it with --exclude.",
        )


def _check_writable(store: Store) -> None:
    """Write and delete a probe file, to fail before hours of scanning."""
    probe = f"{database.META}/.feedmill-write-test"
    store.write_bytes(probe, b"")
    store.delete(probe)


def _scan(
    store: Store,
    entries: Sequence[Entry],
    units: Units,
    place: Store,
    report: PrepareReport,
    *,
    skip_bad: bool,
    strays: bool,
    workers: int | None,
    digest: bool,
    rescan: bool,
    progress: bool | None,
) -> list[Scanned]:
    good: list[Scanned] = []
    bad: list[DataError] = []
    parts: dict[str, None] = {}
    with Progress("indexing", sum(e.size for e in entries), "B", enabled=progress) as bar:
        scans = scan_all(
            store,
            entries,
            workers=workers,
            digest=digest,
            blocks=active() is None,
            rescan=rescan,
            units=units,
            place=place,
            advance=bar.advance,
        )
        for shard in scans:
            if shard.scan.problem is not None:
                bad.append(shard.scan.problem)
                continue
            if (problem := next(spoiled(store, shard, strays=strays), None)) is not None:
                bad.append(problem)
                continue
            good.append(shard)
            if len(parts) < MAX_PARTS:
                parts.update(dict.fromkeys(shard.scan.parts))
            report.warnings += remarks_of(store, shard)
            report.warnings += map(str, () if strays else spoiled(store, shard))
            report.samples += len(shard.scan.keys)
            report.bytes += shard.record.size
            report.scanned += shard.origin == "scanned"
            report.reused += shard.origin != "scanned"
    if bad and not skip_bad:
        raise _refusal(bad)
    if not good:
        raise _refusal(bad)
    report.left_out, report.shards, report.parts = bad, len(good), list(parts)[:MAX_PARTS]
    return good


def _refusal(bad: Sequence[DataError]) -> DataError:
    first = bad[0]
    more = f" {len(bad) - 1} more shards have problems: 'feedmill check' lists them all." if len(bad) > 1 else ""
    fix = f"{first.fix or ''} No index was written. To index the other shards, add --on-error skip.{more}".strip()
    return DataError(first.what, file=first.file, offset=first.offset, record=first.record, kind=first.kind, fix=fix)


def _splits(
    store: Store,
    shards: list[str],
    ratio: Sequence[float | Fraction] | str | None,
    patterns: Sequence[str],
    shuffle: bool,
    exact: bool,
) -> dict[str, list[str]] | None:
    if patterns:
        return splitting.by_pattern(shards, patterns, strict=not exact)
    if ratio is not None:
        numbers = splitting.ratio_of(ratio)
        listed = list(shards)
        if shuffle:
            Random(42).shuffle(listed)
        return splitting.by_ratio(listed, numbers, cumulative=exact)
    present = read_splits(store)
    named = {} if exact else splitting.by_names(store, shards)
    if present is None:
        return named or {"train": list(shards)}
    listed_shards = {shard for names in present.parts.values() for shard in names}
    if listed_shards | present.shards_out >= set(shards) >= listed_shards:
        return None
    return splitting.extended(present.parts, [s for s in shards if s not in present.shards_out], named)


def _media(
    store: Store,
    scanned: Sequence[Scanned],
    wanted: MediaFilter | None,
    notes: MediaNotes,
    workers: int | None,
    report: PrepareReport,
    progress: bool | None,
) -> Gathered:
    gathered = gather(store, scanned, wanted, notes=notes, workers=workers, progress=progress)
    report.media = len(gathered.rows)
    if wanted is not None and not gathered.rows and not gathered.broken:
        report.warnings.append("no media parts match the filter: the media metadata is empty")
    report.warnings += [f"no media metadata: {error}" for error in gathered.broken]
    report.warnings += remarks(gathered.rows)
    return gathered


def write_description(store: Store, description: Mapping[str, Any], name: str, parts: Sequence[str]) -> None:
    """Write the description file, and the ``sample_loader.py`` that it names unless that exists."""
    loader = f"{database.META}/sample_loader.py"
    if "sample_loader" in description and not store.exists(loader):
        template = loader_template(description["sample_type"]["__class__"], parts)
        store.write_bytes(loader, template.encode())
    energon_write.write_yaml(store, name, description)


def plan_all(
    dry: DryRun,
    store: Store,
    scanned: Sequence[Scanned],
    report: PrepareReport,
    splits: Mapping[str, Sequence[str]] | None,
    description: str | None,
) -> None:
    """Add the files of `write_all` to a dry run.

    Args:
        report: of the scan.
        description: name of the description to write; None for none.
    """
    _rows(store, scanned)
    dry.reads(shard.record.size for shard in scanned)
    for scanned_shard in scanned:
        if scanned_shard.origin != "index":
            dry.writes(store, energon.idx_name(scanned_shard.shard))
    written = [database.INDEX, energon.UUID, energon_members.PATH, energon.INFO, all_offsets.PATH, sidecar.PATH]
    written += [f"{database.META}/split.yaml"] if splits is not None else []
    written += [f"{database.META}/{description}"] if description is not None else []
    for path in written:
        dry.writes(store, path)
    dry.counts |= {"samples": report.samples, "shards": report.shards}
    if report.left_out:
        dry.skipped["shards that cannot be read"] = len(report.left_out)
    dry.warnings += [f"skipped: {error}" for error in report.left_out]


def _rows(store: Store, scanned: Sequence[Scanned]) -> energon_index.IndexRows:
    """Return the rows of the index. Raises DataError for a name that it cannot store, and a key that occurs twice."""
    for shard in scanned:
        check_names(store, shard)
    rows = energon_index.IndexRows.of((number, shard.scan) for number, shard in enumerate(scanned))
    _name_duplicates(store, scanned, energon_index.duplicate_keys(rows), rows)
    return rows


def write_all(
    store: Store,
    scanned: Sequence[Scanned],
    splits: Mapping[str, Sequence[str]] | None,
    media: Gathered | None = None,
) -> None:
    """Write the whole index, in an order that keeps every intermediate state readable (see `energon_write`)."""
    rows = _rows(store, scanned)
    new = [shard for shard in scanned if shard.origin != "index"]

    def write_run(run: Sequence[Scanned]) -> None:
        energon_write.write_idxs(store, ((shard.shard, shard.scan.starts) for shard in run))

    # Each file is synced separately; threads overlap the waits.
    for _ in ordered_map(write_run, runs_of(new, 16), workers=16, in_flight=32):
        pass
    with store.build(database.INDEX) as path:
        energon_index.write_index(path, rows)
        if media is not None and media.filters:
            write_tables(path, media.rows, media.created)
    uuid = energon_write.write_uuid(store, {shard.shard: shard.record for shard in scanned})
    with store.build(energon_members.PATH) as path:
        energon_members.write_members(path, rows, uuid)
    energon_write.write_info(store, {shard.shard: len(shard.scan.keys) for shard in scanned})
    all_offsets.write_all(store, [shard.scan.starts for shard in scanned], uuid)
    sidecar.write(store, {shard.shard: shard.record for shard in scanned})
    if splits is not None:
        present = read_splits(store)
        exclude = [*sorted(present.shards_out), *(f"{s}/{k}" for s, k in present.samples_out)] if present else []
        energon_write.write_splits(store, splits, exclude)


def _name_duplicates(
    store: Store,
    scanned: Sequence[Scanned],
    duplicates: Iterable[tuple[str, Sequence[int]]],
    rows: energon_index.IndexRows,
) -> None:
    for key, places in duplicates:
        first, second = (scanned[int(rows.tar_file_id[place])].shard for place in list(places)[:2])
        where = "twice in this shard, with other samples between" if first == second else f"also in {first!r}"
        here, other = (set(scanned[int(rows.tar_file_id[place])].scan.parts) for place in list(places)[:2])
        apart = first != second and not here & other
        raise DataError(
            f"the key occurs {where}: keys must be unique in a dataset",
            file=store.locate(second),
            offset=int(rows.byte_offset[list(places)[1]]),
            record=key,
            kind="duplicate-key",
            fix=(
                f"The shards have different parts ({', '.join(sorted(here)[:3])}; {', '.join(sorted(other)[:3])})."
                f" {regroup(store.url)}"
                if apart
                else "Rename the members in one of the shards (members of one sample must be consecutive), or skip a"
                " shard with --exclude."
            )
            + " No index was written.",
        )
