"""First guesses: datasets, paths and recipes where a plan is expected, and parameters of other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, NotFound, suggesting


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(20)))
    return path


def texts(loader: fm.Loader, batches: int = 3) -> list[str]:
    return [text for batch, _ in zip(loader, range(batches), strict=False) for text in batch["json"]["text"]]


def test_datasets_paths_and_recipes_stand_for_their_plans(lines: Path) -> None:
    plan = fm.Plan.over(fm.open(lines))
    expected = texts(fm.Loader(plan, 4))
    assert len(expected) == 12 and fm.Plan.over(lines).fingerprint == fm.Plan.over(str(lines)).fingerprint
    assert fm.Plan.over([lines]).fingerprint == plan.fingerprint
    for given in (fm.open(lines), str(lines), lines):
        assert texts(fm.Loader(given, 4)) == expected
    recipe = lines.with_name("recipe.yaml")
    recipe.write_text("seed: 3\nblend: [{path: qa.jsonl}]\n")
    loaded = fm.Recipe.load(recipe)
    assert texts(fm.Loader(recipe, 4)) == texts(fm.Loader(loaded, 4)) == texts(fm.Loader(loaded.plan(), 4))


def test_what_is_no_plan_is_named(lines: Path) -> None:
    with pytest.raises(ConfigError, match="2 datasets are not a plan"):
        fm.Loader([lines, lines], 4)
    with pytest.raises(ConfigError, match="the path is empty"):
        fm.Loader("", 4)
    for other in (7, None):
        with pytest.raises(ConfigError, match="is not a plan"):
            fm.Loader(other, 4)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        fm.Loader(lines.with_name("nothing"), 4)


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ({"num_workers": 2}, "did you mean 'workers'"),
        ({"shuffle": True}, "the plan decides the order"),
        ({"worlds_size": 2}, "did you mean 'world_size'"),
        ({"collate_fn": list}, "did you mean 'collate'"),
    ],
)
def test_parameters_of_other_loaders_get_a_suggestion(lines: Path, named: dict[str, object], hint: str) -> None:
    with pytest.raises(TypeError, match="Loader has no parameter") as caught:
        fm.Loader(lines, 4, **named)  # type: ignore[arg-type]
    assert hint in str(caught.value)


def test_a_plan_over_other_things_is_an_error(lines: Path) -> None:
    for other in ({"a": fm.open(lines)}, [fm.open(lines), 7], None):
        with pytest.raises(ConfigError, match="is not a dataset"):
            fm.Plan.over(other)  # type: ignore[arg-type]
    for seed in (1.5, "1", None):
        with pytest.raises(ConfigError, match=r"seed=.* is not a whole number"):
            fm.Plan.over(lines, seed=seed)  # type: ignore[arg-type]
    plan = fm.Plan.over(lines, seed=np.int64(5))  # type: ignore[arg-type]
    assert plan.fingerprint == fm.Plan.over(lines, seed=5).fingerprint and type(plan.seed) is int


def test_plans_suggest_parameters_too(lines: Path) -> None:
    with pytest.raises(TypeError, match="workers are an option"):
        fm.Plan.over(lines, num_workers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'epochs'"):
        fm.Plan.over(lines, epoch=2)  # type: ignore[call-arg]


def test_without_a_similar_name_the_parameters_are_listed() -> None:
    @suggesting()
    def function(alpha: int = 0, beta: int = 0) -> int:
        return alpha + beta

    assert function(1, beta=2) == 3
    with pytest.raises(TypeError, match="it has alpha, beta"):
        function(zzzz=1)  # type: ignore[call-arg]


def test_a_dataset_says_what_it_is(lines: Path) -> None:
    assert repr(fm.open(lines)) == f"<jsonl dataset {str(lines)!r}: 20 samples>"


def test_a_recipe_as_data_stands_for_its_plan_and_other_ways_to_make_a_recipe_name_parse(lines: Path) -> None:
    data = {"source": {"path": str(lines)}, "seed": 3, "epochs": 1}
    assert texts(fm.Loader(data, 4)) == texts(fm.Loader(fm.Recipe.parse(data), 4))
    assert texts(fm.Loader(fm.Recipe.load(data), 4)) == texts(fm.Loader(data, 4))
    with pytest.raises(ConfigError, match=r"not made of a dict .*Use fm\.Recipe\.parse\(data\)"):
        fm.Recipe(data)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Use fm\.Recipe\.load\(path\)"):
        fm.Recipe(str(lines))  # type: ignore[arg-type]


def test_epochs_of_a_loader_end_the_plan_of_a_dataset(lines: Path) -> None:
    for given in (str(lines), lines, fm.open(lines)):
        loader = fm.Loader(given, 4, epochs=1, rank=0, world_size=1)
        assert len(loader) == 5 and sorted(texts(loader, 99)) == sorted(f"line {n}" for n in range(20))
    assert len(fm.Loader(lines, 4, epochs=2.5, rank=0, world_size=1)) == 13
    recipe = {"source": {"path": str(lines)}}
    for given in (recipe, fm.Recipe.parse(recipe), fm.Recipe.parse(recipe).plan(), fm.Plan.over(lines)):
        with pytest.raises(ConfigError, match=r"epochs=1 has no use: a (plan|recipe) has its own end. .*'epochs'"):
            fm.Loader(given, 4, epochs=1)
    for endless in (fm.Loader(lines, 4), fm.Plan.over(lines), fm.Plan.over(lines).as_dataset()):
        with pytest.raises(TypeError, match="epochs"):
            len(endless)


def test_a_parameter_list_of_an_error_does_not_name_self(lines: Path) -> None:
    with pytest.raises(TypeError, match=r"^Loader has no parameter 'zzz': it has plan, batch_size, epochs,"):
        fm.Loader(lines, 4, zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        ({"datasets": []}, "recipe datasets: unknown key 'datasets' (did you mean 'blend'?)"),
        ({"mixture": []}, "did you mean 'blend'"),
        ({"dataset": "a"}, "did you mean 'source'"),
        ({"num_epochs": 1}, "did you mean 'epochs'"),
        ({"blend": [{"path": "a", "proportion": 1}]}, "unknown key 'proportion' (did you mean 'weight'?)"),
        ({"blend": [{"file": "a"}]}, "did you mean 'path'"),
        ({"blend": [{"path": "a", "wieght": 1}]}, "did you mean 'weight'"),
        ({"blnd": []}, "did you mean 'blend'"),
    ],
)
def test_keys_of_other_tools_name_the_key_here(recipe: dict[str, object], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fm.Recipe.parse(recipe)
    assert hint in str(caught.value)
