"""The engine of job arrays: ``--engine part --part 3/64`` runs every 64th unit of each stage.

Parts run in any order, on any machine, at the same time or not, and a part may run twice. A part marks each stage whose
units it has finished. Once all parts have marked a stage, a part reads its results back and continues with the next;
otherwise it ends. Parts never publish: ``--finish`` runs what is left of all stages, alone, and publishes the output.

Results of verbs that only report: the parts of a job array leave theirs for the run that finishes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

from feedmill.errors import ConfigError, NotFound, whole
from feedmill.jobs.engine import PARTS, Engine, Stage, StageUnfinished, current
from feedmill.jobs.work import Work
from feedmill.storage import LocalStore, Store, open_store

logger = logging.getLogger("feedmill")

_SHOWN = 8
_INDICES = (  # variables with the number of this task, of the first task, and of all tasks
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("JOB_COMPLETION_INDEX", "", ""),
    ("PMI_RANK", "", "PMI_SIZE"),
    ("SLURM_PROCID", "", "SLURM_STEP_NUM_TASKS"),  # srun without PMI; a batch script has the first one only
)


class PartEngine(Engine):
    """Engine of one part of a job array.

    Args:
        part: number of the part, from 1; None for `finish`.
        parts: number of all parts; None if `finish` is to find it.
        finish: run what is left of all parts.
        work: see `Engine`.

    Raises:
        ConfigError: the numbers are invalid.
    """

    name = "part"

    def __init__(
        self, part: int | None = None, parts: int | None = None, *, finish: bool = False, work: str | None = None
    ) -> None:
        super().__init__(work)
        if not finish and (part is None or parts is None or not 1 <= part <= parts):
            raise ConfigError(
                f"part {part} of {parts} is invalid: parts are numbered from 1",
                kind="bad-option",
                fix="Use K/N with K from 1 to N, or /N for the number of this task of a job array.",
            )
        self.part, self.parts, self.finish = part, parts, finish

    @property
    def alone(self) -> bool:  # type: ignore[override]
        """Whether this process publishes the output: only with ``--finish``."""
        return self.finish

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        finish: bool = False,
        work: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """Return the engine for ``K/N``, ``/N`` (the number of this task of a job array), or ``""`` (both from it).

        Raises:
            ConfigError: the text is invalid, or a number is neither there nor in the environment.
        """
        found = re.fullmatch(r"(\d*)(?:/(\d+))?", text.strip())
        if found is None or (found[1] and not found[2]):
            raise ConfigError(f"--part {text!r} is not a part", kind="bad-option", fix="Use K/N, such as 3/64, or /N.")
        # The task that finishes may be of another array than the parts, and may have the variables of one of them.
        number, count = (None, None) if finish else _of_this_task(environment)
        part = whole(found[1], "the number of --part") if found[1] else number
        parts = whole(found[2], "the number of parts") if found[2] else count
        if not finish and (parts is None or part is None):
            missing = "number of parts" if parts is None else "number of this part"
            raise ConfigError(
                f"the {missing} is unknown: no variable of a job array has it",
                kind="bad-option",
                fix="Give --part K/N, such as --part 3/64.",
            )
        return cls(part, parts, finish=finish, work=work)

    def run(self, stage: Stage) -> Iterator[Any]:
        # Not a generator: a part must end here even if an earlier run has finished all units, and nothing is read.
        if not stage.where.lasting or stage.where.place is None:
            return stage.local(stage.items, progress=stage.steps.progress)
        marks = stage.where.place.below(PARTS)
        if self.finish:
            return self._finish(stage, marks)
        assert self.part is not None and self.parts is not None
        items = list(stage.items)
        numbers = range(len(items)) if stage.where.numbers is None else stage.where.numbers
        own = [number for number, n in enumerate(numbers) if n % self.parts == self.part - 1]
        stage.steps.only(own)
        mine = [numbers[number] for number in own]
        for result in stage.local([items[number] for number in own], numbers=mine, progress=stage.steps.progress):
            if stage.where.record is not None:
                stage.where.record(result)
        marks.write_bytes(f"{stage.key}-{self.part}-of-{self.parts}", b"")
        finished = _finished(marks, stage)
        count = sum(parts == self.parts for _, parts in finished.values())
        if stage.where.last or count < self.parts:
            raise StageUnfinished(stage.name, len(own), count, self.parts, stage.where.last)
        return stage.local(items)

    def _finish(self, stage: Stage, marks: Store) -> Iterator[Any]:
        finished = _finished(marks, stage)
        parts = self.parts or max((parts for _, parts in finished.values()), default=0)
        there = {part for part, of in finished.values() if of == parts}
        missing = parts - len(there)
        if missing or not finished:
            first = islice((part for part in range(1, parts + 1) if part not in there), _SHOWN)
            shown = ", ".join(map(str, first)) + (", ..." if missing > _SHOWN else "")
            which = f"{missing} of {parts} parts had not finished ({shown})" if missing else "no part had finished"
            logger.warning("%s: %s; what they left is done here", stage.name, which)
        results = stage.local(stage.items, progress=stage.steps.progress)
        return _then_forget(results, marks, finished)


class LookingEngine(PartEngine):
    """Engine that runs no unit: it reads back the stages that all parts have finished, and ends at the next one.

    Attributes:
        missing: numbers of the parts that have not finished the stage at which it ended.
    """

    def __init__(self, parts: int) -> None:
        super().__init__(1, parts)
        self.missing: list[int] = []

    def run(self, stage: Stage) -> Iterator[Any]:
        assert self.parts is not None
        if not stage.where.lasting or stage.where.place is None:
            return stage.local(stage.items, progress=stage.steps.progress)
        there = {part for part, of in _finished(stage.where.place.below(PARTS), stage).values() if of == self.parts}
        self.missing = [part for part in range(1, self.parts + 1) if part not in there]
        if self.missing or stage.where.last:
            raise StageUnfinished(stage.name, 0, len(there), self.parts, stage.where.last)
        return stage.local(stage.items)


def _then_forget(results: Iterator[Any], marks: Store, finished: Iterable[str]) -> Iterator[Any]:
    """Yield the results, then delete the marks."""
    yield from results
    for path in finished:
        marks.delete(path)
    if isinstance(marks, LocalStore):
        with contextlib.suppress(OSError):
            os.rmdir(marks.root)  # unless it has the marks of another stage


def _finished(marks: Store, stage: Stage) -> dict[str, tuple[int, int]]:
    """Return the marks of a stage: path -> part that has finished its units, number of parts."""
    name = re.compile(rf"{stage.key}-(\d+)-of-(\d+)")
    try:
        found = [name.fullmatch(entry.path) for entry in marks.files()]
    except NotFound:
        return {}
    return {mark[0]: (int(mark[1]), int(mark[2])) for mark in found if mark is not None}


def _of_this_task(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the number of this task of a job array, from 1, and the number of tasks; None for what is unknown."""
    for index, first, count in _INDICES:
        if index in environment and (not count or count in environment):
            try:
                number = int(environment[index]) - int(environment.get(first) or 0) + 1
                return number, int(environment[count]) if count else None
            except ValueError:
                continue
    return None, None


@contextlib.contextmanager
def kept_results(verb: str, key: str) -> Iterator[Work | None]:
    """Return the work of a report on the parts of a job array; None on other engines, where results come back.

    Args:
        verb: its name.
        key: identifies the report: its inputs and options.

    Raises:
        ConfigError: there is no folder for it.
        StorageError: another process is using it (kind ``busy``).
    """
    engine = current()
    if engine is None or engine.name != "part":
        yield None
        return
    folder = engine.work
    if not folder:
        raise ConfigError(
            f"{verb} has no output: its parts need a place for their results",
            kind="missing-option",
            fix="Add --work, with a folder or URL that all machines reach.",
        )
    with Work(open_store(folder), f"{verb}-{key}") as work:
        work.begin({"verb": verb, "key": key})
        yield work
        work.finish()
