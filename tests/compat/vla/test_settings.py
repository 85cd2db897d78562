"""Each setting of VLA Foundry that is mapped has an effect, and a recipe has the samples of `vla plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.compat.vla import VlaRun
from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.settings import Fate
from feedmill.planning.dialects.vla import RECIPE, RUN, SETTINGS
from helpers.vla_golden import ROOT

XYZ, HAND = "robot__action__poses__left::panda__xyz", "robot__action__grippers__left::panda_hand"
STATE = "robot__actual__poses__left::panda__xyz"


def text(**change: Any) -> dict[str, Any]:
    """A run of two datasets of text; settings below `data` have dotted names with `__`."""
    data = {
        "type": "text",
        "dataset_manifest": [str(ROOT / name / "manifest.jsonl") for name in ("text", "text_b")],
        "dataset_weighting": [0.7, 0.3],
        "dataset_modality": ["text", "text"],
        "val_dataset_manifest": [str(ROOT / "text_b/manifest.jsonl")],
        "val_dataset_weighting": [1],
        "allow_multiple_epochs": True,
    }
    run = {f"data.{name}": value for name, value in data.items()} | {"data.num_workers": 0}
    return changed(run | {"total_train_samples": 40, "hparams.global_batch_size": 4}, change)


def robots(**change: Any) -> dict[str, Any]:
    data = {
        "type": "robotics",
        "dataset_manifest": [str(ROOT / "robotics/manifest.jsonl")],
        "dataset_weighting": [1],
        "dataset_modality": ["robotics"],
        "dataset_statistics": [str(ROOT / "robotics/stats.json")],
        "action_fields": [XYZ],
        "proprioception_fields": [STATE],
        "image_size": 8,
        "shuffle": False,
        "num_workers": 0,
    }
    run = {f"data.{name}": value for name, value in data.items()}
    return changed(run | {"total_train_samples": 4, "hparams.global_batch_size": 4}, change)


def changed(run: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in change.items()}
    return {name: value for name, value in {**run, **named}.items() if value is not None}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def keys(run: dict[str, Any], mode: str = "train") -> Any:
    try:
        plan = fm.Recipe.parse(run, mode=mode).plan()
        found = plan.locate(range(plan.length or 40))
    except FeedmillError as error:
        return str(error)
    return np.stack([found.source, found.index]).tolist()


B = [str(ROOT / "text_b/manifest.jsonl")]
OF_RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "data.type": (text(), text(data__type="text_untokenized"), "same"),
    "data.dataset_manifest": (text(), text(data__dataset_manifest=[*B, str(ROOT / "text/manifest.jsonl")]), "train"),
    "data.dataset_weighting": (text(), text(data__dataset_weighting=[0.5, 0.5]), "train"),
    "data.dataset_modality": (text(), text(data__dataset_modality=["text", "robotics"]), "train"),
    "data.val_dataset_manifest": (text(), text(data__val_dataset_manifest=[str(ROOT / "text/manifest.jsonl")]), "val"),
    "data.val_dataset_weighting": (text(), text(data__val_dataset_weighting=[1, 1]), "val"),
    "data.allow_multiple_epochs": (
        text(total_train_samples=4000),
        text(total_train_samples=4000, data__allow_multiple_epochs=False),
        "train",
    ),
    "data.shuffle": (text(), text(data__shuffle=False), "train"),
    "data.seed": (text(), text(data__seed=7), "train"),
    "hparams.seed": (text(data__seed=7), text(data__seed=7, hparams__seed=8), "train"),
    "total_train_samples": (text(), text(total_train_samples=50), "train"),
    "num_epochs": (text(total_train_samples=None, num_epochs=1), text(total_train_samples=None, num_epochs=2), "train"),
}


@pytest.mark.parametrize("name", OF_RECIPES)
def test_a_setting_changes_the_recipe(name: str) -> None:
    before, after, what = OF_RECIPES[name]
    mode = "validation" if what == "val" else "train"
    if what == "same":  # a type only says which modalities there may be
        assert keys(before, mode) == keys(after, mode)
        assert "cannot be used in a run of type" in keys({**after, name: "robotics"}, mode)
    else:
        assert keys(before, mode) != keys(after, mode)


def batch(run: dict[str, Any]) -> Any:
    try:
        return plain(next(iter(VlaRun(run).loader())))
    except FeedmillError as error:
        return str(error)


UNTOKENIZED = {
    "data__type": "text_untokenized",
    "data__dataset_modality": ["text_untokenized"],
    "data__dataset_manifest": [str(ROOT / "text_untokenized/manifest.jsonl")],
    "data__dataset_weighting": [1],
}
OF_RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "data.seq_len": (text(), text(data__seq_len=3)),
    "data.image_size": (robots(), robots(data__image_size=9)),
    "data.dataset_statistics": (robots(), robots(data__dataset_statistics=None)),
    "data.camera_names": (robots(), robots(data__camera_names=["scene_left_0"])),
    "data.image_indices": (robots(), robots(data__image_indices=[0])),
    "data.image_names": (robots(), robots(data__image_names=["scene_left_0_t0"])),
    "data.proprioception_fields": (robots(), robots(data__proprioception_fields=[XYZ])),
    "data.action_fields": (robots(), robots(data__action_fields=[XYZ, HAND])),
    "data.pose_groups": (robots(), robots(data__pose_groups=[{"name": "arm"}])),
    "data.intrinsics_fields": (robots(), robots(data__intrinsics_fields=[HAND])),
    "data.extrinsics_fields": (robots(), robots(data__extrinsics_fields=[HAND])),
    "data.language_instruction_types": (robots(), robots(data__language_instruction_types=["randomized"])),
    "data.pad_missing_images": (
        robots(data__image_names=["none_t0", "scene_left_0_t0"]),
        robots(data__image_names=["none_t0", "scene_left_0_t0"], data__pad_missing_images=True),
    ),
    "data.normalization": (robots(), robots(data__normalization={"method": "min_max"})),
    "data.lowdim_past_timesteps": (robots(), robots(data__lowdim_past_timesteps=1, data__lowdim_future_timesteps=5)),
    "data.lowdim_future_timesteps": (robots(), robots(data__lowdim_past_timesteps=2, data__lowdim_future_timesteps=1)),
    "data.tokenizer": (
        text(**UNTOKENIZED),
        text(**UNTOKENIZED, data__tokenizer="nowhere.json"),
    ),
    "hparams.global_batch_size": (robots(), robots(hparams__global_batch_size=2)),
}


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_setting_changes_the_batches(name: str) -> None:
    before, after = OF_RUNS[name]
    assert batch(before) != batch(after)


def test_settings_of_the_loader_and_of_windows() -> None:
    run = VlaRun(text(data__prefetch_factor=7, num_checkpoints=2))
    loader = run.loader()
    assert (loader.workers.count, loader.prefetch) == (0, 7)
    assert [window.samples for window in run.windows()] == [20, 20]
    assert VlaRun(text(data__num_workers=2)).loader().workers.count == 2


def test_every_mapped_setting_has_its_test() -> None:
    tested = {*OF_RECIPES, *OF_RUNS, "data.num_workers", "data.prefetch_factor", "num_checkpoints"}
    assert tested == set(SETTINGS.names(Fate.MAPPED)) == {*RECIPE, *RUN}
    assert set(OF_RECIPES) == set(RECIPE)


FORMS = {
    "dotted": lambda run: run,
    "nested": lambda run: {
        "data": {name[5:]: value for name, value in run.items() if name.startswith("data.")},
        **{name: value for name, value in run.items() if not name.startswith("data.")},
    },
    "flat": lambda run: {name.removeprefix("data."): value for name, value in run.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_recipe_has_the_samples_of_the_run(form: str, tmp_path: Path) -> None:
    config = FORMS[form](text(total_train_samples=None, num_epochs=3))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    whole = sum(VlaRun(config).samples_per_dataset) * 3
    assert len(fm.Recipe.load(tmp_path / "run.yaml").plan()) == whole == VlaRun.load(tmp_path / "run.yaml").total
    for verb in (["plan"], ["compat", "vla", "plan"]):
        done = CliRunner().invoke(app, [*verb, str(tmp_path / "run.yaml")])
        assert f"{whole:,} samples" in done.stdout, verb


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data__shuffel": False}, "unknown setting '(data.)?shuffel' .did you mean '(data.)?shuffle'"),
        ({"total_train_sample": 7}, "unknown setting 'total_train_sample' .did you mean 'total_train_samples'"),
        ({"num_epochs": 2}, "num_epochs and total_train_samples are both set"),
        ({"num_epochs": 2, "total_train_samples": None, "data__allow_multiple_epochs": False}, "requires allow_mul"),
        ({"num_epochs": 0, "total_train_samples": None}, "num_epochs must be a whole number of at least 1"),
    ],
)
def test_a_recipe_refuses_what_the_run_refuses(form: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(FORMS[form](text(**change))))
    for load in (fm.Recipe.load, VlaRun.load):
        with pytest.raises(ConfigError, match=rf"run.yaml.*{words}"):
            load(tmp_path / "run.yaml")


def test_what_a_recipe_does_not_follow_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = text(data__seq_len=4, hparams__lr=0.1, hparams__wd=0.2, model={"type": "x"}, data__shuffle_initial=3)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(FORMS["nested"](more)))
    fm.Recipe.load(tmp_path / "run.yaml")
    assert sorted(record.getMessage().partition("run.yaml: ")[2] for record in caplog.records) == [
        "'data.shuffle_initial' has no effect: not needed: all samples are permuted, without a buffer",
        "'hparams.lr', 'hparams.wd', 'model' have no effect: left to the training program",
        "not in the recipe, for VlaRun alone: data.num_workers, data.seq_len, hparams.global_batch_size",
    ]
