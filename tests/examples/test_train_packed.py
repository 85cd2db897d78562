"""examples/train_packed.py and examples/attention.py: packed rows train like the same documents one by one."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import feedmill as fm
from feedmill.formats.tokens.pbin import write_pbin

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import attention
    import train_packed

    return attention, train_packed


def same(packed: float, alone: float) -> bool:
    return abs(packed - alone) < 1e-4


def test_packed_rows_have_the_loss_of_their_documents_one_by_one(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    found = modules[1].train(tmp_path, documents=150, steps=15, seq_len=64, batch_size=8, layers=1, size=32)
    assert same(found["packed before"], found["one by one before"])
    assert same(found["packed after"], found["one by one after"])
    assert found["packed after"] < found["packed before"] - 0.01


def test_the_comparison_detects_a_leak_over_borders_and_padding_that_is_learned(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, program = modules
    program.make_data(tmp_path, 150, 96)
    plan = fm.Recipe.parse(program.recipe(tmp_path, 96)).plan()
    torch.manual_seed(0)
    model = program.GPT(96, 32, 1)
    assert same(*program.compare(model, plan, [0, 1, 2]))
    one = torch.ones(96, 96, dtype=torch.bool).tril()
    with monkeypatch.context() as leak:
        leak.setattr(program, "dense_mask", lambda ids: one[: ids.shape[1], : ids.shape[1]][None, None])
        assert not same(*program.compare(model, plan, [0, 1, 2]))
    with monkeypatch.context() as leak:
        across = fm.tokens.Targets(document_ids=True, across_documents=True)
        leak.setattr(program.fm.tokens, "Targets", lambda **_: across)
        with pytest.raises(AssertionError, match="targets one by one"):
            program.compare(model, plan, [0, 1, 2])


@pytest.mark.slow
def test_a_larger_model(modules: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    found = modules[1].train(tmp_path, documents=2000, steps=25, seq_len=512, batch_size=4, layers=4, size=192)
    assert same(found["packed before"], found["one by one before"])
    assert same(found["packed after"], found["one by one after"])


@pytest.fixture
def batch(tmp_path: Path) -> dict:
    with write_pbin(fm.open_store(tmp_path), "p.pbin", 2) as out:
        out.add(np.arange(10, 50), np.array([9, 5, 12, 3, 11]))
    documents = fm.Plan.over(fm.open(tmp_path / "p.pbin"), shuffle="none", epochs=1)
    plan = fm.tokens.PackedPlan(documents, fm.tokens.Packing(17), cache=tmp_path / "cache")
    (batch,) = fm.Loader(
        plan,
        len(plan),
        rank=0,
        world_size=1,
        output="torch",
        collate=fm.tokens.Targets(document_ids=True, max_seqlen=True),
    )
    return batch


def attend(query, key, value, mask):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def test_masks_of_all_kernels_are_the_same(modules: tuple[ModuleType, ModuleType], batch: dict) -> None:
    attention, _ = modules
    count, width = batch["inputs"].shape
    assert batch["document_ids"].dtype == torch.int32 and batch["cu_seqlens"].dtype == torch.int32
    dense = attention.dense_mask(batch["document_ids"])
    mod = attention.flex_mask(batch["document_ids"])
    places = torch.arange(width)
    for row in range(count):
        flex = mod(torch.tensor(row), torch.tensor(0), places[:, None], places[None, :])
        assert torch.equal(flex, dense[row, 0])
    torch.manual_seed(0)
    query, key, value = (torch.randn(count, 2, width, 8) for _ in range(3))
    wanted = attend(query, key, value, dense)
    arguments = attention.varlen(batch)
    ends = arguments["cu_seqlens_q"].tolist()
    assert arguments["cu_seqlens_q"].dtype == torch.int32 and ends[0] == 0 and ends[-1] == count * width
    assert arguments["max_seqlen_q"] == max(b - a for a, b in itertools.pairwise(ends))
    flat = [x.transpose(1, 2).reshape(count * width, 2, 8) for x in (query, key, value)]
    out = torch.empty_like(flat[0])
    for begin, end in itertools.pairwise(ends):  # what flash_attn_varlen_func does
        parts = [x[begin:end].transpose(0, 1)[None] for x in flat]
        causal = torch.ones(end - begin, end - begin, dtype=torch.bool).tril()
        out[begin:end] = attend(*parts, causal)[0].transpose(0, 1)
    assert torch.allclose(out.reshape(count, width, 2, 8).transpose(1, 2), wanted, atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_gives_what_the_dense_mask_gives(modules: tuple[ModuleType, ModuleType], batch: dict) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    attention, _ = modules
    count, width = batch["inputs"].shape
    query, key, value = (torch.randn(count, 2, width, 16) for _ in range(3))
    mask = attention.flex_mask(batch["document_ids"])
    block = flex.create_block_mask(mask, B=count, H=None, Q_LEN=width, KV_LEN=width, device="cpu")
    found = flex.flex_attention(query, key, value, block_mask=block)
    assert torch.allclose(found, attend(query, key, value, attention.dense_mask(batch["document_ids"])), atol=1e-5)


def test_slices_of_all_ranks_make_up_the_row(modules: tuple[ModuleType, ModuleType], batch: dict) -> None:
    attention, _ = modules
    width = batch["inputs"].shape[1]
    for size, zigzag in ((2, True), (4, True), (4, False), (1, True)):
        parts = [attention.context_slice(batch, rank, size, zigzag=zigzag) for rank in range(size)]
        for name in ("inputs", "targets", "positions", "document_ids"):
            assert all(part[name].shape[1] == width // size for part in parts)
            if zigzag:
                half = width // (2 * size)
                chunks = [part[name][:, :half] for part in parts] + [part[name][:, half:] for part in reversed(parts)]
            else:
                chunks = [part[name] for part in parts]
            assert torch.equal(torch.cat(chunks, dim=1), batch[name])
        assert all(torch.equal(part["cu_seqlens"], batch["cu_seqlens"]) for part in parts)
    with pytest.raises(ValueError, match="cannot be cut into 6 chunks"):
        attention.context_slice(batch, 0, 3)
