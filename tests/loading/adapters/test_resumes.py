"""Eleven faults that trackers of trainers report of a resume, tried with every adapter.

Each loses or repeats samples without a word elsewhere: a second resume, the end of an epoch, another data set, batches
that were prefetched at a save, fewer ranks, more workers, a batch in flight, a rank whose shard would be empty, a state
that is loaded after the first batch, another batch size, another mixture.

Megatron-LM and datasets by position save a number of samples and no state: they cannot tell another plan, which is why
the two faults that are refused leave them out.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.adapters.tracked import TrackedBatches
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader
from feedmill.storage import LocalStore

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
Ids = list[int]
WIDTH = 3
"""Tokens of a document, which are all its number."""


@dataclass
class Data:
    """Two files of documents of 3 tokens, each its number, and a recipe that mixes them."""

    folder: Path

    def recipe(self, *, sizes: tuple[int, int] = (16, 8), weights: tuple[int, int] = (2, 1), end: str = "") -> Path:
        """Write the files and the recipe: a cycle of 24 samples has each document once."""
        lines = [f"seed: 3\n{end}\nblend:\n"]
        for name, first, size, weight in zip("ab", (1, 100), sizes, weights, strict=True):
            with write_pbin(LocalStore(self.folder), f"{name}{size}.pbin", 2) as writer:
                writer.add(np.repeat(np.arange(first, first + size), WIDTH), np.full(size, WIDTH))
            lines.append(f"- {{name: {name}, path: {name}{size}.pbin, weight: {weight}, shuffle: global}}\n")
        path = self.folder / "recipe.yaml"
        path.write_text("".join(lines))
        return path


def ids(batch: Any) -> Ids:
    return [int(row[0]) for row in np.asarray(batch)]


class Run:
    """One rank of a run: an adapter as its trainer uses it."""

    positions_only = False

    def __init__(self, recipe: Path, size: int = 4, rank: int = 0, ranks: int = 1, workers: int = 1) -> None:
        self.recipe, self.size, self.rank, self.ranks, self.workers = recipe, size, rank, ranks, workers
        self.plan = fm.Recipe.load(recipe).plan()
        self.begin()

    def loader(self, **options: Any) -> Loader:
        given = {"rank": self.rank, "world_size": self.ranks, "workers": self.workers, **options}
        return Loader(self.plan, self.size, **given)

    def begin(self) -> None:
        raise NotImplementedError

    def a_path(self) -> Path:
        """Return a new path for a checkpoint."""
        return self.recipe.parent / f"checkpoint-{sum(1 for _ in self.recipe.parent.iterdir())}"

    def take(self, steps: int) -> list[Ids]:
        """Train on so many batches, and return their documents."""
        raise NotImplementedError

    def look_ahead(self) -> None:
        """Fetch a batch that is not trained on before the next save. Trainers do it in `take`."""

    def save(self) -> Any:
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError


class Plain(Run):
    def begin(self) -> None:
        self.data = self.loader()
        self.batches: Iterator[Any] | None = None

    def take(self, steps: int) -> list[Ids]:
        if self.batches is None:
            self.batches = iter(self.data)
        return [ids(batch["input_ids"]) for batch in islice(self.batches, steps)]

    def save(self) -> Any:
        return Checkpoint(self.data).state_dict()

    def load(self, state: Any) -> None:
        Checkpoint(self.data).load_state_dict(state)
        self.batches = None


class Tracked(Plain):
    def begin(self) -> None:
        self.tracked, self.used = TrackedBatches(self.loader()), 0
        self.batches = None

    def take(self, steps: int) -> list[Ids]:
        if self.batches is None:
            self.batches = iter(self.tracked)
        return self.taken(self.batches, steps)

    def taken(self, batches: Iterator[Any], steps: int) -> list[Ids]:
        found = [ids(batch["input_ids"]) for batch in islice(batches, steps)]
        self.used += len(found)
        return found

    def look_ahead(self) -> None:
        assert self.batches is not None
        next(self.batches)

    def save(self) -> Any:
        return self.tracked.checkpoint(self.used)

    def load(self, state: Any) -> None:
        self.tracked.load(state)
        self.batches, self.used = None, 0


class Jax(Run):
    def begin(self) -> None:
        pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
        from feedmill.loading.adapters.jax import GlobalBatches

        self.batches, self.batches_used = GlobalBatches(self.loader()), 0

    def take(self, steps: int) -> list[Ids]:
        found = [ids(batch["input_ids"]) for batch in islice(self.batches, steps)]
        self.batches_used += len(found)
        return found

    def look_ahead(self) -> None:
        next(self.batches)

    def save(self) -> Any:
        self.batches.used = self.batches_used
        return self.batches.get_state()

    def load(self, state: Any) -> None:
        self.batches.set_state(state)
        self.batches_used = 0


class Iterable(Tracked):
    """A plain `DataLoader`, which saves nothing: the dataset knows the state after a number of batches."""

    def begin(self) -> None:
        self.dataset, self.used, self.batches = self.loader(workers=1).as_iterable_dataset(), 0, None

    def take(self, steps: int) -> list[Ids]:
        if self.batches is None:
            made = torch.utils.data.DataLoader(self.dataset, batch_size=None, num_workers=self.workers - 1)
            self.batches = iter(made)
        return self.taken(self.batches, steps)

    def save(self) -> Any:
        return self.dataset.state_after(self.used)

    def load(self, state: Any) -> None:
        self.dataset.load_state_dict(state)
        self.used, self.batches = 0, None


class Stateful(Plain):
    """torchdata's `StatefulDataLoader`: what its workers have prefetched is in flight."""

    def begin(self) -> None:
        pytest.importorskip("torchdata", reason="torchdata is not installed: pip install torchdata")
        self.dataset, self.batches = self.loader(workers=1).as_iterable_dataset(), None

    def take(self, steps: int) -> list[Ids]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        if self.batches is None:
            self.stateful = StatefulDataLoader(self.dataset, batch_size=None, num_workers=self.workers - 1)
            self.batches = iter(self.stateful)
        return [ids(batch["input_ids"]) for batch in islice(self.batches, steps)]

    def save(self) -> Any:
        return self.stateful.state_dict()

    def load(self, state: Any) -> None:
        self.dataset.load_state_dict(state)
        self.batches = None


