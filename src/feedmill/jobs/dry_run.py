"""Dry runs: what a verb would read and write, without writing.

A verb finds its inputs and checks its options; then it executes, or in a dry run adds its plan to the `DryRun`
(`perform`), so that both raise the same errors. Where only an opened output tells what is replaced or continued, the
verb opens it in a dry run too: in the block of `dry_run` the locks and journals of `feedmill.jobs.work` change nothing,
and no stage is sent to an engine.

It reads indices, the headers of archives, and the first documents of each file. Damage further inside is found by the
real run only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from feedmill.jobs.engine import without_engine
from feedmill.jobs.reports import VerbReport

if TYPE_CHECKING:  # see `feedmill.jobs.engine`
    from feedmill.storage import Store


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that the real run would write.

    Attributes:
        path: path or URL. A name with ``{part}`` stands for numbered files, whose count only the real run knows; one
            that ends in a slash for the files of an index in that folder.
        bytes: its size, exact or a little more; None if it is not known before.
        replaces: whether a file is there now.
    """

    path: str
    bytes: int | None = None
    replaces: bool = False


@dataclass(slots=True)
class DryRun:
    """What the real run would do.

    Attributes:
        files, bytes: number and size of the files that it would read.
        outputs: files that it would write.
        deletes: paths of files that it would delete.
        counts: what else is known of the result: name -> number or text.
        skipped: reason -> what would be left out.
        warnings: what the user should know.
    """

    files: int = 0
    bytes: int = 0
    outputs: list[PlannedFile] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    counts: dict[str, int | str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def reads(self, sizes: Iterable[int]) -> None:
        """Add files of these sizes to what is read."""
        for size in sizes:
            self.files += 1
            self.bytes += size

    def writes(self, store: Store, path: str, size: int | None = None) -> None:
        """Add a file, or with a slash at its end the files of an index in a folder, to what is written.

        Raises:
            StorageError: this user may not write to the local folder. Only a write shows that of an object store.
        """
        there = store.is_folder(path.rstrip("/")) if path.endswith("/") else "{part" not in path and store.exists(path)
        where = store.locate(path.rstrip("/")) + ("/" if path.endswith("/") else "")
        self._check(store, where)
        self.outputs.append(PlannedFile(where, size, there))

    def deletes_all(self, store: Store, paths: Iterable[str]) -> None:
        """Add the files among these that exist to what is deleted. Raises as `writes`."""
        there = [store.locate(path) for path in paths if store.exists(path)]
        for path in there:
            self._check(store, path)
        self.deletes += there

    def merge(self, other: DryRun, name: str) -> None:
        """Add what another verb would do; its counts and warnings get its name."""
        self.files += other.files
        self.bytes += other.bytes
        self.outputs += other.outputs
        self.deletes += other.deletes
        self.counts |= {f"{name}: {what}": count for what, count in other.counts.items()}
        self.skipped |= {f"{name}: {reason}": count for reason, count in other.skipped.items()}
        self.warnings += [f"{name}: {warning}" for warning in other.warnings]

    def _check(self, store: Store, path: str) -> None:
        if store.is_local:
            from feedmill.storage.staging import refuse_unwritable

            refuse_unwritable(os.path.dirname(path.rstrip("/")))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return asdict(self)


@dataclass(slots=True)
class JobReport(VerbReport):
    """The report of a verb that can run dry.

    Attributes:
        dry_run: what the real run would do, if nothing was written; else None.
    """

    dry_run: DryRun | None = field(default=None, kw_only=True)

    def planned(self) -> dict[str, Any] | None:
        """Return `dry_run` as plain data."""
        return None if self.dry_run is None else self.dry_run.as_dict()

    def written_files(self) -> list[str] | None:
        """Return the paths or URLs of all output files, which may be missing in a dry run; None if it cannot say."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data for ``--json``, `dry_run` last."""
        values = VerbReport.as_dict(self)
        del values["dry_run"]
        return {**values, "dry_run": self.planned()}


Report = TypeVar("Report")
_current: ContextVar[DryRun | None] = ContextVar("feedmill-dry-run", default=None)


def active() -> DryRun | None:
    """Return the dry run that this thread is in; None outside a dry run."""
    return _current.get()


@contextlib.contextmanager
def dry_run() -> Iterator[DryRun]:
    """Make the verbs called in a block write nothing; yield what describes them. Blocks may be nested."""
    dry = active()
    if dry is not None:
        yield dry
        return
    dry = DryRun()
    token = _current.set(dry)
    try:
        with without_engine():  # its machines would write
            yield dry
    finally:
        _current.reset(token)


def perform(plan: Callable[[DryRun], Report], execute: Callable[[], Report]) -> Report:
    """Do the work of a verb, or in a dry run plan it; return the result.

    Args:
        plan: adds to a dry run what `execute` would read and write. It raises the errors that `execute` would raise
            before the first output, as far as they are known without writing.
        execute: does the work, and never asks whether it may.
    """
    dry = active()
    return execute() if dry is None else plan(dry)


def run_dry(work: Callable[[], Report]) -> Report:
    """Return the report of a verb's work in a dry run, with what the real run would do."""
    with dry_run() as dry:
        report = work()
    _collect(report, dry)
    report.dry_run = dry  # type: ignore[attr-defined]
    return report


def _collect(report: Any, dry: DryRun) -> None:
    """Add the remarks of a report to its dry run, so that all verbs show them alike."""
    remarks: Sequence[str] = [*getattr(report, "warnings", ()), *getattr(report, "notes", ())]
    dry.warnings += [remark for remark in remarks if remark not in dry.warnings]
    left = getattr(report, "left_out", {})
    if isinstance(left, dict):
        dry.skipped.update({reason: count for reason, count in left.items() if count})
