"""Samples of any dataset to shards of another format, through the `Dataset` contract alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.converting.engine import Conversion, Different, Unit, Written, compare
from feedmill.converting.finishing import finish_samples, may_write
from feedmill.converting.job import Bad, ConvertWork, Done, bad_sample, read_hashes, write_hashes
from feedmill.converting.plan import SAMPLES_EACH, Options, Plan
from feedmill.converting.reading import read_each, refuse_twofold_columns
from feedmill.converting.said import (
    KEEP_SPLITS,
    binary_parts,
    described,
    is_keyed,
    keeps_companions,
    keeps_description,
    keeps_media,
    losses_of,
    source_facts,
)
from feedmill.converting.shards import line_digest, open_output
from feedmill.converting.survey import Survey, merge, survey
from feedmill.converting.table import is_one_file
from feedmill.converting.taking import KEY, Taken, Taker, digest, parts_of, plain_bytes
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.base import Dataset, Sample
from feedmill.formats.rows import RowSample, RowsDataset
from feedmill.formats.sniff import open_raw
from feedmill.formats.webdataset import ScannedShards, TarDataset
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.storage import Store, join_url, open_store
from feedmill.storage.local import LocalStore, is_disk_trouble, storage_error

READ_BYTES = 32 << 20
PATTERNS = {
    "webdataset": "shards/%06d.tar",
    "wds": "shard-%06d.tar",
    "vla": "shards/shard-%06d.tar",
    "mds": "shard.%05d.mds",
    "parquet": "part-%06d.parquet",
    "jsonl": "%06d.piece",
}
MDS_SIZE = 64 << 20
SURVEYED = ("mds", "parquet", "jsonl")
_CRUDE = "the samples are crude: Energon and Feedmill give their parts undecoded; to name a type, run"


class Part(NamedTuple):
    """A part of the source that is kept together: a split (None for everything) and its samples."""

    split: str | None
    samples: int


@dataclass(frozen=True, slots=True)
class Shared:
    """What every process needs.

    Attributes:
        piece: whether outputs are pieces of one file, and lie in the folder of the job.
        columns: of formats that have some.
        drop: parts that are left out.
        prefix: whether keys that are row numbers of a split get its name, as splits would have the same ones.
        keyed: whether lines of JSON have keys.
    """

    source: str
    destination: str
    to: str
    fields: tuple[str, ...]
    skip: bool
    folder: str
    notes: str
    piece: bool
    batch: int
    columns: Mapping[str, str] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()
    prefix: bool = False
    keyed: bool = True


@lru_cache(8)
def opened(source: str, split: str | None) -> Dataset:
    """The source, undecoded, once for each process."""
    return open_raw(source, split=split)[0]


def plan_samples(source: str, destination: str, to: str, kind: str, options: Options, work: ConvertWork) -> Conversion:
    """The conversion of a dataset of samples. Raises as opening it does, and `ConfigError` for a bad destination."""
    opened.cache_clear()
    whole = opened(source, options.split)
    refuse_twofold_columns(whole)
    facts = source_facts(whole, source, kind, options.split)
    parts = [Part(split, count) for split, count in facts.parts] if to in KEEP_SPLITS else []
    parts = parts or [Part(options.split, len(whole))]
    is_file = is_one_file(destination, to)
    if to == "jsonl" and not is_file:
        raise ConfigError(
            "samples become the lines of one file", file=destination, fix="Name a file that ends in '.jsonl'."
        )
    plan = Plan("samples", source, destination, kind, to, count=sum(part.samples for part in parts))
    identity = {
        "source": source,
        "fingerprint": whole.fingerprint(),
        "kind": kind,
        "to": to,
        "parts": [[*part, opened(source, part.split).fingerprint() if part.samples else ""] for part in parts],
        **options.identity(),
    }
    units = cut(source, parts, options, to)
    plan.outputs = 1 if is_file else len(units)
    size = _mean_size(whole)
    batch = int(max(1, min(256, READ_BYTES // max(1, size))))
    skip = options.on_error == "skip"
    shared = Shared(source, destination, to, options.fields, skip, work.folder, work.place.url, is_file, batch)
    found = _surveyed(shared, units, options, work, identity) if to in SURVEYED else {}
    columns, plan.losses = losses_of(to, facts, found, options)
    plan.names = _names(whole, options, to, columns)
    if kind == "jsonl" and to == "mds" and list(columns) == ["json"]:
        plan.names["json"] += ", each line as it is (converted to parquet first, each name has a column)"
    identity["survey"] = found
    prefix = sum(part.samples > 0 for part in parts) > 1 and isinstance(whole, RowsDataset)
    drop = frozenset(binary_parts(found)) if to == "jsonl" else frozenset()
    keyed = to != "jsonl" or is_keyed(found)
    shared = replace(shared, prefix=prefix, columns=columns, drop=drop, keyed=keyed)
    media = keeps_media(to, facts, options)
    companions = facts.companions if keeps_companions(to, facts, options) else ()
    facts = facts._replace(companions=companions)
    finish = partial(finish_samples, shared, facts, parts, units, options, media)
    writes = ((), "") if is_file else may_write(to, PATTERNS[to])
    crude = to == "webdataset" and not keeps_description(facts, options)
    return Conversion(
        plan, units, convert_unit, shared, identity, finish, check_unit, writes, is_file,
        dataset=whole, notes=[f"{_CRUDE} 'feedmill prepare {destination} --sample-type TYPE --field-map MAP'"] * crude,
    )  # fmt: skip


def _names(dataset: Dataset, options: Options, to: str, columns: Mapping[str, str]) -> dict[str, str]:
    """How parts are named or stored, where that is not plain: by the columns, or the first sample."""
    if columns:
        return dict(columns)
    if to == "jsonl" or not len(dataset):
        return {}
    try:
        taken = Taker(dataset, options.fields)(dataset.read_raw([0])[0])
        return {
            a: b
            for a, b in zip([n for n, v in taken.values.items() if v is not None], parts_of(taken), strict=True)
            if a != b
        }
    except FeedmillError:
        return {}


def _surveyed(
    shared: Shared, units: Sequence[Unit], options: Options, work: ConvertWork, identity: dict[str, Any]
) -> Survey:
    """The kinds of all values; noted, so that going on with a conversion does not read everything again."""
    begun = work.identity()
    found: Survey | None = begun.pop("survey", None)
    if found is not None and begun == _plain(identity):
        return found
    with Progress("looking at", sum(unit.samples for unit in units), "samples", enabled=options.progress) as bar:
        out = []
        surveys = run(survey_unit, units, workers=options.workers, preload=(__name__,), policy=Policy(shared=shared))
        with closing(surveys):
            for each, unit in zip(surveys, units, strict=True):
                out.append(each)
                bar.advance(unit.samples)
    return merge(out)


def _plain(value: Any) -> Any:
    import orjson

    return orjson.loads(orjson.dumps(value))


def _mean_size(dataset: Dataset) -> int:
    count = len(dataset)
    return int(described(dataset).get("bytes") or 0) // count if count else 0


def cut(source: str, parts: Sequence[Part], options: Options, to: str) -> list[Unit]:
    """The outputs: runs of samples, which end before they have more samples or bytes of the source than they may."""
    size = options.shard_size if options.shard_size is not None else MDS_SIZE if to == "mds" else None
    units: list[Unit] = []
    for split, count in parts:
        ends = _run_ends(opened(source, split), count, options.samples_per_shard or SAMPLES_EACH, size) if count else []
        for start, stop in zip([0, *ends[:-1]], ends, strict=False):
            units.append(Unit(len(units), (split, start, stop), stop - start))
    return units


def _run_ends(dataset: Dataset, count: int, most: int, size: int | None) -> list[int]:
    if size is None:
        return [*range(most, count, most), count] if count else []
    lengths = stored_lengths(dataset)
    if lengths is None or len(lengths) != count:
        most = max(1, min(most, size // max(1, _mean_size(dataset))))
        return [*range(most, count, most), count] if count else []
    before = np.concatenate(([0], np.cumsum(lengths)))
    ends: list[int] = []
    at = 0
    while at < count:
        stop = int(np.searchsorted(before, before[at] + size, side="right")) - 1
        at = min(max(stop, at + 1), at + most, count)
        ends.append(at)
    return ends


def stored_lengths(dataset: Dataset) -> npt.NDArray[np.int64] | None:
    """Bytes of each sample as stored, int64[n], where the index of tars knows them; None for other formats."""
    if not isinstance(dataset, TarDataset):
        return None
    table = dataset.table
    pieces = [np.diff(table.offsets(number)) for number in range(len(table.shards))]
    lengths = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    return lengths if len(lengths) == len(dataset) else None


def samples_of(shared: Shared, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, Taken]]:
    """Number and content of each sample of a unit; what cannot be read is entered in `bad`, or raised."""
    split, start, stop = unit.what
    dataset = opened(shared.source, split)
    taker = Taker(dataset, shared.fields, shared.drop)
    for low in range(start, stop, shared.batch):
        for number, sample in read_each(dataset, range(low, min(low + shared.batch, stop))):
            if isinstance(sample, FeedmillError):
                _refuse(shared, dataset, number, "", sample, bad)
                continue
            try:
                taken = taker(sample)
                if shared.prefix and taken.key == str(number):
                    taken = taken._replace(key=f"{split}/{number}")
                yield number, taken
            except (DataError, NotFound) as error:
                _refuse(shared, dataset, number, sample.key, error, bad)


def _refuse(shared: Shared, dataset: Dataset, number: int, key: str, error: FeedmillError, bad: list[Bad]) -> None:
    """Count a sample that cannot be converted, or stop."""
    error.file = error.file or dataset.url
    error.record = error.record or key or f"sample {number}"
    if not shared.skip:
        error.fix = f"{error.fix or 'Fix it.'} To leave such samples out and have them listed: --on-error skip."
        raise error
    bad.append(bad_sample(number, key or error.record, f"{error.what} ({error.kind})"))


def survey_unit(shared: Shared, unit: Unit) -> Survey:
    """The kinds of the values of a unit's samples; what cannot be read is left to the conversion itself."""
    patient = replace(shared, skip=True)
    return survey(samples_of(patient, unit, []))


