"""Train with the trainer of OLMo-core, as its `examples/llm/train.py` builds it; run it again to resume.

python olmo_core_train.py tokens.yaml --steps 100 --batch-size 8
torchrun --nproc-per-node 2 olmo_core_train.py tokens.yaml --steps 200 --batch-size 4
"""

from __future__ import annotations

import os
from typing import Any

import common
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig, ConstantWithWarmup
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig
from olmo_core.utils import seed_all

import feedmill as fm
from feedmill.loading.adapters.olmo_core import FeedmillDataLoader

SEQ_LEN = 32


def main() -> None:
    options = common.options(__doc__)
    parallel = "WORLD_SIZE" in os.environ
    prepare_training_environment(backend="gloo" if parallel else None)
    seed_all(0)
    model = TransformerConfig.llama_like(d_model=32, vocab_size=256, n_layers=2, n_heads=2).build(init_device="meta")
    train_module = TransformerTrainModuleConfig(
        rank_microbatch_size=options.batch_size * SEQ_LEN,
        max_sequence_length=SEQ_LEN,
        optim=AdamWConfig(lr=1e-3),
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp) if parallel else None,
        max_grad_norm=1.0,
        scheduler=ConstantWithWarmup(warmup_steps=0),
    ).build(model)
    plan = fm.Recipe.load(options.recipe).plan()
    group = train_module.dp_process_group
    rows = options.batch_size * options.accumulate
    data_loader = FeedmillDataLoader(plan, rows, seq_len=SEQ_LEN, group=group)  # the changed line
    trainer = TrainerConfig(
        save_folder=str(options.folder), save_overwrite=True, max_duration=Duration.steps(options.steps)
    )
    trainer = trainer.with_callback("checkpointer", CheckpointerCallback(save_interval=options.every, save_async=False))
    trainer = trainer.build(train_module, data_loader)
    log, forward = common.Log(options), train_module.model_forward

    def noted(tokens: Any, labels: Any, **given: Any) -> Any:
        found = forward(tokens, labels=labels, **given)
        log(trainer.global_step, found[2].item() * options.accumulate, {"id": common.checksums(tokens.numpy())})
        return found

    train_module.model_forward = noted
    trainer.maybe_load_checkpoint()
    trainer.fit()
    teardown_training_environment()


if __name__ == "__main__":
    main()
