"""What trainers see of a loader, in this process: endless plans, packs, ends, and batches that are taken ahead."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.loading.adapters import lerobot, vla_foundry
from feedmill.loading.adapters.torchtune import feed as feed_recipe
from feedmill.loading.adapters.tracked import MOST_AHEAD, TrackedBatches
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.loader import Loader
from helpers.fakes import FakePlan

ROBOT = Path(__file__).parents[2] / "golden" / "sources" / "lerobot" / "windows"


class Pairs(TaskEncoder):
    """Packs of two samples."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"position": [sample["position"] for sample in samples]}

    def batch(self, samples: list[Any]) -> Any:
        return {"position": np.array([sample["position"] for sample in samples])}


def positions(batches: Any) -> list[Any]:
    return [np.asarray(batch["position"]).tolist() for batch in batches]


@pytest.mark.parametrize("packs", [False, True])
def test_the_state_is_that_after_the_used_batches(packs: bool) -> None:
    options: dict[str, Any] = {"task_encoder": Pairs(), "buffer": 8} if packs else {}
    taken = TrackedBatches(Loader(FakePlan(), 4, **options))
    wanted = positions(islice(taken, 12))
    for used in (0, 5, 12):
        again = TrackedBatches(Loader(FakePlan(), 4, **options))
        again.load(taken.checkpoint(used))
        assert (
            positions(islice(again, 3))
            == (wanted + positions(islice(Loader(FakePlan(), 4, **options), 15))[12:])[used : used + 3]
        )
    assert taken.checkpoint() == taken.checkpoint(12)
    with pytest.raises(ConfigError, match="after 13 of 12 batches is unknown"):
        taken.checkpoint(13)
    list(islice(taken, MOST_AHEAD))
    with pytest.raises(ConfigError, match=f"the last {MOST_AHEAD - 1} are kept"):
        taken.checkpoint(3)


def lightning_trainer(**options: Any) -> tuple[Any, Any]:
    """A trainer of Lightning, and a model that keeps the positions of each batch in `seen`."""
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")
    import torch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen.append(batch["position"].tolist())
            return self.layer(batch["position"].float().reshape(-1, 1)).mean() * 1e-6

        def validation_step(self, batch: Any, index: int) -> None:
            """Without it, Lightning does not end the epoch of a checkpoint at once."""

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return lightning.Trainer(accelerator="cpu", **dict.fromkeys(silent, False), **options), Model()


def data_module(length: int | None = None, **options: Any) -> Any:
    from feedmill.loading.adapters.lightning import FeedmillDataModule

    return FeedmillDataModule(FakePlan(length=length), 4, **options)


