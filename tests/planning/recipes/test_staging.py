"""Recipes with stages, epochized blends and parts of epochs: what they mean, and the line of every mistake."""

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

SIZES = {"docs": 1000, "code": 300, "web": 40}


def planned(text: str) -> Plan:
    def open_numbered(path: str, **options: str) -> Numbered:
        name = path.rpartition("/")[2]
        return Numbered(path, SIZES[name], tokens=None if name == "web" else 10)

    return Recipe.parse(text).plan(open_numbered)


STAGED = """
seed: 3
samples: 1500
blend:
  - {path: docs, name: text}
  - path: code
    max_repeats: 6
stages:
  - samples: 1000
    weights: {text: 0.7, code: 0.3}
  - weights: {text: 0.2, code: 0.8}
"""


def test_stages_switch_where_they_say() -> None:
    plan = planned(STAGED)
    located = plan.locate(np.arange(1500))
    assert plan.length == 1500
    assert np.bincount(located.source[:1000]).tolist() == [700, 300]
    assert np.bincount(located.source[1000:]).tolist() == [100, 400]
    text = located.index[located.source == 0]
    assert len(np.unique(text)) == 800  # not one sample twice before its epoch is over
    assert str(Recipe.parse(STAGED)).splitlines()[0] == "recipe: seed 3, 1,500 samples, shuffle block, 2 stages, blend"
    assert "blend in stages 7/10 : 3/10 for 1,000, then 1/5 : 4/5" in str(plan)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_weights_go_from_those_of_one_stage_to_the_next(kind: str) -> None:
    ramp = f"  - {{samples: 500, ramp: {kind}, weights: {{text: 0.2, code: 0.8}}}}\n"
    plan = planned(STAGED.replace("  - weights: {text: 0.2", ramp + "  - weights: {text: 0.2").replace("1500", "2000"))
    counts = [np.bincount(part).tolist() for part in np.split(plan.locate(np.arange(2000)).source, [1000, 1500])]
    assert counts == [[700, 300], [225, 275], [100, 400]]  # 0.45 in the mean
    assert f"then 7/10 : 3/10 to 1/5 : 4/5 ({kind}) for 500, then 1/5 : 4/5" in str(plan)


def test_a_ramp_in_tokens_has_its_mean_length() -> None:
    def lengths(stage: str) -> list[int | None]:
        text = STAGED.replace("  - weights: {text: 0.2", f"  - {{tokens: 5_000, {stage}}}\n  - weights: {{text: 0.2")
        return [stage.samples for stage in planned(text).report(1500).stages]

    ramp = lengths("ramp: linear, weights: {text: 0.2, code: 0.8}")
    assert ramp == lengths("weights: {text: 0.45, code: 0.55}") and ramp[1] not in (None, 5000)


def test_a_longer_run_is_the_same_run_longer() -> None:
    longer = planned(STAGED.replace("1500", "2500"))
    plan = planned(STAGED)
    assert longer.fingerprint == plan.fingerprint
    assert np.array_equal(longer.locate(np.arange(1500)).index, plan.locate(np.arange(1500)).index)
    with pytest.raises(ConfigError, match="repeated too often: 99,999 samples of the plan draw 79,4"):
        planned(STAGED.replace("1500", "99999"))
    assert planned(STAGED.replace("samples: 1500", "")).length == 1000 + 1875  # then code has been given 6 times


def test_stages_of_a_blend_in_place() -> None:
    plan = planned(
        "blend:\n  - weight: 1\n    blend: [{path: docs}, {path: code}]\n"
        "    stages: [{samples: 10, weights: {docs: 1}}, {weights: {docs: 1, code: 1}}]\n  - {path: web, weight: 1}\n"
    )
    source = plan.locate(np.arange(100)).source
    assert plan.names == ["blend/docs", "blend/code", "web"]
    assert not (source[:20] == 1).any() and (source[20:] == 1).sum() == 20


def test_an_epochized_blend_gives_each_as_often_as_it_says() -> None:
    plan = planned(
        "{epochs: 2, blend_epochized: [{path: docs}, {path: code, repetitions: 2}, {path: web, repetitions: 0.5}]}"
    )
    assert plan.length == 2 * (1000 + 600 + 20)
    located = plan.locate(np.arange(plan.length))
    for epoch in range(2):
        assert np.bincount(located.source[epoch * 1620 : (epoch + 1) * 1620]).tolist() == [1000, 600, 20]
    assert sorted(located.index[located.source == 2].tolist()) == list(range(40))
    assert np.bincount(located.source[:810]).tolist() == [500, 300, 10]
    # Endless, but for the limit: three epochs, and on until web would come for the 121st time.
    assert 3 * 1040 <= planned("blend_epochized: [{path: docs}, {path: web, max_repeats: 3}]").length < 3 * 1040 + 27
    nested = planned(
        "{shuffle: none, concat: [{path: web}, {blend_epochized: [{path: docs}, {path: code}]}], epochs: 1}"
    )
    assert nested.length == 1340


def test_parts_of_epochs() -> None:
    plan = planned("{source: web, epochs: 2.5, shuffle: global}")
    index = plan.locate(np.arange(100)).index
    assert plan.length == 100 and np.bincount(index).sum() == 100 and np.bincount(index[:80]).tolist() == [2] * 40
    assert "2.5 epochs" in str(plan)
    assert planned("{source: docs, epochs: 1/3}").length == 333
    assert planned("{shuffle: none, concat: [{path: web, epochs: 50%}, {path: code}], epochs: 1}").length == 320
    assert planned("blend: [{path: web, epochs: 1.5, weight: 1}, {path: docs, weight: 1}]").length == 120
    assert Plan.over(Numbered("x", 40), epochs=1.25).length == 50


