"""Samples that cannot be used: substitutes, quarantine, budgets, skips."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.loading.failures import Failure, SkipSample, Substitute, Tally, candidates
from feedmill.loading.loader import Loader
from feedmill.loading.metrics import Metrics
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.fields import SkipModel
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.skip import read_entries
from helpers.durations import examples
from helpers.fakes import FakePlan
from helpers.number_dataset import Numbered
from helpers.tars import make_shards

BAD = frozenset([5, 14, 15, 33])


def stream(plan: Any, ranks: int, workers: int, batch_size: int, steps: int, **options: Any) -> list[tuple[int, str]]:
    """What all ranks see, in rank order; every rank has `steps` batches."""
    seen: list[list[Any]] = []
    for rank in range(ranks):
        options.setdefault("deal", "contiguous")
        loader = Loader(plan, batch_size, rank=rank, world_size=ranks, workers=workers, **options)
        seen.append(list(islice(loader, steps)))
        loader.close()
        assert len(seen[-1]) == steps
    rows = [
        (batch["position"].tolist(), batch["__key__"]) for step in range(steps) for batch in (m[step] for m in seen)
    ]
    return [row for positions, keys in rows for row in zip(positions, keys, strict=True)]


@settings(max_examples=examples(25), deadline=None)
@given(st.sets(st.integers(0, 71), max_size=20), st.sampled_from([(1, 0, 72), (2, 2, 4), (3, 1, 6), (1, 3, 8)]))
def test_the_stream_never_shifts_and_substitutes_are_the_same_everywhere(
    bad: set[int], layout: tuple[int, int, int]
) -> None:
    plan = FakePlan(fails_at=frozenset(bad))
    ranks, workers, batch_size = layout
    calm = stream(FakePlan(), 1, 0, 72, 1)
    found = stream(plan, ranks, workers, batch_size, 72 // (ranks * batch_size), on_error="substitute")
    assert found == stream(plan, 1, 0, 72, 1, on_error="substitute")
    for position, (mine, wanted) in enumerate(zip(found, calm, strict=True)):
        if position not in bad:
            assert mine == wanted
        else:
            assert mine[0] not in bad  # another position's sample...
            assert mine[1].split("/")[0] == wanted[1].split("/")[0] and mine[1] != wanted[1]  # ...of the same source


def test_the_quarantine_says_everything_and_the_budget_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "bad-{rank}.jsonl"
    told: list[Failure] = []
    policy = Substitute(quarantine=path, budget=3, handler=told.append)  # type: ignore[arg-type]
    loader = Loader(FakePlan(fails_at=BAD), 4, rank=1, world_size=2, on_error=policy, deal="contiguous")
    assert len(list(islice(loader, 3))) == 3
    assert loader.failures == 3  # 5, 14 and 15 are rank 1's
    lines = [json.loads(line) for line in (tmp_path / "logs" / "bad-1.jsonl").read_text().splitlines()]
    assert lines == [failure.as_dict() for failure in told]
    assert [(line["position"], line["step"], line["stage"]) for line in lines] == [
        (5, 0, "read"),
        (14, 1, "read"),
        (15, 1, "read"),
    ]
    assert lines[0]["file"] == "docs/s0.tar" and lines[0]["offset"] == 512 and lines[0]["rank"] == 1
    assert lines[0]["error"] == "cut short" and lines[0]["substitute"] not in BAD
    strict = Loader(FakePlan(fails_at=BAD), 8, on_error=Substitute(budget=2))
    with pytest.raises(DataError, match=r"cut short .*budget of 2 is exceeded .3 so far"):
        list(islice(strict, 3))


def test_a_failure_whose_name_is_no_unicode_does_not_end_the_run(tmp_path: Path) -> None:
    def transform(sample: dict[str, Any]) -> Any:
        if sample["position"] == 5:
            raise ValueError("caf\udce9 日本")
        return sample

    policy = Substitute(quarantine=tmp_path / "bad.jsonl")
    assert len(list(Loader(FakePlan(length=20), 4, transform=transform, on_error=policy))) == 5
    line = (tmp_path / "bad.jsonl").read_bytes()
    assert json.loads(line)["error"] == "caf\udce9 日本" and "日本".encode() in line
    ((entry,),) = read_entries([SkipModel(quarantine="bad.jsonl")], tmp_path, Plan.over(Numbered("docs", 20)))
    assert entry.indices == [json.loads(line)["index"]]


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'{"position":3,"sour')
    policy = Substitute(quarantine=tmp_path / "bad.jsonl")
    assert len(list(Loader(FakePlan(length=20, fails_at=frozenset([5, 6])), 4, on_error=policy))) == 5
    (entries,) = read_entries([SkipModel(quarantine="bad.jsonl")], tmp_path, Plan.over(Numbered("docs", 20)))
    assert [len(entry.indices or ()) for entry in entries] == [1, 1]
    (tmp_path / "no.jsonl").write_text("a list of my own\n")
    with pytest.raises(ConfigError, match="not a line of a quarantine file"):
        read_entries([SkipModel(quarantine="no.jsonl")], tmp_path, Plan.over(Numbered("docs", 20)))


@pytest.mark.parametrize(
    ("path", "message"), [("folder-{rank}", "it is a folder"), ("file/x/bad.jsonl", "file is not a folder")]
)
def test_a_quarantine_that_cannot_be_written_is_an_error_before_the_run(
    path: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "folder-0").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"the quarantine file cannot be written: .*{message}"):
        Loader(FakePlan(), 4, on_error=Substitute(quarantine=tmp_path / path))
    Loader(FakePlan(), 4, on_error=Substitute(quarantine=tmp_path / "new" / "bad.jsonl"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder-0"]


def test_a_failure_that_cannot_be_written_keeps_its_error(tmp_path: Path) -> None:
    policy = Substitute(quarantine=tmp_path / "later" / "bad.jsonl")
    loader = Loader(FakePlan(length=20, fails_at=frozenset([5])), 4, on_error=policy)
    (tmp_path / "later").touch()
    with pytest.raises(DataError, match=r"cut short .*; this failure cannot be written to .*bad.jsonl: File exists"):
        list(loader)


def test_a_rate_counts_over_a_thousand_samples() -> None:
    plan = FakePlan(fails_at=frozenset(range(0, 300, 30)))
    loader = Loader(plan, 10, on_error=Substitute(budget=0.005))
    with pytest.raises(DataError, match=r"is exceeded .6 of 1,000"):
        list(islice(loader, 30))
    assert loader.position == 150


def test_a_handler_may_stop_the_run() -> None:
    loader = Loader(FakePlan(fails_at=BAD), 4, on_error=Substitute(handler=lambda failure: "raise"))
    with pytest.raises(DataError, match="position 5"):
        list(islice(loader, 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_handler_that_raises_does_not_end_the_loop_in_silence(workers: int) -> None:
    nothing: Iterator[str] = iter(())
    policy = Substitute(handler=lambda _: next(nothing))
    loader = Loader(FakePlan(length=40, fails_at=frozenset([5])), 4, workers=workers, on_error=policy)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    assert loader.position == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_transform_and_collate_are_replaced_too(workers: int) -> None:
    def transform(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if sample["position"] == 5:
            raise ValueError("five")
        return {**sample, "noise": float(rng.random())}

    def collate(samples: list[dict[str, Any]]) -> list[tuple[int, float]]:
        if any(sample["position"] == 6 for sample in samples):
            raise ValueError("six")
        return [(sample["position"], sample["noise"]) for sample in samples]

    calm = list(islice(Loader(FakePlan(), 4, transform=lambda s, rng: {**s, "noise": float(rng.random())}), 2))
    loader = Loader(FakePlan(), 4, workers=workers, transform=transform, collate=collate, on_error="substitute")
    batches = list(islice(loader, 2))
    loader.close()
    assert [p for p, _ in batches[0] + batches[1]][:5] == [0, 1, 2, 3, 4] and batches[1][3][0] == 7
    assert batches[1][1][0] % 2 == 1 and batches[1][2][0] % 2 == 0
    assert [noise for _, noise in batches[1]] == calm[1]["noise"].tolist()  # what is drawn belongs to the place
    assert loader.failures == 2


def test_a_transform_may_refuse_samples_without_any_policy() -> None:
    def only_small(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["__key__"].split("/")[1]) > 3:
            raise SkipSample
        return sample

    loader = Loader(FakePlan(), 6, transform=only_small)
    batches = list(islice(loader, 4))
    assert all(int(key.split("/")[1]) <= 3 for batch in batches for key in batch["__key__"])
    wanted = [key.split("/")[0] for batch in islice(Loader(FakePlan(), 6), 4) for key in batch["__key__"]]
    assert [key.split("/")[0] for batch in batches for key in batch["__key__"]] == wanted
    assert loader.skipped > 0 and loader.failures == 0

    def nothing(sample: Any) -> Any:
        raise SkipSample

    with pytest.raises(FeedmillError, match="no other sample of the source can replace"):
        next(iter(Loader(FakePlan(), 6, transform=nothing)))


def test_what_never_works_ends_the_run() -> None:
    def transform(sample: Any) -> Any:
        raise ValueError("always")

    with pytest.raises(FeedmillError, match="no other sample of the source can replace"):
        next(iter(Loader(FakePlan(), 2, transform=transform, on_error="substitute")))

    def collate(samples: list[Any]) -> Any:
        if len(samples) > 1:
            raise ValueError("together")
        return samples

    with pytest.raises(DataError, match="each of them works alone"):
        next(iter(Loader(FakePlan(), 2, collate=collate, on_error="substitute")))


def tally(in_a_row: int) -> Tally:
    return Tally(fm.loading.Substitute(in_a_row=in_a_row), Metrics(0))


def bad(*positions: int) -> list[Any]:
    some = {"step": 0, "rank": 0, "stage": "read", "source": 0, "index": 0, "epoch": 0, "file": None, "offset": None}
    made = [Failure(position=at, key=None, kind="x", error="x", **some) for at in positions]  # type: ignore[arg-type]
    return [(failure, FeedmillError("x")) for failure in made]


def test_failures_in_a_row_are_counted_over_batches_of_a_rank() -> None:
    few = tally(3)
    for first, positions in ((0, (0, 1)), (8, (9, 11)), (16, (16,)), (24, (26, 27)), (32, ()), (40, (40, 41))):
        few.note_all(range(first, first + 4), bad(*positions))
    few.note_all(range(48, 52), bad(50, 51))
    with pytest.raises(FeedmillError, match="3 samples in a row have failed"):
        few.note_all([56, 59, 58, 57], bad(56, 58))
    with pytest.raises(FeedmillError, match="1 samples in a row"):
        tally(1).note_all(range(4), bad(2))


def test_candidates_are_a_pure_function_and_of_the_source() -> None:
    plan = FakePlan()
    first = list(islice(candidates(plan, 9, 3), 50))
    assert first == list(islice(candidates(plan, 9, 3), 50)) != list(islice(candidates(plan, 11, 3), 50))
    located = plan.locate(np.array([9, *first], np.int64))
    assert set(located.source.tolist()) == {1} and located.index[0] not in located.index[1:]
    assert list(candidates(FakePlan(length=2), 0, 1)) == []


def test_a_source_that_comes_late_has_candidates_too() -> None:
    stages = [{"weights": {"a": 1, "b": 0}, "samples": 20_000_000}, {"weights": {"a": 1, "b": 1}}]
    recipe = {"blend": [{"path": "a", "name": "a"}, {"path": "b", "name": "b"}], "stages": stages}
    plan = Recipe.parse(recipe).plan(lambda path, **_: Numbered(path.rpartition("/")[2], 100))
    late = np.arange(20_000_000, 20_000_010)
    position = int(late[plan.locate(late).source == 1][0])
    located = plan.locate([position, *islice(candidates(plan, position, 0), 50)])
    assert len(located.source) == 51 and set(located.source.tolist()) == {1}
    assert located.index[0] not in located.index[1:]


@pytest.mark.parametrize(
    "arguments", [{"in_a_row": 0}, {"budget": -1}, {"budget": 1.5}, {"quarantine": "s3://bucket/bad.jsonl"}]
)
def test_policies_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Substitute(**arguments)


def test_a_damaged_shard_and_the_quarantine_as_skip_list(tmp_path: Path) -> None:
    make_shards(tmp_path / "tars", [20, 20], parts=("json",))
    (tmp_path / "more.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(30)))
    fm.prepare(str(tmp_path / "tars"), split_ratio="1,0,0", progress=False)
    fm.prepare(str(tmp_path / "more.jsonl"), progress=False)
    recipe = "seed: 1\nsamples: 200\nblend:\n- {path: tars}\n- {path: more.jsonl}\n"
    plan = Recipe.parse(recipe, base=tmp_path).plan()
    shard = tmp_path / "tars" / plan.sources[0].locate(25).file
    data, status = bytearray(shard.read_bytes()), shard.stat()
    where = plan.sources[0].locate(25).offset
    data[where : where + 512] = b"\xff" * 512
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))  # damage, and no other shard in its place
    policy = Substitute(quarantine=tmp_path / "bad.jsonl")
    plan = Recipe.parse(recipe, base=tmp_path).plan()
    loader = Loader(plan, 20, on_error=policy, output="samples", workers=2)
    assert [len(batch) for batch in loader] == [20] * 10
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {(line["source"], line["index"]) for line in lines} == {("tars", 25)} and loader.failures == len(lines) > 0
    assert sorted(line["position"] for line in lines) == plan.positions("tars", 25).tolist()
    assert lines[0]["file"] == str(shard) and lines[0]["offset"] == where
    skipping = Recipe.parse(recipe + "skip:\n- {quarantine: bad.jsonl}\n", base=tmp_path).plan()
    assert len(skipping) == 200 - len(lines)
    assert sum(len(batch) for batch in Loader(skipping, 20, output="samples")) == len(skipping)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_quarantine_of_rows_is_not_used_with_other_rows(tmp_path: Path, workers: int) -> None:
    """Keys of lines are their numbers: before, a list that was made for older data left out other samples."""
    path = tmp_path / "d.jsonl"
    recipe = {"source": {"path": str(path), "name": "d"}, "epochs": 1, "shuffle": "none"}
    listed = {**recipe, "skip": [{"quarantine": str(tmp_path / "bad.jsonl")}]}

    def write(*numbers: int) -> None:
        path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
        fm.prepare(path, progress=False)

    def left() -> list[int]:
        plan = Recipe.parse(listed).plan()
        return [sample["json"]["n"] for sample in plan.read(range(len(plan)))]

    write(*range(6))
    policy = Substitute(quarantine=tmp_path / "bad.jsonl")
    found = list(Loader(Recipe.parse(recipe).plan(), 6, transform=refuse_three, on_error=policy, workers=workers))
    assert len(found) == 1 and left() == [0, 1, 2, 4, 5]
    write(*range(7))
    assert left() == [0, 1, 2, 4, 5, 6]
    write(9, *range(5))
    with pytest.raises(ConfigError, match=r"sample 3 of 'd' may be another one: the dataset has changed since"):
        left()


def refuse_three(sample: Any) -> Any:
    if sample["json"]["n"] == 3:
        raise ValueError("three")
    return sample["json"]["n"]
