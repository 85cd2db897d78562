#!/usr/bin/env bash
# PyTorch's distributed checkpoints mix the states of ranks: of a value that several save under one name, one is kept.
#
# A data loader's state differs by rank. Saved as {"loader": loader} on two ranks, it is loaded on both as one state with
# values of either, without a word: the save spreads over the ranks what it takes for copies. Under a name for each rank
# all is right, but another number of ranks then cannot load it.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$work"
cat > ranks.py <<'PYTHON'
import ast
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Loader:
    """The loader of a rank: each rank is at another place."""

    def __init__(self, rank):
        self.rank, self.place = rank, 10 + rank

    def state_dict(self):
        return {"rank": self.rank, "place": self.place, "seen": torch.tensor([self.place]), "rng": b"%d" % self.rank}

    def load_state_dict(self, state):
        self.loaded = {name: value.tolist() if name == "seen" else value for name, value in state.items()}


def run(rank, ranks, name, save):
    meeting = pathlib.Path(f"meet-{name}-{save}").resolve()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    loader = Loader(rank)
    if save:
        dcp.save({name.format(rank): loader}, checkpoint_id=f"saved-{name}")
    else:
        dcp.load({name.format(rank): loader}, checkpoint_id=f"saved-{name}")
        pathlib.Path(f"loaded-{name}-{rank}").write_text(repr(loader.loaded))
    dist.destroy_process_group()


if __name__ == "__main__":
    seen = {}
    for name in ("loader", "loader{}"):
        for save in (True, False):
            torch.multiprocessing.spawn(run, (2, name, save), nprocs=2)
        seen[name] = [ast.literal_eval(pathlib.Path(f"loaded-{name}-{rank}").read_text()) for rank in range(2)]
    print(f"torch {torch.__version__}: states of two ranks, saved and loaded under one name, and under two")
    for name, states in seen.items():
        print("  " + "; ".join(map(str, states)))
    one, two = seen["loader"]
    own = [{"rank": rank, "place": 10 + rank, "seen": [10 + rank], "rng": b"%d" % rank} for rank in range(2)]
    assert seen["loader{}"] == own, "changed"
    assert one == two and one not in own, "changed"
PYTHON
"$work/venv/bin/python" -W ignore ranks.py
