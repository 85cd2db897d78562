"""Fill in the middle: what a row holds afterwards, and that it depends only on the seed and the position."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import write_pbin

PRE, MID, SUF, EOS = 1, 2, 3, 4


def restored(tokens: list[int]) -> list[int]:
    """The document that was rearranged, whichever the order."""
    end = [EOS] if tokens[-1:] == [EOS] else []
    inner = tokens[: len(tokens) - len(end)]
    if PRE not in inner:
        return tokens
    head = inner[: inner.index(PRE)]
    rest = inner[inner.index(PRE) + 1 :]
    suffix, middle = rest.index(SUF), rest.index(MID)
    before, after, between = rest[:suffix], rest[suffix + 1 : middle], rest[middle + 1 :]
    return [*head, *before, *between, *after, *end]


@given(seed=st.integers(0, 500), length=st.integers(1, 30), rate=st.sampled_from([0.0, 0.5, 1.0]), eos=st.booleans())
def test_a_document_keeps_its_tokens(seed: int, length: int, rate: float, eos: bool) -> None:
    tokens = [*range(10, 10 + length), *([EOS] if eos else [])]
    fim = fm.tokens.FillInMiddle(PRE, MID, SUF, rate=rate, eos=EOS)
    found = fim({"input_ids": np.array(tokens)}, np.random.default_rng(seed))["input_ids"].tolist()
    if rate == 0 or length < 2:
        assert found == tokens
    elif rate == 1:
        assert len(found) == len(tokens) + 3 and found[-1:] == ([EOS] if eos else found[-1:])
    # SPM puts the prefix and the middle together, so only sorting tells that nothing is lost
    assert sorted(t for t in found if t > EOS) == list(range(10, 10 + length))


def test_both_orders_are_those_of_the_paper() -> None:
    tokens = np.arange(10, 20)
    for spm in (0, 1):
        fim = fm.tokens.FillInMiddle(PRE, MID, SUF, rate=1, spm=spm)
        found = fim({"input_ids": tokens}, np.random.default_rng(3))["input_ids"].tolist()
        pre, suf, mid = found.index(PRE), found.index(SUF), found.index(MID)
        assert (pre, suf) == (0, 1) if spm else pre == 0 < suf < mid
        if not spm:
            assert restored(found) == tokens.tolist()
        else:
            suffix = found[suf + 1 : mid]
            assert [*found[mid + 1 :], *suffix] == tokens.tolist()  # prefix and middle, then the suffix


def packed(folder: Path, lengths: list[int], width: int, mask: np.ndarray | None = None) -> fm.tokens.PackedPlan:
    with write_pbin(fm.open_store(folder), "p.pbin", 2, loss=mask is not None) as out:
        out.add(np.arange(10, 10 + sum(lengths)), np.array(lengths), mask)
    documents = fm.Plan.over(fm.open(folder / "p.pbin"), shuffle="none", epochs=1)
    return fm.tokens.PackedPlan(documents, fm.tokens.Packing(width), cache=folder / "cache")


def test_a_packed_row_keeps_its_width_and_says_where_documents_are(tmp_path: Path) -> None:
    plan = packed(tmp_path, [9, 8, 7], 32)
    (row,) = plan.read([0])
    fim = fm.tokens.FillInMiddle(PRE, MID, SUF, rate=1, spm=0)
    found = fim(row, np.random.default_rng(0))
    assert len(found["input_ids"]) == 32 and found["tokens"] == 32  # 24 + 9 are one more than fit
    assert found["cu_seqlens"].tolist() == [0, 12, 23, 32] and found["cu_seqlens"].dtype == np.int32
    assert np.flatnonzero(found["positions"] == 0).tolist() == [0, 12, 23]
    pieces = np.split(found["input_ids"], [12, 23])
    assert [restored(piece.tolist()) for piece in pieces[:2]] == [list(range(10, 19)), list(range(19, 27))]
    (short,) = packed(tmp_path / "s", [9, 8], 32).read([0])
    found = fim(short, np.random.default_rng(0))
    assert found["tokens"] == 23 and found["cu_seqlens"].tolist() == [0, 12, 23, 32]
    assert found["input_ids"][23:].tolist() == [0] * 9 and found["positions"][23:].tolist() == list(range(9))


def test_a_conversation_is_not_rearranged(tmp_path: Path) -> None:
    mask = np.array([*[True] * 9, *[False] * 4, *[True] * 4])
    (row,) = packed(tmp_path, [9, 8], 32, mask).read([0])
    found = fm.tokens.FillInMiddle(PRE, MID, SUF, rate=1)(row, np.random.default_rng(0))
    assert found["input_ids"][12:20].tolist() == list(range(19, 27))
    assert found["loss_mask"].tolist() == [*[True] * 12, *[False] * 4, *[True] * 4, *[False] * 12]


def test_a_window_locates_its_documents(tmp_path: Path) -> None:
    with write_pbin(fm.open_store(tmp_path), "p.pbin", 2) as out:
        out.add(np.arange(10, 40), np.array([10, 20]))
    window = fm.tokens.WindowDataset(fm.open(tmp_path / "p.pbin"), width=20).read([0])[0]
    found = fm.tokens.FillInMiddle(PRE, MID, SUF, rate=1, spm=0)(window, np.random.default_rng(1))["input_ids"]
    assert len(found) == 20 and restored(found[:13].tolist()) == list(range(10, 20))
    assert found[13] == PRE


def recipe(folder: Path) -> str:
    return (
        f"source: {{path: {folder}/p.pbin}}\nepochs: 2\npack: {{seq_len: 32}}\n"
        f"targets: {{inputs: tokens_in, targets: labels, document_ids: true, max_seqlen: true,"
        f" fim: {{prefix: {PRE}, middle: {MID}, suffix: {SUF}}}}}\n"
    )


def batches(plan: fm.Plan, size: int, state: dict[str, Any] | None = None, count: int | None = None, **how: Any) -> Any:
    with contextlib.closing(fm.Loader(plan, size, rank=0, world_size=1, deal="contiguous", **how)) as loader:
        if state is not None:
            loader.load_state_dict(state)
        out = []
        for number, batch in enumerate(loader, 1):
            out.append(batch)
            if number == count:
                break
        return out, loader.state_dict()


def test_a_recipe_makes_the_same_batches_for_any_workers_and_after_a_resume(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    packed(tmp_path, random.integers(2, 30, 60).tolist(), 32)
    whole, _ = batches(fm.Recipe.parse(recipe(tmp_path)).plan(), 3)
    rows = np.concatenate([batch["tokens_in"] for batch in whole])
    assert (rows == PRE).sum() > 20 and set(whole[0]) == {
        *("tokens_in", "labels", "document_ids", "max_seqlen", "positions", "cu_seqlens", "tokens")
    }
    first, state = batches(fm.Recipe.parse(recipe(tmp_path)).plan(), 3, count=4, workers=2)
    rest, _ = batches(fm.Recipe.parse(recipe(tmp_path)).plan(), 5, state)
    again = np.concatenate([batch["tokens_in"] for batch in [*first, *rest]])
    assert again.tolist() == rows.tolist()
    plain, _ = batches(fm.Recipe.parse(recipe(tmp_path)).plan(), 3, collate=fm.tokens.Targets())
    assert not (plain[0]["inputs"] == PRE).any()  # what the call gives overrides the recipe


def test_wrong_settings_are_errors_that_name_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two of the sentinels"):
        fm.tokens.FillInMiddle(1, 1, 2)
    with pytest.raises(ConfigError, match="not a probability"):
        fm.tokens.FillInMiddle(1, 3, 2, rate=2)
    packed(tmp_path, [5, 5], 8)
    for words, message in (
        ("fim: {prefix: 1, middle: 1, suffix: 2}", r":4: fim: two of the sentinels"),
        ("fim: {prefix: 1, middle: 3, suffix: 2}, mask: {begin: 5, end: 6}", "cannot be combined"),
        ("fim: {prefix: 1, middle: 3}", "suffix"),
        ("document_id: true", "did you mean 'document_ids'"),
    ):
        text = f"source: {{path: {tmp_path}/p.pbin}}\nepochs: 1\npack: {{seq_len: 8}}\ntargets: {{{words}}}\n"
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            fm.Recipe.load(tmp_path / "r.yaml").plan()
    (tmp_path / "inner.yaml").write_text(f"source: {{path: {tmp_path}/p.pbin}}\nepochs: 1\ntargets: {{}}\n")
    with pytest.raises(ConfigError, match="nested recipe cannot have 'targets'"):
        fm.Recipe.parse({"blend": [{"recipe": f"{tmp_path}/inner.yaml"}]}).plan()


def test_a_skip_list_keeps_the_targets(tmp_path: Path) -> None:
    packed(tmp_path, [5] * 40, 8)
    plan = fm.Recipe.parse(recipe(tmp_path) + "skip: [1]\n").plan()
    assert plan.collate is not None and plan.skipping([(2, 3)]).transform is not None
