"""Fine-tune with `swift sft` of ms-swift; run it again to resume, also with other ranks.

python swift_sft.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 swift_sft.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import common
import tiny_llama
from swift.pipelines.train.sft import SwiftSft
from transformers.trainer_utils import get_last_checkpoint

import feedmill as fm
from feedmill.loading.adapters.transformers import feed

OPTIONS = common.options(__doc__)


class Sft(SwiftSft):
    """The pipeline of `swift sft`, with a line more before it trains."""

    def train(self, trainer: Any) -> Any:
        plan = fm.Recipe.load(OPTIONS.recipe).plan()
        feed(trainer, fm.Loader(plan, OPTIONS.batch_size, transform=tiny_llama.encode, output="torch"))
        tiny_llama.note(trainer, common.Log(OPTIONS), OPTIONS.accumulate)
        return super().train(trainer)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="swift-"))
    tiny_llama.save(folder, {"query": "a", "response": "b"})
    last = get_last_checkpoint(str(OPTIONS.folder)) if OPTIONS.folder.exists() else None
    given = {
        "model": folder / "model",
        "model_type": "llama",
        "template": "dummy",
        "dataset": folder / "data" / "train.jsonl",
        "tuner_type": "full",
        "torch_dtype": "float32",
        "add_version": False,
        "output_dir": OPTIONS.folder,
        **tiny_llama.arguments(OPTIONS),
        **({} if last is None else {"resume_from_checkpoint": last}),
    }
    Sft([part for name, value in given.items() for part in (f"--{name}", str(value))]).main()


if __name__ == "__main__":
    main()
