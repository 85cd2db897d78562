"""Run a script of TRL as it is published, with one line more: the loader is fed to its trainer.

TRL saves the position in its checkpoints, and finds it with its own `--resume_from_checkpoint`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.trainer_utils import get_last_checkpoint

import feedmill as fm
from feedmill.loading.adapters.transformers import feed

BEFORE = "    trainer.train("
LINE = "    change(trainer)\n"


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
    source = inspect.getsource(module.main)
    if source.count(BEFORE) != 1:
        raise RuntimeError(f"trl.scripts.{name} has {source.count(BEFORE)} calls of train: expected 1")

    def change(trainer: Any) -> None:
        def batch(samples: list[Any]) -> Any:
            made = collate(trainer, samples)
            return {**made, "id": [sample["id"] for sample in samples]} if isinstance(made, dict) else made

        plan = fm.Recipe.load(options.recipe).plan()
        size = options.batch_size
        if name == "grpo":  # its batch is the prompts of a step
            size = size * options.accumulate // trainer.num_generations
        feed(trainer, fm.Loader(plan, size, transform=encode, collate=batch, workers=1))
        note(trainer, common.Log(options), options.accumulate)

    names: dict[str, Any] = dict(vars(module), change=change)
    exec(source.replace(BEFORE, LINE + BEFORE), names)
    names["main"](*module.make_parser().parse_args_and_config(args=arguments(options, row, more(options))))


def note(trainer: Any, log: common.Log, accumulate: int) -> None:
    """Log the samples and the mean loss of each batch."""
    loss_of = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        made = "completion_ids" in inputs  # by the policy, so they tell whether the model is the same
        rows = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1) if made else None
        ids = inputs.pop("id") if rows is None else common.checksums(rows)
        found = loss_of(model, inputs, *args, **options)
        loss = (found[0] if isinstance(found, tuple) else found).item()
        of_step = made or options.get("num_items_in_batch") is not None  # divided by the tokens of the whole step
        log(trainer.state.global_step + 1, loss * (accumulate if of_step else 1), {"id": ids})
        return found

    trainer.compute_loss = compute_loss


def arguments(options: Any, row: dict[str, str], more: dict[str, Any]) -> list[str]:
    """Return the arguments of the script: a tiny model, rows that its own loading accepts, and the checkpoint."""
    folder = Path(tempfile.mkdtemp(prefix="trl-"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<eos>", pad_token="<pad>")
    tokenizer.save_pretrained(folder / "model")
    transformers.set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 8)
    last = get_last_checkpoint(str(options.folder)) if options.folder.exists() else None
    given = {
        "model_name_or_path": folder / "model",
        "dataset_name": folder / "data",
        "output_dir": options.folder,
        "max_steps": options.steps,
        "gradient_accumulation_steps": options.accumulate,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "save_steps": options.every,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        **more,
        **({} if last is None else {"resume_from_checkpoint": last}),
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]
