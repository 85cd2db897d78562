"""The manifest of a pipeline: what the last run of each step read and wrote.

It lies beside the pipeline, as ``web.run.json`` for ``web.yaml``, and is replaced after each step. With it, every file
can be followed from the raw inputs to the last output: the hash of what a step wrote is that of what the next one read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from feedmill.errors import DataError, NotFound
from feedmill.pipelines.files import FileFacts
from feedmill.pipelines.pipeline import Pipeline, Step
from feedmill.storage import Store, open_store, split_url

VERSION = 1


class StepRecord(msgspec.Struct):
    """The last run of a step.

    Attributes:
        feedmill: version that ran it.
        seconds: wall time.
        report: the report of the verb, as with ``--json``.
    """

    name: str
    verb: str
    options: dict[str, Any]
    feedmill: str
    inputs: dict[str, FileFacts]
    outputs: dict[str, FileFacts]
    seconds: float = 0.0
    report: Any = None


class _File(msgspec.Struct):
    version: int
    pipeline: str
    steps: list[StepRecord]


class History:
    """The records of a pipeline's steps, by name.

    Raises:
        DataError: the manifest is corrupt.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._store, self._name = manifest_of(pipeline.url)
        self.records: dict[str, StepRecord] = {}
        try:
            file = msgspec.json.decode(self._store.read(self._name), type=_File)
        except NotFound:
            return
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._corrupt(str(error)) from None
        if file.version != VERSION:
            raise self._corrupt(f"version {file.version}, expected {VERSION}")
        self.records = {record.name: record for record in file.steps}

    @property
    def url(self) -> str:
        """Path or URL of the manifest."""
        return self._store.locate(self._name)

    def record(self, step: Step, record: StepRecord) -> None:
        """Store the record of a step that has run. Records of steps that the pipeline no longer has are dropped."""
        self.records[step.name] = record
        names = [other.name for other in self._pipeline.steps]
        steps = [self.records[name] for name in names if name in self.records]
        data = msgspec.json.encode(_File(VERSION, self._pipeline.url, steps), enc_hook=str)
        self._store.write_bytes(self._name, msgspec.json.format(data, indent=1))

    def _corrupt(self, found: str) -> DataError:
        return DataError(
            f"the manifest of the pipeline is corrupt ({found})",
            file=self.url,
            kind="bad-manifest",
            fix="Delete it: all steps run again then, and reuse the outputs that are complete.",
        )


def manifest_of(url: str) -> tuple[Store, str]:
    """Return the store and the name of the manifest of a pipeline."""
    folder, name = split_url(url)
    return open_store(folder), f"{name.rpartition('.')[0] or name}.run.json"
