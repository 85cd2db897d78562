"""Resuming with another recipe: allowed exactly where the order before the state's position is the same."""

from __future__ import annotations

import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from feedmill.errors import ConfigError, FeedmillError
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.loader import Loader
from feedmill.planning.packing import best_fit, windows
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.resuming import resume as proof
from helpers.durations import slow_but
from helpers.number_dataset import Growing, Numbered
from helpers.token_dataset import Tokenized

SIZES = {"docs": 40, "code": 25, "web": 60, "math": 9}
BLEND = [{"path": "docs", "weight": 0.7}, {"path": "code", "weight": 0.3}]


def planned(recipe: dict[str, Any], **sizes: int) -> Plan:
    known = {**SIZES, **sizes}
    given = {"seed": 3, **recipe}
    return Recipe.parse(given).plan(lambda path, **_: Growing(path.rpartition("/")[2], known[path.rpartition("/")[2]]))


def stages(*parts: tuple[int | None, dict[str, float]], **more: Any) -> dict[str, Any]:
    names = list(dict.fromkeys(name for _, weights in parts for name in weights))
    listed = [{"weights": weights} | ({"samples": size} if size else {}) for size, weights in parts]
    return {"blend": [{"path": name} for name in names], "stages": listed, **more}


def state_at(plan: Plan, position: int) -> dict[str, Any]:
    loader = Loader(plan, 1, start=position)
    return json.loads(json.dumps(loader.state_dict()))


def resumed(plan: Plan, state: dict[str, Any], **flags: bool) -> Loader:
    loader = Loader(plan, 1, output="samples")
    loader.load_state_dict(state, **{"allow_change": True, **flags})
    return loader


A = {"docs": 0.7, "code": 0.3}


@pytest.mark.parametrize(
    "other",
    [
        stages((200, A), (None, {"docs": 0.4, "code": 0.6})),
        stages((200, {**A, "web": 0}), (None, {"docs": 0.4, "code": 0.3, "web": 0.3})),
        stages((250, {"web": 0, **A}), (None, {"web": 1.0, **A}), samples=900),
        {"blend": [*BLEND, {"path": "web", "weight": 0}]},
        {"blend": BLEND, "samples": 200},
        {"blend": [{"path": "docs", "weight": 7, "epochs": 6}, {"path": "code", "weight": 3, "max_repeats": 9}]},
    ],
)
def test_what_changes_from_the_position_on_is_proven_by_structure(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "MOST", 0)
    old, new = planned({"blend": BLEND}), planned(other)
    loader = resumed(new, state_at(old, 200))
    assert loader.position == 200
    if len(other) > 1 and "stages" not in other:
        return  # it ends here
    (sample,) = next(iter(loader))
    assert sample.raw("txt") == new.read([200])[0].raw("txt")
    if other.get("stages") != stages((250, {"web": 0, **A}), (None, {"web": 1.0, **A}))["stages"]:
        return
    with pytest.raises(ConfigError, match="the first 250 positions of 300 are the same, and the rest are too many"):
        resumed(new, state_at(old, 300))


