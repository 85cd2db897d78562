"""What all verbs have in common: one vocabulary of options, numbers as people write them, examples, suggestions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.cli.verbs import GROUPS, VERBS
from feedmill.jobs.amounts import parse_count

OURS = [name for name in VERBS if name not in GROUPS["Commands of other tools"]]
ROOT = Path(__file__).parents[2]

ONE_MEANING = {
    "--workers": "N",
    "--overwrite": None,
    "--on-error": "raise|skip",
    "--dry-run": None,
    "--max-shard-size": "SIZE",
    "--max-shard-samples": "N",
    "--allow-empty": None,
    "--progress": "bar|plain|none",
    "--json": None,
    "--seed": "N",
    "--batch-size": None,
    "--trust": None,
}
"""Option -> what follows it in each verb that has it; None for anything."""
ANOTHER = {("bench", "--workers"): "N,N,..."}
BANNED = {
    *("--num-processes", "--processes-per-node", "--force", "--force-overwrite", "--redo", "--replace", "--missing"),
    *(
        "--ignore-missing",
        "--ignore-errors",
        "--plan-only",
        "--samples-per-shard",
        "--shard-size",
        "--out",
        "--out-dir",
    ),
    *("--output-dir", "--sequence-length", "--no-progress", "--quiet", "--max-bad", "--batch", "--seq-length"),
}
"""Spellings of ideas that have another one."""
LETTERS = {
    "-a": "--attributes",
    "-b": "--batch-size",
    "-h": "--help",
    "-m": "--tagger-modules",
    "-n": "--count",
    "-o": "--output",
}
"""Short option -> the only long one that it stands for."""
WRITING = {"convert", "reshard", "tokenize", "merge", "shuffle", "split", "filter", "tag", "prepare", "index", "report"}
"""Verbs that may find their output there."""


def command(verb: str) -> Any:
    return get_command(app).get_command(None, verb)  # type: ignore[attr-defined]


def spellings(verb: str) -> dict[str, Any]:
    return {name: p for p in command(verb).params if p.param_type_name == "option" for name in p.opts}


@pytest.mark.parametrize("verb", OURS)
def test_an_idea_has_one_spelling(verb: str) -> None:
    found = spellings(verb)
    assert not BANNED & set(found)
    for name in set(found) & set(ONE_MEANING):
        wanted = ANOTHER.get((verb, name), ONE_MEANING[name])
        assert wanted is None or found[name].metavar == wanted, (verb, name)
    for name in set(found) & set(LETTERS):
        assert LETTERS[name] in found[name].opts, (verb, name)


def test_an_option_takes_the_same_kind_of_value_in_every_verb() -> None:
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for verb in OURS:
        for name, option in spellings(verb).items():
            kind = "flag" if option.is_flag else str(getattr(option.type, "name", option.type)).partition(" ")[0]
            kinds[name]["int" if kind.startswith("int") else {"path": "str"}.get(kind, kind)][:0] = [verb]
    differing = {name: dict(found) for name, found in kinds.items() if len(found) > 1 and name.startswith("--")}
    # several numbers: of neardedupe, of bench; a number of samples: of lengths
    assert set(differing) <= {"--threshold", "--workers", "--check"}, differing


@pytest.mark.parametrize("verb", sorted(WRITING))
def test_verbs_that_write_can_overwrite(verb: str) -> None:
    assert "--overwrite" in spellings(verb)


def test_long_verbs_show_signs_of_life() -> None:
    quick = {verb for verb in OURS if "--progress" not in spellings(verb)}
    assert quick == {
        *(
            "demo",
            "info",
            "preview",
            "serve",
            "report",
            "mount",
            "decode",
            "numbers",
            "plan",
            "trace",
            "forget",
            "bench",
        )
    }


@pytest.mark.parametrize("verb", OURS)
def test_every_verb_has_an_example_and_a_page(verb: str) -> None:
    row = VERBS[verb]
    shown = CliRunner().invoke(app, [verb, "--help"]).output
    assert f"Example:  feedmill {row.example}" in shown and row.page in shown
    assert (ROOT / row.page).is_file()
    words = [word.partition("=")[0] for word in row.example.split()[1:] if word.startswith("-")]
    assert set(words) <= set(spellings(verb))


def test_numbers_are_written_as_people_do() -> None:
    assert [parse_count(text) for text in ("500", "10k", "1.5M", "2B", "1e9", "1_000", "1,000", "2G", "1T")] == [
        *(500, 10_000, 1_500_000, 2 * 10**9, 10**9, 1000, 1000, 2 * 10**9, 10**12)
    ]
    assert [parse_count(text) for text in ("", "x", "1.5", "1e-3", "k", "1kB", "0x10", "١")][:7] == [None] * 7
    assert [parse_count(text) for text in ("12_345_678", "1,234.5k", "1,5M", "1__0", "1_0", "1000,000", "1,000_")] == [
        *(12_345_678, 1_234_500, None, None, None, None, None)
    ]
    done = CliRunner().invoke(app, ["tokens", "numbers", "--tokens", "1B", "--seq-len", "4k", "--ranks", "2", "--json"])
    assert '"tokens": 1000000000' in done.output
    wrong = CliRunner().invoke(app, ["tokens", "numbers", "--tokens", "1.5", "--seq-len", "4k"])
    assert wrong.exit_code == 2 and "is not a whole number, such as 500, 10k, 1.5M" in wrong.output
    low = CliRunner().invoke(app, ["tokens", "numbers", "--tokens", "1k", "--seq-len", "0"])
    assert low.exit_code == 2 and "x>=1" in low.output


def test_a_misspelt_verb_gets_a_suggestion() -> None:
    for typed, meant in (("tokenise", "tokenize"), ("pln", "plan"), ("pre-pare", "prepare")):
        done = CliRunner().invoke(app, [typed, "x"])
        assert done.exit_code == 2 and f"did you mean {meant!r}?" in done.output
    done = CliRunner().invoke(app, ["xyzzy"])
    assert done.exit_code == 2 and "there is no verb 'xyzzy'" in done.output


def test_python_runs_the_package() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "feedmill", "--version"], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.startswith("feedmill ")


def test_completion_names_the_verbs() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COMP_WORDS": "feedmill tok", "COMP_CWORD": "1"}
    environment["_FEEDMILL_COMPLETE"] = "complete_bash"
    done = subprocess.run(
        [sys.executable, "-c", "from feedmill.cli.app import main; main()"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.split() == ["tokenize"], done
