#!/usr/bin/env bash
# Lightning loses one batch at each resume inside an epoch from a stateful loader without a length.
#
# It fetches one batch ahead to know which is the last, and saves the loader's state after that. So a checkpoint of step
# 3 continues with the fifth batch: the fourth was fetched, never trained on, and is not counted. The same loader in a
# plain loop, and a dataset that has a length, lose nothing. No warning.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  lightning==2.6.6 torch==2.13.0 torchdata==0.11.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import logging

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Numbers(torch.utils.data.IterableDataset):
    """0 to 95 from a position, which is its state."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < 96:
            self.position += 1
            yield self.position - 1

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Sized(Numbers):
    def __len__(self):
        return 96


def fit(data, steps, checkpoint=None):
    """Train to a step; return the samples and the checkpoint of that step."""
    seen = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            seen.extend(batch.tolist())
            return self.layer(batch[:, None].float()).mean() * 1e-6

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    saved = ModelCheckpoint("saved", every_n_train_steps=3)
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, max_steps=steps, callbacks=[saved], **silent)
    trainer.fit(Model(), StatefulDataLoader(data, batch_size=4), ckpt_path=checkpoint)
    return seen, saved.best_model_path


def plain(steps, state=None):
    loader = StatefulDataLoader(Numbers(), batch_size=4)
    if state is not None:
        loader.load_state_dict(state)
    seen = []
    for step, batch in enumerate(loader, 1):
        seen += batch.tolist()
        if step == steps:
            break
    return seen, loader.state_dict()


print("lightning", lightning.__version__)
lost = {}
for kind in (Numbers, Sized):
    one, checkpoint = fit(kind(), 3)
    two, checkpoint = fit(kind(), 9, checkpoint)
    three, _ = fit(kind(), -1, checkpoint)
    seen = one + two + three
    assert len(seen) == len(set(seen)), "changed"
    lost[kind.__name__] = sorted(set(range(96)) - set(seen))
one, state = plain(3)
two, state = plain(6, state)
three, _ = plain(-1, state)
lost["plain loop"] = sorted(set(range(96)) - {*one, *two, *three})
for name, numbers in lost.items():
    print(f"saved and resumed after 3 and 9 of 24 batches, {name}: lost {numbers}")
assert lost == {"Numbers": [12, 13, 14, 15, 40, 41, 42, 43], "Sized": [], "plain loop": []}, "changed"
PYTHON
