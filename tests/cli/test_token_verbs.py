"""The commands over token files: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError
from feedmill.tokens.options import parse_ratio
from feedmill.tokens.verbs.filter import filter as filter_files

MODALITIES = Path(__file__).parents[1] / "golden/modalities"


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], prog_name="feedmill")
    assert done.exit_code == status, done.output
    return done.output


def test_split_and_merge_give_the_same_documents(tmp_path: Path) -> None:
    source = MODALITIES / "main_2b.pbin"
    shown = run("tokens", "split", source, f"{tmp_path}/{{part}}.pbin", "--chunks", 4)
    assert shown.count("documents") == 4
    parts = [tmp_path / f"0000{number}.pbin" for number in range(4)]
    run("tokens", "merge", *parts, tmp_path / "m.pbin")
    assert (tmp_path / "m.pbin").read_bytes() == source.read_bytes()


def test_markers(tmp_path: Path) -> None:
    run("tokens", "merge", MODALITIES / "nested_2b.pbin", tmp_path / "m.ds", "--learn-between", "1081,1082")
    assert (tmp_path / "m.ds.loss").exists()
    assert "two token ids" in run(
        "tokens", "merge", MODALITIES / "main_2b.pbin", tmp_path / "n.ds", "--learn-between", "5", status=1
    )


def test_reports_for_programs(tmp_path: Path) -> None:
    found = json.loads(run("tokens", "shuffle", MODALITIES / "main_2b.pbin", tmp_path / "s.ds", "--json"))
    assert found["documents"] == 69 and isinstance(found["seed"], int)
    again = tmp_path / "again.ds"
    run("tokens", "shuffle", MODALITIES / "main_2b.pbin", again, "--seed", found["seed"])
    assert again.read_bytes() == (tmp_path / "s.ds").read_bytes()
    refused = run("tokens", "merge", MODALITIES / "main_2b.pbin", again, "--json", status=1)
    assert '"kind": "exists"' in refused


def test_plans_and_lists_in_files(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("{a: [[0, 3], 5], b: [4]}")
    shown = run(
        "tokens", "split", MODALITIES / "main.jsonl", f"{tmp_path}/x_{{part}}.jsonl", "--plan", tmp_path / "plan.yaml"
    )
    assert "documents in no part" in shown and "64" in shown
    (tmp_path / "plan.yaml").write_text("[1]")
    refused = run(
        "tokens",
        "split",
        MODALITIES / "main.jsonl",
        f"{tmp_path}/y_{{part}}.jsonl",
        "--plan",
        tmp_path / "plan.yaml",
        status=1,
    )
    assert "names its parts" in refused
    (tmp_path / "list").write_text("3\n# comment\n\n5 # five\n")
    run("filter", MODALITIES / "main.jsonl", tmp_path / "f.jsonl", "--keep", tmp_path / "list")
    lines = (MODALITIES / "main.jsonl").read_bytes().splitlines(keepends=True)
    assert (tmp_path / "f.jsonl").read_bytes() == lines[3] + lines[5]
    (tmp_path / "list").write_text("three")
    assert "line 1" in run(
        "filter", MODALITIES / "main.jsonl", tmp_path / "g.jsonl", "--drop", tmp_path / "list", status=1
    )


def test_index(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{bad\n{}\n')
    assert "line 2" in run("tokens", "index", tmp_path / "a.jsonl", status=1)
    assert "skipped: line 2 at byte 9: " in run("tokens", "index", tmp_path / "a.jsonl", "--on-error", "skip", status=4)
    assert "Add --overwrite" in run("tokens", "index", tmp_path / "a.jsonl", status=1)
    assert "Use 'raise' or 'skip'" in run("tokens", "index", tmp_path / "a.jsonl", "--on-error", "x", status=1)
    (tmp_path / "b.pbin").write_bytes((MODALITIES / "main_2b.pbin").read_bytes())
    assert "69 documents" in run("tokens", "index", tmp_path / "b.pbin")
    assert (tmp_path / "b.pbin.feedmill.bounds").exists()
    assert "only JSONL, .pbin and flat token files" in run("tokens", "index", tmp_path / "c.tar", status=1)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--tokens", 1000, "--seq-len", 64], {"samples": 15, "steps": 15}),
        (["--steps", 3, "--seq-len", 8, "--ranks", 2], {"samples": 6, "trained_tokens": 48}),
        (["--lines", MODALITIES / "main.idx", "--micro-batch", 4], {"samples": 69, "steps": 17, "tokens": None}),
        (["--samples", 7, "--accumulation", 2], {"steps": 3, "batches_per_rank": 7}),
        (["--checkpoint", "seen_steps_5-seen_tokens_50-target_tokens_100"], {"last_step": 4, "target_steps": 10}),
    ],
)
def test_numbers(words: list[object], shown: dict[str, int]) -> None:
    found = json.loads(run("tokens", "numbers", *words, "--json"))
    assert {name: found[name] for name in shown} == shown


def test_numbers_that_are_refused() -> None:
    assert "exactly one number" in run("tokens", "numbers", status=1)
    assert "exactly one number" in run("tokens", "numbers", "--steps", 1, "--samples", 1, status=1)
    assert "--seq-len" in run("tokens", "numbers", "--tokens", 5, status=1)
    assert "too few for a sample" in run(
        "tokens", "numbers", "--data", MODALITIES / "main_2b.pbin", "--seq-len", 10**6, status=1
    )


def test_ratios() -> None:
    assert parse_ratio("8, 1,1") == {"train": 8, "val": 1, "test": 1}
    assert parse_ratio("a=1,b=2.5") == {"a": 1, "b": 2.5}
    for text in ("1", "a=1,a=2", "a=x", "1,2,3,4", "a=1,2"):
        with pytest.raises(ConfigError):
            parse_ratio(text)


@pytest.mark.parametrize("line", ["99999999999999999999999", "9" * 5000, "²", "-1"])
def test_numbers_beyond_any_sense_are_one_message(tmp_path: Path, line: str) -> None:
    (tmp_path / "n.txt").write_text(f"\ufeff0\n{line}\n")
    source = MODALITIES / "main_2b.pbin"
    shown = run("filter", source, tmp_path / "f.pbin", "--keep", tmp_path / "n.txt", status=1)
    assert shown.startswith("error: ") and "line 2" in shown
    shown = run("tokens", "merge", source, tmp_path / "m.ds", "--learn-between", f"1,{line}", status=1)
    assert "not a pair of markers" in shown
    with pytest.raises(ConfigError, match="the list contains document"):
        filter_files([str(source)], str(tmp_path / "f.pbin"), keep=[0, 10**30])


def test_more_chunks_than_any_sense_are_one_message(tmp_path: Path) -> None:
    source = MODALITIES / "main_2b.pbin"
    shown = run("tokens", "split", source, f"{tmp_path}/{{part}}.pbin", "--chunks", 10**12, status=1)
    assert "cannot be divided into 1,000,000,000,000 chunks" in shown and not list(tmp_path.iterdir())


def test_numbers_beyond_64_bits_are_json_too() -> None:
    assert json.loads(run("tokens", "numbers", "--samples", 10**20, "--json"))["samples"] == 10**20


def test_a_result_without_documents_is_an_error_that_names_counts_and_reasons(tmp_path: Path) -> None:
    source, out = MODALITIES / "main_2b.pbin", tmp_path / "none.pbin"
    refused = run("filter", source, out, "--min-length", 100000, status=1)
    assert "0 of 69 documents kept (69: shorter than 100000)" in refused and "--allow-empty" in refused
    assert not list(tmp_path.iterdir())
    run("filter", source, out, "--min-length", 100000, "--allow-empty")
    assert len(list(tmp_path.iterdir())) > 0


@pytest.mark.parametrize(
    "words",
    [
        ("tokens", "merge", "{}", "m.pbin"),
        ("tokens", "shuffle", "{}", "s.pbin", "--seed", 1),
        ("tokens", "split", "{}", "p.{part}.pbin", "--chunks", 2),
    ],
)
def test_rewriting_nothing_is_an_error(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("filter", MODALITIES / "main_2b.pbin", "none.pbin", "--min-length", 100000, "--allow-empty")
    words = tuple(str(word).replace("{}", "none.pbin") for word in words)
    before = sorted(tmp_path.iterdir())
    assert "the inputs hold no documents" in run(*words, status=1)
    assert sorted(tmp_path.iterdir()) == before
    run(*words, "--allow-empty")
    assert sorted(tmp_path.iterdir()) != before


def test_lines_of_which_none_is_kept_are_counted_as_lines(tmp_path: Path) -> None:
    refused = run("filter", MODALITIES / "main.jsonl", tmp_path / "n.jsonl", "--min-length", 10**9, status=1)
    assert "0 of 69 lines kept" in refused


def test_parts_without_documents_are_named(tmp_path: Path) -> None:
    shown = run("tokens", "split", MODALITIES / "main_2b.pbin", f"{tmp_path}/{{part}}.pbin", "--ratio", "train=1,val=0")
    assert "parts without a document: val" in shown


def test_info_says_how_many_tokens_are_in_the_loss(tmp_path: Path) -> None:
    run("tokens", "merge", MODALITIES / "nested_2b.pbin", tmp_path / "m.ds", "--learn-between", "1081,1082")
    mask = (tmp_path / "m.ds.loss").read_bytes()
    found = json.loads(run("show", tmp_path / "m.ds", "--json"))
    assert found["loss_mask"] == {"files": 1, "tokens_in_loss": sum(mask)}
    assert f"{sum(mask):,} of {len(mask):,} tokens in the loss" in run("show", tmp_path / "m.ds")
    assert f"loss masks of 1 of 1 files: {sum(mask):,} of {len(mask):,} tokens" in run("check", tmp_path / "m.ds")
    assert "loss" not in run("show", MODALITIES / "nested_2b.pbin")


def test_filter_takes_a_configuration_or_token_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d/documents").mkdir(parents=True)
    (tmp_path / "d/documents/a.jsonl").write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "three"}\n')
    stream = {"name": "s", "documents": ["d/documents"], "output": {"path": "out", "min_text_length": 4}}
    (tmp_path / "f.json").write_text(json.dumps({"streams": [stream]}))
    shown = run("filter", "f.json", "--dry-run", "--json")
    assert json.loads(shown)["streams"][0]["kept"] == 1 and not (tmp_path / "out").exists()
    assert "no output was given" in run("filter", "d/documents/a.jsonl", status=1)
    assert "--min-length is for token files" in run("filter", "f.json", "--min-length", 3, status=1)
    assert "--allow-stale is for a configuration" in run("filter", "a.jsonl", "b.jsonl", "--allow-stale", status=1)
    assert fm.filter({"streams": [stream]}, dry_run=True, progress=False).as_dict() == json.loads(shown)
