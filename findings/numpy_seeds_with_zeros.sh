#!/usr/bin/env bash
# NumPy: seeds that are lists are the same seed with or without zeros at their end, and one number is a list of its words.
#
# `default_rng([seed, epoch, worker])` gives the generators of epoch 0 and worker 0 the numbers of `default_rng(seed)`:
# what shuffles the samples also augments them. `[seed, 1]` is the seed `seed + 2**32`, and `[seed, 1]` of one purpose is
# `[seed, 1, 0]` of another. Only a zero in front counts; children of `spawn` differ from all of them.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import numpy as np

print("numpy", np.__version__)
streams = {}
high, child = 7 + 2**32, np.random.SeedSequence(7).spawn(1)[0]
seeds = [7, [7], [7, 0], [7, 0, 0], [7, 1], [7, 1, 0], high, [high, 0], [0, 7], child]
for seed in seeds:
    order = tuple(np.random.default_rng(seed).permutation(1000).tolist())
    streams.setdefault(order, []).append(seed if isinstance(seed, (int, list)) else "spawned from 7")
for order, same in streams.items():
    print(f"  order of 1,000 samples begins {order[:4]}: {', '.join(map(str, same))}")
groups = [[7, [7], [7, 0], [7, 0, 0]], [[7, 1], [7, 1, 0], high, [high, 0]], [[0, 7]], ["spawned from 7"]]
assert list(streams.values()) == groups, "changed"
PYTHON
