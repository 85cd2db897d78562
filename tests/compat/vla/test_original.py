"""A run in the original's order, from its beginning and from the middle."""

from __future__ import annotations

from itertools import islice

import pytest

from feedmill.compat.vla import OriginalOrder, VlaRun
from feedmill.errors import ConfigError
from helpers.vla_golden import ROOT, expected


@pytest.mark.parametrize("number", [1, 2, 3])
def test_batches_are_the_recorded_ones(number: int) -> None:
    case = expected("order")["end_to_end"][number]
    run = VlaRun(
        {
            "data": {
                "type": "text",
                "dataset_manifest": [str(ROOT / name / "manifest.jsonl") for name in case["datasets"]],
                "dataset_weighting": case["weights"],
                "dataset_modality": ["text"] * 2,
                "allow_multiple_epochs": case["multi"],
                "seq_len": case["seq_len"],
            },
            "hparams": {"global_batch_size": case["gbs"], "seed": case["seed"]},
        }
    )
    order = OriginalOrder(run, case["num_samples"], ranks=case["world"], workers=case["nw"])
    windows = list(islice(order.windows(), case["windows"]))
    for rank in range(case["world"]):
        for window in windows:
            wanted = [batch["keys"] for batch in case["result"][str(rank)][window.number]["batches"]]
            assert [batch["__key__"] for batch in order.batches(window, rank)] == wanted[: window.steps]
            assert [b["__key__"] for b in order.batches(window, rank, start=2)] == wanted[2 : window.steps]
    after = windows[0].selected.after
    again = OriginalOrder(
        run, case["num_samples"], ranks=case["world"], workers=case["nw"], checkpoint=1, cursors=after
    )
    second = next(again.windows())
    assert [b["__key__"] for b in again.batches(second, 0)] == [b["__key__"] for b in order.batches(windows[1], 0)]
    with pytest.raises(ConfigError, match="rank 9 is not"):
        next(order.batches(second, 9))
