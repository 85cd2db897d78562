"""States in checkpoints: torch's distributed ones, those of trainers, and files of one's own."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader
from helpers.checkpoint_rank import LENGTH, new_loader, positions
from helpers.durations import needs
from helpers.fakes import FakePlan
from helpers.forked_ranks import run_groups

needs("torch")


def group(size: int, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    """The options of each rank."""
    common = {"meet": f"file://{tmp_path / f'meet{size}'}", "size": size, "folder": str(tmp_path / "saved"), **options}
    return [{**common, "rank": rank} for rank in range(size)]


@pytest.mark.parametrize(
    ("packs", "bare"),
    [
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_distributed_checkpoints_from_two_processes_to_four(packs: bool, bare: bool, tmp_path: Path) -> None:
    save = group(2, tmp_path, packs=packs, bare=bare, load=False, steps=5)
    load = group(4, tmp_path, packs=packs, bare=bare, load=True)
    before, after = run_groups("checkpoint_rank.py", [save, load])
    assert all(len(batches) == 5 for batches in before)
    if packs:
        whole = [pack for batch in new_loader(True, 0, 1) for pack in positions(batch)]
        seen = [pack for rank in before + after for batch in rank for pack in batch]
        assert sorted(seen) == sorted(whole) and sum(map(len, seen)) == LENGTH
        return
    steps = [step for ranks in (before, after) for step in zip(*ranks, strict=True)]
    seen = [p for step in steps for p in sorted(p for batch in step for p in batch)]
    assert seen == list(range(LENGTH))  # the positions of a step are dealt shuffled


def ranks_of(size: int, packs: bool) -> list[Loader]:
    return [new_loader(packs, rank, size) for rank in range(size)]


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("name", ["state.json", "state-{rank}.json"])
def test_files(packs: bool, name: str, tmp_path: Path) -> None:
    loaders = ranks_of(2, packs)
    seen = [positions(batch) for loader in loaders for batch in islice(loader, 4)]
    states = [loader.state_dict() for loader in loaders]
    for loader in loaders:
        Checkpoint(loader, gather=lambda _: states).save(tmp_path / "a" / name)
    assert len(list((tmp_path / "a").iterdir())) == (2 if "{rank}" in name else 1)
    for loader in ranks_of(3, packs):
        Checkpoint(loader).load(tmp_path / "a" / name)
        seen += [positions(batch) for batch in loader]
    flat = [entry for batch in seen for entry in batch]
    assert (
        sorted(p for pack in flat for p in pack) == list(range(LENGTH))
        if packs
        else sorted(flat) == list(range(LENGTH))
    )
    assert positions(next(iter(loaders[0])))  # saving has moved nothing


def test_a_state_is_one_short_string() -> None:
    loader = new_loader(False, 0, 1)
    next(iter(loader))
    (text,) = Checkpoint(loader).state_dict().values()
    assert isinstance(text, str) and len(text) < 1024 and json.loads(text) == loader.state_dict()
    other = new_loader(False, 0, 1)
    Checkpoint(other).load_state_dict(loader.state_dict())  # what the loader itself gave is taken too
    assert other.position == loader.position == 4


def test_seeds_and_names_of_every_kind(tmp_path: Path) -> None:
    class Odd(FakePlan):
        @property
        def fingerprints(self) -> dict[str, str]:
            return {"source \udce9": "as stored"}

    loader = Loader(Odd(seed=2**70), 4)
    next(iter(loader))
    Checkpoint(loader).save(tmp_path / "state.json")
    other = Loader(Odd(seed=2**70), 2)
    Checkpoint(other).load(tmp_path / "state.json")
    Checkpoint(other).load_state_dict(Checkpoint(loader).state_dict())
    assert other.position == 4


def test_what_cannot_be_saved_or_loaded(tmp_path: Path) -> None:
    checkpoint = Checkpoint(new_loader(True, 0, 2))
    with pytest.raises(ConfigError, match=r"states are missing: expected one of each of .* ranks.*found 1"):
        checkpoint.state_dict()
    with pytest.raises(NotFound):
        checkpoint.load(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"feedmill_loader": 1, "pos')
    with pytest.raises(ConfigError, match=r"cut\.json.*JSON"):
        checkpoint.load(tmp_path / "cut.json")
    (tmp_path / "odd-0.json").write_text('{"feedmill_loader": 2, "windows": 5}')
    with pytest.raises(ConfigError, match="corrupt"):
        checkpoint.load(tmp_path / "odd-{rank}.json")
    with pytest.raises(ConfigError, match="not the state"):
        Checkpoint(new_loader(False, 0, 1)).load_state_dict({"feedmill": "[]"})
    with pytest.raises(ConfigError, match="expected JSON"):
        checkpoint.load_state_dict({"feedmill": 3})
    loaders = ranks_of(2, True)
    loaders[0].state_dict()
    Checkpoint(loaders[0]).save(tmp_path / "s-{rank}.json")
    with pytest.raises(NotFound):  # that of rank 1
        Checkpoint(new_loader(True, 0, 3)).load(tmp_path / "s-{rank}.json")


def test_protocols_of_trainers() -> None:
    from torch.distributed.checkpoint.stateful import Stateful

    loader = Loader(FakePlan(length=40), 4)
    assert isinstance(loader, Stateful) and isinstance(Checkpoint(loader), Stateful)
    list(islice(loader, 3))
    other = Loader(FakePlan(length=40), 4)
    other.load_state_dict(loader.state_dict())
    assert len(other) == len(loader) == 10 and len(list(other)) == 7  # trainers count batches over a resume


def test_validation_begins_anew() -> None:
    loader = Loader(FakePlan(length=20), 4, rewind=True)
    first = [positions(batch) for batch in loader]
    assert [positions(batch) for batch in islice(loader, 2)] == first[:2]
    assert [positions(batch) for batch in loader] == first and len(loader) == 5
    state = loader.state_dict()
    loader.load_state_dict({**state, "position": 8})
    assert [positions(batch) for batch in loader] == first[2:]
    assert [positions(batch) for batch in loader] == first
    assert [positions(batch) for batch in Loader(FakePlan(length=20), 4)] == first
    packs = new_loader(True, 0, 1)
    packs._rewind = True
    assert [positions(b) for b in packs] == [positions(b) for b in packs] != []
