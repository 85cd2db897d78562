"""megatron-core's own `GPTDataset` and `BlendedDataset` beside Feedmill's order of them.

They run where FEEDMILL_MEGATRON_PYTHON names a Python that has megatron-core.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.compat.megatron.fields import gpt_fields
from feedmill.formats.tokens.ordered import OrderedWindows
from feedmill.planning.orders import GptOrder
from feedmill.planning.recipes.recipe import Recipe
from helpers.megatron_runs import PARTS, RUNS, core_request, recipe, write_sets

READER = Path(__file__).with_name("megatron_reader.py")
TRAINER = READER.with_name("megatron_trainer.py")
LARGE = {
    "one dataset, the last epoch apart": {
        "sources": ["b"], "split": "969,30,1", "samples": [1_000_000, 50, 5], "seq_len": 16, "seed": 1234
    },
    "one dataset, many epochs, no extra token": {
        "sources": ["c"], "split": "98,1,1", "samples": [1_000_000, 50, 5], "seq_len": 8, "seed": 2**32 - 1,
        "options": {"add_extra_token_to_sequence": False},
    },
    "a blend by weight": {
        "sources": ["a", "b", "c"], "weights": [0.3, 0.5, 0.2], "split": "949,40,11",
        "samples": [1_000_000, 1_000, 100], "seq_len": 16, "seed": 42,
    },
    "a blend by size": {
        "sources": ["c", "b", "a"], "split": "98,1,1", "samples": [1_000_000, 10_000, 100], "seq_len": 10, "seed": 3
    },
    "an exhaustive blend": {
        "sources": ["a", "c", "b"], "split": "90,5,5", "samples": [None, None, None], "seq_len": 9, "seed": 99
    },
    "blends per split": {
        "sources": ["b", "a"], "weights": [30.0, 70.0], "split": None, "samples": [1_000_000, 1_000, 7],
        "seq_len": 12, "seed": 5,
    },
}  # fmt: skip


def peer(requests: list[dict[str, Any]], cwd: Path) -> list[list[dict[str, Any] | None]]:
    answer = ran(READER, requests, cwd)
    return list(json.loads(answer[answer.index("[[") :]))


def ran(program: Path, request: Any, cwd: Path) -> str:
    """Return what a program in the peer's environment prints for a request."""
    python = os.environ.get("FEEDMILL_MEGATRON_PYTHON")
    if not python:
        pytest.skip("FEEDMILL_MEGATRON_PYTHON names no Python with megatron-core")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, program],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.interop
@pytest.mark.parametrize("name", LARGE)
def test_a_million_indices_are_equal(name: str, tmp_path: Path) -> None:
    run = LARGE[name]
    write_sets(tmp_path, 1400 if name in ("a blend by size", "an exhaustive blend") else 200)
    peer([core_request(run, tmp_path, save=str(tmp_path))], tmp_path)
    compared = 0
    for number, part in enumerate(PARTS):
        plan = Recipe.parse(recipe(run, part), base=tmp_path).plan()
        located = plan.locate(np.arange(len(plan)))
        with np.load(tmp_path / f"{number}.npz") as theirs:
            source, sample = theirs["source"][: len(plan)], theirs["sample"][: len(plan)]
            assert np.array_equal(located.source, source)
            for leaf, dataset in enumerate(plan.sources):
                assert isinstance(dataset, OrderedWindows) and isinstance(dataset.order, GptOrder)
                mine = source == leaf
                assert np.array_equal(located.index[mine], theirs[f"shuffle{leaf}"][sample[mine]])
                assert np.array_equal(dataset.order.documents, theirs[f"document{leaf}"])
                begin = theirs[f"sample{leaf}"].astype(np.int64)
                bounds = dataset._bounds
                at = bounds[begin[:, 0]] + begin[:, 1]
                assert np.array_equal(at[:-1], np.arange(len(dataset)) * run["seq_len"])
        compared += len(plan)
    assert compared >= 1_000_000


@pytest.mark.interop
@pytest.mark.parametrize("name", RUNS)
def test_samples_are_equal(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    write_sets(tmp_path)
    masks = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), True)
    request = core_request(run, tmp_path, take=list(range(300)))
    request["config"] |= masks
    (answer,) = peer([request], tmp_path)
    for golden, part in zip(answer, PARTS, strict=True):
        assert golden is not None
        plan = Recipe.parse(recipe(run, part), base=tmp_path).plan()
        count = min(300, len(plan))
        batch = plan.read(np.arange(count))
        fields = gpt_fields(
            np.stack([sample["input_ids"] for sample in batch]),
            eod=0,
            tokens=np.array([sample.get("tokens", len(sample["input_ids"])) for sample in batch]),
            extra_token=run.get("options", {}).get("add_extra_token_to_sequence", True),
            **masks,
        )
        for row, theirs in enumerate(golden["take"][:count]):
            assert {key: value[row].tolist() for key, value in fields.items()} == theirs


@pytest.mark.interop
def test_training_that_began_on_its_order_goes_on_here(tmp_path: Path) -> None:
    """A checkpoint of half a run on megatron-core's datasets is continued on two ranks: the losses are the same."""
    import feedmill as fm
    from compat.megatron_trainer import Training

    torch = pytest.importorskip("torch")
    run = {**RUNS["a blend by weight"], "samples": [640, 16, 8], "seq_len": 32}
    write_sets(tmp_path, 3)
    masks = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), True)
    request = core_request(run, tmp_path, batch=8, steps=80, half=40, folder=str(tmp_path))
    request["config"] |= masks
    answer = ran(TRAINER, request, tmp_path)
    theirs = json.loads(answer[answer.index('{"losses"') :])
    assert theirs["losses"][-1] < theirs["losses"][0] - 0.5

    training = Training(32)
    training.load(torch.load(tmp_path / "half.pt", weights_only=True))
    assert training.consumed == 40 * 8
    plan = Recipe.parse(recipe(run, "train"), base=tmp_path).plan()
    loaders = [fm.Loader(plan, 4, rank=rank, world_size=2, start=training.consumed) for rank in range(2)]

    def fields(batch: Any) -> dict[str, Any]:
        made = gpt_fields(batch["input_ids"], eod=0, **masks)
        return {name: torch.from_numpy(value) for name, value in made.items()}

    steps = zip(*loaders, strict=True)
    ours = [training.step([fields(batch) for batch in next(steps)]) for _ in range(40)]
    assert np.abs(np.array(ours) - theirs["losses"][40:]).max() < 1e-5
