"""Engine of all conversions: run units on all cores, record them in a journal, join outputs, verify, write the proof.

Each unit writes one output, independent of the number of processes. A conversion that is restarted after a kill keeps
its finished outputs and continues with the others. Files that join outputs (an index, a manifest, one file of many
chunks) are written last.

The lineage of the outputs is written, too: from which row of which file of the source each sample came.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson

from feedmill.converting.job import VERB, Bad, ConvertWork, Done, Proof, read_proof
from feedmill.converting.options import Convert
from feedmill.converting.preview import Preview
from feedmill.converting.units import Different, Shared, Source, Target, Unit, Written, check_unit, convert_unit
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.converted import proof_place
from feedmill.formats.offsets import hash_words
from feedmill.jobs.dry_run import JobReport
from feedmill.jobs.engine import Policy, Where
from feedmill.jobs.policy import over_budget
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store, open_store, split_url
from feedmill.writing.work import finish_units

MOST_LISTED = 100
_AT_ONCE = 8
"""Number of hash files to read concurrently; in an object store each is a request."""


@dataclass(slots=True)
class Conversion:
    """A planned conversion: the input of `perform`.

    Attributes:
        plan: the preview that is reported first.
        units: the units of work.
        shared: the source and the target, sent to each process once.
        identity: plain data that determines the output bytes.
        staged: whether outputs are staged next to an old destination and replace it after verification.
        noun: noun for the counted things, for display.
        dataset: the source, if it is opened as samples.
        notes: notes on the result, for the user.
    """

    plan: Preview
    units: list[Unit]
    shared: Shared
    identity: dict[str, Any]
    noun: str = "samples"
    staged: bool = False
    dataset: Dataset | None = None
    notes: Sequence[str] = ()

    @property
    def target(self) -> Target:
        """The target that writes the destination."""
        return self.shared.target

    @property
    def is_file(self) -> bool:
        """Whether the destination is one file."""
        return self.target.piece

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that every process imports."""
        return type(self.shared.source).__module__, type(self.target).__module__


@dataclass(slots=True)
class ConvertReport(JobReport):
    """Report of a conversion.

    Attributes:
        plan: the preview that was reported first.
        samples: number of samples written.
        outputs, bytes: number of data files, and their total bytes.
        skipped, examples: number of skipped samples, and the first of them.
        notes: further notes for the user.
        resumed: number of outputs that an interrupted run had finished.
        digest: digest of all samples in order; None if nothing was verified.
        proof: path or URL of the proof.
        seconds: wall time in seconds.
    """

    plan: Preview
    samples: int = 0
    outputs: int = 0
    bytes: int = 0
    skipped: int = 0
    examples: list[Bad] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    resumed: int = 0
    digest: str | None = None
    proof: str | None = None
    seconds: float = 0.0


def surveyed(
    name: str,
    look: Callable[[Any, Unit], Any],
    join: Callable[[Iterable[Any]], Any],
    source: Source,
    units: Sequence[Unit],
    options: Convert,
    work: ConvertWork,
    identity: dict[str, Any],
    *,
    stage: str | None = None,
) -> Any:
    """Return what a survey of all units finds, and add it to the identity by its name.

    If the conversion is restarted, it comes from the journal, because a survey reads all samples.

    Args:
        look: function of the source and a unit.
        join: function of the results of all units.
        stage: key of the stage, if an engine may run it.
    """
    begun = work.identity()
    begun_survey = begun.pop(name, None)
    if begun_survey is None or begun != orjson.loads(orjson.dumps(identity)):
        noun, steps = ("files", [1] * len(units)) if stage is None else ("samples", [unit.samples for unit in units])
        where = None if stage is None else Where("looking", stage, work.scratch, lasting=False)
        settings: dict[str, Any] = {"workers": options.workers, "preload": (look.__module__,), "where": where}
        with Progress("looking at", sum(steps), noun, enabled=options.progress) as bar:
            bar.of_sizes(steps)
            with closing(run(look, units, progress=bar, policy=Policy(shared=source), **settings)) as results:
                begun_survey = join(results)
    identity[name] = begun_survey
    return begun_survey


def finished(work: ConvertWork, conversion: Conversion, options: Convert) -> ConvertReport | None:
    """Return the report of an earlier, complete run of the same conversion; None if there is none."""
    plan = conversion.plan
    store, name = work.target, work.name
    proof = None if options.overwrite or work.job is not None else read_proof(store, name)
    if proof is None or proof.job != _job(conversion) or (options.verify and not proof.verified):
        return None
    if not all(store.exists(path) for path in proof.files):
        return None
    return ConvertReport(
        plan,
        proof.samples,
        outputs=len(proof.files),
        bytes=sum(store.stat(path).size for path in proof.files),
        skipped=proof.skipped,
        examples=proof.skipped_examples,
        resumed=len(proof.outputs),
        digest=proof.digest if proof.verified else None,
        proof=store.locate(proof_place(name)),
    )


