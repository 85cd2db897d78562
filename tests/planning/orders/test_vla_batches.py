"""The order of VLA Foundry's own loader, as it was recorded."""

from __future__ import annotations

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.planning.orders import read_manifest, select_window
from feedmill.planning.orders.vla import Cursor, mixed, shard_order, window_batches, worker_seed
from feedmill.samples.vla.text import TokenizedText
from helpers.vla_golden import ROOT, expected

CASES = expected("order")


@pytest.mark.parametrize("case", CASES["stage_order"], ids=lambda case: f"{case['n']}-{case['bufsize']}")
def test_shards_are_dealt_as_recorded(case) -> None:
    order = shard_order(
        case["n"], seed=case["seed"], checkpoint=case["checkpoint"], buffer=case["bufsize"], initial=case["initial"]
    )
    for place, wanted in case["order"].items():
        rank, worker = map(int, place.split("/"))
        assert order[rank :: case["world"]][worker :: case["workers"]] == wanted


@pytest.mark.parametrize("case", CASES["worker_seeds"], ids=lambda case: str(case["generator_seed"]))
def test_workers_are_seeded_as_recorded(case) -> None:
    places = (case["seed"], case["checkpoint"], case["rank"], case["world"])
    found = [worker_seed(*places, worker) for worker in range(len(case["worker_python_random_seeds"]))]
    assert found == case["worker_python_random_seeds"]
    for iteration, base in enumerate(case["base_seeds"]):
        assert worker_seed(*places, 0, iteration) == base % 2**32


@pytest.mark.parametrize("case", CASES["random_mix"], ids=lambda case: str(case["lengths"]))
def test_data_sets_are_drawn_as_recorded(case) -> None:
    shares = case["probs"] or [1] * len(case["lengths"])
    assert mixed(case["lengths"], shares, case["python_random_seed"], longest=case["longest"]) == case["sources"]


def _usable(folder: str, seq_len: int) -> np.ndarray:
    view, out = TokenizedText(seq_len), []
    for sample in fm.open(ROOT / folder).read_raw(range(len(fm.open(ROOT / folder)))):
        try:
            view.cook(sample)
            out.append(True)
        except DataError:
            out.append(False)
    return np.array(out)


@pytest.mark.parametrize(
    "case", [case for case in CASES["end_to_end"] if case["nw"]], ids=lambda c: f"{c['world']}x{c['nw']}"
)
def test_whole_windows_come_as_recorded(case) -> None:
    names = case["datasets"]
    data = [fm.open(ROOT / name) for name in names]
    manifests = [read_manifest(ROOT / name / "manifest.jsonl") for name in names]
    usable = [_usable(name, case["seq_len"]) for name in names]
    cursors = [Cursor(0, case["seed"])] * len(names)
    for checkpoint in range(case["windows"]):
        window = select_window(
            manifests, cursors, case["num_samples"], workers=case["world"] * case["nw"], weights=case["weights"],
            repeat=case["multi"],
        )  # fmt: skip
        ranks = window_batches(
            manifests, window, ranks=case["world"], workers=case["nw"], batch=case["gbs"] // case["world"],
            seed=case["seed"], checkpoint=checkpoint, usable=usable,
        )  # fmt: skip
        for rank, batches in enumerate(ranks):
            wanted = case["result"][str(rank)][checkpoint]
            assert list(window.samples) == wanted["selected"]
            keys = [[data[one.dataset][int(i)].key for i in one.samples] for one in batches]
            assert keys == [batch["keys"] for batch in wanted["batches"]]
        cursors = list(window.after)


def test_what_cannot_be_reproduced_is_refused() -> None:
    manifests = [read_manifest(ROOT / "text" / "manifest.jsonl")]
    window = select_window(manifests, [Cursor()], 10, workers=0)
    with pytest.raises(ConfigError, match="without workers"):
        window_batches(manifests, window, ranks=1, workers=0, batch=2)
    with pytest.raises(ConfigError, match="a different order"):
        shard_order(5, seed=-1)
