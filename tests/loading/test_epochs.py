"""Loaders in epochs: bounded, going on or beginning again, and resumed anywhere."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.loading.epochs import EpochLoader
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from helpers.durations import examples
from helpers.fakes import FakePlan


def epochs(length: int | None = None, *, samples: int | None = None, workers: int = 0, **more: Any) -> EpochLoader:
    return EpochLoader(Loader(FakePlan(length=samples), 2, workers=workers, remainder="ragged"), length=length, **more)


def positions(batches: Any) -> list[int]:
    return [int(p) for batch in batches for p in batch["position"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_go_on(workers: int) -> None:
    loader = epochs(3, workers=workers)
    assert [positions(loader) for _ in range(3)] == [list(range(6 * i, 6 * i + 6)) for i in range(3)]
    assert len(loader) == 3
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plan_that_ends_begins_anew_where_that_is_wanted(workers: int) -> None:
    again = epochs(samples=5, restart=True, workers=workers)
    assert [positions(again) for _ in range(3)] == [list(range(5))] * 3 and len(again) == 3
    assert positions(islice(again, 1)) == [0, 1] and positions(again) == list(range(5))
    once = epochs(samples=5, workers=workers)
    assert positions(once) == list(range(5)) and positions(once) == []
    short = epochs(2, samples=5, restart=True)
    assert len(short) == 2 and [positions(short) for _ in range(2)] == [[0, 1, 2, 3]] * 2


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=5), st.booleans())
def test_any_stops_and_resumes_give_the_same_epochs(length: int, stops: list[int], fresh: bool) -> None:
    calm = epochs(length)
    wanted = [positions(calm) for _ in range(12)]
    loader = epochs(length)
    found: list[int] = []
    for stop in stops:
        found += positions(islice(loader, stop))
        if fresh:
            state = json.loads(json.dumps(loader.state_dict()))
            loader = epochs(length)
            loader.load_state_dict(state)
    assert found == [p for epoch in wanted for p in epoch][: len(found)]
    given_out = len(found) // 2
    rest = positions(loader)
    if given_out % length or rest:
        assert rest == [p for epoch in wanted for p in epoch][len(found) : (given_out // length + 1) * length * 2]


def test_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="0 batches"):
        epochs(0)
    for state in ({}, [], {"feedmill_loader": 1}, [1]):
        with pytest.raises(ConfigError, match="not the state of a loader in epochs"):
            epochs(2).load_state_dict(state)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        len(epochs())


def test_a_dataset_that_grew_is_allowed_as_a_loader_allows_it(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"{n}"}) + "\n" for n in range(30)]
    file.write_text("".join(lines[:20]))
    plan = Plan.over(fm.open(str(file)), shuffle="none", epochs=3)
    loader = EpochLoader(Loader(plan, 2, output="samples"), length=3)
    assert len(list(loader)) == 3
    state = loader.state_dict()
    file.write_text("".join(lines))
    plan = Plan.over(fm.open(str(file)), shuffle="none", epochs=3)
    grown = EpochLoader(Loader(plan, 2, output="samples"), length=3)
    with pytest.raises(ConfigError, match="allow_append"):
        grown.load_state_dict(state)
    grown.load_state_dict(state, allow_append=True)
    assert [int(json.loads(sample.raw("json"))["text"]) for batch in grown for sample in batch] == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("change", [{"given": None}, {"given": -1}, {"loader": 5}, {"feedmill_epochs": 99}])
def test_damaged_states(change: dict[str, object]) -> None:
    loader = EpochLoader(Loader(FakePlan(), 2), length=4)
    with pytest.raises(ConfigError, match="not the state of a loader in epochs"):
        loader.load_state_dict({**loader.state_dict(), **change})


EMPTY = "this pass of the loader gave no batch: position 40 is the end of its plan"


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "gave no batch" in record.getMessage()]
    caplog.clear()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_after_the_end_of_the_plan_is_reported(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    loader = Loader(FakePlan(length=40), 4, workers=workers, rank=0, world_size=1)
    assert len(list(loader)) == 10 and not warned(caplog)
    assert not list(loader)
    (text,) = warned(caplog)
    assert text.startswith(EMPTY) and "rewind=True" in text and "'epochs'" in text
    again = Loader(FakePlan(length=40), 4, workers=workers, rank=0, world_size=1)
    again.load_state_dict(loader.state_dict())
    assert not list(again) and len(warned(caplog)) == 1
    rewound = Loader(FakePlan(length=40), 4, workers=workers, rank=0, world_size=1, rewind=True)
    assert [len(list(rewound)) for _ in range(3)] == [10] * 3 and not warned(caplog)


def test_epochs_that_begin_again_report_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"cycle": True}, {"restart": True}, {"cycle": True, "length": 10}, {"cycle": True, "length": 5}):
        loader = EpochLoader(Loader(FakePlan(length=40), 4, rank=0, world_size=1), **options)
        assert all(len(list(loader)) in (5, 10) for _ in range(5))
    assert not warned(caplog)
    loader = EpochLoader(Loader(FakePlan(length=40), 4, rank=0, world_size=1))
    assert [len(list(loader)) for _ in range(2)] == [10, 0] and len(warned(caplog)) == 1


def test_a_dataset_of_a_loader_at_its_end_reports_it_once(caplog: pytest.LogCaptureFixture) -> None:
    data = pytest.importorskip("torch.utils.data")
    loader = Loader(FakePlan(length=40), 4, rank=0, world_size=1)
    dataset = loader.as_iterable_dataset()
    for _ in range(2):
        assert len(list(data.DataLoader(dataset, batch_size=None))) == 10
    assert not warned(caplog)
    list(loader)
    assert not list(data.DataLoader(loader.as_iterable_dataset(), batch_size=None))
    (text,) = warned(caplog)
    assert text.startswith(EMPTY) and "rewind" not in text


def test_hooks_that_keep_nothing_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing(fm.TaskEncoder):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return []

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples

    assert not list(Loader(FakePlan(length=40), 1, rank=0, world_size=1, task_encoder=Nothing(), buffer=8))
    assert "task encoder made none of the samples from position 0 on" in warned(caplog)[0]
