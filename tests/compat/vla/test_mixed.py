"""Robots, captions and text in one run: every batch has one shape, each part is that of its modality's own run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.compat.vla import VlaEncoder, VlaRun
from feedmill.errors import ConfigError
from feedmill.samples.vla.modalities import modality
from helpers.vla_golden import ROOT

NAMES = {"robotics": "robotics", "image_caption": "image_caption", "text_untokenized": "text_untokenized"}
ROBOT = {
    "action_fields": ["robot__action__poses__left::panda__xyz"],
    "dataset_statistics": [str(ROOT / "robotics/stats.json")],
    "camera_names": ["scene_left_0"],
}


def run_of(names: dict[str, str], weights: list[float], *, batch: int = 8, samples: int = 48, **data: Any) -> VlaRun:
    settings = {
        "type": "mixed" if len(names) > 1 else next(iter(names)),
        "dataset_manifest": [str(ROOT / folder / "manifest.jsonl") for folder in names.values()],
        "dataset_weighting": weights,
        "dataset_modality": list(names),
        "allow_multiple_epochs": True,
        "image_size": 16,
        "num_workers": 0,
        **ROBOT,
        **data,
    }
    return VlaRun({"data": settings, "total_train_samples": samples, "hparams": {"global_batch_size": batch}})


def by_key(batches: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        key: {name: values[row] for name, values in batch.items() if values is not None}
        for batch in batches
        for row, key in enumerate(batch["__key__"])
    }


def loaded(run: VlaRun, **options: Any) -> list[Any]:
    return list(run.loader(on_error="substitute", **options))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def test_every_batch_has_all_modalities_and_their_own_content() -> None:
    batches = loaded(run_of(NAMES, [0.5, 0.25, 0.25]))
    assert len(batches) == 6 and all(list(batch) == list(NAMES) for batch in batches)
    counts = {name: [len(batch[name]["__key__"]) for batch in batches] for name in NAMES}
    assert {name: sum(found) for name, found in counts.items()} == {
        "robotics": 24, "image_caption": 12, "text_untokenized": 12,
    }  # fmt: skip
    for name, folder in NAMES.items():
        alone = by_key(loaded(run_of({name: folder}, [1], samples=40)))
        for key, found in by_key([batch[name] for batch in batches]).items():
            assert set(found) == set(alone[key])
            assert all(equal(value, alone[key][field]) for field, value in found.items()), (name, key)


def test_a_modality_without_samples_is_none() -> None:
    batches = loaded(run_of(NAMES, [0.9, 0.05, 0.05], batch=2))
    assert len(batches) == 24 and all(list(batch) == list(NAMES) for batch in batches)
    empty = {name: sum(batch[name] is None for batch in batches) for name in NAMES}
    assert empty["robotics"] == 0 and 20 <= empty["image_caption"] < 24
    tensors = next(iter(run_of(NAMES, [0.9, 0.05, 0.05], batch=2).loader(on_error="substitute", output="torch")))
    assert list(tensors) == list(NAMES) and tensors["robotics"]["actions"].shape == (2, 8, 3)
    assert type(tensors["robotics"]["actions"]).__name__ == "Tensor"


@pytest.mark.parametrize("step", [1, 3, 5])
def test_it_resumes_at_any_step(step: int) -> None:
    run = run_of(NAMES, [0.5, 0.25, 0.25])
    whole = loaded(run)
    loader = run.loader(on_error="substitute")
    batches = iter(loader)
    for _ in range(step):
        next(batches)
    resumed = run.loader(on_error="substitute")
    resumed.load_state_dict(loader.state_dict())
    rest = list(resumed)
    assert len(rest) == len(whole) - step
    for found, expected in zip(rest, whole[step:], strict=True):
        for name in NAMES:
            assert equal(found[name]["__key__"], expected[name]["__key__"])


def test_a_recipe_mixes_them_too_and_deals_batches_of_one_modality() -> None:
    recipe = fm.Recipe.parse(
        {
            "blend": [
                {"path": str(ROOT / folder), "weight": 1, "subflavors": {"modality": name}}
                for name, folder in NAMES.items()
            ],
            "homogeneous": 4,
            "samples": 24,
        }
    )
    settings = {**ROBOT, "image_size": 16}
    encoder = VlaEncoder({name: modality(name, settings, [str(ROOT / "robotics")]) for name in NAMES})
    batches = list(fm.Loader(recipe, 4, task_encoder=encoder, workers=0, on_error="substitute"))
    assert [list(batch) for batch in batches] == [list(NAMES)] * 6
    found = [[name for name in NAMES if batch[name] is not None] for batch in batches]
    assert sorted(map(tuple, found)) == sorted([(name,) for name in NAMES] * 2)


def test_other_types_say_which_one_mixes() -> None:
    with pytest.raises(ConfigError, match=r"cannot be used in a run of type 'robotics'.*type 'mixed' takes all"):
        run_of(NAMES, [1, 1, 1], type="robotics").plan  # noqa: B018
