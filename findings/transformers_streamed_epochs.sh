#!/usr/bin/env bash
# A Trainer on a streamed dataset that resumes after its first epoch begins the second epoch again, wherever it was saved.
#
# It has no length for such a dataset, takes the whole run for one epoch, and skips as many batches as there were steps.
# An epoch of fewer batches is then skipped whole, and the next one is read from its start: after 9, 15 or 21 steps of
# epochs of 6 the next batch is that of step 7. A run that is stopped often never gets further. Nothing is raised; the
# steps and the learning rate continue. In the first epoch, and for a dataset with a length, a resume is exact.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 accelerate==1.15.0 \
    datasets==5.2.0 numpy==2.4.6
cd "$work"
export CUDA_VISIBLE_DEVICES=""
"$work/venv/bin/python" -W ignore - 2> log <<'PYTHON' | grep '^transformers' || { tail -5 log; exit 1; }
import torch
import transformers
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids, **_):
        batches.append(ids.tolist())
        return {"loss": (self.weight * ids).mean()}


class Stop(TrainerCallback):
    """Save and stop after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_save = control.should_training_stop = state.global_step >= self.step


def run(data, folder, stop, resume=None):
    batches.clear()
    args = TrainingArguments(
        folder, max_steps=30, per_device_train_batch_size=4, save_strategy="no", logging_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True,
    )
    collate = lambda samples: {"ids": torch.tensor([float(sample["ids"]) for sample in samples])}
    trainer = Trainer(Model(), args, train_dataset=data, data_collator=collate, callbacks=[Stop(stop)])
    trainer.train(resume_from_checkpoint=resume)
    return list(batches)


batches = []
listed = Dataset.from_dict({"ids": list(range(24))})
streamed = lambda: listed.to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=8)
for name, make, expected in (("streamed", streamed, [4, 7, 7, 7]), ("listed", lambda: listed, [4, 10, 16, 22])):
    whole = run(make(), f"{name}-whole", 30)
    assert len(whole) == 30, "changed"
    found = []
    for stop in (3, 9, 15, 21):
        assert run(make(), f"{name}-{stop}", stop) == whole[:stop], "changed"
        rest = run(make(), f"{name}-{stop}-rest", 30, f"{name}-{stop}/checkpoint-{stop}")
        assert len(rest) == 30 - stop, "changed"
        found.append(1 + next(at for at in range(30) if whole[at : at + 9] == rest[:9]))
    print(f"transformers {transformers.__version__}, {name}, 6 batches an epoch: stopped after 3, 9, 15 and 21 steps,",
          f"resumed with the batch of step {found}")
    assert found == expected, "changed"
PYTHON
