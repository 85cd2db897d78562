"""Memory and state stay as they are, however many samples have come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, orjson
sys.path.insert(0, sys.argv[1])
from benchmarks.lib.rates import memory_mb
import feedmill as fm
from helpers.crop_transform import crop

workers, samples = sys.argv[3], int(sys.argv[4])
how = fm.Workers(int(workers[0]), processes=workers.endswith("p"))
plan = fm.Plan.over(fm.open(sys.argv[2]), shuffle="global")
loader = fm.Loader(plan, 512, rank=0, world_size=1, workers=how, transform=crop, output=sys.argv[5])
seen, first = 0, None
for batch in loader:
    seen += 512
    if first is None and seen > samples // 10:
        first = memory_mb()
    if seen >= samples:
        break
end = memory_mb()
loader.close()
print(orjson.dumps([first, end]).decode())
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flat") / "lines.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": "word " * (i % 40)}) + "\n" for i in range(5000)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("output", ["numpy", "samples"])
@pytest.mark.parametrize("workers", ["0", "2", "2p"])
def test_memory_over_a_million_samples(workers: str, output: str, lines: Path) -> None:
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    command = [sys.executable, "-c", PROGRAM, str(ROOT), str(lines), workers, "1000000", output]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    first, end = json.loads(done.stdout)
    assert end - first < 20


def test_a_state_far_into_a_blend_of_many(lines: Path) -> None:
    entries = [{"path": str(lines), "name": f"s{i}", "weight": i + 1, "shuffle": "global"} for i in range(20)]
    recipe = {"seed": 3, "blend": entries}
    loader = fm.Loader(fm.Recipe.parse(recipe).plan(), 32, rank=1, world_size=8, deal="contiguous")
    state = {**loader.state_dict(), "position": 10**9}
    assert len(json.dumps(state)) < 1024
    loader.load_state_dict(state)
    keys = [key for batch in islice(loader, 2) for key in batch["__key__"]]
    assert loader.position == 10**9 + 2 * 8 * 32 and len(json.dumps(loader.state_dict())) < 1024
    positions = 10**9 + np.concatenate([np.arange(32, 64), np.arange(288, 320)])
    assert keys == [sample.key for sample in loader.plan.read(positions)]
