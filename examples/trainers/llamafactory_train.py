"""Fine-tune with `llamafactory-cli train`; run it again to resume, also with other ranks.

python llamafactory_train.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 llamafactory_train.py recipe.yaml --steps 200 --batch-size 4

LLaMA-Factory imports torchaudio, whose wheels need CUDA: an empty module has its place.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import common
import tiny_llama

import feedmill as fm
from feedmill.loading.adapters.transformers import feed


def main() -> None:
    options = common.options(__doc__)
    sys.modules["torchaudio"] = ModuleType("torchaudio")
    from llamafactory.train import tuner
    from llamafactory.train.sft import workflow

    def change(trainer: Any) -> None:
        plan = fm.Recipe.load(options.recipe).plan()
        feed(trainer, fm.Loader(plan, options.batch_size, transform=tiny_llama.encode, output="torch"))
        tiny_llama.note(trainer, common.Log(options), options.accumulate)

    source = inspect.getsource(workflow.run_sft)
    names = dict(vars(workflow), change=change)
    exec(common.with_line(source, "        train_result = trainer.train(", "        change(trainer)\n"), names)
    tuner.run_sft = names["run_sft"]
    folder = Path(tempfile.mkdtemp(prefix="llamafactory-"))
    tiny_llama.save(folder, {"instruction": "a", "input": "", "output": "b"})
    (folder / "data" / "dataset_info.json").write_text(json.dumps({"train": {"file_name": "train.jsonl"}}))
    given = {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "model_name_or_path": str(folder / "model"),
        "dataset": "train",
        "dataset_dir": str(folder / "data"),
        "template": "default",
        "cutoff_len": tiny_llama.LENGTH,
        "output_dir": str(options.folder),
        **tiny_llama.arguments(options),
    }
    tuner.run_exp(given)


if __name__ == "__main__":
    main()
