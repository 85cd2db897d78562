"""Number conversions against Modalities' values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from feedmill.errors import ConfigError
from feedmill.tokens.verbs.numbers import (
    Step,
    count_lines,
    count_tokens,
    local_batches_from_samples,
    read_progress,
    samples_from_tokens,
    steps_from_samples,
    target_steps,
    tokens_from_steps,
    trained_tokens,
    windows,
)

GOLDEN = Path(__file__).parents[1] / "golden/modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("case", EXPECTED["number_conversion"]["num_tokens_from_packed_mem_map_dataset_continuous"])
def test_trained_tokens(case: dict[str, int | str | bool]) -> None:
    words = ("sequence_length", "dp_degree", "local_micro_batch_size", "gradient_accumulation_steps")
    step = Step(*(int(case[word]) for word in words))
    tokens = count_tokens(str(GOLDEN / str(case["file"])))
    assert trained_tokens(tokens, step, reuse_last_target=bool(case["reuse_last_target"])) == case["value"]


def test_lines() -> None:
    assert count_lines(str(GOLDEN / "main.idx")) == count_lines(str(GOLDEN / "main.jsonl")) == 69


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.json", "x.parquet"])
def test_lines_of_other_documents_are_not_counted(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match="whose names end in"):
        count_lines(str(tmp_path / name))


def test_bytes_of_lines_are_no_tokens() -> None:
    with pytest.raises(ConfigError, match="--lines"):
        count_tokens(str(GOLDEN / "main.jsonl"))


@pytest.mark.parametrize("case", EXPECTED["continuous"], ids=lambda c: f"{c['file']}-{c['sequence_length']}")
def test_windows(case: dict[str, int | str | bool]) -> None:
    tokens = count_tokens(str(GOLDEN / str(case["file"])))
    found = windows(tokens, int(case["sequence_length"]), reuse_last_target=bool(case["reuse_last_target"]))
    assert found == case["len"]


def test_steps_and_tokens() -> None:
    step = Step(64, 2, 3, 2)
    assert steps_from_samples(samples_from_tokens(10_000, 64), *step[1:]) == 13
    assert tokens_from_steps(13, step) == 9984
    assert local_batches_from_samples(samples_from_tokens(10_000, 64), 2, 3) == 26
    assert steps_from_samples(0, 1, 1) == 0


BAD = [
    lambda: windows(5, 64),
    lambda: windows(9, 0),
    lambda: samples_from_tokens(5, 0),
    lambda: steps_from_samples(-1, 1, 1),
]


@pytest.mark.parametrize("call", BAD)
def test_numbers_that_make_no_sense(call: Callable[[], int]) -> None:
    with pytest.raises(ConfigError):
        call()


def test_checkpoint_names() -> None:
    name = "x/eid-seen_steps_10-seen_tokens_640-target_steps_100-target_tokens_6400"
    progress = read_progress(name)
    assert progress == (10, 640, 100, 6400)
    assert (progress.last_step, target_steps(progress)) == (9, 100)
    big = read_progress(f"seen_steps_3-seen_tokens_{3 * (2**60 + 1)}-target_tokens_{5 * (2**60 + 1)}")
    assert target_steps(big) == 5  # a float would be off


@pytest.mark.parametrize("name", ["run", "seen_steps_1/seen_steps_2"])
def test_checkpoint_names_that_say_nothing_or_two_things(name: str) -> None:
    with pytest.raises(ConfigError):
        read_progress(name)


@pytest.mark.parametrize("name", ["seen_steps_3", "seen_steps_3-seen_tokens_10-target_tokens_100"])
def test_targets_that_do_not_follow(name: str) -> None:
    with pytest.raises(ConfigError):
        target_steps(read_progress(name))
