"""Sorted orders of columns against a stable sort, and their files in the cache folder."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.planning.nodes import Concat, Leaf, Shuffle, Subset, ranking
from feedmill.planning.nodes.ranking import Ranking, ranked, ranking_of, values_of
from helpers.number_dataset import Numbered


def column(rng: np.random.Generator, kind: int, count: int) -> np.ndarray:
    columns: list[Any] = [
        lambda: rng.integers(-5, 5, count),
        lambda: rng.normal(size=count),
        lambda: rng.integers(-(2**62), 2**62, count),
        lambda: rng.choice([0.0, -0.0, 1e300, -1e-300, 0.5, np.inf, -np.inf], count),
        lambda: np.where(rng.random(count) < 0.8, 7, rng.integers(0, 2**60, count)),
        lambda: np.full(count, 3),
    ]
    values: np.ndarray = columns[kind]()
    return values


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("at_once", [20, 100, 1 << 22])
def test_a_ranking_is_a_stable_sort_however_much_is_sorted_at_once(
    kind: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_AT_ONCE", at_once)
    rng = np.random.default_rng(kind)
    for count in (1, 2, 19, 21, 300, 511):
        values = column(rng, kind, count)
        found, order = ranked(values), sorted(range(count), key=lambda i: (values[i], i))
        assert found.order.tolist() == order
        assert found.ranks[order].tolist() == list(range(count))
        assert found.starts.tolist() == [
            rank for rank in range(count) if not rank or values[order[rank]] != values[order[rank - 1]]
        ]
        assert found.digest == ranked(values.copy()).digest
    assert ranked(np.arange(5)).digest != ranked(np.arange(5)[::-1]).digest


class Scored(Numbered):
    reads_of_columns = 0

    def _find_values(self, by: str, *, texts: bool) -> np.ndarray | None:
        Scored.reads_of_columns += 1
        return super()._find_values(by, texts=texts)


def test_a_large_ranking_is_computed_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ranking, "TABLE_FROM", 50)
    monkeypatch.setattr(Scored, "reads_of_columns", 0)
    node = Concat([Subset(Leaf(0, 100), 10, 90), Leaf(1, 30)])
    sources = [Scored("a", 100), Scored("b", 30)]
    expected = ranked(values_of(node, "score", sources))
    first, again = (ranking_of(node, "score", sources) for _ in range(2))
    assert Scored.reads_of_columns == 4 and first.file == again.file != ""
    copy: Ranking = pickle.loads(pickle.dumps(again))
    assert len(pickle.dumps(again)) < 300
    for made in (first, again, copy):
        assert made.order.tolist() == expected.order.tolist() and made.ranks.tolist() == expected.ranks.tolist()
        assert made.starts.tolist() == expected.starts.tolist() and made.digest == expected.digest
    assert ranking_of(Subset(Leaf(0, 100), 11, 91), "score", sources).file != first.file
    assert ranking_of(node, "group", sources).file != first.file
    assert ranking_of(node, "score", [Scored("a", 100, "2"), sources[1]]).file != first.file

    path = tmp_path / "rankings" / first.file
    path.write_bytes(path.read_bytes()[:200])
    with caplog.at_level(logging.WARNING, "feedmill"):
        repaired = ranking_of(node, "score", sources)
    assert "cannot be read and is computed again" in caplog.text
    assert repaired.order.tolist() == expected.order.tolist()
    path.unlink()
    with pytest.raises(ConfigError, match="is no longer in the cache folder"):
        pickle.loads(pickle.dumps(again))


def test_without_a_cache_folder_each_process_sorts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(ranking, "TABLE_FROM", 50)
    with caplog.at_level(logging.WARNING, "feedmill"):
        found = ranking_of(Leaf(0, 100), "score", [Scored("a", 100)])
    assert "cannot be cached" in caplog.text and not found.file and len(found.order) == 100


def test_columns_of_nodes_with_an_order_or_without_data_are_errors() -> None:
    data = Numbered("a", 10)
    with pytest.raises(ConfigError, match="stored order, this source is shuffle global"):
        values_of(Shuffle(Leaf(0, 10), 3), "score", [data])
    with pytest.raises(ConfigError, match="no longer there"):
        values_of(Leaf(0, 10), "score", [None])
    with pytest.raises(ConfigError, match=r"the index of a has no column 'x' \(its numeric fields: none\).*quantiles"):
        values_of(Leaf(0, 10), "x", [data])


def test_a_missing_value_is_an_error(tmp_path: Path) -> None:
    import feedmill as fm

    path = tmp_path / "a.jsonl"
    path.write_text('{"score": 0.5}\n{"score": NaN}\n')
    with pytest.raises(DataError, match=r"sample 1.*'score' of this sample is nan, expected a value"):
        values_of(Leaf(0, 2), "score", [fm.open(path)])
