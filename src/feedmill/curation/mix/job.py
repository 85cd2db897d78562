"""Filter jobs: assign inputs to outputs, check that attributes line up, write the outputs, and report."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.mix.align import Pairing, verify, vouched
from feedmill.curation.mix.config import FilterConfig, Stream
from feedmill.curation.mix.merging import Shard
from feedmill.curation.mix.names import check_names, tag_command, with_whole_names
from feedmill.curation.mix.report import Counts, MixReport, StreamReport
from feedmill.curation.mix.shard import Finished, mixed, write_shard
from feedmill.curation.provenance import STALE, check_others
from feedmill.documents.file import DocumentFile, as_lines, places
from feedmill.documents.find import find_in_datasets
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import ConfigError, DataError, EmptyResult, refuse_empty
from feedmill.jobs.dry_run import DryRun, perform, run_dry
from feedmill.jobs.engine import Where, current, in_units, is_alone, key_of
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run, run_cut
from feedmill.jobs.threads import ordered_map
from feedmill.storage import join_url, open_store
from feedmill.storage.codec import GZIP, compression
from feedmill.storage.remote.locks import ObjectLock

KERNELS = ("feedmill.curation.mix.shard",)
_LOOKS = 8
_NAMED = 5
SAMPLE = 200
"""Number of documents of a file that a dry run reads."""


def mix(
    config: FilterConfig,
    *,
    workers: int | None = None,
    progress: bool | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
) -> MixReport:
    """Filter and merge documents and their attributes into new files.

    Every attribute file is checked against its documents (rows and ids) before anything is written. An output is
    published when it is complete, and a repeated run skips finished outputs. The outputs do not depend on `workers`.

    Args:
        workers: Number of worker processes. Default: That of the configuration, or one per core.
        dry_run: Write nothing; the report has what would be written, and the result of applying the rules to the first
            documents of some files.
        overwrite: Also replace files that no filter has written.

    Raises:
        NotFound: No files were found.
        ConfigError: The configuration is invalid, an output is also an input or another output, or it exists and no
            filter has written it.
        EmptyResult: A stream keeps no documents.
        DataError: Attributes do not line up, a row is invalid, or an expression fails on a document.
    """
    work = partial(_mix, config, config.workers if workers is None else workers, progress, overwrite)
    return run_dry(work) if dry_run or config.dry_run else work()


def _mix(config: FilterConfig, workers: int | None, progress: bool | None, overwrite: bool) -> MixReport:
    report = MixReport()
    plans = [_plan(stream, config, report.warnings) for stream in config.streams]
    streams = tuple(plan[0].stream if plan else stream for stream, plan in zip(config.streams, plans, strict=True))
    config = replace(config, streams=streams)
    spare = (workers or available_cores()) < available_cores()
    shards = [replace(shard, spare=spare) for plan in plans for shard in plan]
    _keep_apart(shards)
    if not overwrite:
        _refuse_existing(shards)

    def check(some: Callable[[Sequence[Shard]], Iterable[DocumentFile]]) -> None:
        """Check some of the attributes, and the names in the rules."""
        paired = (plan for plan in plans if plan[0].stream.attributes)
        pairings = [_pairing(plan[0], file) for plan in paired for file in some(plan)]
        _warn_of_stale(_verify(pairings, workers, progress), report)
        for plan in plans:
            _check_others([file for shard in plan for file in shard.files], plan[0], report)
        for stream, plan in zip(config.streams, plans, strict=True):
            _check_names(stream, plan, report, workers, progress)

    def plan(dry: DryRun) -> None:
        check(some)
        for stream, of_stream in zip(config.streams, plans, strict=True):
            one, whole = try_rules(dry, stream, of_stream, _is_finished, report)
            if whole:
                _refuse_empty(stream, of_stream, one, report)

    def execute() -> None:
        check(lambda plan: [file for shard in plan for file in shard.files])
        results = iter(_write(shards, config, workers, progress))
        for stream, plan in zip(config.streams, plans, strict=True):
            one = StreamReport(stream.name, sum(len(shard.files) for shard in plan), [], Counts.of(stream))
            one.replaces = bool(stream.replacements)
            for shard in plan:
                counts, before = next(results)
                one.counts.add(counts)
                one.finished_before += before
                one.outputs.append(join_url(stream.output, shard.path))
            report.streams.append(one)
            try:
                _refuse_empty(stream, plan, one, report)
            except EmptyResult:
                for shard in plan:
                    Finished(stream.output).remove_lineage(shard.path)
                    open_store(stream.output).delete(shard.path)
                raise
            report.warnings += _of_counts(stream, one.counts)
        report.warnings += _left_over(shards)

    perform(plan, execute)
    return report


def _write(
    shards: Sequence[Shard], config: FilterConfig, workers: int | None, progress: bool | None
) -> list[tuple[Counts, int]]:
    """Write all outputs; return the counts of each, and 1 if an earlier run wrote it."""
    with contextlib.ExitStack() as stack:
        for stream in config.streams if is_alone() else ():
            stack.enter_context(
                ObjectLock(open_store(stream.output), stream.name, lease=current() is not None, inside=True)
            )
        sizes = [sum(file.size for file in shard.files) for shard in shards]
        bar = stack.enter_context(Progress.of_files("filtering", sizes, progress))
        where = None
        if in_units():
            key = key_of(*(_fingerprint(shard) for shard in shards))
            where = Where("filtering", key, Finished(config.streams[0].output).folder)
        return _all_made(shards, sizes, workers, bar, where)


def _plan(stream: Stream, config: FilterConfig, warnings: list[str]) -> list[Shard]:
    """Return the outputs of a stream."""
    files: list[DocumentFile] = []
    for file in find_in_datasets(
        stream.documents, warnings, exact=config.exact, allow_missing=config.allow_empty, id=config.id
    ):
        if file.size or not files:
            files.append(file)
        else:
            warnings.append(f"{file.name} is empty")
    stream = with_whole_names(stream, files)
    if config.mirror:
        return [Shard(stream, config, (file,), _mirrored(file), _kind(stream, _mirrored(file))) for file in files]
    if config.permute:
        random.Random(f"{config.seed}/{stream.name}").shuffle(files)
    kind = GZIP if stream.output_compression is None else stream.output_compression
    groups = _grouped(files, stream.max_size)
    shards = []
    for n, group in enumerate(groups):
        last = config.dolma_names and n == len(groups) - 1
        name = f"{stream.name}-{n:04d}.json{'' if last else 'l'}{f'.{kind}' if kind else ''}"
        shards.append(Shard(stream, config, tuple(group), name, kind))
    return shards


def _keep_apart(shards: Sequence[Shard]) -> None:
    """Raise `ConfigError` if an output is also an input, or two outputs are the same file."""
    place, read, made = places(), dict[str, str](), dict[str, Shard]()
    for shard in shards:
        for file in shard.files:
            attributes = (join_url(file.folder or ".", file.attributes(name)) for name in shard.stream.attributes)
            read.update((place(path), path) for path in (file.name, *attributes))
    for shard in shards:
        path = join_url(shard.stream.output, shard.path)
        where = place(path)
        if where in read:
            raise ConfigError(
                f"stream {shard.stream.name}: the output {path} is also an input and would overwrite it",
                kind="input-is-output",
                fix="Change output.path or the name of the stream.",
            )
        if (other := made.setdefault(where, shard)) is not shard:
            raise ConfigError(
                f"{other.files[0].name} and {shard.files[0].name} would both become {path}",
                kind="name-clash",
                fix="Put them into streams with different output paths.",
            )


def _refuse_existing(shards: Sequence[Shard]) -> None:
    """Raise `ConfigError` if an output exists and no filter has written it, or begun to."""
    for shard in shards:
        store = open_store(shard.stream.output)
        if store.exists(shard.path) and Finished(shard.stream.output).where(shard.path) is None:
            raise ConfigError(
                f"stream {shard.stream.name}: this file already exists, and no filter has written it",
                file=join_url(shard.stream.output, shard.path),
                kind="exists",
                fix="Add --overwrite to replace it, or change output.path or the name of the stream.",
            )


def _mirrored(file: DocumentFile) -> str:
    return f"documents/{f'/{as_lines(file.path, file.kind)}'.rpartition('/documents/')[2]}"


def _kind(stream: Stream, path: str) -> str:
    return compression(path) if stream.output_compression is None else stream.output_compression


def _grouped(files: Sequence[DocumentFile], limit: int) -> list[list[DocumentFile]]:
    """Group consecutive files so that the stored size of each group stays within the limit, if it has several."""
    groups: list[list[DocumentFile]] = []
    held = 0
    for file in files:
        if not groups or held + file.size > limit:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.size
    return groups


def _verify(pairings: list[Pairing], workers: int | None, progress: bool | None) -> list[str]:
    """Check that attributes belong to their documents. Return the stale attribute files, if they are allowed."""
    # Records are checked on threads, because the store can be remote. This usually saves starting processes.
    known = list(ordered_map(vouched, pairings, workers=min(_LOOKS, len(pairings)), in_flight=2 * _LOOKS))
    doubtful = [pairing for pairing, sure in zip(pairings, known, strict=True) if not sure]
    stale: dict[str, None] = {}
    if doubtful:
        with Progress("checking rows", len(doubtful), "files", progress) as bar:
            for found in run(verify, doubtful, workers=workers, progress=bar, preload=KERNELS):
                if found.error is not None:
                    raise found.error
                stale.update(dict.fromkeys(found.stale))
    return list(stale)


def _pairing(shard: Shard, file: DocumentFile) -> Pairing:
    stream, config = shard.stream, shard.config
    return Pairing(
        file,
        stream.attributes,
        stream.input_compression,
        allow_missing=config.allow_missing,
        allow_stale=config.allow_stale,
        recorded_only=config.exact,
        tag=tag_command(stream),
    )


def _check_others(files: Sequence[DocumentFile], shard: Shard, report: MixReport) -> None:
    """Check the other documents that marks of duplicates depend on."""
    for name in shard.stream.attributes:
        try:
            warning = check_others(files, name)
            report.warnings += [warning] if warning is not None else []
        except DataError as error:
            if not shard.config.allow_stale or error.kind != STALE:
                raise
            report.warnings.append(f"{error.what} (allowed)")


def _check_names(
    stream: Stream, plan: list[Shard], report: MixReport, workers: int | None, progress: bool | None
) -> None:
    """Raise `ConfigError` if a rule names an attribute that does not exist."""
    config, files = plan[0].config, [file for shard in plan for file in shard.files]
    try:
        report.absent += check_names(stream, files, workers, progress)
    except ConfigError as error:
        if not config.allow_missing and not config.exact:
            raise
        report.warnings.append(error.what)


def _warn_of_stale(stale: Sequence[str], report: MixReport) -> None:
    report.stale = len(stale)
    if stale:
        shown = ", ".join(stale[:3]) + (", ..." if len(stale) > 3 else "")
        report.warnings.append(f"{len(stale)} attribute files were computed from other documents (allowed): {shown}")


def _all_made(
    shards: Sequence[Shard], sizes: Sequence[int], workers: int | None, bar: Progress, where: Where | None
) -> list[tuple[Counts, int]]:
    """Write all outputs. One that would keep a process busy alone is written first, by all of them."""
    return run_cut(_make, shards, sizes, workers=workers, progress=bar, preload=KERNELS, where=where)


def _make(shard: Shard, workers: int = 1) -> tuple[Counts, int]:
    """Write one output, unless an earlier run wrote it from the same inputs by the same rules."""
    store, finished, print_ = open_store(shard.stream.output), Finished(shard.stream.output), _fingerprint(shard)
    counts = _finished_counts(shard, print_)
    if counts is not None:
        return counts, 1
    new, origins = finished.where(shard.path) is None, Origins("filter", _rules(shard))
    if new:
        finished.begin(shard.path)  # after a kill or a loss of power, what is published is known to be a filter's
    try:
        counts = write_shard(shard, origins, workers)
    except BaseException:
        if new and not store.exists(shard.path):
            finished.forget(shard.path)
        raise
    size = store.stat(shard.path).size
    data = origins.encoded(store.locate(shard.path), size)
    finished.write_lineage(shard.path, data)
    record = {"fingerprint": print_, "size": size, "counts": counts.as_dict(), "lineage": len(data)}
    finished.record(shard.path, record)
    return counts, 0


def _is_finished(shard: Shard) -> bool:
    """Return whether an earlier run wrote an output from the same inputs by the same rules."""
    return _finished_counts(shard, _fingerprint(shard)) is not None


def _finished_counts(shard: Shard, fingerprint: str) -> Counts | None:
    """Return the counts of a finished output with this fingerprint; None if it is missing or a different one."""
    store, finished = open_store(shard.stream.output), Finished(shard.stream.output)
    done = finished.read(shard.path)
    if done is not None and store.exists(shard.path):
        with contextlib.suppress(LookupError, TypeError):  # an output with an invalid record is written again
            same = done["fingerprint"] == fingerprint and done["size"] == store.stat(shard.path).size
            if same and finished.has_lineage(shard.path):
                return Counts.from_dict(done["counts"])
    return None


def _rules(shard: Shard) -> dict[str, Any]:
    """Return the rules of an output, from which `feedmill.curation.mix.verdict` finds why a document was dropped."""
    rules = asdict(shard.stream)
    return {
        **{name: rules[name] for name in rules if name not in ("documents", "output")},
        "exact": shard.config.exact,
        "seed": shard.config.seed,
    }


def _refuse_empty(stream: Stream, plan: list[Shard], one: StreamReport, report: MixReport) -> None:
    """Raise `EmptyResult` if a stream keeps no documents."""
    counts, config = one.counts, plan[0].config
    if counts.kept or stream.rate == 0:
        return
    if config.allow_empty:
        report.warnings.append(f"stream {stream.name}: none of {counts.read} documents was kept")
        return
    refuse_empty(
        0,
        counts.read,
        file=stream.output,
        skipped={f"dropped by {rule}": number for rule, number in counts.dropped.items() if number},
        fix=f"Check the rules of the stream {stream.name!r}.",
    )


def _of_counts(stream: Stream, counts: Counts) -> list[str]:
    """Return warnings about the documents and their attributes."""
    found = []
    if counts.unmatched:
        found.append(f"{counts.unmatched} rows had no attributes")
    if counts.without_id:
        found.append(f"{counts.without_id} documents have no id")
    if counts.lost:
        found.append(
            f"{counts.lost} documents lost values that Dolma does not keep (integers beyond 64 bits became floats;"
            " metadata and attributes that are not objects were dropped)"
        )
    if counts.passed:
        found.append(f"{counts.passed} spans were skipped (they overlap, or are outside the text)")
    return [f"stream {stream.name}: {what}" for what in found]


def _left_over(shards: Sequence[Shard]) -> list[str]:
    """Return a warning for each folder with outputs of other runs, which would be read together with these outputs."""
    place = places()
    mine = {place(join_url(shard.stream.output, shard.path)) for shard in shards}
    found = []
    for folder in dict.fromkeys(shard.stream.output for shard in shards):
        store = open_store(folder)
        others = [path for path in Finished(folder).outputs() if place(join_url(folder, path)) not in mine]
        others = [join_url(folder, path) for path in others if store.exists(path)]
        if others:
            shown = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED:,} more" if others[_NAMED:] else "")
            found.append(f"outputs of other runs are in {folder}; delete them unless they belong together: {shown}")
    return found


def _fingerprint(shard: Shard) -> str:
    """Return a fingerprint of everything that an output depends on: the rules, documents and attributes."""
    inputs = []
    for file in shard.files:
        store = file.store()
        inputs.append(file.identity)
        for name in shard.stream.attributes:
            path = file.attributes(name)
            entry = store.stat(path) if store.exists(path) else None
            inputs.append([path, entry.size, entry.version] if entry else [path, 0, ""])
    config = shard.config
    return fingerprint(asdict(shard.stream), inputs, shard.path, shard.kind, config.exact, config.permute, config.seed)


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
