#!/usr/bin/env bash
# `take` and `skip` of a streamed dataset divide their number among the workers: a split made with them leaks.
#
# In one process, `take(100)` and `skip(100)` are the two parts of a stream: for validation and for training. Two loader
# workers skip 50 samples each, at the beginning of their own shards. Of the 100 samples of validation, which the main
# process reads, 50 are then trained on, and 50 others are in no split; of 8 workers' 87 each. Both counts are as asked.
# Only if both parts are read with the same number of workers do they not overlap.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import datasets
from torch.utils.data import DataLoader

stream = datasets.Dataset.from_dict({"id": list(range(1000))}).to_iterable_dataset(num_shards=8)


def read(part, workers):
    return {int(sample["id"]) for sample in DataLoader(part, batch_size=None, num_workers=workers)}


print(f"datasets {datasets.__version__}: 100 samples for validation, read without workers, of 1,000 in 8 shards")
held = read(stream.take(100), 0)
for workers, leaked in ((0, 0), (1, 0), (2, 50), (4, 75), (8, 87)):
    trained = read(stream.skip(100), workers)
    both, none = len(held & trained), 1000 - len(held | trained)
    print(f"  {workers} workers for the rest: {len(trained)} samples, {both} of validation, {none} in no split")
    assert len(held) == 100 and len(trained) == 900 and (both, none) == (leaked, leaked), "changed"
assert not read(stream.take(100), 4) & read(stream.skip(100), 4), "changed: with the same number of workers"
PYTHON
