#!/usr/bin/env bash
# In transformers 5.2.0, gradient accumulation over N batches divides the gradients by N twice: steps are N times too small.
#
# So it is with a loss that is a mean, and with one that divides by `num_items_in_batch`, as language models do. The losses
# in the log are right. 5.24.0 takes the same step for any N. LLaMA-Factory 0.9.5 allows 5.2.0.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
cd "$work"
cat > step.py <<'PYTHON'
import contextlib
import io

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Mean(PreTrainedModel):
    """A model with one weight, which is 0 at first, and a mean squared error."""

    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.line = nn.Linear(1, 1, bias=False)
        self.post_init()

    def forward(self, x=None, labels=None):
        return {"loss": ((self.line(x) - labels) ** 2).mean()}


class Sum(Mean):
    """One that divides by the number of items that the Trainer counts, as language models do."""

    def forward(self, x=None, labels=None, num_items_in_batch=None, **_):
        return {"loss": ((self.line(x) - labels) ** 2).sum() / num_items_in_batch}


data = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(16)]
quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
sgd = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0}


def stepped(kind, batches):
    """Return the weight after one step over the 16 samples, in this number of batches."""
    model = kind(PretrainedConfig())
    nn.init.zeros_(model.line.weight)
    sizes = {"per_device_train_batch_size": 16 // batches, "gradient_accumulation_steps": batches}
    with contextlib.redirect_stdout(io.StringIO()):
        Trainer(model, TrainingArguments("out", **sizes, **sgd, **quiet), train_dataset=data).train()
    return round(model.line.weight.item(), 4)


found = {kind.__name__.lower(): [stepped(kind, batches) for batches in (1, 2, 4, 8)] for kind in (Mean, Sum)}
print(f"transformers {transformers.__version__}: a step over 16 samples in 1, 2, 4, 8 batches, by loss: {found}")
right = [2.0, 2.0, 2.0, 2.0]
wrong = [2.0, 1.0, 0.5, 0.25]
assert all(steps == (wrong if transformers.__version__ == "5.2.0" else right) for steps in found.values()), "changed"
PYTHON
for release in 5.2.0 5.24.0; do
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "transformers==$release"
    HF_HUB_OFFLINE=1 "$work/venv/bin/python" step.py 2> /dev/null
done
