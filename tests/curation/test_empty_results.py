"""A run without a single document is an error in every verb of curation, unless that is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.mix.report import MixReport
from feedmill.curation.stat import stat
from feedmill.curation.tag import tag
from feedmill.errors import ConfigError, EmptyResult, NotFound
from helpers import warm
from helpers.document_folders import write_lines
from helpers.kills import command

VERBS = {
    "tag": lambda d, **more: tag(d, ["char_length_v1"], name="n", progress=False, **more),
    "dedupe": lambda d, **more: dedupe(d, name="n", keep_empty=True, workers=1, **more),
    "neardedupe": lambda d, **more: dedupe(d, near=True, name="n", workers=1, progress=False, **more),
    "stat": lambda d, **more: stat(d, workers=1, progress=False, **more),
}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "e/documents/a.jsonl", [])
    write_lines(tmp_path / "d/documents/a.jsonl", [json.dumps({"id": n, "text": f"text {n}"}) for n in "abc"])


@pytest.mark.parametrize("verb", VERBS)
def test_inputs_without_a_document(verb: str) -> None:
    for _ in range(2):  # a run that finds everything done says so, too
        with pytest.raises(EmptyResult, match=r"hold no (document|row)s\. Pass --allow-empty") as caught:
            VERBS[verb](["e/documents"])
        assert caught.value.kind == "empty-result"
    VERBS[verb](["e/documents"], allow_empty=True)
    VERBS[verb](["e/documents", "d/documents"])


@pytest.mark.parametrize("verb", VERBS)
def test_patterns_that_match_nothing(verb: str) -> None:
    for patterns in (["d/documents/*.gz"], ["d/documents", "d/documents/*.gz"]):
        with pytest.raises((NotFound, ConfigError), match="match"):
            VERBS[verb](patterns)
    if verb != "stat":
        report = VERBS[verb](["d/documents", "d/documents/*.gz"], allow_empty=True)
        named = report.missing if verb == "tag" else report.warnings
        assert len(named) == 1 and "d/documents/*.gz" in named[0]


def run(include: str, **more: object) -> MixReport:
    stream = {"name": "m", "documents": ["d/documents/*"], "filter": {"include": [include]}, "output": {"path": "out"}}
    return mix(read_config({"streams": [stream | more.pop("stream", {})], **more}), workers=1, progress=False)  # type: ignore[operator]


def test_a_mix_that_keeps_nothing_leaves_nothing() -> None:
    for _ in range(2):
        with pytest.raises(EmptyResult, match=r"out: .*0 of 3 documents kept \(3: dropped by include\).*stream 'm'"):
            run("$.nothing")
        assert not list(Path("out").iterdir())
    report = run("$.nothing", allow_empty=True)
    assert report.warnings == ["stream m: none of 3 documents was kept"] and len(list(Path("out").iterdir())) == 1
    assert run("$.nothing", stream={"rate": 0}).streams[0].counts.kept == 0  # as the user wants it
    assert run("$.id").streams[0].counts.kept == 3


def test_a_mix_of_a_pattern_that_matches_nothing() -> None:
    more = {"documents": ["d/documents/*", "d/documents/*.gz"]}
    with pytest.raises(NotFound, match=r"d/documents/\*\.gz: no files match this pattern"):
        run("$.id", stream=more)
    assert run("$.id", stream=more, allow_empty=True).warnings == ["no file matches d/documents/*.gz"]


@pytest.mark.parametrize(
    "words",
    [
        ["tag", "e/documents", "-t", "char_length_v1", "--name", "n"],
        ["dedupe", "e/documents"],
        ["dedupe", "--near", "e/documents"],
        ["documents", "stat", "e/documents"],
        ["filter", "mix.json"],
    ],
)
def test_command_line(words: list[str]) -> None:
    stream = {"name": "m", "documents": ["e/documents/*"], "output": {"path": "out"}}
    Path("mix.json").write_text(json.dumps({"streams": [stream]}))
    failed = warm.run(command(*words), capture_output=True, text=True)
    assert failed.returncode == 1 and "the result would be empty" in failed.stderr
    done = warm.run(command(*words, "--allow-empty"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
