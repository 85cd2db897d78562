"""Caps on repeats by stage: proven before the start, compared with counting every sample of random recipes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.planning import bounds
from feedmill.planning.overview import plan as overview
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.durations import examples
from helpers.number_dataset import Numbered

SIZES = {"a": 7, "b": 20, "c": 53, "d": 11}


def planned(recipe: dict[str, Any] | str) -> Plan:
    def open_numbered(path: str, **options: str) -> Numbered:
        return Numbered(path, SIZES[path.rpartition("/")[2]])

    return Recipe.parse(recipe).plan(open_numbered)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """A blend in stages with ramps, pauses, a mixture as a source, and caps by stage and source."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    blend: list[dict[str, Any]] = [{"path": name} for name in names]
    if draw(st.booleans()):
        blend.append({"name": "mix", "blend": [{"path": "d", "weight": 2}, {"path": "c", "name": "more", "weight": 1}]})
        names.append("mix")
    weights = st.fixed_dictionaries({name: st.sampled_from([0, 1, 2, "0.3"]) for name in names})
    caps = st.integers(1, 5)
    stages = []
    for number in range(draw(st.integers(1, 4))):
        stage: dict[str, Any] = {
            "samples": draw(st.integers(1, 90)),
            "weights": draw(weights.filter(lambda given: any(map(bool, given.values())))),
        }
        if number and draw(st.booleans()):
            stage["ramp"] = draw(st.sampled_from(["linear", "cosine"]))
        if draw(st.booleans()):
            stage["max_repeats"] = draw(caps | st.dictionaries(st.sampled_from(names), caps, min_size=1))
        stages.append(stage)
    if "ramp" not in stages[-1] and draw(st.booleans()):
        del stages[-1]["samples"]
    recipe: dict[str, Any] = {"seed": draw(st.integers(0, 9)), "blend": blend, "stages": stages}
    if draw(st.booleans()):
        recipe["samples"] = draw(st.integers(1, 150))
    return recipe


def counted(recipe: dict[str, Any], total: int) -> list[tuple[int, str, int, int]]:
    """Stage, source, cap and draws of every cap, by looking at every position of the recipe without caps."""
    bare = {**recipe, "stages": [{k: v for k, v in s.items() if k != "max_repeats"} for s in recipe["stages"]]}
    plan = planned(bare)
    located = plan.locate(np.arange(total))
    found, start = [], 0
    for number, stage in enumerate(recipe["stages"]):
        stop = min(start + stage.get("samples", total), total)
        given = stage.get("max_repeats", {})
        caps = given if isinstance(given, dict) else {s.get("name", s.get("path")): given for s in recipe["blend"]}
        for source, name in enumerate(plan.names):
            cap = caps.get(name.partition("/")[0])
            if cap is not None:
                found.append((number + 1, name, cap, int((located.source[start:stop] == source).sum())))
        start = stop
    return found


def size(name: str) -> int:
    return SIZES["c" if name.endswith("more") else name.rpartition("/")[2]]


@given(recipes())
@settings(max_examples=examples(40), deadline=None)
def test_caps_are_those_of_counting_every_sample(recipe: dict[str, Any]) -> None:
    ends = sum(stage.get("samples", 400) for stage in recipe["stages"])
    is_open = "samples" not in recipe["stages"][-1]
    assume(is_open or recipe.get("samples", 0) <= ends)
    total = recipe.get("samples", ends)
    found = counted(recipe, total)
    over = [(stage, name) for stage, name, cap, used in found if used > cap * size(name)]
    last = len(recipe["stages"])
    endless = is_open and "samples" not in recipe
    refused = [each for each in over if not endless or each[0] < last]
    try:
        plan = planned(recipe)
    except ConfigError as error:
        assert error.kind == "too-many-repeats"
        if refused:
            stage, name = next(each for each in refused if each[1] == error.record)
            number, used, cap, length, most = re.findall(r"[\d,]+", error.what)[0], *_numbers(error.what)
            assert (stage, name) in refused and int(number) in {each[0] for each in refused}
            assert (int(number), name, cap, used) in found and most == cap * length and length == size(name)
        else:  # the first sample of the last stage breaks it: no plan would be left
            assert endless and last == 1
        return
    assert not refused
    if endless and plan.length is not None:  # it ends where the cap of the last stage does
        over_by = counted(recipe, plan.length + 1)
        assert all(used <= cap * size(name) for _, name, cap, used in counted(recipe, plan.length))
        assert any(used > cap * size(name) for _, name, cap, used in over_by)
    elif endless:
        assert not over
    shown = {(limit.stage, limit.name): limit.used for limit in bounds.limits(plan.node, total)}
    if plan.length is None or total <= plan.length:
        assert shown == {(stage, name): used for stage, name, _, used in found}


