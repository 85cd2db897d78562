"""Nanotron's orders, against what Nanotron itself gave."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Repeat
from feedmill.planning.orders import BlendableDataset, Nanoset, file_order, nanoset_index, normalized

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "orders" / "nanoset.json").read_text())


def leaves(lengths: list[int]) -> list[Leaf]:
    return [Leaf(number, length) for number, length in enumerate(lengths)]


def sha256(row: np.ndarray) -> str:
    return hashlib.sha256(row.astype("<i8").tobytes()).hexdigest()


def test_all_cases_are_here() -> None:
    assert {key: len(GOLDEN[key]) for key in ("nanoset_index", "nanoset_index_large", "blendable", "folders")} == {
        "nanoset_index": 18,
        "nanoset_index_large": 3,
        "blendable": 4,
        "folders": 24,
    }


@pytest.mark.parametrize("case", GOLDEN["nanoset_index"], ids=lambda case: f"{case['lengths'][:4]}-{case['seed']}")
def test_every_recorded_index(case: dict) -> None:
    weights = normalized(case["lengths"] if case["weights"] is None else case["weights"])
    assert weights.tolist() == [float.fromhex(text) for text in case["normalized_hex"]]
    dataset, sample = nanoset_index(case["lengths"], case["weights"], case["n"], case["seed"])
    assert dataset.tolist() == case["dataset_index"] and sample.tolist() == case["dataset_sample_index"]


@pytest.mark.parametrize("case", GOLDEN["nanoset_index_large"], ids=lambda case: str(case["n"]))
def test_large_recorded_indices(case: dict) -> None:
    dataset, sample = nanoset_index(case["lengths"], case["weights"], case["n"], case["seed"])
    assert dataset[:16].tolist() == case["di_head"] and sample[:16].tolist() == case["si_head"]
    assert sha256(dataset) == case["di_sha256_i64le"] and sha256(sample) == case["si_sha256_i64le"]


@pytest.mark.parametrize("case", GOLDEN["samples"], ids=lambda case: str(case["lengths"]))
def test_the_documented_class_over_real_folders(case: dict) -> None:
    dataset, sample = nanoset_index(case["lengths"], case["weights"], case["train_split_num_samples"], case["seed"])
    head = len(case["di_head"])
    assert dataset[:head].tolist() == case["di_head"] and sample[:head].tolist() == case["si_head"]


def test_the_worked_example_of_the_documentation() -> None:
    example = GOLDEN["doc_worked_example"]
    lengths, weights = [8, 2, 5, 5], [0.1, 0.5, 0.3, 0.1]
    dealt = BlendableDataset(leaves([20] * 4), [1, 5, 3, 1], 20).locate(np.arange(20))
    assert dealt.source.tolist() == example["dataset_index"]
    assert (dealt.index % np.array(lengths)[dealt.source]).tolist() == example["dataset_sample_index"]
    dataset, sample = nanoset_index(lengths, weights, 70, normalize=False)
    assert dataset.tolist() == (example["shuffled_dataset_index_seed1234"] * 4)[:70]
    assert sample.tolist() == (example["shuffled_dataset_sample_index_seed1234"] * 4)[:70]
    assert dataset.tolist() == nanoset_index(lengths, [10, 50, 30, 10], 70)[0].tolist()
    assert dataset.tolist() != nanoset_index(lengths, weights, 70)[0].tolist(), "normalizing again rounds otherwise"


@pytest.mark.parametrize("case", GOLDEN["blendable"], ids=lambda case: str(case["weights"]))
def test_the_blend_of_the_current_trainer(case: dict) -> None:
    located = BlendableDataset(leaves([100] * len(case["weights"])), case["weights"], case["size"]).locate(
        np.arange(case["size"])
    )
    assert located.source.tolist() == case["dataset_index"] and located.index.tolist() == case["dataset_sample_index"]


def test_file_order_of_folders() -> None:
    for case in GOLDEN["folders"]:
        assert file_order(case["files"][::-1], case["seed"] if case["shuffle"] else None) == case["files"]


def test_without_weights_each_sample_comes_once_and_each_epoch_is_the_same() -> None:
    lengths = [30, 7, 100]
    node = Repeat(Nanoset(leaves(lengths), seed=3), length=2 * 137 + 10)
    located = node.locate(np.arange(284))
    pairs = list(zip(located.source.tolist(), located.index.tolist(), strict=True))
    assert len(set(pairs[:137])) == 137 and pairs[:137] == pairs[137:274] and pairs[:10] == pairs[274:]
    assert located.epoch.tolist() == [0] * 137 + [1] * 137 + [2] * 10


def test_a_weight_of_zero_may_be_drawn_where_nothing_else_is_behind() -> None:
    dataset, _ = nanoset_index([4, 4], [0, 1], 8, seed=0)
    assert dataset.tolist().count(0) == 1  # Nanotron breaks a tie of 0 and 0 in favour of the first


def test_the_identity_tells_orders_apart() -> None:
    nodes = [
        Nanoset(leaves([5, 6])),
        Nanoset(leaves([5, 6]), seed=1),
        Nanoset(leaves([5, 6]), [5, 6.001]),
        Nanoset(leaves([6, 5]), [5, 6]),
        BlendableDataset(leaves([5, 6]), [5, 6], 11),
    ]
    assert len({node.identity() for node in nodes}) == len(nodes)
    assert Nanoset(leaves([5, 6])).identity() == Nanoset(leaves([5, 6]), [5, 6]).identity()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Nanoset([]), "at least one dataset"),
        (lambda: Nanoset(leaves([5, 5]), [1]), "2 datasets and 1 weights"),
        (lambda: Nanoset(leaves([5, 5]), [1, -1]), "non-negative"),
        (lambda: Nanoset(leaves([5, 5]), [1, float("nan")]), "finite"),
        (lambda: Nanoset(leaves([5, 5]), [1e308, 1e308]), "finite"),
        (lambda: Nanoset(leaves([5, 5]), [0, 0]), "add up to zero"),
        (lambda: Nanoset(leaves([5, 5]), ["a", "b"]), "not all numbers"),
        (lambda: Nanoset(leaves([5]), seed=-1), "seed -1"),
        (lambda: Nanoset(leaves([5]), seed=2**32), "seed"),
        (lambda: Nanoset([Repeat(Leaf(0, 5))]), "endless"),
        (lambda: nanoset_index([5, 0]), "no samples"),
        (lambda: Nanoset(leaves([2**62, 2**62])), "2\\^63"),
        (
            lambda: Nanoset(leaves([2**59, 2**58])).locate(np.arange(1)),
            "does not fit into memory: 864,691,128,455,135,232 samples",
        ),
        (lambda: BlendableDataset(leaves([5, 2]), [1, 1], 6), "draws 3 from dataset 1"),
        (lambda: BlendableDataset(leaves([5]), [1], 0), "at least one sample"),
    ],
)
def test_what_nanotron_cannot_run_is_refused(build, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()
