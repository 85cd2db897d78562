"""VLA Foundry's shard selection, against what VLA Foundry itself chose."""

import json
from math import fsum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, NotFound
from feedmill.planning.orders import Cursor, Manifest, read_manifest, select_window
from feedmill.planning.orders.vla import _sum
from helpers.durations import examples

GOLDEN = Path(__file__).parents[2] / "golden" / "orders" / "vla"
CASES = json.loads((GOLDEN / "cases.json").read_text())


def manifest(*samples: int) -> Manifest:
    return Manifest(tuple(f"shard-{i:06}" for i in range(len(samples))), np.array(samples))


def test_all_chains_are_here() -> None:
    assert len(CASES) == 38 and sum(len(case["result"]) for case in CASES) > 100


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_recorded_chain_of_windows(number: int) -> None:
    case = CASES[number]
    manifests = [read_manifest(GOLDEN / name) for name in case["manifests"]]
    cursors = [Cursor(*pair) for pair in zip(case["idx"], case["seeds"], strict=True)]
    options = {
        "workers": case["workers_per_gpu"] * case["world_size"],
        "weights": case["weights"],
        "repeat": case["multi"],
    }
    for expected in case["result"]:
        if "error" in expected:
            with pytest.raises(ConfigError) as caught:
                select_window(manifests, cursors, case["num_samples"], **options)
            assert caught.value.kind == ("bad-recipe" if expected["error"] == "AssertionError" else "too-few-samples")
            break
        window = select_window(manifests, cursors, case["num_samples"], **options)
        # VLA Foundry leaves a dataset without rows out of this list, and of this list only.
        assert [rows.tolist() for rows in window.rows if len(rows)] == expected["shards"]
        assert list(window.samples) == expected["num_samples"]
        assert [cursor.row for cursor in window.after] == expected["next_idx"]
        assert [cursor.seed for cursor in window.after] == expected["next_seeds"]
        cursors = list(window.after)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any),
    st.integers(1, 2000),
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(0, 99)),
)
@settings(max_examples=examples(150), deadline=None)
def test_windows_read_epoch_after_epoch_without_loss(
    samples: list[int], budget: int, workers: int, seed: int | None
) -> None:
    source = manifest(*samples)
    cursors, chosen = (Cursor(0, seed),), []
    for _ in range(4):
        window = select_window([source], cursors, budget, workers=workers, repeat=True)
        cursors = window.after
        chosen += window.rows[0].tolist()
        assert workers == 0 or (len(window.rows[0]) % workers == 0 and len(window.rows[0]) >= workers)
        assert window.samples[0] == sum(samples[row] for row in window.rows[0])
        assert window.samples[0] > budget - max(1, workers) * max(samples)
    epochs, row = divmod(len(chosen), len(samples))
    assert cursors == (Cursor(row, None if seed is None else seed + epochs),)
    for first in range(0, epochs * len(samples), len(samples)):
        assert sorted(chosen[first : first + len(samples)]) == list(range(len(samples)))


def test_the_sum_of_the_weights_is_that_of_python_3_12() -> None:
    assert sum([0.1] * 10) in (1.0, 0.9999999999999999) and _sum([0.1] * 10) == 1.0  # the first depends on the Python
    weights = np.random.default_rng(0).random(1000).tolist()
    assert _sum(weights) == fsum(weights)
    # A share of 100 of 1,000 samples, where adding up without compensation would make it 101.
    window = select_window([manifest(*[1] * 200)] * 10, [Cursor()] * 10, 1000, workers=1, weights=[0.1] * 10)
    assert window.samples == (100,) * 10


def test_no_data_sets_give_an_empty_window() -> None:
    with pytest.raises(ConfigError, match="needs a dataset"):
        select_window([], [], 10, workers=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": [1]}, "2 manifests, 2 cursors and 1 weights"),
        ({"cursors": [Cursor()]}, "2 manifests, 1 cursors"),
        ({"weights": [1, -1]}, "non-negative"),
        ({"weights": [0, 0]}, "above 0"),
        ({"weights": [1, float("inf")]}, "finite"),
        ({"weights": ["a", 1]}, "finite"),
        ({"weights": [1e308, 1e308]}, "finite"),
        ({"weights": [1e308, 1], "samples": 10**6}, "finite"),
        ({"workers": -1}, "-1 workers"),
        ({"samples": 0, "repeat": True}, "cannot repeat epochs"),
        (
            {"samples": 100},
            "dataset 0 ends within the window: 50 samples on 1 workers are needed, 9 samples in 3",
        ),
        ({"samples": 10**15, "repeat": True}, "would read dataset 0 55,555,555,555,554 times"),
        ({"samples": 10**400, "repeat": True}, "samples of a window"),
        ({"cursors": [Cursor(3), Cursor()]}, "row 3, seed 42"),
        ({"cursors": [Cursor(0, -1), Cursor()]}, "seed -1"),
    ],
)
def test_what_cannot_be_selected_is_refused(options: dict, words: str) -> None:
    given = {"cursors": [Cursor(), Cursor()], "samples": 4, "workers": 1, **options}
    cursors, samples = given.pop("cursors"), given.pop("samples")
    with pytest.raises(ConfigError, match=words):
        select_window([manifest(2, 3, 4), manifest(5, 6)], cursors, samples, **given)


def test_manifests_are_read_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(b'{"shard": "shards/a.tar", "num_sequences": 5, "more": 1}\r\n{"shard": "b", "num_sequences": 0}')
    found = read_manifest(path)
    assert found.shards == ("shards/a.tar", "b") and found.samples.tolist() == [5, 0] and found.file == str(path)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'"x"', b'{"shard": "a"}', b'{"shard": 1, "num_sequences": 1}']
    + [b'{"shard": "a", "num_sequences": %s}' % value for value in (b"-1", b"1.5", b"true", b'"1"', b"null", b"1e400")],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_bytes(b'{"shard": "a", "num_sequences": 5}\n' + line + b"\n")
    with pytest.raises(ConfigError) as caught:
        read_manifest(path)
    assert caught.value.file == f"{path}:2" and "num_sequences" in str(caught.value)


def test_manifests_without_samples_and_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text('{"shard": "a", "num_sequences": 0}\n')
    with pytest.raises(ConfigError, match="no samples"):
        read_manifest(tmp_path / "manifest.jsonl")
    with pytest.raises(NotFound):
        read_manifest(tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="2\\^63"):
        manifest(2**62, 2**62)
    with pytest.raises(ConfigError, match="each shard"):
        Manifest(("a",), np.array([1, 2]))
