"""Dolma's command line as people meet it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from feedmill.curation import registry
from helpers.document_datasets import contents, write_tree

MODULE = """
from dolma import BaseTagger, add_tagger
from dolma.core.data_types import DocResult, Span
from dolma.core.registry import TaggerRegistry
from dolma.core.utils import split_paragraphs, split_words

assert not TaggerRegistry.has("nobody")


@add_tagger("my_words")
class Words(BaseTagger):
    def predict(self, doc):
        parts = split_paragraphs(doc.text)
        return DocResult(doc=doc, spans=[Span(p.start, p.end, "words", len(split_words(p.text))) for p in parts])


@TaggerRegistry.add("my_mistake")
class Mistake(BaseTagger):
    def predict(self, doc):
        return 1 / 0
"""


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Commands have a process of their own; the tests share one."""
    yield
    for name in ("my_words", "my_mistake"):
        registry.remove(name)
    registry._loaded.clear()


def dolma(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compat", "dolma", *map(str, arguments)])


def test_help_names_commands_and_their_options() -> None:
    assert "tag" in dolma().output and "--exact" in dolma("--help").output
    text = dolma("tag", "--help").output
    assert "--tagger_modules" in text and "--no-debug" in text and "--work_dir.output" in text


def test_list_shows_taggers_and_those_of_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    assert "gopher_v2" in dolma("list").output
    assert "my_words" in dolma("list", "--tagger_modules", tmp_path / "mine.py").output


def test_a_dry_run_shows_the_configuration_and_stops(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    result = dolma("tag", "--documents", f"{tmp_path}/documents/*", "--taggers", "c4_v2", "--dryrun")
    assert result.exit_code == 0 and "experiment: null" in result.output
    assert not (tmp_path / "attributes").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_modules_written_for_dolma_run_unchanged(tmp_path: Path, processes: int) -> None:
    write_tree(tmp_path, 2)
    (tmp_path / "mine.py").write_text(MODULE)
    common = ["tag", "--documents", f"{tmp_path}/documents/*", "--tagger_modules", tmp_path / "mine.py"]
    result = dolma(*common, "--processes", processes, "--experiment", "e", "--taggers", "my_words", "char_length_v1")
    assert result.exit_code == 0, result.output
    assert b'"e__my_words__words":[[0,46,10.0]]' in contents(tmp_path / "attributes/e")["part-0.jsonl.gz"]
    result = dolma(*common, "--taggers", "my_mistake")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.output and "part-" in result.output and "line 1, id d1000" in result.output
    assert "Traceback" not in result.output
    assert contents(tmp_path / "attributes/my_mistake") == {} or not (tmp_path / "attributes/my_mistake").exists()


def test_a_module_that_changed_makes_its_attributes_stale(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    module = tmp_path / "mine.py"
    arguments = ["tag", "--documents", f"{tmp_path}/documents/*", "--tagger_modules", module, "--taggers", "my_words"]
    module.write_text(MODULE)
    assert dolma(*arguments).exit_code == 0
    assert "up to date" in dolma(*arguments).output
    module.write_text(MODULE + "\n# changed\n")
    assert "up to date" not in dolma(*arguments).output


def test_a_pattern_without_files_is_a_warning_while_another_has_some(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    result = dolma("tag", "--documents", f"{tmp_path}/documents/*", "nowhere/*", "--taggers", "c4_v2")
    assert result.exit_code == 0 and "warning: nowhere/*" in result.output
    assert dolma("tag", "--documents", "nowhere/*", "--taggers", "c4_v2").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["untag"], "unknown command 'untag'"),
        (["--verbose", "tag"], "before the command"),
        (["tag", "--doc", "x"], "--doc"),
        (["-c", "no.yaml", "tag"], "no.yaml"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], part: str) -> None:
    result = dolma(*arguments)
    assert result.exit_code == 1 and part in result.output and "Traceback" not in result.output
