"""Every verb that writes has a dry run: it changes nothing, fails as the real run does, and names what that one writes.

`GOOD` has commands that work, `BAD` commands that fail, by verb. Both run dry first, then in earnest, on the same data.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.cli.verbs import VERBS, function_of
from helpers.dry_runs import BAD, GOOD, error_of, is_companion, names, run, state
from helpers.faces import face_of

READING = {
    *("show", "serve", "check", "stat", "mount", "decode", "numbers", "plan", "trace", "forget", "bench"),
    *("demo", "cache", "lengths", "compare"),
}
"""Verbs whose result is what they show, or one file that the user names; `cache` copies, and its `clear` asks; what
`lengths` writes is in the cache folder."""
WORDS = {name.rpartition(" ")[2]: name for name in VERBS if not name.startswith("compat ")}
"""Last word of a verb -> all of them."""


def commands(table: dict[str, list[str]]) -> list[Any]:
    return [pytest.param(verb, command, id=command) for verb, listed in table.items() for command in listed]


def test_every_verb_that_writes_is_here() -> None:
    assert set(GOOD) == set(BAD) == set(WORDS) - READING


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_the_function_has_the_option_too(verb: str) -> None:
    module = import_module(VERBS[WORDS[verb]].module)
    here = inspect.signature(getattr(module, function_of(verb))).parameters["dry_run"]
    assert here.default is False
    face = face_of(verb)
    assert inspect.signature(face).parameters["dry_run"].default is False


@pytest.mark.parametrize(("verb", "command"), commands(GOOD))
def test_a_dry_run_changes_nothing_and_names_the_outputs(root: Path, verb: str, command: str) -> None:
    before = state(root)
    dry = run(command, "--dry-run", "--json")
    assert dry.exit_code in (0, 1, 4), dry.output  # as in earnest: 1 if damage remains, 4 if lines were skipped
    after = state(root)
    assert after == before, set(after) ^ set(before) or {path for path in after if after[path] != before[path]}
    shown = run(command, "--dry-run")
    assert state(root) == before and shown.exit_code == dry.exit_code
    done = run(command)
    assert done.exit_code == dry.exit_code, done.output
    planned = json.loads(dry.stdout)["dry_run"]
    line = "dry run: " + ("nothing was written" if planned["outputs"] else "there is nothing to write")
    assert line in shown.stdout.splitlines()  # `convert` shows its plan before, and `run` its steps
    compare(root, planned, before, state(root))


def compare(root: Path, planned: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that what a dry run names is what the real run has written, replaced and deleted."""
    outputs = {relative(root, out["path"]): out for out in planned["outputs"]}
    changed = {path for path, what in after.items() if (root / path).is_file() and what != before.get(path)}
    companions = {path for path in changed if is_companion(path, outputs)}
    assert not {path for path in changed - companions if not any(names(out, path) for out in outputs)}, outputs
    for out, facts in outputs.items():
        made = [path for path in after if names(out, path) and (root / path).is_file()]
        assert made, f"{out} was not written: {sorted(changed)}"
        assert facts["replaces"] == (out.rstrip("/") in before), out
        if facts["bytes"] is not None:
            assert 0.5 < (root / out).stat().st_size / facts["bytes"] <= 1, out
    gone = {path for path in before if path not in after and not is_companion(path, dict.fromkeys(before, 0))}
    assert gone == {relative(root, path) for path in planned["deletes"]}


def relative(root: Path, path: str) -> str:
    return os.path.relpath(root / path, root) + ("/" if path.endswith("/") else "")


@pytest.mark.parametrize(("verb", "command"), commands(BAD))
def test_a_dry_run_fails_as_the_real_run(root: Path, verb: str, command: str) -> None:
    before = state(root)
    dry = run(command, "--dry-run", "--json")
    assert state(root) == before
    done = run(command, "--json")
    assert dry.exit_code == done.exit_code == (4 if verb == "tag" and "skip" in command else 1), (verb, dry.output)
    if verb != "tag":  # its errors are part of a report where invalid files are skipped
        assert error_of(dry.stdout) == error_of(done.stdout)


def test_a_dry_run_of_finished_work_has_nothing_to_do(root: Path) -> None:
    for command in ("tag web/documents -t char_length_v1", "dedupe web/documents", "dedupe --near web/documents"):
        assert run(command).exit_code == 0
        before = state(root)
        assert run(command, "--dry-run").stdout.startswith("dry run: there is nothing to write"), command
        assert state(root) == before


def test_a_dry_run_leaves_the_work_of_a_killed_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both for the same command, which would resume, and for another one, which is refused as in earnest."""
    killed(monkeypatch, "feedmill.jobs.run.run", "tokens merge books.pbin news.pbin all.pbin")
    before = state(root)
    assert any("feedmill-work" in path for path in before)
    assert run("tokens merge books.pbin news.pbin all.pbin", "--dry-run").exit_code == 0
    other = run("tokens merge news.pbin books.pbin all.pbin", "--dry-run")
    assert other.exit_code == 1 and "was not finished" in other.output
    assert state(root) == before
    assert run("tokens merge books.pbin news.pbin all.pbin").exit_code == 0


def killed(monkeypatch: pytest.MonkeyPatch, function: str, command: str) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(function, stop)
        assert run(command).exit_code == 130


@pytest.mark.parametrize("verb", ["merge", "reshard", "tag"])
def test_python_has_the_same_dry_run(root: Path, verb: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "merge": lambda: fm.tokens.merge(["books.pbin", "news.pbin"], "all.pbin", dry_run=True),
        "reshard": lambda: fm.edit.reshard("coco", "x", max_shard_samples=2, dry_run=True, progress=False),
        "tag": lambda: fm.tag(["web/documents"], ["char_length_v1"], dry_run=True, progress=False),
    }
    before = state(root)
    report = calls[verb]()
    assert state(root) == before
    assert report.dry_run.outputs and report.as_dict()["dry_run"] == report.dry_run.as_dict()
    assert report.dry_run.files == {"merge": 2, "reshard": 2, "tag": 2}[verb]


def test_a_dry_run_sees_that_another_process_writes(root: Path) -> None:
    from feedmill.jobs.work import Work
    from feedmill.storage import open_store

    with Work(open_store("."), "all.pbin") as work:
        work.begin({"verb": "other"})
        dry = run("tokens merge books.pbin news.pbin all.pbin", "--dry-run", "--json")
        assert error_of(dry.stdout)["kind"] == "busy"
