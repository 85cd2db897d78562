"""The work of any conversion: units on all cores, noted as they are done, then put together, read back and proved.

Every unit gives one output, whatever the number of processes. Killed at any moment, the same conversion begun again
finds its whole outputs and goes on with the others; what joins them (an index, a manifest, one file of many pieces)
is written when all are there.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson

from feedmill.converting.notes import Bad, Done, Notes, unfinished
from feedmill.converting.plan import Options, Plan
from feedmill.converting.proof import Proof, proof_place, read_proof, write_proof
from feedmill.errors import ConfigError, DataError
from feedmill.formats.jsonl_splits import splits_name
from feedmill.formats.offsets import hash_words
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.local import sweep, sweep_all

MOST_LISTED = 100


class Unit(NamedTuple):
    """A piece of work: its number, and what it is of (told to the function that does it); samples where known."""

    number: int
    what: tuple[Any, ...]
    samples: int = 0


class Written(NamedTuple):
    """An output to be read back: the number of its first sample in the destination, and its first byte where the
    destination is one file."""

    done: Done
    first: int
    at: int


class Different(NamedTuple):
    """The first difference of an output: the sample's number in it, and its key."""

    number: int
    key: str


@dataclass(slots=True)
class Conversion:
    """What a family of conversions gives to `perform`.

    Attributes:
        plan: what is said before.
        units: the pieces of work.
        work: ``(shared, unit) -> Done``, a function at the top level of a module; it notes what it has done itself.
        shared: what the functions need, sent to each process once.
        identity: plain data that decides the bytes.
        writes: paths in the store that it may have written when it is killed, and a pattern of such paths (a regular
            expression, or nothing); none where the destination is one file.
        is_file: whether the destination is one file.
        finish: makes the destination whole of all its outputs; gives its files, paths in the store.
        check: ``(shared, written) -> the first difference, or None``; reads the destination back.
        noun: what is counted, for people.
    """

    plan: Plan
    units: list[Unit]
    work: Callable[[Any, Unit], Done]
    shared: Any
    identity: dict[str, Any]
    finish: Callable[[Store, Sequence[Done]], list[str]]
    check: Callable[[Any, Written], Different | None]
    writes: tuple[Sequence[str], str] = ((), "")
    is_file: bool = False
    noun: str = "samples"