def convert_unit(shared: Shared, unit: Unit) -> Done:
    """Write one output, and note it."""
    store: Store = LocalStore(shared.folder) if shared.piece else open_store(shared.destination)
    path = ("%06d.piece" if shared.piece else PATTERNS[shared.to]) % unit.number
    bad: list[Bad] = []
    hashes: list[bytes] = []
    output = None
    dataset = opened(shared.source, unit.what[0])
    try:
        for number, taken in samples_of(shared, unit, bad):
            output = output or open_output(shared.to, store, path, shared.columns, keyed=shared.keyed)
            try:
                hashes.append(output.add(taken))
            except (DataError, NotFound) as error:
                _refuse(shared, dataset, number, taken.key, error, bad)
        if output is None or not hashes:
            if output is not None:
                output.abort()
            done = Done(unit.number, "", 0, "", 0, bad)
        else:
            extra = output.close()
            entry = store.stat(path)
            place = f"{shared.folder}/{path}" if shared.piece else path
            done = Done(unit.number, place, entry.size, entry.version, len(hashes), bad, extra)
    except BaseException as error:
        if output is not None:
            output.abort()
        if isinstance(error, OSError) and is_disk_trouble(error):
            raise storage_error(error, store.locate(path)) from None
        raise
    write_hashes(shared.notes, done.number, b"".join(hashes))
    return done