def _job(conversion: Conversion) -> str:
    return hash_words([orjson.dumps(_plain(conversion), option=orjson.OPT_SORT_KEYS).decode()])


def begin(work: ConvertWork, conversion: Conversion, options: Convert) -> None:
    """Prepare the destination; see `ConvertWork.start`."""
    writes = conversion.target.writes(conversion.units)
    job = {"identity": _plain(conversion), "writes": writes, "staged": conversion.staged}
    work.start(job, overwrite=options.overwrite)


def _plain(conversion: Conversion) -> Any:
    """Return the identity as plain JSON data, as stored in the journal."""
    try:
        return orjson.loads(orjson.dumps(conversion.identity, option=orjson.OPT_NON_STR_KEYS))
    except TypeError as error:
        raise DataError(
            f"the name of a file, column or part cannot be stored as JSON ({error})",
            file=conversion.plan.source.encode("utf-8", "backslashreplace").decode(),
            kind="bad-name",
            fix="Rename it, or exclude the part with --fields.",
        ) from None


def perform(work: ConvertWork, conversion: Conversion, options: Convert) -> ConvertReport:
    """Run a conversion whose destination `begin` has prepared, or resume it.

    Raises:
        DataError: a sample cannot be converted, more than the error budget were skipped, or verification fails.
    """
    began = time.perf_counter()
    plan = conversion.plan
    target, name, store = work.target, work.name, work.outputs
    known = work.done(store)
    resumed = len(known)
    done = _work(work, conversion, options, known)
    skipped = sum(len(unit.bad) for unit in done)
    if not any(unit.samples for unit in done):
        raise _nothing(plan.source, conversion.noun, [bad for unit in done for bad in unit.bad])
    work.clear_away()
    files = conversion.target.finish(store, conversion.units, done)
    lineages = write_lineages(conversion, store, target, name, done)
    digest, digests = _digests(work, done)
    if options.verify:
        _verify(work, conversion, options, done)
    examples = [bad for unit in done for bad in unit.bad][:MOST_LISTED]
    samples = sum(unit.samples for unit in done)
    proof = Proof(
        source=plan.source,
        source_format=plan.kind,
        format=plan.to,
        samples=samples,
        verified=options.verify,
        digest=digest,
        skipped=skipped,
        skipped_examples=examples,
        losses=[loss.what for loss in plan.losses],
        outputs=[(e.path.rpartition("/")[2] if conversion.is_file else e.path, e.samples) for e in done if e.samples],
        digests=digests,
        files=files,
        lineages=lineages,
        job=_job(conversion),
    )
    work.publish_proven(proof)
    work.finish()
    return ConvertReport(
        plan,
        samples,
        outputs=len(files),
        bytes=sum(target.stat(path).size for path in files),
        skipped=skipped,
        examples=examples,
        notes=[*conversion.notes, *(note for unit in done for note in unit.extra.get("notes", []))],
        resumed=resumed,
        digest=proof.digest if options.verify else None,
        proof=target.locate(proof_place(name)),
        seconds=round(time.perf_counter() - began, 3),
    )


def _work(work: ConvertWork, conversion: Conversion, options: Convert, known: Mapping[int, Done]) -> list[Done]:
    units = conversion.units
    steps = [unit.samples for unit in units]
    out: list[Done] = []
    bad = seen = 0
    stage = "converting", _job(conversion), work.scratch
    settings: dict[str, Any] = {"workers": options.workers, "preload": conversion.modules, "stage": stage}
    with Progress("converting", conversion.plan.count, conversion.noun, enabled=options.progress) as bar:
        settings |= {"shared": conversion.shared, "record": work.add, "bar": bar, "steps": steps}
        with closing(finish_units(convert_unit, units, known, **settings)) as made:
            for done in made:
                out.append(done)
                bad += len(done.bad)
                seen += done.samples + len(done.bad)
                over = over_budget(options.error_budget, bad, seen)
                if over:
                    raise _too_many(conversion.plan.source, out, over)
    return out


def _nothing(source: str, noun: str, bad: Sequence[Bad]) -> DataError:
    """Return the error for an empty result, with the most frequent reasons."""
    reasons = Counter(sample.reason for sample in bad)
    counted = "; ".join(f"{count:,}: {reason}" for reason, count in reasons.most_common(3))
    return DataError(
        "there is nothing to convert" + (f": 0 of {len(bad):,} {noun} kept ({counted})" if bad else ""),
        file=source,
        kind="no-samples",
        fix="Check the source." if not bad else "Fix them, or correct the options.",
    )


