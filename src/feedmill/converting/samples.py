"""Convert the samples of any dataset to another format, using only the `Dataset` contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from feedmill.converting.engine import Conversion, surveyed
from feedmill.converting.facts import (
    Part,
    keeps_companions,
    keeps_description,
    keeps_media,
    source_facts,
)
from feedmill.converting.fields import Taken, Taker, part_name
from feedmill.converting.job import Bad, ConvertWork, Done, bad_sample
from feedmill.converting.losses import dropped, is_keyed, losses_of
from feedmill.converting.options import Convert
from feedmill.converting.preview import SAMPLES_EACH, Preview
from feedmill.converting.survey import Survey, known_kinds, merge, survey
from feedmill.converting.table import is_one_file
from feedmill.converting.targets.lines import Lines
from feedmill.converting.targets.parquet import Parquet
from feedmill.converting.targets.shards import Shards
from feedmill.converting.targets.tars import ListedTars, PreparedTars, Tars
from feedmill.converting.units import Shared, Source, Target, Unit, opened, read_each
from feedmill.documents.lineage.samples import StoredRows, add_samples
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.registry import targets
from feedmill.formats.rows import RowsDataset
from feedmill.formats.tables.dataset import TableDataset
from feedmill.formats.tar.dataset import TarDataset
from feedmill.jobs.policy import skips
from feedmill.writing.copying import mean_size
from feedmill.writing.shard import cut

READ_BYTES = 32 << 20
_TARS = {"prepared": PreparedTars, "tars": Tars, "manifest": ListedTars}
_CRUDE = "the samples are crude: Energon and Feedmill yield their parts undecoded. To set a sample type, run"


@dataclass(frozen=True, slots=True)
class SampleSource(Source):
    """The samples of a dataset.

    Attributes:
        url: the dataset.
        fields: names or patterns of the fields to keep; all if empty.
        skip: whether samples that cannot be converted are skipped.
        batch: number of samples to read at once.
        drop: fields to drop.
        prefix: whether keys that are row numbers are prefixed with the split, as they repeat across splits.
        regroup: whether the pieces of samples in tars are brought together.
    """

    url: str
    fields: tuple[str, ...]
    skip: bool
    batch: int
    drop: frozenset[str] = frozenset()
    prefix: bool = False
    regroup: bool = False

    def _opened(self, split: str | None) -> Dataset:
        return opened(self.url, split, self.regroup)

    def read(self, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, Taken]]:
        """Yield the number and content of each sample."""
        split, start, stop = unit.what
        dataset = self._opened(split)
        taker = Taker(dataset, self.fields, self.drop)
        for low in range(start, stop, self.batch):
            for number, sample in read_each(dataset, range(low, min(low + self.batch, stop))):
                if isinstance(sample, FeedmillError):
                    self._refuse(dataset, number, "", sample, bad)
                    continue
                try:
                    taken = taker(sample)
                    if self.prefix and taken.key == str(number):
                        taken = taken._replace(key=f"{split}/{number}")
                    yield number, taken
                except (DataError, NotFound) as error:
                    self._refuse(dataset, number, sample.key, error, bad)

    def refuse(self, unit: Unit, item: tuple[int, Taken], error: FeedmillError, bad: list[Bad]) -> None:
        """See `Source`."""
        number, taken = item
        self._refuse(self._opened(unit.what[0]), number, taken.key, error, bad)

    def numbers(self, item: tuple[int, Taken]) -> Sequence[int]:
        """See `Source`."""
        return (item[0],)

    def add_origins(self, origins: Origins, unit: Unit, done: Done) -> bool:
        """See `Source`."""
        return add_samples(origins, StoredRows.of(self._opened(unit.what[0])), done.numbers)

    def _refuse(self, dataset: Dataset, number: int, key: str, error: FeedmillError, bad: list[Bad]) -> None:
        error.file = error.file or dataset.url
        error.record = error.record or key or f"sample {number}"
        if not self.skip:
            error.fix = f"{error.fix or 'Fix it.'} To skip and list such samples, add --on-error skip."
            raise error
        bad.append(bad_sample(number, key or error.record, f"{error.what} ({error.kind})"))


def plan_samples(source: str, destination: str, to: str, kind: str, options: Convert, work: ConvertWork) -> Conversion:
    """Plan the conversion of a dataset of samples.

    Raises:
        ConfigError: the destination is not valid for the format. Other errors are those of opening the source.
    """
    opened.cache_clear()
    wanted = targets()[to]
    whole = opened(source, options.split, options.regroup)
    facts = source_facts(whole, source, kind, options.split)
    parts = [Part(split, count) for split, count in facts.parts] if "splits" in wanted.keeps else []
    parts = parts or [Part(options.split, len(whole))]
    is_file = is_one_file(destination, to)
    if wanted.form == "lines" and not is_file:
        raise ConfigError(
            "the destination must be a file: all samples become lines of one file",
            file=destination,
            fix="Name a file that ends in '.jsonl'.",
        )
    plan = Preview("samples", source, destination, kind, to, count=sum(part.samples for part in parts))
    identity = {
        "source": source,
        "fingerprint": whole.fingerprint(),
        "kind": kind,
        "to": to,
        "parts": [
            [*part, opened(source, part.split, options.regroup).fingerprint() if part.samples else ""] for part in parts
        ],
        **options.identity(),
    }
    units = units_of(source, parts, options, wanted.shard_size)
    plan.outputs = 1 if is_file else len(units)
    size = mean_size(whole)
    batch = int(max(1, min(256, READ_BYTES // max(1, size))))
    reads = SampleSource(source, tuple(options.fields), skips(options.on_error), batch, regroup=options.regroup)
    tars = not wanted.surveyed and isinstance(whole, RowsDataset)
    found = (
        known_kinds(whole.schema, options.fields) if tars and isinstance(whole, TableDataset) and facts.typed else None
    )
    if found is None:
        looks = wanted.surveyed or tars
        settings = reads, units, options, work, identity
        found = surveyed("survey", survey_unit, merge, *settings, stage=source) if looks else {}
    columns, plan.losses = losses_of(to, facts, found, options)
    plan.names = {} if wanted.form == "lines" else _names(whole, options, columns.forms)
    if kind == "jsonl" and wanted.form == "shards" and list(columns.forms) == ["json"]:
        plan.names["json"] += ", each line as it is (convert to parquet first for a column per name)"
    identity["survey"] = found
    prefix = sum(part.samples > 0 for part in parts) > 1 and isinstance(whole, RowsDataset)
    drop = dropped(columns) if wanted.form == "lines" else frozenset()
    changed = frozenset(columns.changed)
    reads = replace(reads, prefix=prefix, drop=drop)
    target: Target
    if wanted.form == "shards":
        target = Shards(destination, is_file, batch, to, columns)
    elif wanted.form == "table":
        target = Parquet(destination, is_file, batch, columns)
    elif wanted.form == "lines":
        target = Lines(destination, is_file, batch, is_keyed(found), parts, changed)
    else:
        kept = facts._replace(companions=facts.companions if keeps_companions(wanted.keeps, facts, options) else ())
        media = keeps_media(wanted.keeps, facts, options)
        how = to, source, kept, options, parts, media, facts.typed, changed
        target = _TARS[wanted.form](destination, is_file, batch, *how)
    crude = wanted.form == "prepared" and not keeps_description(facts, options)
    hint = f"{_CRUDE} 'feedmill prepare {destination} --sample-type TYPE --field-map MAP'"
    shared = Shared(reads, target, work.folder, work.place.url)
    return Conversion(plan, units, shared, identity, dataset=whole, notes=[hint] * crude)


def _names(dataset: Dataset, options: Convert, columns: Mapping[str, str]) -> dict[str, str]:
    """Return part -> name or encoding in the destination: from the columns, else what differs in the first sample."""
    if columns:
        return dict(columns)
    if not len(dataset):
        return {}
    try:
        taken = Taker(dataset, options.fields)(dataset.read_raw([0])[0])
    except FeedmillError:
        return {}
    parts = {n: part_name(n, v, keyed=not taken.typed) for n, v in taken.values.items() if v is not None}
    names = {a: b for a, b in parts.items() if a != b}
    lists = {a for a in names if isinstance(taken.values[a], np.ndarray)} if isinstance(dataset, TableDataset) else ()
    return {a: f"{b}, or {part_name(a, [])} for lists with nulls" if a in lists else b for a, b in names.items()}


def units_of(source: str, parts: Sequence[Part], options: Convert, usual: int | None) -> list[Unit]:
    """Return a unit per output: consecutive samples within the limits on samples and bytes of the source.

    `usual` is the limit on bytes if the options set none.
    """
    size = usual if options.max_shard_size is None else options.shard_bytes
    units: list[Unit] = []
    for split, count in parts:
        most, lengths = options.max_shard_samples or SAMPLES_EACH, None
        if count and size is not None:
            dataset = opened(source, split, options.regroup)
            lengths = stored_lengths(dataset)
            if lengths is None or len(lengths) != count:
                most, lengths = max(1, min(most, size // max(1, mean_size(dataset)))), None
        for start, stop in pairwise(cut(count, lengths, most, size)):
            units.append(Unit(len(units), (split, start, stop), stop - start))
    return units


def stored_lengths(dataset: Dataset) -> npt.NDArray[np.int64] | None:
    """Return the stored bytes of each sample, int64[n], from the index of a tar dataset; None for other formats."""
    if not isinstance(dataset, TarDataset):
        return None
    table = dataset.table
    pieces = [np.diff(table.offsets(number)) for number in range(len(table.shards))]
    lengths = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    return lengths if len(lengths) == len(dataset) else None


def survey_unit(source: SampleSource, unit: Unit) -> Survey:
    """Return the kinds of the values of a unit's samples. Unreadable samples are skipped here; the conversion
    handles them.
    """
    return survey(replace(source, skip=True).read(unit, []))