class Torchtitan(Run):
    def begin(self) -> None:
        from feedmill.loading.adapters.torchtitan import FeedmillDataLoader

        config = FeedmillDataLoader.Config(recipe=str(self.recipe), workers=self.workers)
        self.data = FeedmillDataLoader(
            config, dp_world_size=self.ranks, dp_rank=self.rank, seq_len=WIDTH - 1, local_batch_size=self.size
        )
        self.batches: Iterator[Any] | None = None

    def take(self, steps: int) -> list[Ids]:
        if self.batches is None:
            self.batches = iter(self.data)
        return [ids(inputs["input"]) for inputs, _ in islice(self.batches, steps)]

    def save(self) -> Any:
        return self.data.state_dict()

    def load(self, state: Any) -> None:
        self.data.load_state_dict(state)
        self.batches = None


class Torchtune(Run):
    """A recipe that trains as torchtune's do: each epoch, here of one batch, iterates its data anew."""

    def begin(self) -> None:
        from feedmill.loading.adapters.torchtune import feed

        self.max_steps_per_epoch, self._gradient_accumulation_steps, self.dp_size = 1, 1, self.ranks
        self.epochs_run = 0
        feed(self, self.loader())
        self.data = self._setup_data(batch_size=self.size)

    def _setup_data(self, batch_size: int, dataloader_state_dict: Any = None) -> Any:
        raise AssertionError("the recipe's own data")

    def _update_recipe_state(self, state: Any) -> None:
        self.epochs_run = state["epochs_run"]

    def take(self, steps: int) -> list[Ids]:
        found = []
        for epoch in range(steps):
            self.data.sampler.set_epoch(epoch)
            for batch in self.data:
                found.append(ids(batch["input_ids"]))
                break
            self.epochs_run += 1
        return found

    def save(self) -> Any:
        return {"epochs_run": self.epochs_run, "dataloader": self.data.state_dict()}

    def load(self, state: Any) -> None:
        self._update_recipe_state(state)


class OlmoCore(Run):
    def begin(self) -> None:
        from feedmill.loading.adapters.olmo_core import FeedmillDataLoader

        group = self.rank, self.ranks
        self.data = FeedmillDataLoader(self.plan, self.size, seq_len=WIDTH - 1, group=group, workers=self.workers)
        self.batches: Iterator[Any] | None = None

    def take(self, steps: int) -> list[Ids]:
        if self.batches is None:
            self.data.reshuffle(epoch=1)
            self.batches = iter(self.data)
        return [ids(batch["input_ids"]) for batch in islice(self.batches, steps)]

    def save(self) -> Any:
        return self.data.state_dict()

    def load(self, state: Any) -> None:
        self.data.load_state_dict(state)
        self.batches = None


