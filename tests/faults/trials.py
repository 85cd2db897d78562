"""Faults at the calls of a verb, one after the other, and what has to hold after each.

After a fault what a reader sees is the state before the run or the finished one; an error ends the verb with one
message; and the same command then ends with the bytes of a run that nobody disturbed.

``python -m faults.trials CASE [FAULT [CALL]]`` with ``tests`` on ``PYTHONPATH`` runs some by hand.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from faults.cases import CASES, Case
from faults.runner import Failed, Result, Runner
from faults.tracer import KILLS, Call

_TIMES = re.compile(rb'\b[0-9a-f]{14,17}-[0-9a-f]+\b|"seconds": ?[\d.e-]+')
_RANDOM = re.compile(r"\.[0-9a-f]{12}\.")
_WRITES = ("write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range")


@dataclass
class Told:
    """What came of the trials of one case.

    Attributes:
        calls: those of an undisturbed run.
        trials: fault -> how many.
        ends: what came of them -> how many.
        problems: what did not hold, each with the fault and the call.
    """

    case: str
    calls: list[Call]
    trials: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        trials = ", ".join(f"{name} {count}" for name, count in self.trials.items())
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return f"{self.case}: {len(self.calls)} calls; trials: {trials}; {ends}; {len(self.problems)} problems"


@dataclass
class _Follow:
    """What came after a fault: what the outputs lacked then, what did not hold, what readers saw."""

    lacking: list[str]
    problems: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)


class Trials:
    """The trials of one case.

    Args:
        runner: who runs them.
        case: what is tried.
        root: an empty folder for them.
        how: ``trace`` or ``standin``, see `Runner.run`.
    """

    def __init__(self, runner: Runner, case: Case, root: Path, how: str = "trace") -> None:
        self.runner, self.case, self.how = runner, case, how
        self.start, self.place = root / "start", root / "trial"
        self._known: dict[str, _Follow] = {}
        self.start.mkdir()
        made = runner.call(case.make, self.start)
        assert not isinstance(made, Failed), made.text
        self._fresh()
        self.old = self._look()
        first = self._calm()  # which also finds out which modules are needed
        self.calls, self.wanted = self._calm()
        # Two undisturbed runs give the same files, or trials could prove nothing.
        assert first[1] == self.wanted, f"{case.name}: two runs differ in {_differ(first[1], self.wanted)}"
        self.new = self._look()
        assert not isinstance(self.new, Failed), self.new.text
        assert self.new != self.old, f"{case.name} changes nothing that is looked at"
        self.told = Told(case.name, self.calls)

    def _calm(self) -> tuple[list[Call], Any]:
        """The calls and the files of an undisturbed run."""
        self._fresh()
        calm = self.runner.run(self.case.words, self.place, how=self.how)
        assert calm.status == 0, f"{self.case.name}: {calm.out}{calm.err}"
        return calm.calls, self._files()

    @cached_property
    def again(self) -> tuple[Result, Any]:
        """What a second run ends with, and the files after it: few trials ask for it."""
        self._calm()
        return self.runner.run(self.case.words, self.place, how="plain"), self._files()

    def points(self, fault: str, most: int | None = None) -> list[int]:
        """The calls, from 1, at which a fault makes sense; with `most` a sample, for each fault other ones."""
        fit = [at for at, call in enumerate(self.calls, 1) if fault != "short" or call.name in _WRITES]
        if most is None or len(fit) <= most:
            return fit
        return sorted(random.Random(f"{self.case.name} {fault}").sample(fit, most))

    def find(self, words: str, turn: int = 0) -> int:
        """The number, from 1, of the call that this regular expression finds; `turn` chooses among several."""
        return [at for at, call in enumerate(self.calls, 1) if re.search(words, str(call))][turn]

    def run(self, fault: str, at: int) -> list[str]:
        """One trial; what did not hold."""
        self._fresh()
        result = self.runner.run(self.case.words, self.place, fault=fault, at=at, how=self.how)
        self.told.trials[fault] += 1
        if fault in ("torn", "power") and not result.lost:
            self.told.ends["nothing to lose"] += 1  # as if it were only killed
            return []
        fewer = len(self.calls) - len(result.calls)
        if result.struck is None and result.status == 0 and at > len(result.calls) and fewer <= self.case.fewer:
            self.told.ends["over before"] += 1
            return []
        problems = list(self._problems(fault, result))
        self.told.problems += [f"{fault} at {at} ({result.struck}): {problem}" for problem in problems]
        return problems

    def _problems(self, fault: str, result: Result) -> Iterator[str]:
        if result.struck is None:
            yield f"it was not reached: {len(result.calls)} calls"
        yield from self._ended(fault, result)
        how = "booted" if fault in ("torn", "power") else "plain"
        state = self._state() + how
        if state not in self._known:  # what is there decides what is read and what the next run does
            self._known[state] = self._follow(how)
        follow = self._known[state]
        self.told.ends.update(follow.ends)
        if result.status == 0 and follow.lacking:
            yield f"it ended as if all were done: {follow.lacking}"
        yield from follow.problems

    def _follow(self, how: str) -> _Follow:
        """Read what is there, and run the command again."""
        lacking = _differ(self._files(), self.wanted, more=True)
        follow = _Follow(lacking)
        follow.problems += self._seen(self._look(), follow.ends)
        follow.problems += self._run_again(how, lacking == [], follow.ends)
        return follow

    def _state(self) -> str:
        """A word for all that is in the folder; random parts of names are no matter."""
        found = hashlib.md5()
        for path in sorted(self.place.rglob("*")):
            name = _RANDOM.sub(".RANDOM.", str(path.relative_to(self.place)))
            found.update(f"{name}\0{path.stat().st_size if path.is_file() else -1}\0".encode())
            found.update(path.read_bytes() if path.is_file() else b"")
        return found.hexdigest()

    def _ended(self, fault: str, result: Result) -> Iterator[str]:
        shown = f"exit status {result.status}: {result.out[-300:]}{result.err[-600:]}"
        if result.hung:
            yield "it hung"
        elif fault in KILLS:
            if result.status != -9:
                yield f"it was not killed: {shown}"
        elif result.status == 0:
            self.told.ends["went on"] += 1
        elif "Traceback" in result.err + result.out or "defect" in result.err:
            yield f"a traceback: {shown}"
        elif result.status != 1 or not (result.err.splitlines() or [""])[-1].startswith("error: "):
            yield f"no message: {shown}"
        else:
            self.told.ends["error"] += 1

    def _seen(self, seen: Any, ends: Counter[str]) -> Iterator[str]:
        if isinstance(seen, Failed):
            if seen.kind is None:
                yield f"reading it fails: {seen.text[-700:]}"
            elif not isinstance(self.old, Failed):
                yield f"what was there cannot be read: [{seen.kind}] {seen.text}"
            else:
                ends["unreadable as before"] += 1
        elif seen == self.new:
            ends["new"] += 1
        elif seen == self.old:
            ends["old"] += 1
        elif self.case.each and not isinstance(self.old, Failed):
            odd = [n for n, value in seen.items() if value not in (self.old.get(n, value), self.new.get(n, value))]
            odd += [n for n in seen if n not in self.old and n not in self.new]
            odd += [n for n in self.old if n in self.new and n not in seen]
            ends["each old or new"] += 1
            if odd:
                yield f"neither the old nor the new state: {odd}"
        else:
            yield f"neither the old nor the new state: {str(seen)[:300]}"

    def _run_again(self, how: str, complete: bool, ends: Counter[str]) -> Iterator[str]:
        again = self.runner.run(self.case.words, self.place, how=how)
        found = self._files()
        if again.status == 0 and found != self.wanted and not (complete and found == self.again[1]):
            yield f"run again, it gives other files: {_differ(found, self.wanted)}"
        elif again.status != 0:
            if not complete or (again.status, again.err) != (self.again[0].status, self.again[0].err):
                yield f"run again, it fails with {again.status}: {again.out[-100:]}{again.err[-600:]}"
            elif found != self.wanted:
                yield f"refused as done already, but there are other files: {_differ(found, self.wanted)}"
            ends["refused as done already"] += 1

    def _fresh(self) -> None:
        """Begin again in the same place."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.start, self.place, symlinks=True)

    def _look(self) -> Any:
        return self.runner.call(self.case.look, self.place)

    def _files(self) -> dict[str, bytes]:
        """All files and folders, without what is documented to differ from run to run."""
        found = {}
        for path in sorted(self.place.rglob("*")):
            name = str(path.relative_to(self.place))
            if path.is_dir():
                found[name + "/"] = b""
            else:
                found[name] = self.case.plain(path) if self.case.plain else path.read_bytes()
                if name.endswith(".json") or "/.feedmill" in f"/{name}":
                    found[name] = _TIMES.sub(b"", found[name])
                if self.case.differing:
                    found[name] = re.sub(self.case.differing, b"", found[name])
        return found


def _differ(found: dict[str, bytes], wanted: dict[str, bytes], *, more: bool = False) -> list[str]:
    """Names of files that are missing or other; and, unless `more` are no matter, of those that are too many."""
    names = [
        f"{name} is {'other' if name in found else 'missing'}" for name in wanted if found.get(name) != wanted[name]
    ]
    return names if more else names + [f"{name} is left" for name in found if name not in wanted]


def main(name: str, fault: str = "", at: str = "") -> None:
    """Run trials of one case by hand, and print what did not hold."""
    from faults.tracer import FAULTS

    with tempfile.TemporaryDirectory() as root, Runner(Path(root)) as runner:
        (Path(root) / "trials").mkdir()
        trials = Trials(runner, CASES[name], Path(root) / "trials")
        for number, call in enumerate(trials.calls, 1):
            if fault == "calls":
                print(number, call)
        for one in [] if fault == "calls" else [fault] if fault else FAULTS:
            for number in [int(at)] if at else trials.points(one):
                for problem in trials.run(one, number):
                    print(f"{one} {number} {trials.calls[number - 1]}: {problem}")
        print(trials.told)


if __name__ == "__main__":
    main(*sys.argv[1:])
