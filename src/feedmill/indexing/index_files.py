"""Write the index of scanned shards and the description of a dataset; or describe the files for a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedmill.errors import DataError
from feedmill.formats.energon import all_offsets, database, sidecar
from feedmill.formats.energon import index as energon_index
from feedmill.formats.energon import members as energon_members
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.media import write_tables
from feedmill.formats.energon.splits import read_splits
from feedmill.formats.tar.strays import regroup
from feedmill.indexing.media import Gathered
from feedmill.indexing.report import PrepareReport
from feedmill.indexing.scanning import Scanned, check_names
from feedmill.jobs.dry_run import DryRun
from feedmill.jobs.threads import ordered_map
from feedmill.samples.description import loader_template
from feedmill.storage import Store


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
    dry.reads(found.record.size for found in scanned)
    for found in scanned:
        if found.origin != "index":
            dry.writes(store, energon.idx_name(found.shard))
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
    for found in scanned:
        check_names(store, found)
    rows = energon_index.IndexRows.of((number, found.scan) for number, found in enumerate(scanned))
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
    new = [found for found in scanned if found.origin != "index"]
    for _ in ordered_map(  # each file is synced separately; threads overlap the waits
        lambda found: energon_write.write_idx(store, found.shard, found.scan.starts), new, workers=16, in_flight=32
    ):
        pass
    with store.build(database.INDEX) as path:
        energon_index.write_index(path, rows)
        if media is not None and media.filters:
            write_tables(path, media.rows, media.created)
    uuid = energon_write.write_uuid(store, {found.shard: found.record for found in scanned})
    with store.build(energon_members.PATH) as path:
        energon_members.write_members(path, rows, uuid)
    energon_write.write_info(store, {found.shard: len(found.scan.keys) for found in scanned})
    all_offsets.write_all(store, [found.scan.starts for found in scanned], uuid)
    sidecar.write(store, {found.shard: found.record for found in scanned})
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
        one, other = (set(scanned[int(rows.tar_file_id[place])].scan.parts) for place in list(places)[:2])
        apart = first != second and not one & other
        raise DataError(
            f"the key occurs {where}: keys must be unique in a dataset",
            file=store.locate(second),
            offset=int(rows.byte_offset[list(places)[1]]),
            record=key,
            kind="duplicate-key",
            fix=(
                f"The shards have different parts ({', '.join(sorted(one)[:3])}; {', '.join(sorted(other)[:3])})."
                f" {regroup(store.url)}"
                if apart
                else "Rename the members in one of the shards (members of one sample must be consecutive), or skip a"
                " shard with --exclude."
            )
            + " No index was written.",
        )
