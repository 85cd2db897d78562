#!/usr/bin/env bash
# `set_epoch` gives a streamed dataset that nobody has shuffled another order of its shards.
#
# Any epoch but 0 draws an order of the shards, with the epoch as seed, and samples keep their order inside them. Trainer and
# accelerate call `set_epoch` themselves: data that is sorted on purpose, as by difficulty or by time, comes sorted in the
# first epoch alone. Behind `take` or `skip` the order is kept; in one shard it is, too.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$work"
for shard in 0 1 2 3; do printf '%s\n' "$shard.0" "$shard.1" > "$shard.txt"; done
HF_HOME="$work/home" "$work/venv/bin/python" - <<'PYTHON'
import datasets


def stream(files):
    return datasets.load_dataset("text", data_files=files, split="train", streaming=True)


def orders(data):
    for epoch in range(5):
        data.set_epoch(epoch)
        yield [sample["text"] for sample in data]


print("datasets", datasets.__version__)
for name, data, changes in (
    ("four files", stream("*.txt"), True),
    ("four files, mapped", stream("*.txt").map(lambda sample: sample), True),
    ("four files, all taken", stream("*.txt").take(8), False),
    ("one file", stream("0.txt"), False),
):
    first, *later = orders(data)
    print(f"  {name}: epoch 0 {' '.join(first)}; epoch 4 {' '.join(later[-1])}")
    assert first == sorted(first) and all(sorted(order) == first for order in later), "changed"
    assert (later[-1] != first) == changes and any(order != first for order in later) == changes, "changed"
PYTHON
