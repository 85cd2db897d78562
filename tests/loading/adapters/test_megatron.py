"""A plan as the dataset of Megatron-LM's data provider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.adapters.megatron import MegatronDataset, datasets_provider
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.storage import LocalStore
from helpers.token_dataset import Tokenized


def packed(rows: int | None = None) -> PackedPlan:
    documents = Plan.over(Tokenized("tokens", [5, 4, 30, 6]), shuffle="none", epochs=None if rows else 1)
    return PackedPlan(documents, Packing(seq_len=16, rows=rows))


def test_fields_are_those_of_get_batch() -> None:
    row, fields = packed().read([1])[0], MegatronDataset(packed(), attention_mask=True)[1]
    assert {name: (value.dtype.name, value.shape) for name, value in fields.items()} == {
        "tokens": ("int64", (15,)),
        "labels": ("int64", (15,)),
        "loss_mask": ("float32", (15,)),
        "position_ids": ("int64", (15,)),
        "attention_mask": ("bool", (1, 15, 15)),
    }
    assert fields["tokens"].tolist() == row["input_ids"][:-1].tolist()
    counted = fields["loss_mask"] > 0
    assert (~counted).nonzero()[0].tolist() == [4, 8, 14], "the ends of two documents, and padding"
    assert fields["labels"][counted].tolist() == row["input_ids"][1:][counted].tolist()
    assert fields["position_ids"].tolist() == row["positions"][:-1].tolist()
    assert not fields["attention_mask"][0, 3, :4].any() and fields["attention_mask"][0, 3, 4:].all()


def test_windows_are_one_stream(tmp_path: Path) -> None:
    with write_pbin(LocalStore(tmp_path), "tokens.pbin", 2) as writer:
        writer.add(np.arange(40), np.array([9, 31]))
    windows = fm.open(tmp_path / "tokens.pbin", seq_len=16)
    fields = MegatronDataset(fm.Plan.over(windows, shuffle="none", epochs=1))[0]
    assert fields["loss_mask"].all()
    assert fields["position_ids"].tolist() == list(range(len(fields["tokens"])))
    assert np.array_equal(fields["labels"][:-1], fields["tokens"][1:])


def test_the_provider_gives_as_many_samples_as_are_needed() -> None:
    provide = datasets_provider(packed(rows=40), packed(rows=7))
    train, valid, test = provide([30, 7, 5])
    assert provide.is_distributed  # type: ignore[attr-defined]
    assert train is not None and valid is not None and test is None and (len(train), len(valid)) == (30, 7)
    with pytest.raises(ConfigError, match="the plan for valid has 7 rows, and Megatron-LM needs 8"):
        provide([30, 8, 0])