def _numbers(text: str) -> list[int]:
    """Draws, cap, samples of a pass and their product, from the message."""
    found = re.search(r"draw ([\d,]+) from it, but max_repeats (\d+) x ([\d,]+) samples = ([\d,]+)", text)
    assert found is not None
    return [int(number.replace(",", "")) for number in found.groups()]


BASE = """
blend:
  - {path: a, name: web}
  - {path: b, name: books, max_repeats: 9}
stages:
  - {samples: 20, weights: {web: 1, books: 3}}
  - {samples: 40, weights: {web: 1, books: 1}, max_repeats: {web: 3, books: 1}}
"""


def test_the_arithmetic_and_what_helps_are_in_the_message() -> None:
    assert planned(BASE).length == 60
    with pytest.raises(ConfigError) as caught:
        planned(BASE.replace("web: 3", "web: 2"))
    assert str(caught.value) == (
        "recipe:7 'web': the source would be repeated too often in stage 2: its 40 samples draw 20 from it, but"
        " max_repeats 2 x 7 samples = 14. Give the stage at most 'samples: 28', raise max_repeats to 3, or lower its"
        " weight."
    )
    assert planned(BASE.replace("web: 3", "web: 2").replace("samples: 40", "samples: 28")).length == 48
    with pytest.raises(ConfigError, match="in stage 2: its 29 samples draw 15 from it"):
        planned(BASE.replace("web: 3", "web: 2").replace("samples: 40", "samples: 29"))
    with pytest.raises(ConfigError, match="Use more of its samples, raise max_repeats to 3"):  # a ramp
        planned(BASE.replace("web: 3", "web: 1").replace("{samples: 40,", "{samples: 40, ramp: linear,"))


def test_limits_of_stages_and_of_the_run_hold_side_by_side() -> None:
    both = BASE.replace("max_repeats: 9", "max_repeats: 1")
    with pytest.raises(ConfigError, match=r"recipe:4 'books': .*60 samples of the plan draw 35 from it"):
        planned(both)
    plan = planned(BASE)
    report = overview(plan).facts
    assert [(each["name"], each["stage"], each["drawn_at_most"]) for each in report["max_repeats"]] == [
        ("web", 2, 20),
        ("books", 2, 20),
        ("books", None, 35),
    ]
    assert plan.report().stages[1].as_dict()["max_repeats"] == {"web": 3, "books": 1}
    assert str(plan.report()).endswith("; max_repeats web 3, books 1")
    assert planned(BASE.replace("max_repeats: {web: 3, books: 1}", "max_repeats: 3")).fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("max_repeats: {wep: 3}", r"recipe:7: stage 2 limits the repeats of 'wep'.*\(did you mean 'web'\?\)|'web'"),
        ("max_repeats: 0", r"recipe:7: stages\[1\].max_repeats: input should be greater than or equal to 1, found 0"),
        ("max_repeats: {web: 1.5}", r"recipe:7: stages\[1\].max_repeats.web: input should be a valid integer"),
        ("max_repeats: {}", r"recipe:7: stages\[1\].max_repeats"),
        ("max_repeat: 3", r"recipe:7: unknown key 'max_repeat' \(did you mean 'max_repeats'\?\)"),
    ],
)
def test_bad_caps_are_named_with_their_line(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(BASE.replace("max_repeats: {web: 3, books: 1}", given))
