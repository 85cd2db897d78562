#!/usr/bin/env bash
# A state saved at the end of an epoch makes every later epoch of a streamed dataset empty, without an error.
#
# After an epoch, the same `StatefulDataLoader` gives the next one, and so does one that loads the state of that moment if
# its dataset is map-style with `shuffle=True`. With torchdata's own `StatefulDistributedSampler` the first epoch after
# the resume is empty; with an `IterableDataset` of datasets all are: a trainer of N epochs ends at once, with exit 0.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  datasets==5.2.0 torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import datasets
import torch
import torchdata
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def streaming():
    return StatefulDataLoader(datasets.Dataset.from_dict({"i": range(96)}).to_iterable_dataset(4), batch_size=4)


def shuffled():
    return StatefulDataLoader(range(96), batch_size=4, shuffle=True, generator=torch.Generator())


def distributed():
    sampler = StatefulDistributedSampler(range(96), num_replicas=1, rank=0)
    return StatefulDataLoader(range(96), batch_size=4, sampler=sampler)


print(f"datasets {datasets.__version__}, torchdata {torchdata.__version__.split('+')[0]}: batches of three epochs of 24")
found = {}
for make in (streaming, shuffled, distributed):
    first = make()
    ended = [len(list(first))]
    state = first.state_dict()
    ended += [len(list(first)), len(list(first))]
    second = make()
    second.load_state_dict(state)
    found[make.__name__] = (ended, [len(list(second)) for _ in range(3)])
    print(f"{make.__name__}: {ended}; resumed after the first: {found[make.__name__][1]}")
assert all(ended == [24, 24, 24] for ended, _ in found.values()), "changed"
assert found["shuffled"][1] == [24, 24, 24], "changed"
assert found["streaming"][1] == [0, 0, 0] and found["distributed"][1] == [0, 24, 24], "changed"
PYTHON
