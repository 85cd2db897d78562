"""Read the unfinished work of a killed job on an output (see `feedmill.jobs.work`), and finish its publication."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.staging import sync

FOLDER = ".feedmill-work"
JOB = "job.json"
VERSION = 1


def place_of(target: Store, name: str = "") -> Store:
    """Return the work folder of an output, which may be absent.

    Args:
        target: the store of the output.
        name: name of a single file in the store; empty if the output is the folder.
    """
    return target.below(f".{name}{FOLDER}" if name else FOLDER)


def scratch_of(target: Store, name: str = "") -> Store:
    """Return the folder for the files of units, which may be absent.

    It is `place_of` if the output is local. For an output in an object store it is a folder on this machine's disk, or
    on an engine what all its machines reach: `place_of`, or a folder in the one that ``--work`` names.
    """
    from feedmill.jobs.engine import shared_work

    place, shared = place_of(target, name), shared_work()
    if place.is_local or shared == "":
        return place
    return local_scratch_of(target, name) if shared is None else open_store(shared).below(_below(target, name))


def local_scratch_of(target: Store, name: str = "") -> LocalStore:
    """Return the folder in this machine's cache for unfinished work on an output in an object store."""
    from feedmill.storage.folders import cache_folder

    return LocalStore(cache_folder()).below(_below(target, name))


def _below(target: Store, name: str) -> str:
    return f"work-{xxhash.xxh3_64_hexdigest(target.locate(name).encode())}"


def unfinished(target: Store, name: str = "") -> dict[str, Any] | None:
    """Return the unfinished job on an output; None if there is none. Raises as `Work`."""
    return read_job(place_of(target, name))


def has_journal(target: Store, name: str = "") -> bool:
    """Return whether there may be an unfinished job on an output: less work than `unfinished` where there is none."""
    return target.exists(f".{name}{FOLDER}/{JOB}" if name else f"{FOLDER}/{JOB}")


def roll_forward(target: Store, place: Store, job: dict[str, Any]) -> dict[str, Any]:
    """Finish an interrupted `Work.publish` on a local disk; return the job as stored afterwards. Raises `DataError`."""
    assert isinstance(target, LocalStore) and isinstance(place, LocalStore)
    import msgspec

    try:
        moves = msgspec.convert(job.get("moves"), list[tuple[str, str]])
        deletes = msgspec.convert(job.get("deletes"), list[str])
    except msgspec.ValidationError as error:
        raise damaged(place, str(error)) from None
    for path in deletes:
        target.delete(path)
    for staged, path in moves:
        if place.exists(staged):  # otherwise it is already published
            target.rename(place, staged, path)
    folders = {os.path.dirname(target.locate(path)) for path in deletes}
    folders |= {os.path.dirname(place.locate(staged)) for staged, _ in moves}
    for folder in folders:  # the renames must be durable before the journal entry is removed
        with contextlib.suppress(OSError):
            sync(folder)
    job = {name: value for name, value in job.items() if name not in ("half", "moves", "deletes")} | {"published": True}
    place.write_bytes(JOB, orjson.dumps(job))
    return job


def interrupted(target: Store, job: Mapping[str, Any]) -> DataError:
    """Return the error, for readers and writers, for a folder that a running or interrupted job is changing."""
    half, identity = bool(job.get("half")), job.get("identity") or {}
    verb = identity.get("verb", "write") if isinstance(identity, dict) else "write"
    return DataError(
        f"a '{verb}' is {'publishing changed files' if half else 'writing this'}, or was interrupted",
        file=target.url,
        kind="unfinished-job",
        fix="Wait until it has ended. If it is not running, run the same command again to finish it.",
    )


def is_unfinished(target: Store, name: str, identity: Mapping[str, Any]) -> bool:
    """Return whether the job with this identity is unfinished on an output. Raises as `Work`."""
    job = unfinished(target, name)
    return job is not None and job["identity"] == identity


def unfinished_job(file: str) -> ConfigError:
    """Return the error for an output on which another job is unfinished."""
    return ConfigError(
        "another job that writes here was not finished (or its inputs changed since)",
        file=file,
        kind="unfinished-job",
        fix="Run that command again to finish it, or add --overwrite to start this one.",
    )


def damaged(place: Store, found: str) -> DataError:
    """Return the error for an invalid `job.json`."""
    return DataError(
        f"the journal of an interrupted run is corrupt ({found})",
        file=place.locate(JOB),
        kind="bad-job",
        fix=f"Run 'feedmill check' on the output; if it finds no problems, remove {place.url}.",
    )


def read_job(place: Store) -> dict[str, Any] | None:
    """Return the stored job; None if there is none. Raises `DataError` if it is corrupt."""
    try:
        job = orjson.loads(place.read(JOB))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        job = None
    if isinstance(job, dict) and job.get("version") == VERSION and "identity" in job:
        return job
    raise damaged(place, f"expected a JSON object of version {VERSION}")
