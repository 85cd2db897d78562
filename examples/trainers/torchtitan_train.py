"""Train with torchtitan's own `train.py`, whose data loader is a recipe; run it again to resume, also with other ranks.

    python torchtitan_train.py tokens.yaml --steps 100 --batch-size 8
    torchrun --nproc-per-node 2 torchtitan_train.py tokens.yaml --steps 200 --batch-size 4

torchtitan knows no CPU: `on_cpu` names it where torchtitan looks for its device, and attention is that which has a
backward pass on CPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import common
import torch
from tokenizers import Tokenizer, models
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils

SEQ_LEN = 32


def on_cpu() -> None:
    """Let torchtitan take CPUs as its devices; must come before its trainer is imported."""
    devices = SimpleNamespace(**vars(torch.cpu))
    devices.current_device = lambda: 0
    devices.get_device_name, devices.memory_stats = lambda _: "CPU", lambda _: {}
    devices.get_device_properties = lambda _: SimpleNamespace(total_memory=1)
    devices.reset_peak_memory_stats = devices.empty_cache = lambda: None
    utils.device_type, utils.device_module = "cpu", devices


def add_only(optimizers: Any, parts: Any, dims: Any) -> None:
    """Let gradients be added by gloo, which does not scale them as NCCL does."""
    for module in parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def main() -> None:
    options = common.options(__doc__)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.update({} if "RANK" in os.environ else alone)
    on_cpu()
    from torchtitan import train
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import config_registry
    from torchtitan.trainer import Trainer

    from feedmill.loading.adapters.torchtitan import FeedmillDataLoader

    def with_recipe() -> Any:
        config = config_registry.llama3_debugmodel()
        del config.model_spec.model.layers[1:]
        config.activation_checkpoint = None
        for layer in config.model_spec.model.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        config.model_spec.post_optimizer_build_fn = add_only
        config.dataloader = FeedmillDataLoader.Config(recipe=options.recipe)  # the changed line
        return config

    config_registry.with_recipe = with_recipe
    step = Trainer.forward_backward_step
    log = common.Log(options)

    def noted(self: Any, **given: Any) -> Any:
        loss = step(self, **given)
        share = ranks * options.accumulate * loss.item()  # of the mean over the labels of the step
        log(self.step, share, {"id": common.checksums(given["input_dict"]["input"].numpy())})
        return loss

    Trainer.forward_backward_step = noted
    assets = tempfile.mkdtemp()
    Tokenizer(models.BPE({"a": 0}, [])).save(assets + "/tokenizer.json")
    ranks = int(os.environ["WORLD_SIZE"])
    given = {
        "module": "llama3",
        "config": "with_recipe",
        "hf_assets_path": assets,
        "dump_folder": options.folder,
        "training.steps": options.steps,
        "training.seq_len": SEQ_LEN,
        "training.local_batch_size": options.batch_size,
        "training.global_batch_size": options.batch_size * options.accumulate * ranks,
        "training.mixed_precision_param": "float32",
        "checkpoint.interval": options.every,
        "debug.seed": 0,
    }
    sys.argv[1:] = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    sys.argv += ["--checkpoint.enable", "--training.disable_cuda_graphs", "--validator.no-enable"]
    train.main()


if __name__ == "__main__":
    main()
