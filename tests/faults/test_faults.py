"""Faults at every call by which writing verbs change files: killed, an error of the disk, a full disk.

The default run has a sample of each verb's calls, by system calls where processes can be traced and by Python's own
elsewhere; the ``slow`` tests have all of them. ``python -m faults.trials CASE FAULT CALL`` repeats one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.cases import CASES
from faults.runner import Runner
from faults.tracer import FAULTS
from faults.trials import Trials

SAMPLE = 12
"""Of how many calls the default run tries one; each fault begins with another one."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("runner")) as runner:
        yield runner


@pytest.fixture
def tracing(runner: Runner) -> Runner:
    missing = runner.why_not()
    if missing:
        pytest.skip(missing)
    return runner


def strike(trials: Trials, every: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Try every `every`-th call of each fault, and say how many that were."""
    case = trials.case
    assert len(trials.calls) >= (case.least if trials.how == "trace" else case.least // 4)
    wanted: Counter[str] = Counter()
    for number, fault in enumerate(FAULTS if trials.how == "trace" else FAULTS[:3]):
        for point in trials.points([fault], every, 1 + number * every // 4):
            trials.run(*point)
            wanted[fault] += 1
    assert trials.told.trials == wanted and all(wanted[fault] for fault in FAULTS[:3])
    with capsys.disabled():
        print(f"\n{trials.told}")
    assert not trials.told.problems, "\n".join(trials.told.problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_fault_at_every_system_call(
    tracing: Runner, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strike(Trials(tracing, CASES[name], tmp_path), 1, capsys)
