"""The manifest of a pipeline: what the last run of each step read and wrote.

It lies beside the pipeline, as ``web.run.json`` for ``web.yaml``, and is replaced after each step. With it, every file
can be followed from the raw inputs to the last output: the hash of what a step wrote is that of what the next one read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from feedmill.errors import DataError, NotFound
from feedmill.jobs.engine import is_alone
from feedmill.pipelines.files import FileFacts, files_of
from feedmill.pipelines.pipeline import Pipeline, Step
from feedmill.storage import Store, open_store, split_url
from feedmill.structs import decode_as

VERSION = 1


class StepRecord(msgspec.Struct):
    """The last run of a step.

    Attributes:
        feedmill: version that ran it.
        seconds: wall time.
        report: the report of the verb, as with ``--json``.
        others: those of the outputs that the step has not written: other steps, verbs or users did.
    """

    name: str
    verb: str
    options: dict[str, Any]
    feedmill: str
    inputs: dict[str, FileFacts]
    outputs: dict[str, FileFacts]
    seconds: float
    report: Any
    others: list[str]


class Manifest(msgspec.Struct):
    """The manifest as it is stored. `began` and `published` are those of `History`."""

    version: int
    pipeline: str
    steps: list[StepRecord]
    began: dict[str, list[str]] = {}
    published: dict[str, list[str]] = {}


class History:
    """The records of a pipeline's steps, by name.

    Attributes:
        records: the last run of each step that has ended.
        began: outputs of others that were there when a step began that has not ended. All others are its own.
        published: outputs of steps whose last run ended with an error.

    Raises:
        DataError: the manifest is corrupt.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._store, self._name = manifest_of(pipeline.url)
        self.records: dict[str, StepRecord] = {}
        self.began: dict[str, list[str]] = {}
        self.published: dict[str, list[str]] = {}
        try:
            file = read_manifest(self.url)
        except NotFound:
            return
        self.records = {record.name: record for record in file.steps}
        self.began, self.published = file.began, file.published

    @property
    def url(self) -> str:
        """Path or URL of the manifest."""
        return self._store.locate(self._name)

    def record(self, step: Step, record: StepRecord) -> None:
        """Store the record of a step that has run. Records of steps that the pipeline no longer has are dropped."""
        self.records[step.name] = record
        self.began.pop(step.name, None)
        self.published.pop(step.name, None)
        self._store_all()

    def others(self, step: Step, there: Iterable[str]) -> list[str]:
        """Return the outputs that neither the last run of a step wrote nor runs before their error or kill."""
        if step.name in self.began:
            return [path for path in there if path in self.began[step.name]]
        mine = {*self._written(step.name)}
        return [path for path in there if path not in mine]

    def writers(self, step: Step) -> dict[str, str]:
        """Return the files that other steps have written, each with the name of its step."""
        names = [name for name in {**self.records, **self.published} if name != step.name]
        return {path: name for name in names for path in self._written(name)}

    def of_steps(self, step: Step) -> set[str]:
        """Return the files at the outputs of a step's last run that only other steps have written."""
        record = self.records.get(step.name)
        return set() if record is None else {*record.others} & {*self.writers(step)}

    def _written(self, name: str) -> list[str]:
        record = self.records.get(name)
        ended = [] if record is None else list(record.outputs.keys() - set(record.others))
        return [*ended, *self.published.get(name, ())]

    @contextlib.contextmanager
    def beginning(self, step: Step, others: list[str]) -> Iterator[None]:
        """Note for the block, in which a step runs, that it began. The note stays if the process is killed.

        Parts of a job array leave the note to the run that ends the step: they may have published outputs.
        """
        self.begin(step, others)
        try:
            yield
        except Exception:
            if is_alone():
                self.abandon(step)
            raise

    def begin(self, step: Step, others: list[str]) -> None:
        """Note that a step begins; see `beginning`."""
        if is_alone() or step.name not in self.began:
            self.began[step.name] = others
            self._store_all()

    def drop(self, step: Step) -> None:
        """Drop the note that a step began: it is up to date without having run."""
        if self.began.pop(step.name, None) is not None:
            self._store_all()

    def abandon(self, step: Step) -> None:
        """Note that a step has ended without its result: what it has published is its own."""
        others = self.began.pop(step.name)
        self.published[step.name] = [path for path in files_of(step.outputs) if path not in others]
        self._store_all()

    def _store_all(self) -> None:
        names = [other.name for other in self._pipeline.steps]
        steps = [self.records[name] for name in names if name in self.records]
        began, published = (
            {name: paths for name, paths in noted.items() if name in names} for noted in (self.began, self.published)
        )
        data = msgspec.json.encode(Manifest(VERSION, self._pipeline.url, steps, began, published), enc_hook=str)
        self._store.write_bytes(self._name, msgspec.json.format(data, indent=1))


def read_manifest(url: str) -> Manifest:
    """Return a manifest, given by its own path or URL.

    Raises:
        NotFound: there is no such file.
        DataError: it is corrupt, or of another version.
    """
    folder, name = split_url(url)
    try:
        file = decode_as(open_store(folder).read(name), Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _corrupt(url, str(error)) from None
    if file.version != VERSION:
        raise _corrupt(url, f"version {file.version}, expected {VERSION}")
    return file


def _corrupt(url: str, found: str) -> DataError:
    return DataError(
        f"the manifest of the pipeline is corrupt ({found})",
        file=url,
        kind="bad-index",
        fix="Delete it: all steps run again then, and reuse the outputs that are complete.",
    )


def manifest_of(url: str) -> tuple[Store, str]:
    """Return the store and the name of the manifest of a pipeline."""
    folder, name = split_url(url)
    return open_store(folder), f"{name.rpartition('.')[0] or name}.run.json"
