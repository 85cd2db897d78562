"""Run a script of TRL as it is published, with one line more: the loader is fed to its trainer.

TRL saves the position in its checkpoints, and finds it with its own `--resume_from_checkpoint`.
"""

from __future__ import annotations

import importlib
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import tiny_llama
from transformers.trainer_utils import get_last_checkpoint

import feedmill as fm
from feedmill.loading.adapters.transformers import feed


def run(
    name: str,
    row: dict[str, str],
    encode: Callable[..., Any],
    collate: Callable[..., Any],
    more: Callable[[Any], dict[str, Any]] = lambda options: {},
) -> None:
    """Run `trl NAME` with a tiny model.

    Args:
        name: of the script.
        row: a sample as the script's own loading wants it, which is not trained on.
        encode: the transform of the loader, which keeps the number "id" of a sample.
        collate: from the trainer and samples to a batch of this trainer.
        more: from the options to further arguments of the script.

    Raises:
        RuntimeError: the script has not one place to train.
    """
    options = common.options(__doc__)
    module = importlib.import_module(f"trl.scripts.{name}")

    def change(trainer: Any) -> None:
        def batch(samples: list[Any]) -> Any:
            made = collate(trainer, samples)
            return {**made, "id": [sample["id"] for sample in samples]} if isinstance(made, dict) else made

        plan = fm.Recipe.load(options.recipe).plan()
        size = options.batch_size
        if name == "grpo":  # its batch is the prompts of a step
            size = size * options.accumulate // trainer.num_generations
        feed(trainer, fm.Loader(plan, size, transform=encode, collate=batch, workers=1))
        tiny_llama.note(trainer, common.Log(options), options.accumulate)

    source = common.with_line(inspect.getsource(module.main), "    trainer.train(", "    change(trainer)\n")
    names: dict[str, Any] = dict(vars(module), change=change)
    exec(source, names)
    names["main"](*module.make_parser().parse_args_and_config(args=arguments(options, row, more(options))))


def arguments(options: Any, row: dict[str, str], more: dict[str, Any]) -> list[str]:
    """Return the arguments of the script: a tiny model, rows that its own loading accepts, and the checkpoint."""
    folder = Path(tempfile.mkdtemp(prefix="trl-"))
    tiny_llama.save(folder, row)
    last = get_last_checkpoint(str(options.folder)) if options.folder.exists() else None
    given = {
        "model_name_or_path": folder / "model",
        "dataset_name": folder / "data",
        "output_dir": options.folder,
        **tiny_llama.arguments(options),
        **more,
        **({} if last is None else {"resume_from_checkpoint": last}),
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]
