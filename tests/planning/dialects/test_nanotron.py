"""Nanotron's stages as recipes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from feedmill.errors import ConfigError
from feedmill.planning.orders import nanoset_index
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

STAGE = """
data_stages:
- name: general
  start_training_step: 1
  data:
    seed: 1234
    num_loading_workers: 0
    dataset:
      dataset_folder: {folder}
"""


def opener(path: str, **options: str) -> Numbered:
    return Numbered(path.removeprefix("/base/"), 100)


def planned(folder: str) -> Any:
    return Recipe.parse(STAGE.replace("{folder}", folder), base="/base").plan(opener)


def test_a_path() -> None:
    plan = planned("datasets/Slim")
    assert plan.sources[0].url == "datasets/Slim" and plan.seed == 1234
    assert "shuffle global" in str(plan)


def test_a_list_is_shuffled_together() -> None:
    plan = planned("[datasets/a, datasets/b]")
    located = plan.locate(range(200))
    assert sorted(zip(located.source.tolist(), located.index.tolist(), strict=True)) == [
        (source, index) for source in (0, 1) for index in range(100)
    ]
    assert 20 < located.source[:100].sum() < 80


@pytest.mark.parametrize(
    "folder", ["{datasets/a: 0.8, datasets/b: 0.2}", "[datasets/a, datasets/b]\n      dataset_weights: [0.8, 0.2]"]
)
def test_folders_with_weights(folder: str) -> None:
    plan = planned(folder)
    assert [source.url for source in plan.sources] == ["datasets/a", "datasets/b"]
    assert [source.asked for source in plan.report(5).sources] == [Fraction(4, 5), Fraction(1, 5)]


def windows(path: str, **options: Any) -> Numbered:
    """Folders whose size is the last number of their path."""
    assert options == {"seq_len": 64, "files": "nanotron", "positions": True}
    return Numbered(path.removeprefix("/base/"), int(path.rpartition("-")[2]))


LENGTH = "tokens: {sequence_length: 64}\n"
TRAIN = """
tokens: {sequence_length: 64, train_steps: 20, micro_batch_size: 2, batch_accumulation_per_replica: 3}
parallelism: {dp: 4}
"""


@pytest.mark.parametrize(
    ("folder", "sizes", "weights"),
    [
        ("x/a-30", [30], None),
        ("[x/a-30, x/b-7]", [30, 7], None),
        ("{x/a-30: 0.8, x/b-7: 0.2}", [30, 7], [0.8, 0.2]),
        ("[x/a-30, x/b-7]\n      dataset_weights: [0.8, 0.2]", [30, 7], [0.8, 0.2]),
    ],
)
def test_with_a_sequence_length_it_is_the_nanoset(folder: str, sizes: list[int], weights: list[float] | None) -> None:
    recipe = Recipe.parse(STAGE.replace("{folder}", folder) + LENGTH, base="/base")
    assert recipe.model.order is not None and recipe.model.order.kind == "nanoset"
    plan = recipe.plan(windows)
    total = sum(sizes)
    located = plan.locate(range(3 * total))
    dataset, sample = nanoset_index(sizes, weights, 3 * total, 1234)
    assert (located.source.tolist(), located.index.tolist()) == (dataset.tolist(), sample.tolist())
    assert plan.length is None
    whole = Recipe.parse(STAGE.replace("{folder}", folder) + TRAIN, base="/base").plan(windows)
    assert whole.length == 20 * 24
    assert whole.locate(range(60)).index.tolist() == nanoset_index(sizes, weights, 60, 1234)[1].tolist()


def test_the_translation_can_be_seen() -> None:
    recipe = Recipe.parse(STAGE.replace("{folder}", "[a, b]") + LENGTH)
    assert str(recipe) == ("recipe: seed 1234, order nanoset, blend\n├─ a: windows of 64\n└─ b: windows of 64")
    data = {"data_stages": [stage(1)], "tokens": {"sequence_length": 64}}
    assert Recipe.parse(data).model.seed == 42  # as Nanotron, where a stage has none
    data["data_stages"][0]["data"]["dataset"] |= {"return_positions": False, "token_size_in_bytes": 4}
    (source,) = Recipe.parse(data).model.blend or []
    assert source.windows is not None
    assert source.windows.options() == {"seq_len": 64, "files": "nanotron", "token_size": 4}


def test_each_stage_is_a_nanoset_of_its_own() -> None:
    def at(start: int, name: str, folder: Any, seed: int) -> dict[str, Any]:
        return {**stage(start, name), "data": {"seed": seed, "dataset": {"dataset_folder": folder}}}

    data = {
        "data_stages": [at(1, "one", {"a-90": 0.75, "b-40": 0.25}, 5), at(11, "two", "b-40", 6)],
        "tokens": {
            "sequence_length": 64, "train_steps": 15, "micro_batch_size": 2, "batch_accumulation_per_replica": 3
        },
        "parallelism": {"dp": 4},
    }  # fmt: skip
    recipe = Recipe.parse(data, base="/base")
    plan = recipe.plan(windows)
    assert plan.length == 15 * 24
    located = plan.locate(range(15 * 24))
    first, second = nanoset_index([90, 40], [0.75, 0.25], 240, 5), nanoset_index([40], None, 120, 6)
    assert located.index.tolist() == [*first[1].tolist(), *second[1].tolist()]
    assert located.source.tolist() == [*first[0].tolist(), *(second[0] + 2).tolist()]
    assert [source.url for source in plan.sources] == ["a-90", "b-40", "b-40"]
    assert (
        recipe.fingerprint
        != Recipe.parse({**data, "data_stages": [at(1, "one", "a-90", 5), data["data_stages"][1]]}).fingerprint
    )
    without = {**data, "tokens": {"sequence_length": 64}}
    with pytest.raises(ConfigError, match="the length of a stage needs 'tokens' with train_steps"):
        Recipe.parse(without)
    short = {**data, "tokens": {**data["tokens"], "train_steps": 10}}
    with pytest.raises(ConfigError, match="starts at step 11, the training ends after step 10"):
        Recipe.parse(short)


def test_bad_weights_of_a_nanoset_name_the_line() -> None:
    with pytest.raises(ConfigError, match=r"recipe:9: blend\[1\].weight: the weight '-1' is negative"):
        Recipe.parse(STAGE.replace("{folder}", "{a: 1, b: -1}") + LENGTH)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("{a: 1, b: -1}", "recipe:9: blend[1].weight: the weight '-1' is negative"),
        ("{a: 0, b: 0}", "recipe:9: blend"),
        ("[a, b]\n      dataset_weights: [1]", "recipe:10: 2 folders and 1 weights"),
        ("{a: 1}\n      dataset_weights: [1]", "recipe:10: the folders already have weights"),
        ("[]", "recipe:8: the stage has no 'dataset_folder'"),
        ("[1, 2]", "recipe:9: a folder must be a path"),
    ],
)
def test_bad_folders_name_the_line(folder: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(folder)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("seed:", "sed:", "recipe:6: unknown setting 'sed' (did you mean 'seed'?)"),
        (
            "dataset_folder",
            "dataset_foldr",
            "recipe:9: unknown setting 'dataset_foldr' (did you mean 'dataset_folder'?)",
        ),
        ("sequence_length", "sequence_lenght", "recipe:10: unknown setting 'sequence_lenght' (did you"),
        ("tokens:", "token:", "recipe:10: unknown setting 'token'. Did you mean 'tokens'?"),
    ],
)
def test_a_misspelt_key_is_no_other_key(right: str, wrong: str, message: str) -> None:
    text = STAGE.replace("{folder}", "a") + LENGTH
    Recipe.parse(text)
    with pytest.raises(ConfigError) as error:
        Recipe.parse(text.replace(right, wrong))
    assert message in str(error.value)


def stage(start: Any, name: Any = "x") -> dict[str, Any]:
    return {"name": name, "start_training_step": start, "data": {"dataset": {"dataset_folder": "a"}}}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "expected a list of stages"),
        ([stage(2)], "It must start at step 1"),
        ([stage(1), stage(1, "y")], "It must start after step 1"),
        ([stage(1), stage(5)], "two stages are named 'x'"),
        ([stage(1, ["x"]), stage(5, ["x"])], r"two stages are named \['x'\]"),
        ([{**stage(1), "data": {"dataset": {"dataset_folder": {"a": None}}}}], "a has no weight"),
        ([stage("1")], "must be an integer"),
        ([{"name": "x", "start_training_step": 1}], "the stage has no 'data'"),
        ([stage(1), stage(5, "y")], "the length of a stage needs 'tokens' with micro_batch_size"),
        ([{**stage(1), "sequence_length": 8}, {**stage(2, "y"), "sequence_length": 9}], "the stages differ in length"),
    ],
)
def test_bad_stages(stages: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.parse({"data_stages": stages})
    with pytest.raises(ConfigError, match="for training only"):
        Recipe.parse({"data_stages": stages}, mode="validation")


def test_stages_start_at_their_steps_and_folders_go_on() -> None:
    def at(start: int, name: str, folder: Any) -> dict[str, Any]:
        return {**stage(start, name), "data": {"dataset": {"dataset_folder": folder}}}

    data = {
        "data_stages": [at(1, "one", {"x/a": 0.75, "x/b": 0.25}), at(11, "two", "x/b"), at(16, "three", ["c", "d"])],
        "tokens": {"micro_batch_size": 2, "batch_accumulation_per_replica": 3},
        "parallelism": {"dp": 4},
    }
    plan = Recipe.parse(data, base="/base").plan(opener)
    assert [source.url for source in plan.sources] == ["x/a", "x/b", "c", "d"]
    batch = 2 * 3 * 4
    located = plan.locate(range(15 * batch + 200))
    counts = [[int((part == number).sum()) for number in range(4)] for part in (
        located.source[: 10 * batch], located.source[10 * batch : 15 * batch], located.source[15 * batch :]
    )]  # fmt: skip
    assert counts == [[180, 60, 0, 0], [0, 120, 0, 0], [0, 0, 100, 100]]
    mine = located.index[located.source == 1]
    assert len(set(mine[:100].tolist())) == 100  # the second stage continues where the first one stopped


def test_folders_and_stages_with_equal_names_stay_apart() -> None:
    def at(start: int, name: str, folder: Any, weights: Any = None) -> dict[str, Any]:
        return {**stage(start, name), "data": {"dataset": {"dataset_folder": folder, "dataset_weights": weights}}}

    # 'x/a' and 'x-a' make the same name, so do the second stage and the folder 'x'; 'c' stands twice in the last.
    stages = [
        at(1, "one", {"x/a": 3, "x-a": 1}),
        at(3, "x", ["d", "e"]),
        at(5, "z", "x"),
        at(7, "y", ["c", "c"], [1, 3]),
    ]
    data = {"data_stages": stages, "tokens": {"micro_batch_size": 50}, "parallelism": {"dp": 2}}
    plan = Recipe.parse(data, base="/base").plan(opener)
    assert plan.names == ["x-a", "x-a-2", "x/d", "x/e", "x-2", "c", "c-2"]
    counts = [plan.report(n * 200).sources for n in range(1, 5)]
    assert [source.drawn for source in counts[0]] == [150, 50, 0, 0, 0, 0, 0]
    assert [source.drawn for source in counts[3]] == [150, 50, 100, 100, 200, 50, 150]