TWO = "blend: [{path: docs}, {path: code}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TWO + "stages:\n- samples: 10\n  weights:\n    dcs: 1\n    code: 1",
            "recipe:5: stage 1 has a weight for 'dcs', which is not a source of this blend. Did you mean 'docs'?",
        ),
        (TWO + "stages:\n- weights: {zzz: 1}", "Its sources are: docs, code."),
        (
            TWO + "stages:\n- samples: 9\n  weights: {docs: 1, code: 1}\n- weights: {docs: 0}",
            "recipe:5: the weights of",
        ),
        (TWO + "stages:\n- weights: {docs: 1}", "recipe:2: no stage has a weight for 'code'"),
        (TWO + "stages:\n- weights: {docs: 1, code: 1}\n- weights: {docs: 1}", "stage 1 has no length"),
        (
            TWO + "stages:\n- {samples: 9, ramp: linear, weights: {docs: 1, code: 1}}",
            "is a ramp and has no stage before",
        ),
        (
            TWO + "stages:\n- {samples: 9, weights: {docs: 1, code: 1}}\n- {ramp: linear, weights: {docs: 1}}",
            "stage 2 is a ramp and has no length",
        ),
        (TWO + "stages:\n- {samples: 0, weights: {docs: 1, code: 1}}", "stages[0].samples: input should be greater"),
        (TWO + "stages:\n- {samples: 1, steps: 2, weights: {docs: 1, code: 1}}", "length in samples and steps"),
        (TWO + "stages:\n- {steps: 3, weights: {docs: 1, code: 1}}", "recipe:3: a stage of 3 steps needs a batch size"),
        (
            TWO + "stages:\n- {tokens: 3, weights: {docs: 1, code: 1}}",
            "recipe:3: 3 tokens are less than one sample, which has 12.99 on average",
        ),
        (
            TWO + "stages:\n- {smaples: 3, weights: {docs: 1, code: 1}}",
            "unknown key 'smaples' (did you mean 'samples'?)",
        ),
        (TWO + "stages:\n- {samples: 3, weights: {docs: -1, code: 1}}", "the weight '-1' is negative"),
        (TWO + "stages: []", "stages: list should have at least 1 item"),
        ("blend: [{path: docs, weight: 1}]\nstages: [{weights: {docs: 1}}]", "'stages' with weights, not both"),
        ("{source: docs, stages: [{weights: {docs: 1}}]}", "'stages' needs a 'blend'"),
        ("{source: docs, unit: tokens}", "'unit' needs a 'blend'"),
        (TWO + "unit: bytes", "unit: input should be 'samples', 'tokens', 'loss_tokens', 'episodes' or 'hours'"),
        ("unit: tokens\nblend:\n- path: docs\n- path: web", "recipe:4: "),
        ("unit: tokens\nblend:\n- path: docs\n- path: web", "the number of tokens per sample is unknown"),
        (
            "samples: 20\n" + TWO + "stages: [{samples: 9, weights: {docs: 1, code: 1}}]",
            "recipe:1: the blend cannot have 20",
        ),
        ("source: docs\nepochs: 0.0001", "recipe:2: 0.0001 epochs of 1,000 samples are less than one sample"),
        ("{source: docs, epochs: 0}", "epochs: '0' is not a number of epochs"),
        ("{source: docs, epochs: -2}", "is not a number of epochs: give one above 0, such as 3, 2.5 or 1/3"),
        ("{source: docs, epochs: true}", "is not a number of epochs"),
        ("concat:\n- path: docs\n- path: web\n  epochs: 0.001", "recipe:4: 0.001 epochs of 40 samples"),
        ("epochs: 0.5\nsource:\n  blend: [{path: docs}]", "counting epochs needs a finite source"),
        ("blend_epochized:\n- path: docs\n  repetitions: 0.0001", "recipe:3: 0.0001 epochs of 1,000 samples"),
        ("blend_epochized:\n- blend: [{path: docs}]", "an epochized blend needs a finite source"),
        ("blend_epochized: [{path: docs, weight: 1}]", "cannot have 'weight': use 'repetitions'"),
        ("blend_epochized: [{path: docs, epochs: 1}]", "cannot have 'epochs': use 'repetitions'"),
        ("blend: [{path: docs, repetitions: 1}]", "'repetitions' need a 'blend_epochized'"),
        ("concat: [{path: docs, repetitions: 1}]", "'repetitions' need a 'blend_epochized'"),
        ("{seed: 1, order: nanoset, unit: tokens, blend: [{path: docs}]}", "'order' cannot be combined with"),
        ("source: {path: docs, repetitions: 1}", "a single source has no 'repetitions'"),
        (
            "epochs: 2\nblend_epochized:\n- path: docs\n- path: code\n  repetitions: 2\n  max_repeats: 3",
            "recipe:6 'code': the source would be repeated too often: 3,200 samples of the plan draw 1,200 from it",
        ),
    ],
)
def test_mistakes_are_refused_with_their_line_and_the_fix(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(text)
    assert message in str(error.value)
