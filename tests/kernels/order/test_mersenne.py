"""The shuffles of torch and numpy, against torch and numpy."""

import numpy as np
import pytest

from feedmill.kernels.order import mersenne
from feedmill.kernels.order.mersenne import LARGE, inverse, randperm, shuffle
from oracles import mersenne as plain

SIZES = [0, 1, 2, 3, 10, 623, 624, 625, 10_007, 2**18, 2**18 + 1, 300_000]


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**32 + 7, -3, 2**63 - 1])
def test_torch_gives_the_same(seed: int) -> None:
    torch = pytest.importorskip("torch")
    for n in SIZES:
        expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
        assert np.array_equal(randperm(n, seed), expected), n
        if n <= 10_007:
            assert plain.randperm(n, seed) == expected.tolist(), n


def test_the_second_rule_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mersenne, "LARGE", 100)
    monkeypatch.setattr(mersenne, "_CHUNK", 64)
    for n in (100, 101, 128, 5000):
        order = randperm(n, 5)
        assert order.tolist() == plain.randperm(n, 5)
        assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_numpy_shuffles_the_same(dtype: type) -> None:
    for n in [*SIZES, 2**17, 2**17 + 1, 600_000]:
        expected, found = np.arange(n, dtype=dtype), np.arange(n, dtype=dtype)
        np.random.RandomState(n).shuffle(expected)
        shuffle(found, n)
        assert np.array_equal(found, expected), n


def test_the_inverse_leads_back() -> None:
    order = randperm(300_000, 3)
    assert np.array_equal(order[inverse(order)], np.arange(300_000)) and inverse(order).dtype == order.dtype


@pytest.mark.slow
def test_torch_gives_the_same_from_where_its_rule_changes() -> None:
    torch = pytest.importorskip("torch")
    for n in (LARGE - 1, LARGE):
        expected = torch.randperm(n, generator=torch.Generator().manual_seed(77), dtype=torch.int32).numpy()
        assert np.array_equal(randperm(n, 77), expected.view(np.uint32))
