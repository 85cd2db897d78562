"""Train with the Trainer of transformers; run it again to resume, also with other ranks and another batch size.

python transformers_train.py recipe.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 transformers_train.py recipe.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

from typing import Any

import common
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

import feedmill as fm
from feedmill.loading.adapters.transformers import feed


class Model(torch.nn.Module):
    def __init__(self, log: common.Log) -> None:
        super().__init__()
        self.layer, self.losses, self.step = torch.nn.Linear(common.BUCKETS, 1), log, 0

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        loss = torch.nn.functional.mse_loss(self.layer(x).squeeze(1), y)
        self.losses(self.step, loss.item(), {"id": id})
        return {"loss": loss}


class CountSteps(TrainerCallback):
    def __init__(self, model: Model) -> None:
        self.model = model

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.model.step = state.global_step + 1


def main() -> None:
    options = common.options(__doc__)
    set_seed(0)
    arguments = TrainingArguments(
        str(options.folder),
        max_steps=options.steps,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_steps=options.every,
        save_total_limit=2,
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Model(common.Log(options))
    trainer = Trainer(model=model, args=arguments, callbacks=[CountSteps(model)])
    plan = fm.Recipe.load(options.recipe).plan()
    feed(trainer, fm.Loader(plan, options.batch_size, transform=common.encode, output="torch", workers=1))
    last = get_last_checkpoint(str(options.folder)) if options.folder.exists() else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
