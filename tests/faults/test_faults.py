"""Faults at every call by which writing verbs change files: killed, an error of the disk, a full disk, lost power.

The default run has a sample of the calls of each verb, and those where something was found, by system calls where
processes can be traced and by Python's own elsewhere; the ``slow`` tests have all calls of all cases.
``python -m faults.trials CASE FAULT CALL`` repeats one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.cases import CASES
from faults.runner import Runner
from faults.tracer import FAULTS
from faults.trials import Trials
from feedmill.cli.app import GROUPS
from helpers.durations import slow_but

SAMPLE = 1
"""Calls of a verb at which the default run tries each of its faults."""


def some(name: str) -> tuple[str, ...]:
    """The fault of a case in the default run, beside those that have found something: each in turn; all of others."""
    return (FAULTS[DEFAULT.index(name) % len(FAULTS)],) if name in DEFAULT else tuple(FAULTS)


FOUND = {
    "merge pbin": [("kill", r"rename .* -> m\.pbin\.feedmill\.json", -1)],  # its manifest stayed without sizes
    "repair tars": [("kill", r"unlink d/\.feedmill-work/shards\.scanned", -1)],  # its report was lost
    "append": [
        ("kill", r"openat .*feedmill\.members", 0),  # hashes of shards were lost
        ("ENOSPC", r"write .*feedmill-work/units", 0),  # a traceback
    ],
    "add-parts": [("kill", r"rename .*work/new/.* -> d/shards/", 2)],  # read as a mixture of old and new
    "reshard": [("kill", r"openat e/shards/\.000001\.tar\.", 0), ("kill", r"unlinkat .*feedmill-work/lock", 0)],
    "reshard over": [
        ("EIO", r"write .*job\.json", 2),  # forgot that the old dataset was gone
        ("kill", r"unlink .*feedmill-work/job\.json", -1),  # took its own shards for those of others
    ],
    "convert wds": [("kill", r"openat out/shards/\.000001\.tar\.", 0)],  # read as if that were all
    "index jsonl": [("EIO", r"openat", 1)],  # a traceback
    "add-parts into": [("kill", r"rmdir e/\.feedmill-work", 0)],  # the empty folder stayed
    "mix": [("power", r"rename .*m-0000\.jsonl\.gz\.lineage", 0)],  # was taken for a file of the user
    "neardedupe": [("kill", r"rename d/attributes/dup_near/\..* -> .*b\.jsonl", 0)],  # its report was lost
    "neardedupe kept": [
        ("kill", r"rename d/attributes/dup_near/\..* -> .*b\.jsonl", 0),
        ("EIO", r"rmdir s/done", 0),  # stayed
    ],
    "dedupe paragraphs": [("kill", r"unlink .*\.manifest\.json\.", 0)],  # the folder of the job stayed
    "stat": [("kill", r"write .*p\.png", 0)],  # half a picture
    "dolma dedupe": [("kill", r"unlink f\.bin\.feedmill-next\.of", 0)],  # stayed
    "energon prepare": [("kill", r"openat d/\.nv-meta/\.split\.yaml", 0)],  # refused as prepared
}
"""Where this has found something: fault, call, which of these calls."""


def first_of_each() -> set[str]:
    """The first case of each verb, and of each format that `convert` writes: others differ in options and inputs."""
    first: dict[tuple[str, ...], str] = {}
    for name, case in CASES.items():
        verb = itertools.takewhile(lambda word: word.replace("_", "").replace("-", "").isalpha(), case.words)
        words = tuple(verb)[: {"compat": 4, "convert": 1}.get(case.words[0], 2 if case.words[0] in GROUPS else 1)]
        first.setdefault((*words, name if words == ("convert",) and "over" not in name else ""), name)
    return set(first.values())


DEFAULT = [name for name in CASES if name in FOUND or name in first_of_each() or name == "mix by 2"]
"""Cases of the default run, one of them with two processes."""
SEEN = ("kill", "EIO", "ENOSPC")
"""Faults that need no system calls."""


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


def strike(trials: Trials, faults: tuple[str, ...], most: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Try calls of each fault, all of them without `most`, and say how many that were."""
    least = trials.case.least if trials.how == "trace" else trials.case.least // 3
    assert len(trials.calls) >= least, f"only {len(trials.calls)} calls: this tries next to nothing"
    wanted = Counter({fault: len(trials.points(fault, most)) for fault in faults})
    assert all(wanted[fault] >= (most or least) for fault in faults if fault != "short")
    for fault in faults:
        for at in trials.points(fault, most):
            trials.run(fault, at)
    with capsys.disabled():
        print(f"\n{trials.told}")
    assert trials.told.trials == wanted
    assert not trials.told.problems, "\n".join(trials.told.problems)


@pytest.mark.parametrize("name", slow_but(CASES, *DEFAULT))
def test_faults_at_some_system_calls(
    tracing: Runner, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials(tracing, CASES[name], tmp_path)
    strike(trials, some(name), SAMPLE, capsys)
    for fault, words, turn in FOUND.get(name, []):
        trials.run(fault, trials.find(words, turn))
    assert not trials.told.problems, "\n".join(trials.told.problems)


def test_every_fault_is_somewhere_in_the_default_run() -> None:
    assert {fault for name in DEFAULT for fault in some(name)} == set(FAULTS)


@pytest.mark.parametrize("name", ["merge pbin", "append", "convert jsonl", "tag"])
def test_faults_at_some_of_pythons_calls(
    runner: Runner, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is tried where system calls cannot be traced."""
    strike(Trials(runner, CASES[name], tmp_path, "standin"), SEEN, SAMPLE, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_fault_at_every_system_call(
    tracing: Runner, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strike(Trials(tracing, CASES[name], tmp_path), FAULTS, None, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if "by 2" not in name])
def test_a_fault_at_every_call_that_python_sees(
    runner: Runner, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if runner.why_not() is None:
        pytest.skip("system calls can be traced here, which sees more")
    strike(Trials(runner, CASES[name], tmp_path, "standin"), SEEN, None, capsys)
