"""Modalities' sampler, against what Modalities itself gave."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.planning.dealing.grid import Grid
from feedmill.planning.nodes import Leaf, Repeat
from feedmill.planning.orders import ModalitiesSampler, sampler_indices
from helpers.durations import examples

CASES = json.loads((Path(__file__).parents[2] / "golden" / "orders" / "modalities.json").read_text())


def arguments(case: dict) -> dict:
    return {key: case[key] for key in ("shuffle", "seed", "epoch", "drop_last", "skip")}


def test_all_84_recorded_cases() -> None:
    assert len(CASES) == 84
    for case in CASES:
        for rank, expected in case["ranks"].items():
            found = sampler_indices(case["n"], int(rank), case["num_replicas"], **arguments(case))
            assert found.dtype == np.int64 and found.tolist() == expected, case


def test_the_node_gives_all_ranks_together_or_each_rank_its_slice() -> None:
    for case in CASES:
        ranks = case["num_replicas"]
        dealt = np.array([case["ranks"][str(rank)] for rank in range(ranks)])
        if not dealt.size:
            with pytest.raises(ConfigError, match="has no samples"):
                ModalitiesSampler(Leaf(0, case["n"]), ranks, **arguments(case))
            continue
        node = ModalitiesSampler(Leaf(0, case["n"]), ranks, **arguments(case))
        assert node.locate(np.arange(node.length)).index.tolist() == dealt.T.reshape(-1).tolist()
        for batch in (1, 2, 5):
            laid = ModalitiesSampler(Leaf(0, case["n"]), ranks, batch_size=batch, **arguments(case))
            steps = [dealt[:, first : first + batch].reshape(-1) for first in range(0, dealt.shape[1], batch)]
            assert laid.locate(np.arange(laid.length)).index.tolist() == np.concatenate(steps).tolist()


@pytest.mark.parametrize(("n", "drop_last"), [(64, True), (61, True), (61, False)])
def test_each_rank_of_a_loader_gets_what_it_had(n: int, drop_last: bool) -> None:
    node = ModalitiesSampler(Leaf(0, n), 4, shuffle=True, seed=1, drop_last=drop_last, batch_size=3)
    for rank in range(4):
        grid = Grid(0, node.length, 3, rank, 4, "uneven")
        steps = [grid.step(number) for number in range(grid.steps or 0)]
        index = np.concatenate([node.locate(np.arange(step.first, step.stop)).index for step in steps])
        assert index.tolist() == sampler_indices(n, rank, 4, shuffle=True, seed=1, drop_last=drop_last).tolist()


@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 60),
    st.integers(0, 9),
)
@settings(max_examples=examples(100), deadline=None)
def test_ranks_share_the_rest_evenly(n: int, ranks: int, shuffle: bool, drop_last: bool, skip: int, seed: int) -> None:
    skip = min(skip, n)
    rest = sampler_indices(n, 0, 1, shuffle=shuffle, seed=seed, skip=skip)
    rows = [
        sampler_indices(n, rank, ranks, shuffle=shuffle, seed=seed, drop_last=drop_last, skip=skip)
        for rank in range(ranks)
    ]
    assert len({len(row) for row in rows}) == 1
    together = np.stack(rows, axis=1).reshape(-1)
    shared = min(len(rest), len(together))
    assert np.array_equal(together[:shared], rest[:shared])
    assert abs(len(together) - len(rest)) < ranks and (len(together) <= len(rest) if drop_last else True)


def test_each_epoch_is_the_next_epoch_of_the_sampler() -> None:
    node = Repeat(ModalitiesSampler(Leaf(0, 50), 4, shuffle=True, seed=3, epoch=7), 5)
    index = node.locate(np.random.default_rng(0).permutation(node.length or 0))
    order = node.positions(index)[0]
    whole = node.locate(np.sort(order)).index.reshape(5, 48)
    for epoch in range(5):
        assert whole[epoch].tolist() == sampler_indices(50, 0, 1, shuffle=True, seed=3, epoch=7 + epoch)[:48].tolist()


def test_another_process_makes_its_own_order() -> None:
    node = ModalitiesSampler(Leaf(0, 1000), 2, shuffle=True)
    node.locate(np.arange(10))
    sent = pickle.dumps(node)
    assert len(sent) < 1000
    assert pickle.loads(sent).locate(np.arange(10)).index.tolist() == node.locate(np.arange(10)).index.tolist()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: sampler_indices(10, 3, 3), "rank 3 of 3"),
        (lambda: sampler_indices(10, 0, 0), "0 ranks"),
        (lambda: sampler_indices(10, 0, 1, skip=11), "skip 11 of 10"),
        (lambda: ModalitiesSampler(Leaf(0, 10), 1, skip=-1), "skip -1"),
        (lambda: ModalitiesSampler(Leaf(0, 10), 11), "has no samples: 10 samples for 11 ranks"),
        (lambda: ModalitiesSampler(Leaf(0, 10), 2, batch_size=0), "batch_size 0 is invalid"),
        (lambda: ModalitiesSampler(Repeat(Leaf(0, 10)), 2), "endless"),
        (lambda: ModalitiesSampler(Leaf(0, 10), 2**63, drop_last=False), "2\\^63"),
        (lambda: ModalitiesSampler(Leaf(0, 2**60), 2, shuffle=True).locate(np.arange(1)), "does not fit into memory"),
    ],
)
def test_what_makes_no_sense_is_refused(build, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()


def test_a_batch_of_more_than_all_samples_is_all_of_them() -> None:
    whole = ModalitiesSampler(Leaf(0, 100), 3, batch_size=33)
    more = ModalitiesSampler(Leaf(0, 100), 3, batch_size=2**63 - 1)
    assert more.locate(np.arange(99)).index.tolist() == whole.locate(np.arange(99)).index.tolist()
    located = more.locate(np.arange(99))
    assert more.positions(located)[0].tolist() == list(range(99))
