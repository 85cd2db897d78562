"""Handle samples that cannot be used: replace them, count them against a budget, and record them in a quarantine file.

Every position of the plan yields a sample. If its own sample cannot be read, decoded or transformed, another sample of
the same source replaces it: the first usable one of a sequence that depends only on seed, position and plan. So every
layout and every resume sees the same substitute, all ranks keep their number of batches, and no later sample moves.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.sample import Sample, Source
from feedmill.jobs.policy import check_budget, over_budget
from feedmill.loading.metrics import Metrics
from feedmill.planning.dealing.grid import borders_of
from feedmill.planning.nodes.base import LONGEST
from feedmill.samples.rows import SampleRow

if TYPE_CHECKING:
    from pathlib import Path

    from feedmill.loading.plan import PlanLike
    from feedmill.planning.packing.packed import PackedPlan

TRIES = 1000
_DRAWS, _ROUNDS = 64, 12
_WINDOW = 1 << 24


MISTAKES = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
)
"""Errors of the program, not of a sample."""


class SkipSample(Exception):
    """Raised by a transform to skip a sample. A substitute replaces it; this is counted, but is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One sample that could not be used.

    Attributes:
        position: position of the sample in the plan; `step`: number of this rank's batch since the start; `rank`.
        stage: ``read``, ``transform`` or ``collate`` (which decodes the parts that the transform did not use).
        source, index, epoch: the sample; the source by name if the plan has names.
        file, offset, key: the location of the sample, as far as known.
        data: number of samples and digest of the source's data, in which `index` counts; None if unknown.
        kind, error: the class of the exception (or the kind of a `FeedmillError`), and its message.
        substitute: the position whose sample replaces it; None if it was not replaced.
        exception: the exception that was raised; `sample`: the sample that was read. Both are for handlers, and None if
            a worker process cannot send them.
    """

    position: int
    step: int
    rank: int
    stage: str
    source: int | str
    index: int
    epoch: int
    file: str | None
    offset: int | None
    key: str | None
    kind: str
    error: str
    substitute: int | None = None
    data: Sequence[Any] | None = None
    exception: Exception | None = field(default=None, repr=False, compare=False)
    sample: Any = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as written to the quarantine file."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in _FOR_HANDLERS}

    def __reduce__(self) -> tuple[Any, ...]:
        live = {name: getattr(self, name) for name in _FOR_HANDLERS}
        return _rebuilt, (self.as_dict(), {name: _pickled(value) for name, value in live.items()})


_FOR_HANDLERS = ("exception", "sample")


def _pickled(value: Any) -> bytes | None:
    """Return the pickle of what user code has made; None if it has none that can be read again."""
    import pickle

    try:
        text = pickle.dumps(value)
        pickle.loads(text)  # noqa: S301 - made in the line above  # nosec B301
    except Exception:
        return None
    return text


def _rebuilt(fields: dict[str, Any], live: dict[str, bytes | None]) -> Failure:
    import pickle

    loaded = {name: pickle.loads(text) for name, text in live.items() if text}  # noqa: S301 - of a worker process  # nosec B301
    return Failure(**fields, **loaded)


Handler = Callable[[Failure], str | None]


@dataclass(frozen=True, slots=True)
class Substitute:
    """The error policy of a loader that replaces samples that cannot be used.

    Args:
        quarantine: JSONL file to which every failure is appended; ``{rank}`` in its name is replaced by the rank. The
            file can be used as the skip list of a recipe (docs/ledger.md).
        budget: maximum failures of this rank: a whole number, or a share below 1 of its samples (of a thousand at
            least). None: no limit.
        handler: called with each `Failure`; ``"raise"`` stops the run, None or ``"substitute"`` continues.
        in_a_row: stop after this number of consecutive failures of this rank, which suggest a broken program or file.
            None: no limit.

    Raises:
        ConfigError: `budget` or `in_a_row` is out of range, or the quarantine is in an object store, whose files cannot
            be appended to.
    """

    quarantine: str | os.PathLike[str] | None = None
    budget: float | None = None
    handler: Handler | None = None
    in_a_row: int | None = None

    def __post_init__(self) -> None:
        check_budget(self.budget, "budget")
        if self.in_a_row is not None and self.in_a_row < 1:
            raise ConfigError(f"in_a_row={self.in_a_row} is invalid", fix="Give at least 1, or None.")
        if self.quarantine is not None and "://" in os.fspath(self.quarantine):
            raise ConfigError(
                "a quarantine file cannot be in an object store: it must be appended to",
                file=os.fspath(self.quarantine),
                fix="Use a local path.",
            )


def policy_for(on_error: str | Substitute) -> Substitute | None:
    """Return the policy that a loader's `on_error` names; None if failures are raised. Raises `ConfigError`."""
    if isinstance(on_error, Substitute):
        return on_error
    if on_error not in ("raise", "substitute"):
        raise ConfigError(
            f"on_error={on_error!r} is unknown", fix="Use 'raise', 'substitute' or a feedmill.loading.Substitute."
        )
    return Substitute() if on_error == "substitute" else None


