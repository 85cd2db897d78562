#!/usr/bin/env bash
# A CombinedStreamingDataset of LitData that is resumed a second time loses or repeats samples.
#
# `StreamingDataLoader.state_dict` is its documented way to resume. One dataset alone is right after two resumes. Two
# datasets together, read to their ends, are right after none or one, and wrong after two. No warning.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  litdata==0.2.76 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import logging
import pickle

import litdata
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset
from litdata.streaming.cache import Cache

logging.disable(logging.WARNING)
for name, numbers in (("a", range(64)), ("b", range(64, 96))):
    cache = Cache(name, chunk_size=8)
    for index, number in enumerate(numbers):
        cache[index] = number
    cache.done()
    cache.merge()


def leg(combined, workers, steps, state=None):
    parts = [StreamingDataset(name, shuffle=True, seed=1) for name in "ab"]
    data = CombinedStreamingDataset(parts, seed=3, iterate_over_all=True) if combined else parts[0]
    loader = StreamingDataLoader(data, batch_size=4, num_workers=workers)
    if state is not None:
        loader.load_state_dict(pickle.loads(state))
    seen = []
    for step, batch in enumerate(loader, 1):
        seen += batch.tolist()
        if step == steps:
            break
    return seen, pickle.dumps(loader.state_dict())


print("litdata", litdata.__version__)
found = {}
for combined, workers in ((False, 0), (False, 2), (True, 0), (True, 2)):
    one, state = leg(combined, workers, 3)
    rest, _ = leg(combined, workers, 0, state)
    two, state = leg(combined, workers, 5, state)
    three, _ = leg(combined, workers, 0, state)
    size = 96 if combined else 64
    for name, seen in (("one", one + rest), ("two", one + two + three)):
        lost, twice = size - len(set(seen)), len(seen) - len(set(seen))
        found[combined, workers, name] = lost
        kind = "two datasets" if combined else "one dataset"
        print(f"{kind} of {size} samples, {workers} workers, resumes: {name}: {lost} lost, {twice} repeated")
wrong = {case for case, lost in found.items() if lost}
assert wrong == {(True, 0, "two"), (True, 2, "two")} and found[True, 0, "two"] == 12, "changed"
PYTHON
