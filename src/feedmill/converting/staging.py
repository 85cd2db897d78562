"""Where a conversion's outputs lie: a destination that is made ready, and an old result that is replaced at the end.

On a local disk an old result stays as it is until the new one is whole and proved: that is written to ``new/`` in the
folder of the job and then put in its place, which is only renaming. Killed in that moment, whoever opens or writes it
next finishes it. In an object store nothing can be renamed: there the old result goes first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from feedmill.converting.job import VERB, ConvertWork, place_of
from feedmill.converting.proof import Proof, proof_place, read_proof, write_proof
from feedmill.errors import ConfigError
from feedmill.formats.jsonl.splits import splits_name
from feedmill.jobs.unfinished import unfinished_job
from feedmill.storage import Store
from feedmill.storage.local import LocalStore

_NEW = "new"


def refuse_present(work: ConvertWork, destination: str, *, overwrite: bool, is_file: bool) -> None:
    """Raises `ConfigError` if the destination is taken, before any work goes into planning."""
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
    """Return where the new result lies until it replaces the old one."""
    return work.scratch.below(_NEW)


def begin(work: ConvertWork, destination: str, job: Mapping[str, Any], overwrite: bool, *, is_file: bool) -> None:
    """Make the destination ready: continue with an unfinished conversion, replace an old one, or refuse what is there.

    Args:
        job: ``identity``, what decides the bytes; ``writes``, see `Conversion`; ``staged``.
    """
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
    if isinstance(store, LocalStore) and not is_file:
        store.sweep()


def clear_away(work: ConvertWork, store: Store) -> None:
    """Remove the old result where it cannot stay until the new one is put in its place."""
    job = work.noted
    for path in job.get("replace", []):
        store.delete(path)
    if job.get("replace"):
        work.note(replace=[])


def put_in_place(work: ConvertWork, name: str, proof: Proof) -> None:
    """Replace the old result by the new one, which is whole."""
    staged = stage(work)
    write_proof(staged, name, proof)
    files = [*proof.files, proof_place(name)]
    deletes = sorted(set(work.noted.get("replace", ())) - set(files))
    work.publish([(f"{_NEW}/{path}", path) for path in files], deletes)


def settled(work: ConvertWork) -> bool:
    """Return whether a conversion that was killed has put its result in place; nothing is left of it then."""
    if not work.roll_forward():
        return False
    work.clear()
    return True


def _discard(destination: str, job: Mapping[str, Any], *, is_file: bool) -> None:
    """Remove all that an unfinished conversion has written: where it began, the place held nothing else."""
    if job.get("staged"):  # it is in the folder of the job, and the old result is as it was
        return
    store, _ = place_of(destination, is_file=is_file)
    paths, pattern = job.get("writes", ((), ""))
    with contextlib.suppress(LookupError):
        paths = [*paths, *(e.path for e in store.files() if pattern and re.fullmatch(pattern, e.path))]
    for path in (*job.get("replace", ()), *paths):
        store.delete(path)


def _present(store: Store, name: str, url: str, *, overwrite: bool, is_file: bool) -> list[str]:
    """Return the files at the destination, all of an earlier conversion. Raises `ConfigError` for any others."""
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