class Tally:
    """Counts the failures of one loader in the order of its batches, and applies its policy.

    Raises:
        ConfigError: the quarantine file cannot be written.
    """

    def __init__(self, policy: Substitute | None, metrics: Metrics) -> None:
        self.policy, self.metrics = policy, metrics
        self._row = 0
        self._quarantine: Path | None = None
        if policy is not None and policy.quarantine is not None:
            from pathlib import Path

            self._quarantine = Path(os.fspath(policy.quarantine).replace("{rank}", str(metrics.rank)))
            _check_writable(self._quarantine)

    def note_all(self, positions: Sequence[int], troubles: Sequence[tuple[Failure, FeedmillError]]) -> None:
        """Record the failures of a batch of these positions. Raises as `note` does."""
        failed = {failure.position: (failure, error) for failure, error in troubles}
        if not failed:
            self._row = 0
            return
        for position in positions:
            if position in failed:
                self._row += 1
                self.note(*failed[position])
            else:
                self._row = 0

    def note(self, failure: Failure, error: FeedmillError) -> None:
        """Record a failure. Raises `error` with the reason if the budget is exceeded or the handler returns "raise"."""
        policy = self.policy or Substitute()
        self.metrics.failures += 1
        if self._quarantine is not None:
            try:
                _append(self._quarantine, failure)
            except OSError as problem:
                error.what = f"{error.what}; this failure cannot be written to {self._quarantine}: {problem.strerror}"
                error.fix = "Give a quarantine file that can be written, on a disk with free space."
                raise error from problem
        over = over_budget(policy.budget, self.metrics.failures, self.metrics.samples)
        if policy.in_a_row is not None and self._row >= policy.in_a_row:
            over = f"{self._row:,} samples in a row have failed"
        if over:
            error.what = f"{error.what}; after this failure: {over}"
            error.fix = "Fix the data or the program, or raise the failure budget."
            raise error
        if policy.handler is not None and policy.handler(failure) == "raise":
            raise error


