"""The job of a verb that writes token files: its seed and the files that are whole, so that a killed run is finished by
the same command."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from feedmill.errors import ConfigError
from feedmill.formats.offsets import hash_words
from feedmill.jobs.work import Work
from feedmill.storage import Store, open_store, split_url


class Done(msgspec.Struct, frozen=True):
    """A file that is whole: its path as given, its documents and tokens."""

    path: str
    documents: int
    tokens: int


class Job:
    """One run; made by `job_on`.

    Attributes:
        seed: the one given, or one drawn at the first start.
        drawn: whether it was drawn.
        resumed: whether an earlier run left this job.
    """

    def __init__(self, work: Work, identity: Mapping[str, Any], seed: int | None) -> None:
        self._work, self._identity = work, identity
        self.drawn, self.resumed = seed is None, work.is_of(identity)
        self.seed = secrets.randbits(31) if seed is None else seed
        if self.resumed:
            work.begin(identity)
            self.seed = work.noted.get("seed", self.seed)

    @property
    def done(self) -> dict[str, Done]:
        """The files that are whole, by path."""
        found = {}
        for path, facts in self._work.units.read().items():
            with contextlib.suppress(msgspec.MsgspecError):
                found[path] = msgspec.json.decode(facts, type=Done)
        return found

    def begin(self) -> None:
        """From now on files of this job may be there."""
        self._work.begin(self._identity, seed=self.seed)

    def add(self, done: Done) -> None:
        """One more file is whole."""
        self._work.units.add(done.path, msgspec.json.encode(done))

    def finish(self) -> None:
        """All files are whole."""
        self._work.finish()


@contextlib.contextmanager
def job_on(target: str, words: dict[str, Any], *, seed: int | None, overwrite: bool) -> Iterator[Job]:
    """A block in which one process writes a target; the job that was killed here, or a new one. Nothing is written yet.

    Args:
        target: path or URL of the (first) target, or its pattern.
        words: what decides the bytes, but for a seed that is not given.
        seed: None draws one, once for all runs of this job.
        overwrite: begin a new job in spite of another that was not finished.

    Raises:
        ConfigError: another job that writes here was not finished, or a number has more than 64 bits.
        StorageError: another process writes there (kind ``busy``).
    """
    try:
        text = orjson.dumps({**words, "seed": seed}, default=str, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"an option is not valid ({error})", kind="bad-number", fix="Give smaller numbers.") from None
    folder, name = split_url(target)
    identity = {"verb": "rewrite", "job": hash_words([text])}
    with Work(open_store(folder), name) as work:
        work.refuse_other(identity, overwrite=overwrite)
        yield Job(work, identity, seed)


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