def check_unit(shared: Shared, item: Written) -> Different | None:
    """Read an output back through the destination's own reader, and compare."""
    done = item.done
    dataset, first = _reader(shared, item)
    wanted = read_hashes(shared.notes, done.number)
    for low in range(0, done.samples, shared.batch):
        high = min(low + shared.batch, done.samples)
        samples = dataset.read_raw(range(first + low, first + high)) if first + high <= len(dataset) else []
        found = compare(wanted[low:high], [read_digest(shared, s) for s in samples], [s.key for s in samples])
        if found is not None:
            return Different(low + found.number, found.key)
    return None


def _reader(shared: Shared, item: Written) -> tuple[Dataset, int]:
    """What reads an output back, and the number of the output's first sample in it.

    Where the format allows it, that is the output alone: opening all of the destination in each process would cost as
    much as it has shards.
    """
    if shared.to in ("wds", "vla"):
        store = open_store(shared.destination)
        return TarDataset(store, ScannedShards(store, [item.done.path]), name=shared.destination), 0
    if shared.to == "parquet" and not shared.piece:
        return open_raw(join_url(shared.destination, item.done.path))[0], 0
    return opened(shared.destination, None), item.first


def read_digest(shared: Shared, sample: Sample) -> bytes:
    """The hash of a sample as it was read back; the same function of what was meant as in `shards`."""
    if shared.to == "jsonl":
        return line_digest(sample.raw("json"))
    if isinstance(sample, RowSample):
        row = dict(sample.row)
        key = row.pop(KEY, None) or (sample.key if KEY in shared.columns else "")
        return digest(key, {name: plain_bytes(value) for name, value in row.items() if value is not None})
    return digest(sample.key, {name: sample.raw(name) for name in sample})
