"""Media metadata of a new index: rows of the present index for unchanged shards, collected rows for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from feedmill.errors import DataError
from feedmill.formats.energon.media import MediaTables, Row, read_tables
from feedmill.formats.sample import split_name
from feedmill.indexing.scanning import Scanned
from feedmill.samples.media import MediaFilter, kind_of_name
from feedmill.samples.mediacollection import MediaNotes, ProbeUnit, collect, pieces_of_shard
from feedmill.storage import Store


@dataclass(slots=True)
class Gathered:
    """Collected media metadata: filters, rows, unreadable media files, and the tables of the present index."""

    filters: list[MediaFilter] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    broken: list[DataError] = field(default_factory=list)
    present: MediaTables = field(default_factory=MediaTables)

    @property
    def created(self) -> dict[tuple[str, str], str | None]:
        """Return the filters for `write_tables`: filter -> time of its creation, None for new ones."""
        return {one.row: self.present.filters.get(one.row) for one in self.filters}


def gather(
    store: Store,
    scanned: Sequence[Scanned],
    wanted: MediaFilter | None,
    *,
    notes: MediaNotes | None = None,
    workers: int | None = None,
    progress: bool | None = False,
) -> Gathered:
    """Return the media metadata of a new index: for the present index's filters and `wanted`, as Energon defines it.

    Shards that were reused from the present index without reading keep their rows. One with media but without any row
    is read: another program may have added it to the index.
    """
    try:
        out = Gathered(present=read_tables(store))
    except DataError:
        out = Gathered()  # a new index is about to replace the damaged one
    old = [MediaFilter.of_row(*row) for row in out.present.filters]
    out.filters = list(dict.fromkeys([*old, *([wanted] if wanted else [])]))
    known = {split_name(row[0])[0] for row in out.present.rows}
    unread = {
        found.shard
        for found in scanned
        if found.origin == "index"
        and not (known.isdisjoint(found.scan.keys) and any(kind_of_name(f"x.{part}") for part in set(found.scan.parts)))
    }
    keys = {key for found in scanned if found.shard in unread for key in found.scan.keys} if out.present.rows else set()
    kept = [row for row in out.present.rows if split_name(row[0])[0] in keys]
    pieces: list[ProbeUnit] = []
    for found in scanned:
        filters = tuple(one for one in out.filters if one not in old or found.shard not in unread)
        if filters:
            pieces += pieces_of_shard(found.shard, found.record, found.scan, filters)
    rows, out.broken = collect(store, pieces, notes=notes, workers=workers, progress=progress)
    out.rows = list({row[0]: row for row in (*kept, *rows)}.values())  # the last of two parts with one name wins
    return out
