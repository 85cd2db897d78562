"""Summaries beside NumPy: any division and order, coarse ones too, and bytes that are equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.samples.robotics import summary
from feedmill.samples.robotics.summary import QUANTILES, Summary, mixed


def of(values: np.ndarray, times: np.ndarray | None = None) -> Summary:
    out = Summary(values.shape[1])
    out.add(values, times)
    return out


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 4))
def test_any_division_and_order_gives_the_same(seed: int, count: int, pieces: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(count, 2)) * 10.0 ** rng.integers(-5, 5)).round(rng.integers(0, 6)).astype(np.float32)
    times = rng.integers(1, 5, count)
    whole = of(values, times)
    parts = [of(*piece) for piece in zip(np.array_split(values, pieces), np.array_split(times, pieces), strict=True)]
    out = Summary(2)
    for part in rng.permutation(np.asarray(parts, object)):
        out.merge(part)
    repeated = np.repeat(values, times, axis=0).astype(np.float64)
    found = mixed([out], [1.0])
    for name, q in QUANTILES.items():
        assert np.array_equal(found[name], np.quantile(repeated, q, axis=0, method="inverted_cdf")), name
        assert np.array_equal(found[name], mixed([whole], [1.0])[name])
    np.testing.assert_allclose(found["mean"], repeated.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["std"], repeated.std(0), rtol=1e-6, atol=1e-9)
    assert np.array_equal(found["min"], repeated.min(0)) and np.array_equal(found["max"], repeated.max(0))
    assert out.exact and found["count"].tolist() == [times.sum()]


def test_many_values_share_leading_bits_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MOST", 256)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20_000, 1)).astype(np.float32)
    whole, parts = of(values), [of(part) for part in np.array_split(values, 7)]
    backwards = Summary(1)
    for part in reversed(parts):
        backwards.merge(part)
    assert not whole.exact
    for one, other in zip(whole.distribution(0), backwards.distribution(0), strict=True):
        assert np.array_equal(one, other)
    found = mixed([whole], [1.0])
    level = whole._levels[0]
    for name, q in QUANTILES.items():
        wanted = np.quantile(values.astype(np.float64), q, method="inverted_cdf")
        assert abs(found[name][0] - wanted) <= abs(wanted) * 2.0 ** (level - 23), name


def test_bytes_are_equal_and_give_the_summary_again() -> None:
    values = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    values[:, 1] = -0.0
    one = of(values)
    again = Summary.from_bytes(one.to_bytes())
    assert one.to_bytes() == of(values).to_bytes() == again.to_bytes()
    assert mixed([one], [2.0])["q50"].tolist() == mixed([again], [1.0])["q50"].tolist()
    for data in (b"", b"PK", one.to_bytes()[:200]):
        with pytest.raises(Exception):  # noqa: B017 - of zipfile and zlib too
            Summary.from_bytes(data)
