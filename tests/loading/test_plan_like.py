"""What a loader uses of a plan is what `PlanLike` declares; a plan of your own needs the few names of `PlainPlan`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.plan import PackedLike, PlainPlan, PlanLike, PlannedByReading, ReadableAhead, completed
from feedmill.storage import LocalStore
from helpers.fakes import FakePlan


def declared(protocol: Any) -> set[str]:
    """The names that a protocol and those it extends declare."""
    return {name for each in protocol.__mro__ for name in vars(each) if not name.startswith("_")}


class Recorder:
    """A plan that passes everything on, and notes what it was asked for."""

    def __init__(self, plan: Any, asked: set[str]) -> None:
        self.__dict__.update(_plan=plan, _asked=asked)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self._asked.add(name)
        return getattr(self._plan, name)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens")
    with write_pbin(LocalStore(root), "a.pbin", 2) as writer:
        writer.add(np.arange(4000, dtype=np.uint16), np.full(40, 100))
    return root / "a.pbin"


@pytest.mark.parametrize("packed", [False, True])
def test_a_loader_asks_for_nothing_else(tokens: Path, tmp_path: Path, packed: bool) -> None:
    plan = fm.Plan.over(fm.open(tokens, **({} if packed else {"seq_len": 16})), shuffle="global", epochs=1)
    plan = fm.tokens.PackedPlan(plan, fm.tokens.Packing(64), tmp_path) if packed else plan
    asked: set[str] = set()
    recorder: Any = Recorder(plan, asked)
    loader = fm.Loader(recorder, 4, rank=0, world_size=2, labels=True, remainder="drop")
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    loader.close()
    # Dealing is planning's own: it looks whether the plan has nodes, and locates many positions at once.
    dealing = {"dealing", "node", "documents", "locate_ahead", "locate_batches", "sources"}
    known = declared(PlanLike) | declared(PlannedByReading) | {*declared(ReadableAhead), *ReadableAhead.__annotations__}
    known |= {*PackedLike.__annotations__}
    targets = {"transform", "collate", "length", "is_unbounded", "report"}  # of recipes with `targets`; of accounts
    assert asked - dealing - targets <= known
    assert completed(recorder) is recorder and {"locate_to_read", "read_batch"} <= declared(PlanLike) & asked


def test_a_plan_of_few_names_is_completed() -> None:
    plan = FakePlan(length=40)
    assert all(hasattr(plan, name) for name in declared(PlainPlan))
    whole = completed(plan)
    assert whole is not plan and all(hasattr(whole, name) for name in declared(PlanLike))
    at = np.arange(4)
    assert whole.read_batch(at, "parts") is None and whole.locate_to_read(at) is None and not whole.names
    assert [sample["position"] for sample in whole.read(at)] == [0, 1, 2, 3]
    assert pickle.loads(pickle.dumps(whole)).fingerprint == plan.fingerprint
    loader = fm.Loader(plan, 4, rank=0, world_size=1)
    next(iter(loader))
    assert loader.plan is plan and loader.state_dict()["sources"] == plan.fingerprints


def test_an_iteration_that_was_left_moves_no_other_state() -> None:
    loader = fm.Loader(FakePlan(length=40), 4, rank=0, world_size=1)
    left = iter(loader)
    next(left)
    state = loader.state_dict()
    next(left)
    loader.load_state_dict(state)
    with pytest.raises(fm.ConfigError, match="iteration was ended"):
        next(left)
    assert loader.position == 4 and next(iter(loader))["position"].tolist() == [4, 5, 6, 7]
