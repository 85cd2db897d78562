"""Prepare the destination of a conversion, and replace an old result at the end.

On a local disk, an old result stays unchanged until the new one is finished and verified. The new result is staged in
``new/`` in the work folder and published by renaming. If the process is killed while renaming, the next process that
opens or writes the destination finishes it. An object store cannot rename: there the old result is deleted first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from feedmill.converting.job import VERB, ConvertWork, place_of
from feedmill.converting.proof import Proof, read_proof, write_proof
from feedmill.documents.lineage.samples import shard_lineage
from feedmill.errors import ConfigError
from feedmill.formats.converted import proof_place
from feedmill.formats.jsonl.splits import splits_name
from feedmill.jobs.engine import is_alone
from feedmill.jobs.unfinished import unfinished_job
from feedmill.storage import Store
from feedmill.storage.local import LocalStore

_NEW = "new"


def refuse_present(work: ConvertWork, destination: str, *, overwrite: bool, is_file: bool) -> None:
    """Raise `ConfigError` if the destination is not empty. Called before planning, which may read the whole source."""
    store, name = place_of(destination, is_file=is_file)
    if work.job is None and (overwrite or read_proof(store, name) is None):
        _present(store, name, destination, overwrite=overwrite, is_file=is_file)


def is_staged(work: ConvertWork, destination: str, *, overwrite: bool, is_file: bool) -> bool:
    """Return whether the conversion replaces an old result on a local disk."""
    job = work.job
    if job is not None:
        return bool(job.get("staged"))
    store, name = place_of(destination, is_file=is_file)
    return overwrite and store.is_local and bool(_present(store, name, destination, overwrite=True, is_file=is_file))


def stage(work: ConvertWork) -> LocalStore:
    """Return the store in which the new result is staged until it replaces the old one, which is on a local disk."""
    assert isinstance(work.scratch, LocalStore)
    return work.scratch.below(_NEW)


def begin(work: ConvertWork, destination: str, job: Mapping[str, Any], overwrite: bool, *, is_file: bool) -> None:
    """Prepare the destination: continue an unfinished conversion, or record which old files are replaced.

    Args:
        work: work folder of the conversion.
        destination: path or URL.
        job: ``identity``, which determines the output bytes; ``writes``, see `Target.writes`; ``staged``.
        overwrite: whether to replace an old result, or an unfinished conversion with other options.
        is_file: whether the destination is a file.

    Raises:
        ConfigError: the destination has other files, or another job is unfinished there.
    """
    with work.beginning():
        _begin(work, destination, job, overwrite, is_file)


def _begin(work: ConvertWork, destination: str, job: Mapping[str, Any], overwrite: bool, is_file: bool) -> None:
    identity = {"verb": VERB, **job["identity"]}
    store, name = place_of(destination, is_file=is_file)
    if not work.is_of(identity):
        if work.job is not None:
            if not overwrite or work.noted["identity"].get("verb") != VERB:
                raise unfinished_job(destination)
            _discard(destination, work.noted, is_file=is_file)
        replace = _present(store, name, destination, overwrite=overwrite, is_file=is_file)
        work.begin(identity, writes=job["writes"], staged=job["staged"], replace=replace)
    else:
        work.begin(identity)
    if not job["staged"] and not is_file:
        clear_away(work, store)
    if isinstance(store, LocalStore) and not is_file and is_alone():
        store.sweep()


def clear_away(work: ConvertWork, store: Store) -> None:
    """Delete the old result, if it cannot stay until the new one is published."""
    job = work.noted
    for path in job.get("replace", []):
        store.delete(path)
    if job.get("replace"):
        work.note(replace=[])


def publish(work: ConvertWork, name: str, proof: Proof) -> None:
    """Replace the old result with the new one, which is finished."""
    staged = stage(work)
    write_proof(staged, name, proof)
    files = [*proof.files, *proof.lineages, proof_place(name)]
    deletes = sorted(set(work.noted.get("replace", ())) - set(files))
    work.publish([(f"{_NEW}/{path}", path) for path in files], deletes)


def finish_interrupted(work: ConvertWork) -> bool:
    """Finish a conversion that was killed while publishing, and clear its work folder.

    Returns:
        whether there was one: if so, nothing is left to do.
    """
    if not work.roll_forward():
        return False
    work.clear()
    return True


def _discard(destination: str, job: Mapping[str, Any], *, is_file: bool) -> None:
    """Delete all files that an unfinished conversion has written; the destination had no others when it began."""
    if job.get("staged"):  # its files are in the work folder, and the old result is unchanged
        return
    store, _ = place_of(destination, is_file=is_file)
    paths, pattern = job.get("writes", ((), ""))
    with contextlib.suppress(LookupError):
        paths = [*paths, *(e.path for e in store.files() if pattern and re.fullmatch(pattern, e.path))]
    for path in (*job.get("replace", ()), *paths):
        store.delete(path)


def _present(store: Store, name: str, url: str, *, overwrite: bool, is_file: bool) -> list[str]:
    """Return the files of an earlier conversion at the destination. Raises `ConfigError` if there are others."""
    if is_file:
        there = [path for path in (name, name + ".idx", splits_name(name)) if store.exists(path)]
        if there and not overwrite:
            raise _exists(url, "the file already exists", "Name another file, or replace it with --overwrite.")
        return [*there, *(p for p in [proof_place(name), shard_lineage(name)] if store.exists(p))]
    try:
        there = [entry.path for entry in store.files()]
    except LookupError:
        return []
    proof = read_proof(store, "")
    known = {*proof.files, *proof.lineages} if proof is not None else set()
    others = [path for path in there if path not in known]
    if others or (there and not overwrite):
        what = (
            f"the destination has files that no conversion has written, such as {others[0]!r}"
            if others
            else "the destination is not empty"
        )
        fix = "Name an empty folder." if others else "Name another folder, or replace it with --overwrite."
        raise _exists(url, what, fix)
    return [*sorted(known), proof_place("")] if known else []


def _exists(url: str, what: str, fix: str) -> ConfigError:
    return ConfigError(what, file=url, kind="exists", fix=fix)
