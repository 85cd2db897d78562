"""Where a conversion's outputs lie: a destination that is made ready, and an old result that is replaced at the end.

On a local disk an old result stays as it is until the new one is whole and proved: that is written
to ``new/`` among the notes and then put in its place, which is only renaming. Killed in that moment, the next command
to the same place finishes it. In an object store nothing can be renamed: there the old result goes first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from feedmill.converting.notes import Notes, unfinished
from feedmill.converting.proof import Proof, proof_place, read_proof, write_proof
from feedmill.errors import ConfigError
from feedmill.formats.jsonl_splits import splits_name
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.local import LocalStore

_NEW = "new"


def place_of(destination: str, *, is_file: bool) -> tuple[Store, str]:
    """The store of a destination, and its name there where it is a file."""
    if not is_file:
        return open_store(destination), ""
    folder, name = split_url(destination)
    return open_store(folder), name


def refuse_present(notes: Notes, destination: str, *, overwrite: bool, is_file: bool) -> None:
    """Raises `ConfigError` where the destination is taken, before any work goes into planning."""
    store, name = place_of(destination, is_file=is_file)
    if notes.read_job() is None and (overwrite or read_proof(store, name) is None):
        _present(store, name, destination, overwrite=overwrite, is_file=is_file)


def is_staged(notes: Notes, destination: str, *, overwrite: bool, is_file: bool) -> bool:
    """Whether the conversion replaces an old result on a local disk."""
    job = notes.read_job()
    if job is not None:
        return bool(job.get("staged"))
    store, name = place_of(destination, is_file=is_file)
    return overwrite and store.is_local and bool(_present(store, name, destination, overwrite=True, is_file=is_file))


def stage(notes: Notes) -> LocalStore:
    """Where the new result lies until it replaces the old one."""
    return notes.store.below(_NEW)


def begin(notes: Notes, destination: str, job: Mapping[str, Any], overwrite: bool, *, is_file: bool) -> None:
    """Make the destination ready: continue with an unfinished conversion, replace an old one, or refuse what is there.

    Args:
        job: ``identity``, what decides the bytes; ``writes``, see `Conversion`; ``staged``.
    """
    before = notes.read_job()
    if before is not None and before.get("identity") != job["identity"]:
        if not overwrite:
            raise unfinished(destination)
        _discard(destination, before, is_file=is_file)
        notes.clear()
        before = None
    store, name = place_of(destination, is_file=is_file)
    if before is None:
        replace = _present(store, name, destination, overwrite=overwrite, is_file=is_file)
        notes.clear()
        notes.write_job({**job, "replace": replace})
    if not job["staged"] and not is_file:
        clear_away(notes, store)
    if isinstance(store, LocalStore) and not is_file:
        store.sweep()


def clear_away(notes: Notes, store: Store) -> None:
    """Remove the old result where it cannot stay until the new one is put in its place."""
    job = notes.read_job() or {}
    for path in job.get("replace", []):
        store.delete(path)
    if job.get("replace"):
        notes.write_job({**job, "replace": []})


def put_in_place(notes: Notes, store: Store, name: str, proof: Proof) -> None:
    """Replace the old result by the new one, which is whole; nothing is noted any more."""
    notes.write_job({**(notes.read_job() or {}), "proof": msgspec.to_builtins(proof)})
    settle(notes, store, name)


def settle(notes: Notes, store: Store, name: str) -> bool:
    """Finish putting a new result in its place, where that was begun; whether it was. Raises `DataError`."""
    job = notes.read_job() or {}
    if "proof" not in job:
        return False
    staged = stage(notes)
    try:
        proof = msgspec.convert(job["proof"], Proof)
    except msgspec.ValidationError as error:
        raise notes.damaged(str(error)) from None
    assert isinstance(store, LocalStore)
    store.delete(proof_place(name))  # of the old result
    for path in proof.files:
        if staged.exists(path):  # else it is there already
            store.rename(staged, path, path)
    for path in {*job.get("replace", ())} - {*proof.files, proof_place(name)}:
        store.delete(path)
    write_proof(store, name, proof)
    notes.clear()
    return True


def _discard(destination: str, job: Mapping[str, Any], *, is_file: bool) -> None:
    """Remove all that an unfinished conversion has written: where it began, the place held nothing else."""
    if job.get("staged"):  # it is among the notes, and the old result is as it was
        return
    store, _ = place_of(destination, is_file=is_file)
    paths, pattern = job.get("writes", ((), ""))
    with contextlib.suppress(LookupError):
        paths = [*paths, *(e.path for e in store.files() if pattern and re.fullmatch(pattern, e.path))]
    for path in (*job.get("replace", ()), *paths):
        store.delete(path)


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
