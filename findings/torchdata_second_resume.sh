#!/usr/bin/env bash
# torchdata's StatefulDataLoader counts the batches before the first resume twice at the second one.
#
# A dataset without a state of its own is fast-forwarded, as documented. The first resume is right. The state of a resumed
# run has the batches that were skipped twice, so the second resume skips too many: 3 and then 5 batches are saved as 11.
# Its message "fast-forwarding your dataset by 11 steps" is the only sign. With worker processes it is the same.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import logging

import torch
import torchdata
from torchdata.stateful_dataloader import StatefulDataLoader

logging.disable(logging.WARNING)


class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(96))


def leg(workers, steps, state):
    loader = StatefulDataLoader(Numbers(), batch_size=4, num_workers=workers)
    if state is not None:
        loader.load_state_dict(state)
    seen = []
    for step, batch in enumerate(loader, 1):
        seen += batch.tolist()
        if step == steps:
            break
    return seen, loader.state_dict()


for workers in (0, 1):
    one, state = leg(workers, 3, None)
    two, state = leg(workers, 5, state)
    three, _ = leg(workers, 0, state)
    print(f"torchdata {torchdata.__version__.split('+')[0]}, {workers} workers: legs of 3 and 5 batches, then the rest of 24")
    print(f"first samples of the legs: {one[0]}, {two[0]}, {three[0]}; lost {96 - len({*one, *two, *three})} of 96")
    assert (one[0], two[0]) == (0, 12) and three == list(range(44, 96)), "changed"
PYTHON