class LeRobot(Run):
    """A stand-in for LeRobot's script, whose names are called in its order."""

    def begin(self) -> None:
        from feedmill.loading.adapters.lerobot import feed

        made = types.SimpleNamespace(delta_timestamps=None, meta=types.SimpleNamespace(features={}))
        self.script = types.SimpleNamespace(
            make_dataset=lambda config: made,
            load_training_state=lambda folder: (1,),
            save_checkpoint=lambda folder: (folder / "training_state").mkdir(parents=True),
            cycle=iter,
        )
        feed(self.script, self.plan, rank=self.rank, world_size=self.ranks)
        images = types.SimpleNamespace(enable=False)
        given = types.SimpleNamespace(episodes=None, image_transforms=images)
        options = {"batch_size": self.size, "num_workers": self.workers, "steps": 2, "dataset": given, "policy": None}
        self.script.make_dataset(types.SimpleNamespace(**options))
        self.batches: Iterator[Any] | None = None

    def take(self, steps: int) -> list[Ids]:
        if self.batches is None:
            self.batches = self.script.cycle(None)
        return [ids(batch["input_ids"]) for batch in islice(self.batches, steps)]

    def save(self) -> Any:
        self.script.save_checkpoint(folder := self.a_path())
        return folder

    def load(self, state: Any) -> None:
        self.script.load_training_state(state)
        self.batches = None


class VlaFoundry(Run):
    """A stand-in for VLA Foundry's main: each `take` is a part of the training."""

    def begin(self) -> None:
        from feedmill.loading.adapters.vla_foundry import feed

        def save(config: Any, number: int, path: Path, *rest: Any) -> None:
            torch.save({"datastrings": rest[3]}, path)

        names: dict[str, Any] = {"get_datastring_input": None, "get_wds_dataloader": None}
        self.main = types.SimpleNamespace(load_data_chunks=lambda path: ([0], 0), save_checkpoint=save, **names)
        feed(self.main, self.plan, workers=self.workers)
        self.config = types.SimpleNamespace(
            total_val_samples=None,
            total_train_samples=0,
            hparams=types.SimpleNamespace(global_batch_size=self.size * self.ranks),
            distributed=types.SimpleNamespace(rank=self.rank, world_size=self.ranks),
            data=types.SimpleNamespace(type="text"),
        )

    def take(self, steps: int) -> list[Ids]:
        given = {"curr_shard_idx_per_dataset": [0], "shard_shuffle_seed_per_dataset": [None]}
        shards, samples, *_ = self.main.get_datastring_input(num_samples=steps * self.size * self.ranks, **given)
        part = self.main.get_wds_dataloader(shards, samples, 0, self.config)
        return [ids(batch["input_ids"]) for batch in part.dataloader]

    def save(self) -> Any:
        self.main.save_checkpoint(self.config, 1, path := self.a_path(), None, None, None, ["shards"])
        return path

    def load(self, state: Any) -> None:
        self.main.load_data_chunks(state)


class Mapped(Run):
    """A plan by position, with a sampler that takes the indices in order after the samples that were consumed."""

    positions_only = True

    def begin(self) -> None:
        self.consumed = 0
        length = None if self.plan.length is not None else 10**6
        self.dataset = self.plan.as_dataset(samples=length)

    def rows(self, positions: list[int]) -> Ids:
        return [int(row["input_ids"][0]) for row in self.dataset.__getitems__(positions)]

    def take(self, steps: int) -> list[Ids]:
        found = []
        for _ in range(steps):
            first = self.consumed + self.rank * self.size
            if self.consumed + self.size * self.ranks > len(self.dataset):
                break
            found.append(self.rows(list(range(first, first + self.size))))
            self.consumed += self.size * self.ranks
        return found

    def save(self) -> Any:
        return self.consumed

    def load(self, state: Any) -> None:
        self.consumed = state


class Megatron(Mapped):
    def begin(self) -> None:
        from feedmill.loading.adapters.megatron import datasets_provider

        self.consumed = 0
        self.dataset = datasets_provider(self.plan)([self.plan.length or 10**6, 0, 0])[0]

    def rows(self, positions: list[int]) -> Ids:
        return [int(row["tokens"][0]) for row in self.dataset.__getitems__(positions)]


class Trainer(Run):
    """A trainer with a checkpoint of its own: a run to a step, from the checkpoint that was loaded."""

    def begin(self) -> None:
        self.done, self.last, self.counter = 0, None, 0

    def take(self, steps: int) -> list[Ids]:
        if steps == 0:
            return []
        self.counter += 1
        folder = self.recipe.parent / f"run-{id(self)}-{self.counter}"
        found, self.last = self.fit(self.done + steps, folder)
        self.done += len(found)
        return found

    def save(self) -> Any:
        return self.done, self.last

    def load(self, state: Any) -> None:
        self.done, self.last = state

    def fit(self, last_step: int, folder: Path) -> tuple[list[Ids], Path]:
        raise NotImplementedError


