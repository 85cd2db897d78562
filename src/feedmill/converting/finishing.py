"""Making a dataset of the outputs of a conversion of samples: indices, manifests, one file of many pieces."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from feedmill.converting.job import Done
from feedmill.converting.plan import Options
from feedmill.converting.said import Facts, keeps_description
from feedmill.errors import DataError
from feedmill.formats.energon import database
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.energon.write import BESIDE
from feedmill.formats.format import named
from feedmill.formats.jsonl import dataset as jsonl
from feedmill.formats.jsonl import splits as jsonl_splits
from feedmill.formats.jsonl.splits import Pieces
from feedmill.formats.mds import dataset as mds
from feedmill.formats.mds.write import write_index
from feedmill.formats.offsets import Int64s
from feedmill.formats.registry import targets
from feedmill.formats.sniff import sniff
from feedmill.formats.tar import wids
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.formats.tar.wids import write_wids
from feedmill.formats.vla.manifest import MANIFEST, Row, manifest_text
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.samples.description import CRUDE, describe_type
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.cache import cached_copy
from feedmill.writing.commit import Media, commit
from feedmill.writing.shard import Shard
from feedmill.writing.writer import Keys

if TYPE_CHECKING:
    from feedmill.converting.engine import Unit
    from feedmill.converting.samples import Part, Shared


def may_write(to: str) -> tuple[Sequence[str], str]:
    """What is there when writing this format to a folder is killed, as `Conversion.writes`."""
    target = targets()[to]
    beside = named(target.beside) if target.beside else ()
    return beside, re.sub(r"%0\dd", r"\\d+", target.shards.replace(".", r"\.")) + r"(\.idx)?"


def finish_samples(
    shared: Shared,
    facts: Facts,
    parts: Sequence[Part],
    units: Sequence[Unit],
    options: Options,
    media: bool,
    store: Store,
    done: Sequence[Done],
) -> list[str]:
    """Write what makes the outputs a dataset; gives all its files."""
    filled = [each for each in done if each.samples]
    paths = [each.path for each in filled]
    if shared.piece:
        _, name = split_url(shared.destination)
        if shared.to == "parquet":
            join_parquet(store, name, paths)
            return [name]
        join(store, name, paths)
        offsets = jsonl.write_index(store, name)
        if len(parts) < 2:
            return [name, jsonl.idx_name(name)]
        jsonl_splits.write_splits(store, name, _line_splits(parts, units, done, offsets))
        return [name, jsonl.idx_name(name), jsonl_splits.splits_name(name)]
    if shared.to == "webdataset":
        index = Media(cached_copy(open_store(shared.source), database.INDEX)) if media else None
        return _prepared(shared, facts, options, parts, units, index, store, filled)
    if shared.to in ("wds", "vla"):
        for path in paths:
            store.delete(energon.idx_name(path))  # no other tool knows what it is
        files = list(paths)
        if shared.to == "vla":
            rows = [Row(each.path, each.samples) for each in filled]
            for name in facts.companions:
                store.write_bytes(name, sniff(shared.source).store.read(name))
            store.write_bytes(MANIFEST, manifest_text(rows))
            return [*files, *facts.companions, MANIFEST]
        if options.wids:
            write_wids(store, paths, wids.INDEX)
            return [*files, wids.INDEX]
        return files
    if shared.to == "mds":
        write_index(store, [each.extra["mds"] for each in filled])
        return [*paths, mds.INDEX]
    return paths


def _line_splits(
    parts: Sequence[Part], units: Sequence[Unit], done: Sequence[Done], offsets: Int64s
) -> jsonl_splits.LineSplits:
    """The splits of lines that stand one split after another."""
    counts = {part.split or "train": 0 for part in parts}
    for each in done:
        counts[units[each.number].what[0] or "train"] += each.samples
    ends = accumulate(counts.values())
    pieces = {name: Pieces([(end - counts[name], end)]) for name, end in zip(counts, ends, strict=True)}
    return jsonl_splits.LineSplits(len(offsets) - 1, int(offsets[-2]), pieces)


def _prepared(
    shared: Shared,
    facts: Facts,
    options: Options,
    parts: Sequence[Part],
    units: Sequence[Unit],
    media: Media | None,
    store: Store,
    filled: Sequence[Done],
) -> list[str]:
    """Write ``.nv-meta``, with the splits that the source had."""
    keys = Keys(shared.destination)
    shards = []
    cores = available_cores()
    scans = ordered_map(partial(scan_shard, store), (e.path for e in filled), workers=cores, in_flight=2 * cores)
    with closing(scans):
        for each, scan in zip(filled, scans, strict=True):
            if scan.problem is not None:
                raise in_file(scan.problem, store.locate(each.path))
            if len(scan.keys) != each.samples:
                raise DataError(
                    f"the shard has {len(scan.keys)} samples, {each.samples} were written",
                    file=store.locate(each.path),
                    kind="different",
                    fix="Neighbours have the same key: keys must be unique in a dataset.",
                )
            shard = Shard(each.path, ShardRecord(each.size, each.version, each.samples, each.extra.get("digest")), scan)
            keys.add_shard(shard)
            shards.append(shard)
    split_of = {unit.number: unit.what[0] for unit in units}
    splits: dict[str, list[str]] = {part.split or "train": [] for part in parts}
    for each in filled:
        splits[split_of[each.number] or "train"].append(each.path)
    description = (
        facts.description if keeps_description(facts, options) else describe_type(CRUDE[0])
    )  # Energon opens nothing without one
    commit(store, shards, splits, description=description, media=media)
    files = [*(each.path for each in filled), *(energon.idx_name(each.path) for each in filled)]
    return [*files, *(path for path in BESIDE if store.exists(path))]


def join(store: Store, name: str, pieces: Sequence[str]) -> None:
    """One file of pieces, one after another."""
    with store.write(name) as out:
        for piece in pieces:
            with open(piece, "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)


def join_parquet(store: Store, name: str, pieces: Sequence[str]) -> None:
    """One Parquet file of the row groups of pieces."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(pieces[0]) as first:
        schema = first.schema_arrow
    with (
        store.write(name) as out,
        pq.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for piece in pieces:
            with pq.ParquetFile(piece) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))