@pytest.mark.parametrize(("packs", "length"), [(False, None), (False, 100), (True, None), (True, 100)])
def test_lightning_loses_no_batch(packs: bool, length: int | None, tmp_path: Path) -> None:
    """Stopped by `max_steps` in the middle of an epoch, with the default of one epoch, and resumed."""
    options: dict[str, Any] = {"task_encoder": Pairs(), "buffer": 8} if packs else {}

    def fit(steps: int, checkpoint: Path | None) -> list[Any]:
        trainer, model = lightning_trainer(max_steps=steps, max_epochs=1)
        trainer.fit(model, datamodule=data_module(length, **options), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return list(model.seen)

    wanted = positions(islice(Loader(FakePlan(length=length), 4, **options), 20))
    first = fit(7, None)
    second = fit(20, tmp_path / "last.ckpt")
    assert first == wanted[:7] and second == wanted[7:]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("first", [{"max_steps": 6, "limit_train_batches": 3}, {"fast_dev_run": 6}])
def test_lightning_resumes_exactly_from_the_end_of_an_epoch(first: dict[str, Any], packs: bool, tmp_path: Path) -> None:
    """Without a limit it fetches a batch, ends the epoch of the checkpoint at once, and iterates again."""
    options: dict[str, Any] = {"task_encoder": Pairs(), "buffer": 8} if packs else {}
    seen = []
    for given, checkpoint in ((first, None), ({"max_steps": 9}, tmp_path / "last.ckpt")):
        trainer, model = lightning_trainer(**given)
        data = data_module(**options)
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        seen += model.seen
    wanted = Loader(FakePlan(), 4, **options)
    assert seen == positions(islice(wanted, 9))
    resumed = Loader(FakePlan(), 4, **options)
    Checkpoint(resumed).load_state_dict(data.state_dict())
    assert positions(islice(resumed, 2)) == positions(islice(wanted, 2))


def test_a_trainer_of_lightning_that_asks_for_the_batches_again_gets_the_next_ones(tmp_path: Path) -> None:
    wanted = positions(islice(Loader(FakePlan(), 4), 12))
    trainer, model = lightning_trainer(max_steps=7, limit_train_batches=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(model, datamodule=data_module())
    assert model.seen == wanted[:7]

    trainer, model = lightning_trainer(max_steps=4)
    data = data_module()
    for steps in (4, 8):
        trainer.fit_loop.epoch_loop.max_steps, trainer.should_stop = steps, False
        trainer.fit(model, datamodule=data)
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
    assert model.seen == wanted[:8]
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(model, datamodule=data, ckpt_path=tmp_path / "4.ckpt")
    assert model.seen == wanted[:8] + wanted[4:6]
    other, model = lightning_trainer(max_steps=2)  # another run, from the beginning
    other.fit(model, datamodule=data_module())
    assert model.seen == wanted[:2]


def test_the_trainer_of_transformers_ends_with_the_plan_or_says_what_is_missing(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    import torch

    from feedmill.loading.adapters.transformers import feed

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, position: Any, x: Any = None, **_: Any) -> Any:
            self.seen.append(position.tolist())
            return {"loss": self.layer(position.float().reshape(-1, 1)).mean() * 1e-6}

    def trainer(length: int | None, batch_size: int, generations: int = 1, **options: Any) -> tuple[Any, Model]:
        model = Model()
        arguments = transformers.TrainingArguments(
            str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, save_steps=5, **options
        )
        arguments.steps_per_generation = generations  # as TRL's GRPO has
        made = transformers.Trainer(model=model, args=arguments)
        feed(made, Loader(FakePlan(length=length), batch_size, output="torch"))
        return made, model

    with pytest.raises(ConfigError, match=r"the plan never ends.*Set max_steps in the TrainingArguments"):
        trainer(None, 4)
    made, model = trainer(100, 4)
    made.train()
    assert made.state.global_step == 25 and [k for batch in model.seen for k in batch] == list(range(100))
    again, model = trainer(100, 2)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert [k for batch in model.seen for k in batch] == list(range(40, 100)) and again.state.global_step == 40
    twice, model = trainer(8, 4, generations=2, gradient_accumulation_steps=2)
    twice.train()
    assert model.seen == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2 and twice.state.global_step == 2
    with pytest.raises(ConfigError, match=r"uses each batch 2 times .* a resume would lose the rest"):
        trainer(8, 4, generations=2)


def test_grain_and_orbax_take_plans_and_states(tmp_path: Path) -> None:
    grain = pytest.importorskip("grain", reason="Grain is not installed: pip install grain")
    ocp = pytest.importorskip("orbax.checkpoint", reason="Orbax is not installed: pip install orbax-checkpoint")
    from feedmill.loading.adapters.jax import GlobalBatches
    from feedmill.loading.adapters.mapped import PlanDataset

    source = grain.MapDataset.source(PlanDataset(FakePlan(length=61))).map(lambda sample: sample["position"]).batch(4)
    first, second = iter(source.to_iter_dataset()), iter(source.to_iter_dataset())
    assert [next(first).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    second.set_state(first.get_state())
    assert next(second).tolist() == [8, 9, 10, 11]

    batches, resumed = GlobalBatches(Loader(FakePlan(), 4)), GlobalBatches(Loader(FakePlan(), 6))
    for _ in range(3):
        next(batches)
    batches.used = 2  # the third is on its way to the device
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(batches)))
        manager.wait_until_finished()
        manager.restore(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(resumed)))
    assert next(resumed)["position"].tolist() == list(range(8, 14))


def lerobot_script(**more: Any) -> tuple[SimpleNamespace, Any]:
    """A stand-in for LeRobot's script, with the dataset of a policy that wants 8 actions, and its configuration."""
    deltas = {"action": [step / 10 for step in range(8)]}
    features = json.loads((ROBOT / "meta/info.json").read_text())["features"]
    dataset = SimpleNamespace(delta_timestamps=deltas, meta=SimpleNamespace(features=features), _return_uint8=True)
    script = SimpleNamespace(
        make_train_eval_datasets=lambda config: (dataset, None),
        load_training_state=lambda folder: (4,),
        save_checkpoint=lambda folder: (folder / "training_state").mkdir(parents=True),
        cycle=iter,
    )
    given = SimpleNamespace(**{"episodes": None, "image_transforms": SimpleNamespace(enable=False), **more})
    policy = SimpleNamespace(drop_n_last_frames=7)
    return script, SimpleNamespace(batch_size=3, num_workers=0, steps=4, dataset=given, policy=policy)


def robot_plan(epochs: int | None = None, **source: Any) -> Any:
    source = {"path": str(ROBOT), "windows": {"action": [0, 7]}, "decode": "torchrgb8", **source}
    end = {} if epochs is None else {"epochs": epochs}
    return fm.Recipe.parse({"seed": 1, "source": {**source, "shuffle": "global"}, **end}).plan()