@dataclass(slots=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        plan: what was said before.
        samples: written.
        outputs, bytes: files with data, and their bytes.
        skipped, examples: how many were left out, and the first of them.
        notes: what else the user should know.
        resumed: outputs that an interrupted run had finished.
        digest: of all samples in their order; None where nothing was verified.
        proof: where the proof lies.
        seconds: wall time.
    """

    plan: Plan
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

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        examples = [{"index": bad.index, "key": bad.key, "reason": bad.reason} for bad in self.examples]
        found = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "plan": self.plan.as_dict(), "examples": examples}


def refuse_present(notes: Notes, destination: str, *, overwrite: bool, is_file: bool) -> None:
    """Raises `ConfigError` where the destination is taken, before any work goes into planning."""
    store, name = _place(destination, is_file=is_file)
    if notes.read_job() is None and (overwrite or read_proof(store, name) is None):
        _present(store, name, destination, overwrite=overwrite, is_file=is_file)


def finished(notes: Notes, conversion: Conversion, options: Options) -> ConvertReport | None:
    """What an earlier run of the same command has done, where it has done everything; None where it has not."""
    plan = conversion.plan
    store, name = _place(plan.destination, is_file=conversion.is_file)
    proof = None if options.overwrite or notes.read_job() is not None else read_proof(store, name)
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


def begin(notes: Notes, conversion: Conversion, options: Options) -> None:
    """Make the destination ready: go on with an unfinished conversion, replace an old one, or refuse what is there."""
    plan = conversion.plan
    job, before = _plain(conversion), notes.read_job()
    if before is not None and before.get("identity") != job:
        if not options.overwrite:
            raise unfinished(plan.destination)
        _discard(plan.destination, before, is_file=conversion.is_file)
        notes.clear()
        before = None
    store, name = _place(plan.destination, is_file=conversion.is_file)
    if before is None:
        replace = _present(store, name, plan.destination, overwrite=options.overwrite, is_file=conversion.is_file)
        before = {"identity": job, "replace": replace, "writes": conversion.writes}
        notes.clear()
        notes.write_job(before)
    for path in before.get("replace", []):
        store.delete(path)
    if before.get("replace"):
        notes.write_job({**before, "replace": []})
    with contextlib.suppress(LookupError):
        _sweep(store, name, notes)


def _sweep(store: Store, name: str, notes: Notes) -> None:
    """Remove what killed processes have left; this one holds the lock, so nobody else is writing."""
    sweep_all(str(notes.folder) + "/")
    if not store.is_local:
        return
    if name:
        sweep(store.locate(name))
        return
    import os

    for folder, _, _ in os.walk(store.locate("")):
        sweep_all(folder.rstrip("/") + "/")


def _discard(destination: str, job: Mapping[str, Any], *, is_file: bool) -> None:
    """Remove all that an unfinished conversion has written: where it began, the place held nothing else."""
    store, _ = _place(destination, is_file=is_file)
    paths, pattern = job.get("writes", ((), ""))
    with contextlib.suppress(LookupError):
        paths = [*paths, *(e.path for e in store.files() if pattern and re.fullmatch(pattern, e.path))]
    for path in (*job.get("replace", ()), *paths):
        store.delete(path)


def _plain(conversion: Conversion) -> Any:
    """The identity as it is noted."""
    try:
        return orjson.loads(orjson.dumps(conversion.identity, option=orjson.OPT_NON_STR_KEYS))
    except TypeError as error:
        raise DataError(
            f"a name of a file, a column or a part cannot be noted ({error})",
            file=conversion.plan.source.encode("utf-8", "backslashreplace").decode(),
            kind="bad-name",
            fix="Rename it, or leave the part out with --fields.",
        ) from None


def _place(destination: str, *, is_file: bool) -> tuple[Store, str]:
    if not is_file:
        return open_store(destination), ""
    folder, name = split_url(destination)
    return open_store(folder), name


def _present(store: Store, name: str, url: str, *, overwrite: bool, is_file: bool) -> list[str]:
    """The files at the destination, all of an earlier conversion. Raises `ConfigError` for any others."""
    if is_file:
        there = [path for path in (name, name + ".idx", splits_name(name)) if store.exists(path)]
        if there and not overwrite:
            raise _exists(url, "there is a file already", "Name another, or replace it with --overwrite.")
        return [*there, *(p for p in [proof_place(name)] if store.exists(p))]
    try:
        there = [entry.path for entry in store.files()]
    except LookupError:
        return []
    proof = read_proof(store, "")
    known = set(proof.files) if proof is not None else set()
    others = [path for path in there if path not in known]
    if others or (there and not overwrite):
        what = f"there are files that no conversion has written, such as {others[0]!r}" if others else "it is not empty"
        fix = "Name an empty folder." if others else "Name another folder, or replace it with --overwrite."
        raise _exists(url, what, fix)
    return [*sorted(known), proof_place("")] if known else []


def _exists(url: str, what: str, fix: str) -> ConfigError:
    return ConfigError(what, file=url, kind="exists", fix=fix)


def perform(notes: Notes, conversion: Conversion, options: Options) -> ConvertReport:
    """Do a conversion whose place `begin` has made ready, or go on with it.

    Raises:
        DataError: a sample cannot be converted; too many cannot; what is read back is different.
    """
    began = time.perf_counter()
    plan = conversion.plan
    store, name = _place(plan.destination, is_file=conversion.is_file)
    known = notes.done(store)
    resumed = len(known)
    done = _work(conversion, options, known)
    skipped = sum(len(each.bad) for each in done)
    if not any(each.samples for each in done):
        raise DataError("there is nothing to convert", file=plan.source, kind="no-samples", fix="Check the source.")
    files = conversion.finish(store, done)
    digest, digests = _digests(notes, done)
    if options.verify:
        _verify(conversion, options, done)
    examples = [bad for each in done for bad in each.bad][:MOST_LISTED]
    samples = sum(each.samples for each in done)
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
        job=_job(conversion),
    )
    write_proof(store, name, proof)
    notes.finish()
    return ConvertReport(
        plan,
        samples,
        outputs=len(files),
        bytes=sum(store.stat(path).size for path in files),
        skipped=skipped,
        examples=examples,
        notes=[note for each in done for note in each.extra.get("notes", [])],
        resumed=resumed,
        digest=proof.digest if options.verify else None,
        proof=store.locate(proof_place(name)),
        seconds=round(time.perf_counter() - began, 3),
    )


def _work(conversion: Conversion, options: Options, known: Mapping[int, Done]) -> list[Done]:
    todo = [unit for unit in conversion.units if unit.number not in known]
    out: list[Done] = []
    bad = 0
    with Progress("converting", conversion.plan.count, conversion.noun, enabled=options.progress) as bar:
        policy = Policy(shared=conversion.shared)
        module = conversion.work.__module__
        results = run(conversion.work, todo, workers=options.workers, preload=(module,), policy=policy)
        with closing(results):
            for unit in conversion.units:
                done = known.get(unit.number) or next(results)
                out.append(done)
                bad += len(done.bad)
                bar.advance(done.samples + len(done.bad))
                if options.max_bad is not None and bad > options.max_bad:
                    raise _too_many(conversion.plan.source, out, bad, options.max_bad)
    return out


def _too_many(source: str, done: Sequence[Done], bad: int, most: int) -> DataError:
    first = next(each for one in done for each in one.bad)
    return DataError(
        f"{bad} samples cannot be converted, and at most {most} may be left out (the first: {first.reason})",
        file=source,
        record=first.key,
        kind="too-many-bad",
        fix="Mend the source ('feedmill check' lists what is wrong), or allow more with --max-bad.",
    )


def _digests(notes: Notes, done: Sequence[Done]) -> tuple[str, list[str]]:
    """The digest of all samples in their order, and that of each output."""
    import xxhash

    whole = xxhash.xxh3_128()
    digests = []
    for each in done:
        if each.samples:
            hashes = notes.hashes(each.number).tobytes()
            whole.update(hashes)
            digests.append(xxhash.xxh3_128_hexdigest(hashes))
    return whole.hexdigest(), digests


def _verify(conversion: Conversion, options: Options, done: Sequence[Done]) -> None:
    """Read the destination back and compare each sample with what was read from the source."""
    filled = [each for each in done if each.samples]
    firsts = np.cumsum([0, *(each.samples for each in filled)]).tolist()
    begins = np.cumsum([0, *(each.size for each in filled)]).tolist()
    total = sum(each.samples for each in filled)
    with Progress("reading back", total, conversion.noun, enabled=options.progress) as bar:
        items = [Written(each, first, at) for each, first, at in zip(filled, firsts, begins, strict=False)]
        policy = Policy(shared=conversion.shared)
        module = conversion.work.__module__
        results = run(conversion.check, items, workers=options.workers, preload=(module,), policy=policy)
        with closing(results):
            for each, found in zip(filled, results, strict=True):
                if found is not None:
                    raise DataError(
                        f"what was written differs from the source (sample {found.number} of {each.path or 'it'})",
                        file=conversion.plan.destination,
                        record=found.key,
                        kind="different",
                        fix="Nothing is proved: the disk or memory may be at fault. Run it again with --overwrite, and"
                        " report it where it happens again.",
                    )
                bar.advance(each.samples)


def compare(wanted: Any, found: Sequence[bytes], keys: Sequence[str]) -> Different | None:
    """The first place where hashes differ; wanted is uint8[n, 16]."""
    for number, (have, key) in enumerate(zip(found, keys, strict=True)):
        if number >= len(wanted) or wanted[number].tobytes() != have:
            return Different(number, key)
    return None if len(found) == len(wanted) else Different(len(found), "")
