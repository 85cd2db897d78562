#!/usr/bin/env bash
# A streamed dataset that has just loaded a state says that it is at the beginning, until it gives the next sample.
#
# `load_state_dict` only keeps the state for the next iteration; `state_dict` does not look there. A run that resumes and
# is saved before its next batch, as when it is stopped again while it starts, repeats the epoch from its first sample.
# `StatefulDataLoader` saves what the dataset says; with two workers a state one step after the resume is wrong, too: the
# one that has given no batch yet begins again. Nothing warns. For a list all states are right.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    datasets==5.2.0 torchdata==0.11.0 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version
from itertools import islice

from datasets import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


def streamed():
    return Dataset.from_dict({"id": list(range(24))}).to_iterable_dataset(num_shards=4)


def ids(batch):
    return [sample["id"] for sample in batch]


def loader(data, workers):
    return StatefulDataLoader(data(), batch_size=2, num_workers=workers, collate_fn=ids)


def resumed(make, state):
    made = make()
    made.load_state_dict(state)
    return made


def listed():
    return [{"id": number} for number in range(24)]


print(", ".join(f"{name} {version(name)}" for name in ("datasets", "torchdata", "torch")))
for name, make, count, expected in (
    ("a streamed dataset", streamed, 10, [24, 13, 12]),
    ("a loader of it", lambda: loader(streamed, 0), 5, [12, 6, 5]),
    ("a loader of it with 2 workers", lambda: loader(streamed, 2), 5, [12, 9, 5]),
    ("a loader of a list", lambda: loader(listed, 0), 5, [7, 6, 5]),
):
    first = make()
    running = iter(first)
    assert len(list(islice(running, count))) == count
    state = first.state_dict()
    left = len(list(resumed(make, state)))
    seen = []
    for more in range(3):
        second = resumed(make, state)
        running = iter(second)
        assert len(list(islice(running, more))) == more
        seen.append(len(list(resumed(make, second.state_dict()))))
    print(f"  {name}: {count} given, a resume leaves {left}; saved 0, 1 and 2 steps after it, a second leaves {seen}")
    assert seen == expected, "changed"
PYTHON
