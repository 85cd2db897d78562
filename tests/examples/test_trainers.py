"""The programs of examples/trainers: killed in the middle, and resumed on other ranks with another batch size.

Each is compared with one run that nothing disturbed: the samples of every step exactly, the losses to 1e-5.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from helpers.framework_runs import Program, assert_equal

pytestmark = pytest.mark.slow
STEPS, EVERY, KILLED = 30, 10, 24
FRAMEWORKS = {
    "lightning_fit": ("lightning", "lightning"),
    "transformers_train": ("transformers", "transformers accelerate"),
    "accelerate_loop": ("accelerate", "accelerate"),
    "torchdata_loop": ("torchdata", "torchdata"),
    "torchtitan_train": ("torchtitan", "torchtitan triton 'torch>=2.14'"),
    "olmo_core_train": ("olmo_core", "ai2-olmo-core"),
    "megatron_loop": ("torch", "torch"),
    "jax_loop": ("jax", "jax orbax-checkpoint"),
    "composer_train": ("composer", "mosaicml"),
    "litgpt_pretrain": ("litgpt", "litgpt"),
    "lerobot_train": ("lerobot", "'lerobot[training]'"),
    "vla_foundry_train": ("vla_foundry", "its source, which is no package"),
    "torchtune_finetune": ("torchtune", "torchtune==0.6.1 torchao==0.16.0 torchdata"),
    "llamafactory_train": ("llamafactory", "llamafactory 'transformers==5.6.0'"),
    "swift_sft": ("swift", "ms-swift"),
    "trl_sft": ("trl", "trl"),
    "trl_dpo": ("trl", "trl"),
    "trl_grpo": ("trl", "trl"),
}
DATA = {
    "lerobot_train": "robot",
    "torchtitan_train": "packs",
    "megatron_loop": "packs",
    "litgpt_pretrain": "packs",
    "vla_foundry_train": "packs",
    "olmo_core_train": "windows",
}
SINGLE = {"torchdata_loop", "composer_train", "lerobot_train", "litgpt_pretrain"}
"""Programs without accumulation, or whose schedule counts batches: one rank resumes with the whole global batch."""
SHARDED = {"torchtitan_train"}
"""Programs whose first weights depend on the number of ranks."""
ON_3_RANKS = ("accelerate_loop", "lerobot_train", "litgpt_pretrain", "olmo_core_train", "trl_grpo")


def program(name: str, folder: Path, samples: int | None = None) -> Program:
    module, packages = FRAMEWORKS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install {packages}")
    return Program(name, folder, samples=samples, data=DATA.get(name))


@pytest.mark.parametrize(("name", "ranks"), [*((name, 1) for name in FRAMEWORKS), *((name, 3) for name in ON_3_RANKS)])
def test_a_killed_run_resumes_on_other_ranks(tmp_path: Path, name: str, ranks: int) -> None:
    run, before, size = program(name, tmp_path), 2, 12
    given = ["--steps", STEPS, "--every", EVERY, "--batch-size"]
    first = before if name in SHARDED else 1
    whole = run.run("whole", "log-whole", *given, size // first, ranks=first)
    killed = run.kill("run", "log-1", KILLED, *given, size // before, ranks=before)
    accumulate = 1 if ranks == 3 or name in SINGLE else 4
    after = [*given, size // ranks // accumulate, *(["--accumulate", accumulate] if accumulate > 1 else [])]
    assert_equal(whole, killed, run.run("run", "log-2", *after, ranks=ranks), every=EVERY)
    assert len(whole) == STEPS


@pytest.mark.parametrize("name", ["lightning_fit", "transformers_train"])
def test_the_end_of_a_plan_ends_the_run(tmp_path: Path, name: str) -> None:
    """Also after a resume with another batch size, and whatever the epochs of the trainer."""
    run = program(name, tmp_path, samples=8 * STEPS)
    steps = 1000 if name == "lightning_fit" else -1
    whole = run.run("whole", "log-whole", "--steps", steps, "--every", EVERY, "--batch-size", 8)
    killed = run.kill("run", "log-1", KILLED, "--steps", steps, "--every", EVERY, "--batch-size", 8)
    resumed = run.run("run", "log-2", "--steps", steps, "--every", EVERY, "--batch-size", 4, ranks=2)
    assert_equal(whole, killed, resumed, every=EVERY)
    assert len(whole) == STEPS