def test_the_first_position_that_differs_is_named() -> None:
    old = planned({"blend": BLEND})
    new = planned(stages((200, A), (None, {"docs": 0.1, "code": 0.9})))
    a, b = old.locate(np.arange(300)), new.locate(np.arange(300))
    first = int(np.flatnonzero((a.source != b.source) | (a.index != b.index))[0])
    assert resumed(new, state_at(old, first)).position == first
    was, now = (f"sample {each.index[first]} of {old.names[each.source[first]]}" for each in (a, b))
    message = (
        f"position {first} was {was} and is {now}; changes: source docs was .*Change the order only from position 301"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        resumed(new, state_at(old, 301))
    assert caught.value.kind == "plan-changed"


def test_without_the_flag_the_message_says_what_changed_and_how_to_resume() -> None:
    state = state_at(planned({"blend": BLEND}), 200)
    new = planned(stages((200, {**A, "web": 0}), (None, {"docs": 0.4, "code": 0.3, "web": 0.3})))
    with pytest.raises(ConfigError, match=r"source web is new.*only from position 200 on.*allow_change=True") as caught:
        resumed(new, state, allow_change=False)
    assert "source docs was number 0 of a blend with weight 7/10" in str(caught.value)


@pytest.mark.parametrize(
    ("other", "sizes", "message"),
    [
        ({"seed": 4, "blend": BLEND}, {}, "transform's seed was 3 and is 4"),
        ({"blend": BLEND[:1]}, {}, "is gone"),
        ({"blend": BLEND, "samples": 100}, {}, "position 200, the plan has 100 samples"),
        (stages((100, {"code": 0.3, "docs": 0.7}), samples=100), {}, "the plan ends after 100 positions"),
        ({"blend": BLEND}, {"docs": 50}, "of docs and is .*docs grew from 40 to 50.*allow_append=True"),
        ({"blend": BLEND}, {"docs": 39}, "data of docs was 40 samples .* now 39"),
        ({"blend": [{"path": "docs", "weight": 0.7, "name": "texts"}, BLEND[1]]}, {}, "source texts is new"),
    ],
)
def test_what_cannot_be_the_same_is_refused(other: dict[str, Any], sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resumed(planned(other, **sizes), state_at(planned({"blend": BLEND}), 200))


def test_a_source_that_was_not_drawn_may_change_and_go() -> None:
    old = planned(stages((100, {**A, "web": 0}), (None, {**A, "web": 1})))
    state = state_at(old, 100)
    assert resumed(planned({"blend": BLEND}), state).position == 100
    assert resumed(planned(stages((100, {**A, "web": 0}), (None, {**A, "web": 1})), web=33), state).position == 100
    with pytest.raises(ConfigError, match=r"position 100 was sample .* of web|position 101 was sample .* of web"):
        resumed(planned({"blend": BLEND}), state_at(old, 103))


def test_skip_lists_that_agree_so_far_need_no_flag_of_their_own() -> None:
    old = planned({"blend": BLEND, "samples": 600, "skip": [5, [90, 120], 400]})
    state = state_at(old, 98)  # the sample at 129 is the next
    assert state["unskipped"] == 129
    same = planned(
        {**stages((150, A), (None, {"code": 1.0, "docs": 1.0})), "samples": 600, "skip": [5, [90, 120], 300]}
    )
    assert resumed(same, state).position == 98
    other = planned({"blend": BLEND, "samples": 600, "skip": [6, [90, 120]]})
    with pytest.raises(ConfigError, match=r"skip was 400, 5, \[90, 120\), is now .*allow_skip=True"):
        resumed(other, state)
    assert resumed(other, state, allow_skip=True).position == 98
    without = planned({"blend": BLEND, "samples": 600})
    late = state_at(planned({"blend": BLEND, "samples": 600, "skip": [400]}), 98)
    assert resumed(without, late).position == 98


def test_growth_and_change_together() -> None:
    """The result is that of the growth first, with the old recipe, and of the change then."""
    old, recipe = planned({"blend": BLEND}), stages((200, {**A, "web": 0}), (None, {**A, "web": 1}))
    state, new = state_at(old, 200), planned(recipe, docs=70)
    with pytest.raises(ConfigError, match=r"docs grew from 40 to 70.*source web is new"):
        resumed(new, state)
    with pytest.raises(ConfigError, match=r"source web is new.*allow_change=True"):
        resumed(new, state, allow_append=True, allow_change=False)
    loader = resumed(new, state, allow_append=True)
    texts = [sample.raw("txt") for _, batch in zip(range(100), loader, strict=False) for sample in batch]
    assert texts == [sample.raw("txt") for sample in new.read(range(200, 300))]
    bridge = planned({"blend": BLEND}, docs=70)
    two_steps = state_at(bridge, resumed(bridge, state, allow_append=True, allow_change=False).position)
    assert resumed(new, two_steps).position == 200
    earlier = planned(stages((150, A), (None, {"docs": 0.1, "code": 0.9})), docs=70)
    with pytest.raises(ConfigError, match=r"position 15[0-9] was sample"):
        resumed(earlier, state, allow_append=True)


def test_at_position_0_nothing_was_seen() -> None:
    state = state_at(planned({"blend": BLEND}), 0)
    assert resumed(planned({"source": {"path": "web"}}), state).position == 0


def test_1000_sources_and_a_late_stage() -> None:
    data = [Numbered(f"source-{i:04}", 20 + i) for i in range(1000)]
    weights = [1 + i % 7 for i in range(1000)]
    old = Plan.over(data, weights, seed=5)
    recipe = {
        "seed": 5,
        "blend": [{"path": d.url} for d in data],
        "stages": [
            {"samples": 10**9, "weights": {d.url: w for d, w in zip(data, weights, strict=True)}},
            {"weights": {d.url: 1 for d in data}},
        ],
    }
    new = Recipe.parse(recipe).plan(lambda path, **_: next(d for d in data if d.url == path.rpartition("/")[2]))
    assert resumed(new, state_at(old, 10**9)).position == 10**9


def random_recipe(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(sorted(SIZES), rng.randint(1, 3))
    shuffle = rng.choice(["none", "global", "block", "shards"])
    end = rng.choice([{}, {"samples": rng.randint(100, 300)}])
    kind = rng.choice(["blend", "stages", "stages", "concat"])
    if kind == "concat":
        return {"concat": [{"path": name} for name in names], "shuffle": shuffle, "epochs": rng.randint(2, 4)}
    weights = [{name: rng.choice([1, 2, 3]) for name in names} for _ in range(2)]
    if kind == "blend":
        listed = [{"path": name, "weight": weight} for name, weight in weights[0].items()]
        return {"blend": listed, "shuffle": shuffle, **end}
    return {**stages((rng.randint(1, 150), weights[0]), (None, weights[1])), "shuffle": shuffle, **end}


def random_source(rng: random.Random, name: str, folder: Path) -> dict[str, Any]:
    """A source of any kind: with another shuffle, a part of it, repeated, or a recipe or mixture of its own."""
    shuffle = {"shuffle": rng.choice(["none", "global", "block", "shards", {"kind": "shards", "parallel": 2}])}
    kind = rng.choice(["path", "path", "subset", "epochs", "blend", "epochized", "concat", "recipe", "order"])
    two = [{"path": f"{name}1", **shuffle}, {"path": f"{name}2"}]
    if kind == "path":
        return {"path": name, **shuffle}
    if kind == "subset":
        return {"path": name, **shuffle, "subset": [1, rng.randint(5, SIZES[name])]}
    if kind == "epochs":
        return {"path": name, **shuffle, "epochs": 40}
    if kind == "blend":
        return {"name": name, "blend": [{**member, "weight": rng.randint(1, 3)} for member in two]}
    if kind == "epochized":
        return {"name": name, "blend_epochized": [{**member, "repetitions": rng.choice([1, 0.5])} for member in two]}
    if kind == "concat":
        return {"name": name, "concat": two, **shuffle}
    inner: dict[str, Any] = {"concat": two, "shuffle": rng.choice(["shards", "block"]), "epochs": 2}
    if kind == "order":
        stored = [{"path": member["path"]} for member in two]
        weighted = [{**member, "weight": rng.randint(1, 3)} for member in stored]
        orders: list[dict[str, Any]] = [
            {"order": {"kind": "nanoset"}, "blend": weighted},
            {"order": {"kind": "nanoset"}, "blend": stored},
            {"order": {"kind": "blendable"}, "blend": weighted, "samples": 6},
            {"order": {"kind": "modalities", "ranks": 2, "shuffle": True}, "concat": stored},
        ]
        inner = rng.choice(orders)
    file = folder / f"{name}-{rng.randrange(10**9)}.yaml"
    file.write_text(json.dumps({"seed": 5, **inner}))
    return {"recipe": str(file), "name": name}


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_a_mixture_of_sources_of_every_kind_changes_and_grows_in_mid_run(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 mixtures, 50 by default: a change from the position on is proven by structure, whatever the sources are."""
    monkeypatch.setattr(proof, "MOST", 0)
    rng = random.Random(seed)
    sizes = {f"{name}{end}": max(size - 2 * len(end), 6) for name, size in SIZES.items() for end in ("", "1", "2")}

    def plan(recipe: dict[str, Any], more: int = 0) -> Plan:
        def opened(path: str, **_: Any) -> Growing:
            name = path.rpartition("/")[2]
            return Growing(name, sizes[name] + more * name.startswith("docs"))

        return Recipe.parse({"seed": 3, **recipe}).plan(opened)

    tried = 0
    for _ in range(50):
        names = ["docs", *rng.sample(["code", "web", "math"], rng.randint(1, 3))]
        members = [random_source(rng, name, tmp_path) for name in names]
        weights = {name: rng.randint(1, 3) for name in names}
        old_recipe = {
            "blend": [{**member, "weight": weights[name]} for member, name in zip(members, names, strict=True)]
        }
        later = {name: rng.randint(1, 3) for name in names}
        position = rng.randint(1, 60)
        new_recipe = {
            "blend": members,
            "stages": [{"samples": position, "weights": weights}, {"weights": later}],
        }
        old, new = plan(old_recipe), plan(new_recipe)
        if old.length is not None and old.length < position:
            continue
        tried += 1
        state = state_at(old, position)
        assert resumed(new, state, allow_append=False).position == position
        assert resumed(plan(old_recipe, 4), state, allow_append=True, allow_change=False).position == position
        if weights != later:
            assert resumed(plan(new_recipe, 4), state, allow_append=True).position == position
    assert tried > 35


def varied(rng: random.Random, recipe: dict[str, Any]) -> dict[str, Any]:
    recipe = yaml.safe_load(yaml.safe_dump(recipe))
    if "concat" in recipe:
        recipe["epochs"] += 1
        return recipe
    spare = [name for name in SIZES if name not in [member["path"] for member in recipe["blend"]]]
    if "stages" not in recipe:
        weights = {member["path"]: member.pop("weight") for member in recipe["blend"]}
        recipe["stages"] = [{"samples": rng.randint(50, 150), "weights": weights}, {"weights": dict(weights)}]
    if rng.random() < 0.5:
        recipe["blend"].insert(rng.randint(0, len(recipe["blend"])), {"path": spare[0]})
        recipe["stages"][-1]["weights"][spare[0]] = 2
        if rng.random() < 0.2:
            recipe["stages"][0]["weights"][spare[0]] = 1
    else:
        recipe["stages"][-1]["weights"] = {name: rng.randint(1, 9) for name in recipe["stages"][0]["weights"]}
    if rng.random() < 0.5:
        recipe["stages"][-1]["samples"] = 60
        recipe["stages"].append({"weights": {recipe["blend"][0]["path"]: 1}})
    if rng.random() < 0.15:
        recipe["stages"][0]["samples"] += 1
    return recipe


@pytest.mark.parametrize("seed", slow_but(range(6), 0))
def test_the_decision_is_that_of_comparing_every_sample(seed: int) -> None:
    """360 pairs of recipes, each resumed at five positions, some over data that grew or changed; 60 by default."""
    rng = random.Random(seed)
    allowed = refused = 0
    for _ in range(60):
        recipe = random_recipe(rng)
        grown = {name: size + 5 for name, size in SIZES.items() if rng.random() < 0.15}
        try:
            old = planned(recipe)
            bridge, new = planned(recipe, **grown), planned(varied(rng, recipe), **grown)
        except FeedmillError:
            continue
        longest = min(300, *(plan.length or 300 for plan in (old, bridge, new)))
        append = bool(grown) and rng.random() < 0.7
        base = bridge if append else old
        # What is compared: name and size of the data, and the sample; data that changed its size is other data.
        seen = []
        for plan in (base, new):
            at = plan.locate(np.arange(longest))
            pairs = zip(at.source, at.index, strict=True)
            seen.append([(plan.names[number], len(plan.sources[number]), index) for number, index in pairs])
        first = next((k for k, (a, b) in enumerate(zip(*seen, strict=True)) if a != b), longest)
        for position in {0, first, longest, rng.randint(0, longest), max(first - 1, 0), min(first + 1, longest)}:
            state = state_at(old, position)
            if position <= first:
                assert resumed(new, state, allow_append=append).position == position
                allowed += 1
            else:
                with pytest.raises(ConfigError, match=f"position {first} was sample"):
                    resumed(new, state, allow_append=append)
                refused += 1
    assert allowed > 100 and refused > 40


PACKS = {
    "passes": {"seq_len": 64},
    "best_fit": {"seq_len": 64, "method": "best_fit", "buffer": 32},
    "concat": {"seq_len": 64, "method": "concat"},
    "keep": {"seq_len": 64, "method": "concat", "last": "keep"},
}


def packed(recipe: dict[str, Any], pack: dict[str, Any], **sizes: int) -> Plan:
    known = {**SIZES, **sizes}

    def opened(path: str, **_: Any) -> Tokenized:
        name = path.rpartition("/")[2]
        return Tokenized(name, [5 + (7 * i + len(name)) % 40 for i in range(known[name])])

    return Recipe.parse({"seed": 3, **recipe, "pack": pack}).plan(opened)


@pytest.mark.parametrize("pack", PACKS)
def test_rows_are_proven_by_their_documents(pack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allowed only where all rows before are the same; with whole buffers of documents for best_fit."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(best_fit, "BUFFER", 400)  # documents of the first segment, whose end is an end of a buffer
    monkeypatch.setattr(windows, "PER_SEGMENT", 1)  # a few hundred documents are asked for
    monkeypatch.setattr(windows, "CHUNK", 1 << 10)
    rng = random.Random(pack)
    outcomes = []
    for _ in range(25):
        change, end = rng.randint(10, 200), rng.choice([{}, {"samples": 300}])
        old = packed({"blend": BLEND, **end}, PACKS[pack])
        later = {**stages((change, A), (None, {"docs": 0.1, "code": 0.9})), **rng.choice([{}, end, {"samples": 250}])}
        new = packed(later, PACKS[pack])
        longest = min(90, *(plan.length or 90 for plan in (old, new)))
        rows = [[row["input_ids"].tolist() for row in plan.read(range(longest))] for plan in (old, new)]
        first = next((k for k, (a, b) in enumerate(zip(*rows, strict=True)) if a != b), longest)
        for position in {first, rng.randint(0, first), rng.randint(0, longest), longest}:
            try:
                assert resumed(new, state_at(old, position)).position == position
                assert position <= first
                outcomes.append("allowed")
            except ConfigError as error:
                assert position > 0 and "changes what the saved run has seen before position" in str(error)
                outcomes.append("careful" if position <= first else "refused")
    counts = {outcome: outcomes.count(outcome) for outcome in set(outcomes)}
    assert counts["allowed"] > 25 and counts["refused"] > 15
    assert pack in ("passes", "best_fit") or counts.get("careful", 0) < 10, counts


def test_rows_of_another_buffer_are_refused_with_the_option_that_gives_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    old = packed({"blend": BLEND}, {"seq_len": 64, "buffer": 1 << 14})
    state = state_at(old, 10)
    for flags in ({"allow_change": False}, {}):
        with pytest.raises(ConfigError, match=r"\('buffer: 16384' in 'pack' gives the order of the saved run\)"):
            resumed(packed({"blend": BLEND}, {"seq_len": 64}), state, **flags)
    assert resumed(packed({"blend": BLEND}, {"seq_len": 64, "buffer": 1 << 14}), state).position == 10


def test_a_stage_that_moves_the_end_of_a_buffer_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    """The documents are the same, and are packed in other rows."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(best_fit, "BUFFER", 400)
    state = state_at(packed({"blend": BLEND}, PACKS["passes"]), 10)
    with pytest.raises(ConfigError, match="passes or stages end elsewhere, so other documents are packed together"):
        resumed(packed(stages((10, A), (None, A)), PACKS["passes"]), state)


def test_rows_packed_in_another_way_or_over_grown_data_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    state = state_at(packed({"blend": BLEND}, PACKS["best_fit"]), 10)
    with pytest.raises(ConfigError, match=r"the packing of rows changed.*packing was best_fit 64"):
        resumed(packed({"blend": BLEND}, PACKS["concat"]), state)
    with pytest.raises(ConfigError, match="only one of the plans is packed into rows"):
        resumed(planned({"blend": BLEND}), state)
    grown = packed({"blend": BLEND}, PACKS["best_fit"], docs=70)
    for flags in ({}, {"allow_append": True}):
        with pytest.raises(ConfigError, match="docs has more samples, and packed rows cannot resume with data that"):
            resumed(grown, state, **flags)


class Pairs(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> list[str]:
        return [sample.raw("txt").decode() for sample in samples]

    def batch(self, samples: list[Any]) -> Any:
        return samples


def test_windows_of_a_task_encoder_are_proven_as_far_as_they_were_begun() -> None:
    old = planned({"blend": BLEND, "samples": 300})
    options = {"task_encoder": Pairs(), "buffer": 16, "world_size": 2}
    loaders = [Loader(old, 2, rank=rank, **options) for rank in range(2)]
    seen = [item for loader in loaders for _, batch in zip(range(7), loader, strict=False) for item in chain(*batch)]
    states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    begun = max(state["position"] for state in states)
    assert begun == 64 and len(seen) == 56
    early = planned({**stages((60, A), (None, {"docs": 0.1, "code": 0.9})), "samples": 300})
    with pytest.raises(ConfigError, match=r"before position 64.*position 6[0-3] was sample"):
        Loader(early, 2, rank=0, **options).load_state_dict(states, allow_change=True)
    new = planned({**stages((64, A), (None, {"docs": 0.1, "code": 0.9})), "samples": 300})
    more = Loader(new, 2, task_encoder=Pairs(), buffer=16, rank=0, world_size=1)
    more.load_state_dict(states, allow_change=True)
    rest = [item for batch in more for item in chain(*batch)]
    wanted = [sample.raw("txt").decode() for sample in new.read(range(300))]
    assert sorted(seen + rest) == sorted(wanted)
