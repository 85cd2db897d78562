"""What a verb that writes token files has done so far, so that a killed run can be finished by the same command.

A small JSON file beside the first target, ``.<name>.feedmill-job``: what the job is (a hash of its inputs and options),
its seed, and the files that are whole. It is there from before the first file appears until after the last one and its
manifest have.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import orjson

from feedmill.errors import ConfigError
from feedmill.formats.changing import changing
from feedmill.formats.offsets import hash_words
from feedmill.storage import LocalStore, Store, open_store, split_url
from feedmill.storage.local import storage_error
from feedmill.storage.staging import make_folder

VERSION = 1


class Done(msgspec.Struct, frozen=True):
    """A file that is whole: its path as given, its documents and tokens."""

    path: str
    documents: int
    tokens: int


class _State(msgspec.Struct):
    job: str
    seed: int
    done: list[Done] = []
    version: int = VERSION


class Job:
    """The journal of one run; made by `begin`.

    Attributes:
        seed: the one given, or one drawn at the first start.
        drawn: whether it was drawn.
        done: the files that are whole, by path.
        resumed: whether an earlier run left this journal.
    """

    def __init__(self, store: Store, name: str, state: _State, *, drawn: bool, resumed: bool) -> None:
        self._store, self._name, self._state = store, name, state
        self.drawn, self.resumed = drawn, resumed
        self._kept = resumed

    @property
    def seed(self) -> int:
        return self._state.seed

    @property
    def done(self) -> dict[str, Done]:
        return {done.path: done for done in self._state.done}

    def save(self) -> None:
        """Write the journal: from now on files of this job may be there."""
        self._store.write_bytes(self._name, msgspec.json.encode(self._state))
        self._kept = True

    def add(self, done: Done) -> None:
        """One more file is whole."""
        self._state.done.append(done)
        if self._kept:
            self.save()

    def finish(self) -> None:
        """All files are whole: remove the journal."""
        if self._kept:
            self._store.delete(self._name)


@contextlib.contextmanager
def alone(target: str) -> Iterator[None]:
    """A block in which one process writes a target. Raises `StorageError` (kind ``busy``) where another one does."""
    folder, name = split_url(target)
    store = open_store(folder)
    new = store.root if isinstance(store, LocalStore) and not os.path.isdir(store.root) else None
    try:
        if new is not None:
            make_folder(new)
    except OSError as error:
        raise storage_error(error, target) from None
    try:
        with changing(store, name):
            yield
    finally:
        if new is not None:
            with contextlib.suppress(OSError):
                os.rmdir(new)  # where nothing was written


def begin(target: str, words: dict[str, Any], *, seed: int | None, overwrite: bool) -> Job:
    """Continue with the job that was killed here, or begin a new one; nothing is written yet.

    Args:
        target: path or URL of the (first) target, or its pattern.
        words: what decides the bytes, but for a seed that is not given.
        seed: None draws one, once for all runs of this job.
        overwrite: begin a new job in spite of another that was not finished.

    Raises:
        ConfigError: another job that writes here was not finished, or a number has more than 64 bits.
    """
    folder, name = split_url(target)
    store = open_store(folder)
    journal = f".{name}.feedmill-job"
    try:
        text = orjson.dumps({**words, "seed": seed}, default=str, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"an option is of no use ({error})", kind="bad-number", fix="Give smaller numbers.") from None
    job = hash_words([text])
    state = _read(store, journal)
    if state is not None and state.job == job:
        return Job(store, journal, state, drawn=seed is None, resumed=True)
    if state is not None and not overwrite:
        raise ConfigError(
            "another job that writes here was not finished (or its inputs changed since)",
            file=target,
            kind="unfinished-job",
            fix="Run that command again to finish it, or add --overwrite to begin this one.",
        )
    new = _State(job, secrets.randbits(31) if seed is None else seed)
    return Job(store, journal, new, drawn=seed is None, resumed=False)


def refuse_existing(targets: Sequence[tuple[Store, str]], overwrite: bool) -> None:
    """Raises `ConfigError` where one of the targets is there already."""
    for store, path in targets:
        if not overwrite and store.exists(path):
            raise ConfigError(
                "it exists already",
                file=store.locate(path),
                kind="exists",
                fix="Name another file, or add --overwrite (Modalities: --file_existence_policy override).",
            )


def _read(store: Store, name: str) -> _State | None:
    if not store.exists(name):
        return None
    try:
        found = msgspec.json.decode(store.read(name), type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.version == VERSION else None
