"""What all verbs have in common: one vocabulary of options, numbers as people write them, examples, suggestions."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.cli.command import HEADINGS
from feedmill.cli.verbs import GROUPS, MEANT, VERBS
from feedmill.jobs.amounts import parse_count

OURS = [name for name in VERBS if not name.startswith("compat ")]
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
WRITING = {
    *(
        "convert",
        "edit reshard",
        "tokenize",
        "tokens merge",
        "tokens shuffle",
        "tokens split",
        "filter",
        "tag",
        "prepare",
    ),
    *("tokens index", "serve"),
}
"""Verbs that may find their output there."""


def command(words: str) -> Any:
    found: Any = get_command(app)
    for word in words.split():
        found = found.get_command(None, word)
    return found


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
    assert set(differing) <= {"--threshold", "--workers"}, differing  # several numbers: of dedupe --near, of bench


@pytest.mark.parametrize("verb", sorted(WRITING))
def test_verbs_that_write_can_overwrite(verb: str) -> None:
    assert "--overwrite" in spellings(verb)


def test_long_verbs_show_signs_of_life() -> None:
    quick = {verb for verb in OURS if "--progress" not in spellings(verb)}
    assert quick == {
        *("demo", "show", "serve", "edit mount", "tokens decode", "tokens numbers", "plan", "trace"),
        *("documents forget", "bench", "mixture propose", "mixture fit", "mixture compare"),
    }


@pytest.mark.parametrize("verb", OURS)
def test_every_verb_has_an_example_and_a_page(verb: str) -> None:
    row = VERBS[verb]
    shown = CliRunner().invoke(app, [*verb.split(), "--help"]).output
    assert f"Example:  feedmill {row.example}" in shown and row.page in shown
    assert (ROOT / row.page).is_file()
    assert row.example.startswith(verb)
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
    typed = (("tokenise", "tokenize"), ("pln", "plan"), ("pre-pare", "prepare"), ("mrge", "tokens merge"))
    for line, meant in (*typed, ("tokens mrge", "tokens merge"), ("edti", "edit"), ("compat dlma", "compat dolma")):
        done = CliRunner().invoke(app, [*line.split(), "x"])
        assert done.exit_code == 2 and f"did you mean {meant!r}?" in done.output
    done = CliRunner().invoke(app, ["xyzzy"])
    assert done.exit_code == 2 and "there is no verb 'xyzzy'. See 'feedmill --help'." in done.output


def test_a_word_of_an_earlier_release_or_of_another_tool_is_an_error_that_names_the_verb() -> None:
    moved = {name.rpartition(" ")[2]: name for name in VERBS if " " in name}
    guessed = {word: line for line, words in MEANT.items() for word in words}
    assert not moved.keys() & guessed.keys() and not guessed.keys() & {*VERBS, *GROUPS}
    assert {"neardedupe", "info", "preview", "report", "ls", "cat", "head"} <= guessed.keys()
    for word, line in (moved | guessed).items():
        done = CliRunner().invoke(app, [word, "x"])
        assert done.exit_code == 2 and f"there is no verb {word!r}: write 'feedmill {line}'" in done.output
        assert line.startswith("--") or line.partition(" --")[0] in VERBS
    assert "write 'feedmill plan'" in CliRunner().invoke(app, ["tokens", "plan"]).output


@pytest.mark.parametrize("words", ["", *GROUPS, *VERBS])
def test_the_help_fits_a_screen(words: str) -> None:
    """45 lines of 80 columns, as a terminal shows it."""
    done = CliRunner(env={"COLUMNS": "80", "TERM": "xterm"}).invoke(app, [*words.split(), "--help"], color=True)
    assert (done.exit_code == 0 and "\x1b[" in done.output) or words.startswith("compat ")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.output).splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 80


@pytest.mark.parametrize("term", ["xterm", "dumb", "none"])
def test_colors_are_for_terminals_that_have_them(term: str) -> None:
    """In a pseudo-terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 80, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm" if term == "none" else term}
    environment |= {"NO_COLOR": "1"} if term == "none" else {}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "feedmill", "tokenize", "--help"]
    subprocess.run(command, stdin=theirs, stdout=theirs, env=environment, check=True)
    shown = os.read(ours, 1 << 16).decode()
    os.close(theirs)
    os.close(ours)
    assert ("\x1b[" in shown) is (term == "xterm")
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 80


def test_all_options_are_one_word_away_below_headings() -> None:
    few = CliRunner().invoke(app, ["tokenize", "--help"]).output
    every = CliRunner().invoke(app, ["tokenize", "--help-all"]).output
    assert "--chat-mask" not in few and re.search(r"Show \d+ more options", few)
    for verb in OURS:
        assert "Show 0 more" not in CliRunner().invoke(app, [*verb.split(), "--help"]).output, verb
    assert all(
        f"\n{heading}:\n" in every for heading in ("Most used", "Input", "Output", "Text", "Chat", "Engine", "Common")
    )
    for verb in OURS:
        shown = CliRunner().invoke(app, [*verb.split(), "--help-all"]).output
        assert all(f"{name} " in f"{shown} ".replace("\n", " ").replace(",", " ") for name in spellings(verb)), verb
        assert not set(VERBS[verb].first.split()) - {name.lstrip("-") for name in spellings(verb)}, verb


def test_a_heading_is_that_of_options_that_are_there() -> None:
    known = {name.lstrip("-") for verb in OURS for name in spellings(verb)} | {"help", "help-all"}
    listed = [name for names in HEADINGS.values() for name in names.split()]
    assert not set(listed) - known and len(set(listed)) == len(listed)


def test_every_next_command_is_one() -> None:
    for verb, row in VERBS.items():
        if row.next:
            head = row.next.partition(" {")[0]
            assert head in VERBS and head != verb
            assert all(name in known for name in re.findall(r"{(\w+)}", row.next) for known in [fields_of(verb)])


def fields_of(verb: str) -> set[str]:
    return {parameter.name for parameter in command(verb).params}


def test_after_success_comes_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes").mkdir()
    (tmp_path / "my notes/a.txt").write_text("some text")
    words = ["import", "my notes", "my set"]
    done = CliRunner().invoke(app, words)
    assert done.stderr == "next: feedmill tag 'my set' -t gopher_v2\n" and "next:" not in done.stdout
    for quiet in (["--json"], ["--progress", "none"], ["--dry-run"]):
        assert "next:" not in CliRunner().invoke(app, [*words, "--overwrite", *quiet]).output
    assert CliRunner().invoke(app, ["show", "nothing"]).stderr.startswith("error: ")
    done = CliRunner().invoke(app, ["tag", "my set", "-t", "char_length_v1"])
    assert done.stderr.endswith("next: feedmill dedupe 'my set' --near\n")
    done = CliRunner().invoke(app, ["tag", "my set", "-t", "char_length_v1", "--output", "elsewhere"])
    assert done.exit_code == 0 and "next:" not in done.stderr  # 'dedupe' has no such option
    done = CliRunner().invoke(app, ["dedupe", "my set", "--near"])
    assert done.exit_code == 0 and done.stderr.endswith("next: feedmill serve 'my set'\n")


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
    assert done.stdout.split() == ["tokenize", "tokens"], done
