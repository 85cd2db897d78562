"""The programs of examples/trainers: killed in the middle, and resumed on other ranks with another batch size.

Each is compared with one run that nothing disturbed: the samples of every step exactly, the losses to 1e-5.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from helpers.framework_runs import Program, assert_equal

pytestmark = pytest.mark.slow
STEPS = 60
FRAMEWORKS = {
    "lightning_fit": ("lightning", "lightning"),
    "transformers_train": ("transformers", "transformers accelerate"),
    "accelerate_loop": ("accelerate", "accelerate"),
    "torchdata_loop": ("torchdata", "torchdata"),
    "torchtitan_loop": ("torchtitan", "torchtitan"),
    "megatron_loop": ("torch", "torch"),
    "jax_loop": ("jax", "jax orbax-checkpoint"),
    "composer_train": ("composer", "mosaicml"),
    "litgpt_pretrain": ("litgpt", "litgpt"),
    "trl_sft": ("trl", "trl"),
    "trl_dpo": ("trl", "trl"),
}
TOKENS = {"torchtitan_loop", "megatron_loop", "litgpt_pretrain"}
LONE = {"litgpt_pretrain"}
"""Programs with one rank on CPU, whose schedule depends on the batch."""
SINGLE = {"torchdata_loop", "composer_train"}
"""Programs without accumulation, which resume on one rank with the whole global batch."""


def program(name: str, folder: Path, samples: int | None = None) -> Program:
    module, packages = FRAMEWORKS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install {packages}")
    return Program(name, folder, samples=samples, tokens=name in TOKENS)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_killed_run_resumes_on_other_ranks(tmp_path: Path, name: str) -> None:
    run = program(name, tmp_path)
    whole = run.run("whole", "log-whole", "--steps", STEPS, "--batch-size", 8)
    ranks = 1 if name in LONE else 2
    killed = run.kill("run", "log-1", 45, "--steps", STEPS, "--batch-size", 8 // ranks, ranks=ranks)
    smaller = ["--batch-size", 8] if name in SINGLE | LONE else ["--batch-size", 2, "--accumulate", 4]
    resumed = run.run("run", "log-2", "--steps", STEPS, *smaller)
    assert_equal(whole, killed, resumed, every=20)
    assert len(whole) == STEPS


@pytest.mark.parametrize("name", ["lightning_fit", "transformers_train"])
def test_the_end_of_a_plan_ends_the_run(tmp_path: Path, name: str) -> None:
    """Also after a resume with another batch size, and whatever the epochs of the trainer."""
    run = program(name, tmp_path, samples=8 * STEPS)
    steps = 1000 if name == "lightning_fit" else -1
    whole = run.run("whole", "log-whole", "--steps", steps, "--batch-size", 8)
    killed = run.kill("run", "log-1", 45, "--steps", steps, "--batch-size", 8)
    resumed = run.run("run", "log-2", "--steps", steps, "--batch-size", 4, ranks=2)
    assert_equal(whole, killed, resumed, every=20)
    assert len(whole) == STEPS