def test_batches_in_lerobots_script_are_those_of_its_dataset(caplog: pytest.LogCaptureFixture) -> None:
    """At equal indices: with LeRobot itself where it is installed, else with the shapes that it would have."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    pytest.importorskip("av")
    script, config = lerobot_script()
    lerobot.feed(script, robot_plan())
    dataset, _ = script.make_train_eval_datasets(config)
    assert "leaves out the last 7 frames of each episode" in caplog.text
    batch = next(script.cycle(None))
    assert batch["action"].shape == (3, 8, 2) and batch["observation.images.top"].shape == (3, 3, 64, 96)
    assert batch["action_is_pad"].dtype == torch.bool and batch["timestamp"].dtype == torch.float32
    try:
        from lerobot.datasets import LeRobotDataset  # type: ignore[import-not-found]
    except ImportError:
        return
    given = {"delta_timestamps": dataset.delta_timestamps, "video_backend": "pyav", "return_uint8": True}
    theirs = LeRobotDataset("local/robot", root=ROBOT, **given)
    expected = torch.utils.data.default_collate([theirs[int(index)] for index in batch["index"]])
    assert set(batch) == {"__key__", *expected}
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == batch[name].dtype and torch.equal(value, batch[name]), name
        else:
            assert value == batch[name]


@pytest.mark.parametrize(
    ("source", "options", "steps", "message"),
    [
        ({}, {"episodes": [0]}, 4, "--dataset.episodes would not hold"),
        ({}, {"image_transforms": SimpleNamespace(enable=True)}, 4, "image_transforms.enable would not hold"),
        ({"windows": {"action": [0, 6]}}, {}, 4, r"'action' is \[7, 2\].*expected \[8, 2\], torch.float32"),
        ({"decode": "rgb8"}, {}, 4, r"'observation.images.top' is .*64, 96, 3.* expected \[3, 64, 96\]"),
        ({"epochs": 1}, {}, 9, "the plan ends after 8 more batches, and LeRobot trains on 9"),
    ],
)
def test_what_lerobots_script_cannot_train_on(source: Any, options: Any, steps: int, message: str) -> None:
    pytest.importorskip("av")
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    script, config = lerobot_script(**options)
    config.steps = steps
    lerobot.feed(script, robot_plan(**source))
    with pytest.raises(ConfigError, match=message):
        script.make_train_eval_datasets(config)
        next(script.cycle(None))


def test_scripts_and_checkpoints_of_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not LeRobot's training script: it has no make_dataset"):
        lerobot.feed(SimpleNamespace(cycle=iter), FakePlan())
    with pytest.raises(ConfigError, match="is not VLA Foundry's main: it has no get_datastring_input"):
        vla_foundry.feed(SimpleNamespace(), FakePlan())
    script, config = lerobot_script()
    lerobot.feed(script, FakePlan())
    script.make_train_eval_datasets(config)
    with pytest.raises(ConfigError, match="no position of a loader"):
        script.load_training_state(tmp_path)


class Recipe:
    """As much of a recipe of torchtune as the adapter changes."""

    max_steps_per_epoch: int | None = None
    _gradient_accumulation_steps, epochs_run = 2, 1

    def _setup_data(self, batch_size: int, dataloader_state_dict: Any = None) -> Any: ...

    def _update_recipe_state(self, state: Any) -> None: ...


def test_recipes_of_torchtune_that_would_lose_samples_are_refused() -> None:
    recipe = Recipe()
    feed_recipe(recipe, Loader(FakePlan(), 4))
    with pytest.raises(ConfigError, match="Set max_steps_per_epoch"):
        recipe._setup_data(batch_size=4)
    with pytest.raises(ConfigError, match="batches of 4 for 1 ranks, and the recipe of 2 for 1"):
        recipe._setup_data(batch_size=2)
    with pytest.raises(ConfigError, match="after epoch 1 has no position of a loader"):
        recipe._update_recipe_state({"epochs_run": 1, "dataloader": None})
    recipe.max_steps_per_epoch = 3
    assert len(recipe._setup_data(batch_size=4)) == 6
    ended = Recipe()
    feed_recipe(ended, Loader(FakePlan(length=8), 4))
    batches = ended._setup_data(batch_size=4)
    assert len(list(batches)) == len(batches) == 2
    with pytest.raises(ConfigError, match="the plan ended at 8 samples"):
        list(batches)
    preferences = Recipe()
    preferences._setup_data = lambda batch_size: None  # type: ignore[assignment,misc,call-arg]
    with pytest.raises(ConfigError, match="does not save the state of its data loader"):
        feed_recipe(preferences, Loader(FakePlan(), 4))
