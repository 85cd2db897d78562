"""A plan in LeRobot's own training script, which makes its data loader inside of `train`.

LeRobot 0.4 starts another order after a resume. LeRobot 0.6 computes the place from the number of steps and the batch
size of the last run, which is wrong from the second resume on if that size or the number of ranks has changed
(`findings/lerobot_second_resume.sh`). Here the position is in ``training_state/`` of LeRobot's checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.adapters.tracked import check_length
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader
from feedmill.loading.plan import PlainPlan

logger = logging.getLogger("feedmill")

STATE = "training_state/feedmill.json"
"""File of the position, within a checkpoint."""
_MAKERS = ("make_train_eval_datasets", "make_dataset")
_PAD = "_is_pad"


def feed(script: Any, plan: PlainPlan, **options: Any) -> FedScript:
    """Let LeRobot's script train on a plan, and save and resume its position.

        from lerobot.scripts import lerobot_train
        feed(lerobot_train, fm.Recipe.load("recipe.yaml").plan())
        lerobot_train.main()

    Sources of the recipe have the policy's windows, and ``decode: torchrgb8`` (``torchrgb`` for LeRobot 0.4). Batches
    are those of LeRobot's own dataset. ``--dataset.root`` still tells the features and the statistics that the policy's
    processors normalize with.

    Args:
        script: the module ``lerobot.scripts.lerobot_train``, in which names are replaced.
        plan: the plan. It ends no training: it must have enough samples for ``--steps``.
        options: options of the `Loader`. The batch size is ``--batch_size``, and the number of threads
            ``--num_workers``.

    Raises:
        ConfigError: the module is another one; later, from the script: options that the recipe would overrule, batches
            that are not those of the policy, too few samples, or a checkpoint without a position.
    """
    return FedScript(script, plan, options)


class FedScript:
    """The loader within a script of LeRobot. `feed` makes it.

    Attributes:
        loader: the loader of this rank, once the script has made its dataset.
    """

    def __init__(self, script: Any, plan: PlainPlan, options: Mapping[str, Any]) -> None:
        maker = next((name for name in _MAKERS if hasattr(script, name)), _MAKERS[-1])
        names = (maker, "load_training_state", "save_checkpoint", "cycle")
        missing = [name for name in names if not hasattr(script, name)]
        if missing:
            raise ConfigError(
                f"{getattr(script, '__name__', script)!r} is not LeRobot's training script: it has no"
                f" {', '.join(missing)}",
                kind="bad-option",
                fix="Pass the module lerobot.scripts.lerobot_train of LeRobot 0.4 to 0.6.",
            )
        self.loader: Loader
        self._plan, self._options, self._done, self._steps = plan, options, 0, 0
        self._expected: dict[str, tuple[tuple[int, ...], set[str]]] = {}
        self._windows: Mapping[str, Any] = {}
        self._make, self._load, self._save, _ = (getattr(script, name) for name in names)
        for name, replaced in zip(names, (self.make, self.load, self.save, self.batches), strict=True):
            setattr(script, name, replaced)

    def make(self, config: Any) -> Any:
        """Return LeRobot's own datasets, of which no sample is read, and make the loader."""
        overruled = {
            "--dataset.episodes": config.dataset.episodes is not None,
            "--dataset.eval_split": bool(getattr(config.dataset, "eval_split", 0)),
            "--dataset.image_transforms.enable": config.dataset.image_transforms.enable,
        }
        if any(overruled.values()):
            raise ConfigError(
                f"{', '.join(name for name, given in overruled.items() if given)} would not hold: the recipe decides"
                " which samples are trained on",
                kind="bad-option",
                fix="Leave it out. Choose episodes by 'where' under 'episodes' in the recipe, and change images by"
                " feed(..., transform=).",
            )
        if last := getattr(config.policy, "drop_n_last_frames", 0):
            logger.warning(
                "LeRobot leaves out the last %d frames of each episode for this policy; the recipe has them, with their"
                " missing actions marked, unless 'where' under 'episodes' leaves them out",
                last,
            )
        made = self._make(config)
        dataset = made[0] if isinstance(made, tuple) else made
        self.loader = Loader(
            self._plan, config.batch_size, **{"output": "torch", "workers": config.num_workers, **self._options}
        )
        if "windows" in self.loader.state_dict():
            raise ConfigError(
                "the recipe packs or groups, so that each rank has a state of its own, and LeRobot saves that of one",
                kind="bad-option",
                fix="Leave 'pack' and 'group' out of the recipe.",
            )
        self._windows = dataset.delta_timestamps or {}
        self._expected = _expected(dataset.meta.features, self._windows, getattr(dataset, "_return_uint8", False))
        self._steps = config.steps
        return made

    def load(self, checkpoint: Path, *args: Any, **options: Any) -> Any:
        """Load the training state and the position of a checkpoint."""
        found = self._load(checkpoint, *args, **options)
        path = Path(checkpoint) / STATE
        if not path.exists():
            raise ConfigError(
                f"the checkpoint has no position of a loader: {path} is missing",
                kind="bad-state",
                fix="Start a new run with --policy.path=CHECKPOINT/pretrained_model.",
            )
        Checkpoint(self.loader).load(path)
        self._done = int(found[0])
        return found

    def save(self, checkpoint_dir: Path, *args: Any, **options: Any) -> Any:
        """Save a checkpoint and the position; LeRobot calls it on the first rank, before `last` is that checkpoint."""
        found = self._save(checkpoint_dir, *args, **options)
        Checkpoint(self.loader).save(Path(checkpoint_dir) / STATE)
        return found

    def batches(self, _: Any) -> Iterator[Any]:
        """Yield the batches of this rank instead of those of LeRobot's `DataLoader`."""
        check_length(self.loader, self._steps - self._done, "LeRobot", "--steps")
        first = True
        for batch in self.loader:
            made = {name: _as_lerobot(value) for name, value in batch.items()}
            if first:
                self._check(made)
            first = False
            yield made

    def _check(self, batch: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if a batch has not the features that LeRobot's dataset would give."""
        for name, (shape, dtypes) in self._expected.items():
            if name not in batch:
                if name.startswith(("observation", "action")):
                    raise self._wrong(f"batches lack {name!r}")
                continue  # numbers that policies do not read
            value = batch[name]
            if not hasattr(value, "dtype"):
                found = "a list of values that differ in shape"
            elif tuple(value.shape[1:]) == shape and str(value.dtype) in dtypes:
                continue
            else:
                found = f"{list(value.shape[1:])}, {value.dtype}"
            wanted = f"{list(shape)}, {' or '.join(sorted(dtypes))}"
            raise self._wrong(f"{name!r} is {found} in batches: expected {wanted}, as LeRobot's dataset has it")

    def _wrong(self, message: str) -> ConfigError:
        windows = ", ".join(f"{name}: {list(offsets)}" for name, offsets in self._windows.items())
        return ConfigError(
            message,
            kind="bad-option",
            fix=f"Give every source of the recipe decode: torchrgb8 (torchrgb for LeRobot 0.4) and the policy's"
            f" windows: {{{windows}}}.",
        )


def _as_lerobot(value: Any) -> Any:
    """Return a field as LeRobot has it: its numbers are never float64."""
    return value.float() if str(getattr(value, "dtype", "")) == "torch.float64" else value


def _expected(
    features: Mapping[str, Any], windows: Mapping[str, Any], bytes_too: bool
) -> dict[str, tuple[tuple[int, ...], set[str]]]:
    """Return the shape without the batch, and the dtypes, of each feature and mask of padding."""
    found: dict[str, tuple[tuple[int, ...], set[str]]] = {}
    for name, feature in features.items():
        kind, shape = str(feature["dtype"]), tuple(feature["shape"])
        if kind in ("image", "video"):
            axes = feature.get("names") or ("height", "width", "channels")
            if axes[-1] in ("channel", "channels"):
                shape = (shape[2], shape[0], shape[1])
            dtypes = {"torch.float32", *(["torch.uint8"] if bytes_too else [])}
        elif kind == "bool" or kind.startswith(("int", "float")):
            shape = () if shape == (1,) else shape
            dtypes = {"torch.bool" if kind == "bool" else "torch.float32" if kind[0] == "f" else "torch.int64"}
        else:
            continue  # texts
        steps = len(windows.get(name, ()))
        if steps and not (kind == "video" and steps == 1):
            shape = (steps, *shape)
        found[name] = shape, dtypes
        if steps:
            found[name + _PAD] = (steps,), {"torch.bool"}
    return found