def _check_writable(path: Path) -> None:
    """Raise ConfigError if a file cannot be appended to. Nothing is created: other ranks may share the file."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if nearest == path:
        reason = "it is a folder" if path.is_dir() else "" if os.access(path, os.W_OK) else "it is read-only"
    elif not nearest.is_dir():
        reason = f"{nearest} is not a folder"
    else:
        reason = "" if os.access(nearest, os.W_OK | os.X_OK) else f"the folder {nearest} is read-only"
    if reason:
        raise ConfigError(
            f"the quarantine file cannot be written: {reason}",
            file=str(path),
            kind="bad-option",
            fix="Give the path of a file that can be written.",
        )


def _append(path: Path, failure: Failure) -> None:
    """Append one line with one write, so that ranks can share a file."""
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        truncated = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"  # by a kill or a full disk
        # Names that are not Unicode have lone surrogates, which are valid JSON as escapes.
        line = json.dumps(failure.as_dict(), ensure_ascii=False, separators=(",", ":")) + "\n"
        file.write(b"\n" * truncated + line.encode("utf-8", "backslashreplace"))


def candidates(plan: PlanLike, position: int, seed: int) -> Iterator[int]:
    """Yield positions whose samples can replace that of `position`: other samples of the same source, in random order.

    A packed row is replaced by one of the same width. The result depends only on the arguments. Positions are drawn
    from the whole plan, and then from around `position`, because a source may occur only in a late stage. The iterator
    ends after about 260,000 draws of each kind.
    """
    planned = plan.locate(np.array([position], np.int64))
    source, index = int(planned.source[0]), int(planned.index[0])
    width = plan.widths(np.array([position], np.int64))[0] if borders_of(plan) else None  # type: ignore[attr-defined]
    rng = np.random.Generator(np.random.Philox(key=((seed % (1 << 64)) << 64) | position, counter=1 << 255))
    end = LONGEST if plan.length is None else plan.length
    spans = [(0, _WINDOW if plan.length is None else end, _DRAWS << number) for number in range(_ROUNDS)]
    around = [_DRAWS << 2 * number for number in range(_ROUNDS)]
    spans += [(max(0, position - n), min(position + n, end), _DRAWS << number) for number, n in enumerate(around)]
    for low, high, draws in spans:
        drawn = rng.integers(low, high, draws, dtype=np.int64)
        located = plan.locate(drawn)
        usable = (np.asarray(located.source) == source) & (np.asarray(located.index) != index)
        if width is not None:
            usable &= plan.widths(drawn) == width  # type: ignore[attr-defined]
        yield from drawn[usable].tolist()


class Unusable(Exception):
    """The error of a single sample that failed in a stage."""

    def __init__(self, stage: str, sample: Any, error: Exception) -> None:
        super().__init__(stage)
        self.stage, self.sample, self.error = stage, sample, error
        self.place: int | None = None
        """Which sample of a row failed, if `sample` is a row."""

    @property
    def failed(self) -> Any:
        """Return the sample that failed, also of a row; None if it is unknown which one, or it was not read."""
        if not isinstance(self.sample, SampleRow):
            return self.sample
        return None if self.place is None else self.sample[self.place]

    def as_error(self, where: str) -> FeedmillError:
        """Return the error to raise, with the location `where` of the sample."""
        located = as_error(self.error, self.stage, where, f"the sample at {where}", self.failed)
        located.__cause__ = self.error
        return located


_LINES = 4
_STAGE_VERBS = {"read": "reading", "transform": "transforming", "collate": "collating"}
_FIX = {
    "transform": "Fix the transform, or let it accept such samples.",
    "collate": "Let the transform return samples whose fields can be collated, or change collate.",
}


def as_error(error: Exception, stage: str, where: str, subject: str, sample: Any = None) -> FeedmillError:
    """Return an error of user code or of reading as a `FeedmillError` with the location of the sample.

    Args:
        error: the error; a `FeedmillError` keeps its class and its fix.
        stage: the stage that failed, as in `Failure`.
        where: location of the sample or samples.
        subject: the sample or samples, as the object of the sentence.
        sample: the sample, if it was read.
    """
    from feedmill.samples.preview import token_text

    if isinstance(error, FeedmillError):
        located = copy.copy(error)
        located.what = f"{error.what} (at {where})"
        located.args = (located.what,)
        return located
    source = source_of(sample)
    failure = DataError(
        f"{_STAGE_VERBS[stage]} {subject} failed with {type(error).__name__}: {error}",
        file=source.where if source else None,
        offset=source.offset if source else None,
        record=source.key if source else None,
        kind="function-failed",
        fix=_FIX.get(stage),
    )
    home = sample.home if isinstance(sample, Sample) else None
    text = "" if home is None else token_text(home, sample, lines=_LINES)
    if text:
        failure.add_note(f"The tokens as text:\n{text}")
    return failure


def note_row(error: FeedmillError, plan: PlanLike, position: int) -> None:
    """Add the text of a packed row to an error, as `as_error` does for samples, which know their dataset."""
    from feedmill.samples.preview import token_text

    if not hasattr(plan, "locate_spans"):
        return
    packed = cast("PackedPlan", plan)
    rows_at = packed.locate_spans([position])
    spans, located = rows_at.spans, rows_at.located
    rows: list[str] = []
    at = 0
    for number in range(min(len(spans.length), _LINES)):
        start, length = int(spans.start[number]), int(spans.length[number])
        dataset, index = packed.sources[int(located.source[number])], int(located.index[number])
        try:
            text = token_text(dataset, dataset.read([index])[0], (start, start + length), lines=_LINES)
        except FeedmillError as failed:  # the error to report is the other one
            text = f"(not decoded: {failed})"
        if not text:
            return
        rows += [f"--- document at token {at:,} ---"] if at else []
        rows += text.splitlines()
        at += length
    if rows:
        from feedmill.samples.text import MAX_WIDTH, cut

        error.add_note(f"The tokens as text:\n{cut(chr(10).join(rows), _LINES, MAX_WIDTH)}")


def source_of(sample: Any) -> Source | None:
    """Return the source of a sample, if it has one."""
    source = getattr(sample, "source", None)
    return source if isinstance(source, Source) else None


def raised(error: Exception) -> Exception:
    """Return the exception that a function of the user raised, also if an error that names the sample wraps it."""
    cause = error.__cause__
    wrapped = isinstance(error, FeedmillError) and error.kind == "function-failed" and isinstance(cause, Exception)
    return cause if wrapped else error  # type: ignore[return-value]
