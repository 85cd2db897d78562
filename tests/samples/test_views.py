"""`map`, `filter` and `select`: views with exact positions, keys, states and ledgers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, EmptyResult, NotFound
from feedmill.formats.base import Dataset
from feedmill.planning import ledger
from helpers.tars import make_shards


def number(sample: Any) -> int:
    return int(sample["json"]["n"])


def doubled(sample: Any) -> dict[str, Any]:
    return {"n": 2 * number(sample)}


def even(sample: Any) -> bool:
    return number(sample) % 2 == 0


def plus_one(sample: Any) -> dict[str, Any]:
    return {**sample, "n": sample["n"] + 1}


@pytest.fixture(params=["tars", "prepared", "jsonl"])
def ds(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    if request.param == "jsonl":
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(20)))
        return fm.open(path)
    root = make_shards(tmp_path, [7, 6, 7])
    if request.param == "prepared":
        fm.prepare(root, split_ratio="1,0,0", progress=False)
        return fm.open(root, split="train")
    return fm.open(root)


def test_map_changes_values_and_nothing_else(ds: Dataset) -> None:
    view = ds.map(doubled)
    assert len(view) == 20 and view.fingerprint() == ds.fingerprint()
    key = ds.read([3])[0].key
    assert view[3] == view[key] == {"__key__": key, "n": 6}
    assert [one["n"] for one in view] == list(range(0, 40, 2)) and view.locate(4) == ds.locate(4)
    assert view.map(plus_one)[3] == {"__key__": key, "n": 7}
    assert type(ds[3]).__name__ != "dict"  # the dataset itself is as before
    assert ds.map(number)[5] == 5


def test_select_gives_any_order(ds: Dataset) -> None:
    view = ds.select([5, 2, 19, 2, -1])
    assert [number(sample) for sample in view] == [5, 2, 19, 2, 19]
    keys = [sample.key for sample in ds.read(range(20))]
    assert view.find(keys[5]) == 0 and view.find(keys[19]) == 2 and view.locate(2) == ds.locate(19)
    with pytest.raises(NotFound):
        view.find(keys[3])
    assert [number(one) for one in ds.select(slice(1, None, 6))] == [1, 7, 13, 19]
    assert [number(one) for one in ds.select(np.arange(20) > 17)] == [18, 19]
    assert [number(one) for one in ds.select(range(10, 14)).select([3, 0])] == [13, 10]
    assert ds.select([1, 2]).fingerprint() != ds.select([2, 1]).fingerprint() != ds.fingerprint()
    assert ds.select([1, 2]).describe()["selection"] == "2 of 20 samples"


def test_filter_reads_once_and_is_a_selection(ds: Dataset) -> None:
    seen: list[int] = []

    def odd(sample: Any) -> bool:
        seen.append(number(sample))
        return number(sample) % 2 == 1

    view = ds.filter(odd, progress=False)
    assert [number(one) for one in view] == list(range(1, 20, 2)) and sorted(seen) == list(range(20))
    assert [one["n"] for one in ds.map(doubled).filter(lambda one: one["n"] > 30)] == [32, 34, 36, 38]
    assert [one["n"] for one in ds.filter(even, progress=False).map(doubled)] == list(range(0, 40, 4))
    with pytest.raises(EmptyResult, match=r"0 of 20 samples kept.*Check .*lambda"):
        ds.filter(lambda one: False, progress=False)


def plan_of(ds: Dataset) -> fm.Plan:
    return fm.Plan.over([ds.filter(even, progress=False).map(doubled)], shuffle="global", seed=3, epochs=2)


def numbers(batch: Any) -> list[int]:
    return [int(value) for value in batch["n"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_resume_and_ledgers_know_the_samples(ds: Dataset, workers: int) -> None:
    plan = plan_of(ds)
    whole = [numbers(batch) for batch in fm.Loader(plan, 4, workers=workers)]
    assert sorted(n for batch in whole for n in batch) == sorted(2 * list(range(0, 40, 4)))
    loader = fm.Loader(plan, 4, workers=workers)
    batches = iter(loader)
    assert [numbers(next(batches)) for _ in range(2)] == whole[:2]
    resumed = fm.Loader(plan_of(ds), 4, workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert [numbers(batch) for batch in resumed] == whole[2:]
    entries = ledger.entries(plan, np.arange(4), plan.locate(np.arange(4)))
    keys = {sample.key: number(sample) for sample in ds.read(range(20))}
    assert [2 * keys[entry.key or ""] for entry in entries] == whole[0]
    with pytest.raises(ConfigError):
        fm.Loader(fm.Plan.over([ds], shuffle="global", seed=3, epochs=2), 4).load_state_dict(loader.state_dict())


def test_worker_processes_get_functions_of_modules(ds: Dataset) -> None:
    plan = fm.Plan.over([ds.map(doubled).select([3, 1])], shuffle="none", epochs=1)
    again = pickle.loads(pickle.dumps(plan.sources[0]))
    assert [one["n"] for one in again] == [6, 2] and again.fingerprint() == plan.sources[0].fingerprint()
    local = ds.map(lambda sample: number(sample))
    with pytest.raises(ConfigError, match="lambda> of map cannot be sent to worker processes") as error:
        pickle.dumps(local)
    assert error.value.kind == "not-portable" and "top of a module" in str(error.value)
    with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
        next(iter(fm.Loader(fm.Plan.over([local], shuffle="none"), 2, workers=fm.Workers(1, processes=True))))


def test_errors_of_functions_name_the_sample(ds: Dataset) -> None:
    def broken(sample: Any) -> Any:
        return 1 / (number(sample) - 7)

    key = ds.read([7])[0].key
    for verb, run in (("map", lambda: list(ds.map(broken))), ("filter", lambda: ds.filter(broken, progress=False))):
        with pytest.raises(DataError, match=f"broken of {verb} failed: ZeroDivisionError") as error:
            run()
        assert error.value.record == key and error.value.kind == "function-failed"


def test_selections_that_are_wrong(ds: Dataset) -> None:
    for wrong, kind in (([20], IndexError), ([-21], IndexError), ([[1]], ConfigError), ([0.5], ConfigError)):
        with pytest.raises(kind):
            ds.select(wrong)  # type: ignore[arg-type]
    for nothing in ([], slice(3, 3), np.zeros(20, bool)):
        with pytest.raises(EmptyResult):
            ds.select(nothing)
    with pytest.raises(ConfigError, match="a mask must have 20 values"):
        ds.select(np.ones(3, bool))


def test_documents_of_tokens_are_selected_and_not_mapped() -> None:
    tokens = fm.open(Path(__file__).parents[1] / "golden" / "modalities" / "main_2b.pbin")
    lengths = tokens.lengths
    assert lengths is not None
    part = tokens.select([2, 0])
    assert part.lengths is not None and part.lengths.tolist() == lengths[[2, 0]].tolist()
    assert part[0]["input_ids"].tolist() == tokens[2]["input_ids"].tolist()
    with pytest.raises(ConfigError, match="cannot be mapped: packing reads their tokens by span"):
        tokens.map(len)


def test_errors_of_empty_views_name_no_option_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    dataset = fm.open(tmp_path / "a.jsonl")
    for empty in (lambda: dataset.select([]), lambda: dataset.filter(lambda sample: sample is None)):
        with pytest.raises(fm.FeedmillError, match="0 of 2 samples kept") as caught:
            empty()
        assert "--" not in str(caught.value)