class Lightning(Trainer):
    def fit(self, last_step: int, folder: Path) -> tuple[list[Ids], Path]:
        lightning = pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")
        from feedmill.loading.adapters.lightning import FeedmillDataModule

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        found: list[Ids] = []

        class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, index: int) -> Any:
                found.append(ids(batch["input_ids"]))
                return self.layer(batch["input_ids"][:, :1].float()).mean() * 1e-6

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=1e-3)

        silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        trainer = lightning.Trainer(accelerator="cpu", max_steps=last_step, **dict.fromkeys(silent, False))
        given = {"rank": self.rank, "world_size": self.ranks, "workers": self.workers}
        trainer.fit(Model(), datamodule=FeedmillDataModule(self.plan, self.size, **given), ckpt_path=self.last)
        trainer.save_checkpoint(folder.with_suffix(".ckpt"))
        return found, folder.with_suffix(".ckpt")


class Transformers(Trainer):
    def fit(self, last_step: int, folder: Path) -> tuple[list[Ids], Path]:
        transformers = pytest.importorskip("transformers", reason="transformers is missing: pip install transformers")
        pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
        from feedmill.loading.adapters.transformers import feed

        found: list[Ids] = []

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def forward(self, input_ids: Any, **_: Any) -> Any:
                found.append(ids(input_ids))
                return {"loss": self.layer(input_ids[:, :1].float()).mean() * 1e-6}

        silent = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
        args = transformers.TrainingArguments(str(folder), max_steps=last_step, save_steps=last_step, **silent)
        trainer = transformers.Trainer(model=Model(), args=args)
        feed(trainer, self.loader(output="torch"))
        trainer.train(resume_from_checkpoint=None if self.last is None else str(self.last))
        return found, folder / f"checkpoint-{last_step}"


ADAPTERS: tuple[type[Run], ...] = (
    *(Plain, Tracked, Iterable, Stateful, Mapped),
    *(Megatron, Torchtitan, Torchtune, OlmoCore, LeRobot, VlaFoundry, Jax, Lightning, Transformers),
)


class Case:
    """One adapter over one folder of data."""

    def __init__(self, adapter: type[Run], data: Data) -> None:
        self.adapter, self.data = adapter, data
        self.compared = 0
        """Steps that were compared with the recipe's, and states that were refused."""

    def whole(self, recipe: Path, samples: int) -> Ids:
        """Return the documents of the first samples of a recipe, read without an adapter."""
        plan = fm.Recipe.load(recipe).plan()
        return [int(row["input_ids"][0]) for row in plan.read(np.arange(samples))]

    def legs(self, recipe: Path, *layouts: dict[str, int], steps: int = 2, ahead: bool = False) -> int:
        """Run legs of a run, each with a layout and from the state of the leg before; return the samples they saw.

        The documents of each step, over all ranks, are those that the recipe has there.
        """
        state, seen = None, 0
        wanted = self.whole(recipe, 96)
        for layout in layouts:
            ranks, size = layout.get("ranks", 1), layout.get("size", 4)
            runs = [self.adapter(recipe, **{**layout, "rank": rank}) for rank in range(ranks)]
            found = []
            for run in runs:
                if state is not None:
                    run.load(state)
                found.append(run.take(steps))
                if ahead:
                    run.look_ahead()
            states = [run.save() for run in runs]
            state = states[0]
            for step in zip(*found, strict=True):
                mine = [number for part in step for number in part]
                assert sorted(mine) == sorted(wanted[seen : seen + ranks * size])
                seen += ranks * size
                self.compared += 1
            assert all(len(each) == steps for each in found)
        return seen

    def refused(self, recipe: Path, other: Callable[[], Path], match: str) -> None:
        run = self.adapter(recipe)
        run.take(2)
        state = run.save()
        with pytest.raises(ConfigError, match=match):
            changed = self.adapter(other())
            changed.load(state)
            changed.take(1)
        self.compared += 1


def second_resume(case: Case) -> None:
    assert case.legs(case.data.recipe(), {}, {}, {}) == 24


def end_of_epoch(case: Case) -> None:
    """The state is that between two cycles of all documents: the next one is whole."""
    recipe = case.data.recipe()
    assert sorted(case.whole(recipe, 24)) == sorted(case.whole(recipe, 48)[24:]) == [*range(1, 17), *range(100, 108)]
    assert case.legs(recipe, {}, {}, steps=6) == 48


