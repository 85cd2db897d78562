#!/usr/bin/env bash
# LeRobot computes its place in the data from the number of steps and the batch size of the last run alone.
#
# A resume with another batch size or number of ranks warns, and continues at the right place. Its checkpoint then has the
# new batch size beside the steps of both runs, so that every later resume is at another place, without a warning: nothing
# has changed since that checkpoint. 50 steps of 4 frames and 50 of 8 are resumed after 800 frames: 200 are never seen.
# The lines below are those of `lerobot_train.train`; the file is run alone, as the package is for Python 3.12.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --python-version 3.12 --only-binary=:all: \
  --dest "$work" lerobot==0.6.1
cd "$work"
python3 -m zipfile -e lerobot-0.6.1-*.whl files
"$work/venv/bin/python" - <<'PYTHON'
import importlib.util
from itertools import islice
from pathlib import Path

spec = importlib.util.spec_from_file_location("sampler", "files/lerobot/datasets/sampler.py")
lerobot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lerobot)
train = Path("files/lerobot/scripts/lerobot_train.py").read_text()
assert "compute_sampler_state(step, len(sampler), ckpt_batch_size, ckpt_num_processes)" in train, "changed"
assert "batch_size=cfg.batch_size,\n                    model_state_dict" in train, "changed: what a checkpoint has"


def leg(step, steps, batch, saved):
    """Frames of a run from a step on; `saved` is the batch size in its checkpoint."""
    sampler = lerobot.EpisodeAwareSampler([0, 400], [400, 1000], shuffle=True, seed=1)
    if step:
        sampler.load_state_dict(lerobot.compute_sampler_state(step, len(sampler), saved, 1))
    return list(islice(sampler, None if steps is None else steps * batch))


one = leg(0, 50, 4, None)
two = leg(50, 50, 8, 4)
three = leg(100, None, 8, 8)
print("lerobot 0.6.1: 50 steps of 4 frames, 50 of 8, then the rest of an epoch of 1,000 frames")
print(f"frames of the legs: {len(one)}, {len(two)}, {len(three)}; never seen: {1000 - len({*one, *two, *three})}")
assert len({*one, *two}) == 600 and len(three) == 200, "changed"
PYTHON