def _too_many(source: str, done: Sequence[Done], over: str) -> DataError:
    first = next(sample for unit in done for sample in unit.bad)
    return DataError(
        f"too many samples cannot be converted: {over}; the first: {first.reason}",
        file=source,
        record=first.key,
        kind="too-many-bad",
        fix="Fix the source ('feedmill check' lists what is wrong), or allow more with --error-budget.",
    )


def _digests(work: ConvertWork, done: Sequence[Done]) -> tuple[str, list[str]]:
    """Return the digest of all samples in their order, and that of each output."""
    import xxhash

    whole = xxhash.xxh3_128()
    digests = []
    numbers = [unit.number for unit in done if unit.samples]
    for hashed in ordered_map(work.hashes, numbers, workers=_AT_ONCE, in_flight=_AT_ONCE):
        hashes = hashed.tobytes()
        whole.update(hashes)
        digests.append(xxhash.xxh3_128_hexdigest(hashes))
    return whole.hexdigest(), digests


def _verify(work: ConvertWork, conversion: Conversion, options: Convert, done: Sequence[Done]) -> None:
    """Read the destination back and compare each sample with what was read from the source."""
    filled = [unit for unit in done if unit.samples]
    firsts = np.cumsum([0, *(unit.samples for unit in filled)]).tolist()
    begins = np.cumsum([0, *(unit.size for unit in filled)]).tolist()
    total = sum(unit.samples for unit in filled)
    with Progress("reading back", total, conversion.noun, enabled=options.progress) as bar:
        items = [Written(unit, first, at) for unit, first, at in zip(filled, firsts, begins, strict=False)]
        policy = Policy(shared=conversion.shared)
        where = Where("checking", _job(conversion), work.scratch, lasting=False)
        bar.of_sizes([unit.samples for unit in filled])
        settings: dict[str, Any] = {"workers": options.workers, "preload": conversion.modules, "policy": policy}
        with closing(run(check_unit, items, progress=bar, where=where, **settings)) as results:
            for written, difference in zip(filled, results, strict=True):
                if difference is not None:
                    work.forget(written.number)
                    raise _different(conversion, written, difference)


def _different(conversion: Conversion, done: Done, difference: Different) -> DataError:
    """Return the error for a sample that was not read back as it is in the source: why is tried out."""
    again = _differs_again(conversion, conversion.units[done.number])
    what = f"the output differs from the source (sample {difference.number} of {done.path or 'it'})"
    fix = "No proof was written. The disk or memory may be at fault: in a temporary folder, the samples are equal."
    if again:
        what += ", and so it does when it is converted again: the format does not give a value back"
        fix = "No proof was written. Report it as a bug, with the sample; other fields can be selected with --fields."
    return DataError(
        what,
        file=conversion.plan.destination,
        record=difference.key,
        kind="verification-failed",
        fix=f"{fix} Run the command again." if not again else fix,
    )


def _differs_again(conversion: Conversion, unit: Unit) -> bool:
    """Return whether an output differs from the source, too, if it is written to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="feedmill-") as folder:
        name = split_url(conversion.target.destination)[1]
        place = os.path.join(folder, "out", name) if conversion.is_file else os.path.join(folder, "out")
        target = replace(conversion.target, destination=place)
        shared = replace(conversion.shared, target=target, folder=folder, notes=folder)
        try:
            done = convert_unit(shared, unit)
            target.finish(open_store(os.path.join(folder, "out")), conversion.units, [done])
            return check_unit(shared, Written(done, 0, 0)) is not None
        except (FeedmillError, OSError):  # the source has changed, or the disk is full
            return False


def write_lineages(conversion: Conversion, store: Store, target: Store, name: str, done: Sequence[Done]) -> list[str]:
    """Write the lineage of each output, and return their paths; none if the source's samples are rows of no file.

    Args:
        store: where the outputs are: the target, or the folder from which they are moved there.
        name: the destination in its store, if it is one file.
        done: all outputs, in order.
    """
    if conversion.is_file:
        return _write(conversion, store, target, name, done)
    filled = [unit for unit in done if unit.path]
    written = ordered_map(
        lambda unit: _write(conversion, store, target, unit.path, [unit]),
        filled,
        workers=0 if store.is_local else _AT_ONCE,  # in an object store each is a request
        in_flight=2 * _AT_ONCE,
    )
    return [path for paths in written for path in paths]


def _write(conversion: Conversion, store: Store, target: Store, path: str, done: Sequence[Done]) -> list[str]:
    origins, source = Origins(VERB), conversion.shared.source
    for unit in done:
        if not source.add_origins(origins, conversion.units[unit.number], unit):
            return []
    sequences = conversion.target.sequences(source, done[0])
    place = conversion.target.lineage(path)
    store.write_bytes(place, origins.encoded(target.locate(path), store.stat(path).size, sequences))
    return [place]