def another_data_set(case: Case) -> None:
    case.refused(
        case.data.recipe(), lambda: case.data.recipe(sizes=(16, 9)), "data of b was 8 samples .* is now 9 samples"
    )


def prefetched_at_a_save(case: Case) -> None:
    assert case.legs(case.data.recipe(), {"workers": 2}, {"workers": 2}, steps=3) == 24


def fewer_ranks(case: Case) -> None:
    assert case.legs(case.data.recipe(), {"ranks": 3}, {"ranks": 2}, {"ranks": 1}) == 48


def more_workers(case: Case) -> None:
    assert case.legs(case.data.recipe(), {"workers": 1}, {"workers": 3}) == 16


def in_flight(case: Case) -> None:
    assert case.legs(case.data.recipe(), {}, {}, {}, ahead=True) == 24


def empty_shard(case: Case) -> None:
    """A source of one document, and more ranks than it has samples: every rank has a batch in every step."""
    recipe = case.data.recipe(sizes=(2, 1))
    assert case.legs(recipe, {"ranks": 5, "size": 1}, {"ranks": 4, "size": 1}) == 18


def loaded_late(case: Case) -> None:
    """The state counts also after the first batch: the next ones are those after the state."""
    recipe = case.data.recipe()
    first = case.adapter(recipe)
    first.take(3)
    late = case.adapter(recipe)
    late.take(1)
    late.load(first.save())
    assert [number for batch in late.take(2) for number in batch] == case.whole(recipe, 20)[12:]
    case.compared += 2


def another_batch_size(case: Case) -> None:
    assert case.legs(case.data.recipe(), {"size": 4}, {"size": 7}, {"size": 2}) == 26


def another_mixture(case: Case) -> None:
    case.refused(
        case.data.recipe(), lambda: case.data.recipe(weights=(1, 2)), "blend with weight 2/3.* is now .*weight 1/3"
    )


FAULTS = (
    *(second_resume, end_of_epoch, another_data_set, prefetched_at_a_save, fewer_ranks, more_workers),
    *(in_flight, empty_shard, loaded_late, another_batch_size, another_mixture),
)
REFUSED = (another_data_set, another_mixture)
FAST = (in_flight, loaded_late, *REFUSED)
"""Faults that are tried with the slowest trainers by default."""
PAIRS = [
    pytest.param(
        *(fault, adapter),
        id=f"{fault.__name__}-{adapter.__name__.lower()}",
        marks=[pytest.mark.slow] if adapter in (Lightning, Transformers) and fault not in FAST else [],
    )
    for fault in FAULTS
    for adapter in ADAPTERS
    if not (adapter.positions_only and fault in REFUSED)
]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the abstract classes of torchtitan, if it is not installed, and of OLMo-core, whose group is a pair here.

    And what is imported of VLA Foundry.
    """

    class DataLoaderBase:
        def __init__(self, **given: Any) -> None:
            self.global_batch_size, self.batches_processed = given["global_batch_size"], 0

        def __iter__(self) -> Iterator[Any]:
            return iter(self._iter_batches())  # type: ignore[attr-defined]

    parts: dict[str, dict[str, Any]] = {
        "data": {"DataLoaderBase": DataLoaderBase},
        "distributed.utils": {"get_rank": lambda group: group[0], "get_world_size": lambda group: group[1]},
    }
    for name, given in {"": {}, "distributed": {}, **parts}.items():
        name = f"olmo_core.{name}".rstrip(".")
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(given)
    monkeypatch.delitem(sys.modules, "feedmill.loading.adapters.olmo_core", raising=False)
    parts = {"data.dataloader": {"DataInfo": types.SimpleNamespace}, "file_utils": {"pt_load": torch.load}}
    for name, given in {"": {}, "data": {}, **parts}.items():
        name = f"vla_foundry.{name}".rstrip(".")
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(given)
    try:
        import torchtitan.components.dataloader  # noqa: F401
    except ImportError:
        module = types.ModuleType("torchtitan.components.dataloader")
        module.BaseDataLoader = type("BaseDataLoader", (), {"Config": type("Config", (), {"__slots__": ()})})  # type: ignore[attr-defined]
        for name in ("torchtitan", "torchtitan.components"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.delitem(sys.modules, "feedmill.loading.adapters.torchtitan", raising=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("fault", "adapter"), PAIRS)
def test_no_adapter_has_the_fault(fault: Callable[[Case], None], adapter: type[Run], tmp_path: Path) -> None:
    case = Case(adapter, Data(tmp_path))
    fault(case)
    assert case.compared > 0
