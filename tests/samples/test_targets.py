"""Inputs and targets against what Modalities' collators gave."""

from __future__ import annotations

import contextlib
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.samples.targets import LossMask, with_targets
from feedmill.tokens.instruct import between

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def test_shifting_is_that_of_modalities() -> None:
    wanted = EXPECTED["collator"]
    dataset = fm.open(GOLDEN / "main_2b.pbin", seq_len=len(wanted["inputs"][0]))
    everything = dataset.gather(range(len(dataset)))[:, :-1].tolist()
    numbers = [everything.index(row) for row in wanted["inputs"]]
    batch = with_targets(dataset.read(numbers))
    assert batch["inputs"].tolist() == wanted["inputs"]
    assert batch["targets"].tolist() == wanted["targets"]


@pytest.mark.parametrize("case", EXPECTED["loss_mask"], ids=str)
def test_masking_is_that_of_modalities(case: dict) -> None:
    rows = [{"input_ids": np.array(row)} for row in case["rows"]]
    collate = partial(with_targets, mask=LossMask(case["begin"], case["end"], scope="row"))
    if case["targets"] == "ValueError":
        with pytest.raises(DataError, match=r"row 0 of the batch: .* marker"):
            collate(rows)
    else:
        assert collate(rows)["targets"].tolist() == case["targets"]


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=6))
def test_a_row_does_not_depend_on_its_neighbours(rows: list[list[int]]) -> None:
    mask = LossMask(1, 2, -7)
    alone = []
    for row in rows:
        try:
            alone.append(mask(np.array([row])).tolist()[0])
        except DataError:
            with pytest.raises(DataError):
                mask(np.array(rows))
            return
    assert mask(np.array(rows)).tolist() == alone
    for row, kept in zip(rows, alone, strict=True):
        assert kept == plain(row)


def plain(row: list[int]) -> list[int]:
    if 1 not in row or 2 not in row:
        return [-7] * len(row)
    inside, out = False, []
    for token in row:
        out.append(token if inside and token != 2 else -7)
        inside = token == 1 or (inside and token != 2)
    return out


def test_refused() -> None:
    with pytest.raises(ConfigError, match="both 3"):
        LossMask(3, 3)
    with pytest.raises(ConfigError, match="unknown loss mask scope 'batch'"):
        LossMask(3, 4, scope="batch")  # type: ignore[arg-type]
    for lengths in ([1, 1], [1], []):
        with pytest.raises(DataError, match="no target"):
            with_targets([{"input_ids": np.arange(n)} for n in lengths])


def test_names_and_types() -> None:
    tokens = np.array([1, 300, 2, 9], np.uint16)
    batch = with_targets([{"x": tokens}], key="x", inputs="a", targets="b", mask=LossMask(1, 2))
    assert (batch["a"].dtype, batch["b"].dtype) == (np.uint16, np.int64)
    assert batch["b"].tolist() == [[300, -100, -100]]
    batch = with_targets([{"x": tokens}], key="x", mask=LossMask(1, 2, scope="row"))
    assert batch["targets"].tolist() == [[-100, -100, -100]]  # the begin is no target: Modalities does not see it


def packed(lengths: list[int], seq_len: int, folder: Path, **packing: Any) -> fm.tokens.PackedPlan:
    """Documents with tokens 10, 11, 12, ... through all of them, packed."""
    with write_pbin(fm.open_store(folder), "p.pbin", 2) as out:
        out.add(np.arange(10, 10 + sum(lengths), dtype=np.uint16), np.array(lengths))
    documents = fm.Plan.over(fm.open(folder / "p.pbin"), shuffle="none", epochs=1)
    return fm.tokens.PackedPlan(documents, fm.tokens.Packing(seq_len, **packing), cache=folder / "cache")


@pytest.mark.parametrize("options", [{}, {"document_ids": True, "max_seqlen": True}])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_packed_rest_of_one_token_is_a_row_without_targets(
    batch_size: int, options: dict[str, Any], tmp_path: Path
) -> None:
    plan = packed([33], 16, tmp_path, method="concat", last="keep", overlap=False)
    plan.collate = fm.tokens.Targets(**options)
    *_, last = fm.Loader(plan, batch_size, rank=0, world_size=1)
    assert last["inputs"].tolist() == [[42]] and last["targets"].tolist() == [[-100]]
    assert last["positions"].tolist() == [[0]] and last["tokens"].tolist() == [1]
    assert not options or (last["document_ids"].tolist() == [[0]] and last["max_seqlen"] == 1)


def test_padding_and_first_tokens_of_documents_are_no_targets(tmp_path: Path) -> None:
    plan = packed([5, 4, 3], 16, tmp_path)
    batch = with_targets(plan.read([0]))
    assert batch["inputs"].tolist() == [[*range(10, 22), 0, 0, 0]]
    hidden = -100
    assert batch["targets"].tolist() == [
        [11, 12, 13, 14, hidden, 16, 17, 18, hidden, 20, 21, hidden, hidden, hidden, hidden]
    ]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert batch["cu_seqlens"].tolist() == [[0, 5, 9, 12, 15]] and batch["cu_seqlens"].dtype == np.int32
    assert batch["tokens"].tolist() == [12]


def test_documents_may_be_crossed_and_the_ignored_id_chosen(tmp_path: Path) -> None:
    plan = packed([5, 4, 3], 16, tmp_path)
    found = with_targets(plan.read([0]), across_documents=True, ignore_index=-1)["targets"].tolist()
    assert found == [[*range(11, 22), -1, -1, -1, -1]]


def test_a_row_that_does_not_say_where_documents_begin_is_one_stream_or_an_error(tmp_path: Path) -> None:
    packed([5, 4, 3], 16, tmp_path)
    plain = fm.open(tmp_path / "p.pbin", seq_len=8)
    assert with_targets(plain.read([0]))["targets"].tolist() == [[*range(11, 19)]]
    with pytest.raises(ConfigError, match="positions=True"):
        with_targets(plain.read([0]), across_documents=False)
    for how in ({"positions": True}, {"boundaries": True}):
        batch = with_targets(fm.open(tmp_path / "p.pbin", seq_len=8, **how).read([0]), across_documents=False)
        assert batch["targets"].tolist() == [[11, 12, 13, 14, -100, 16, 17, 18]]
    assert batch["boundaries"].tolist() == [[0, 5, 8]]


def test_every_token_of_packed_documents_but_their_first_is_a_target_once(tmp_path: Path) -> None:
    lengths = [7, 1, 12, 3, 3, 30, 2, 16, 5]
    plan = packed(lengths, 16, tmp_path)
    batch = with_targets(plan.read(range(len(plan))))
    found = sorted(batch["targets"][batch["targets"] != -100].tolist())
    first = np.cumsum([0, *lengths[:-1]]) + 10
    cut = {int(first[5]) + 16}  # the one document that is cut begins again in another row
    assert found == sorted(set(range(10, 10 + sum(lengths))) - set(first.tolist()) - cut)


def test_rows_of_different_lengths_are_padded_and_their_padding_is_no_target() -> None:
    rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}, {"input_ids": np.array([1, 2])}]
    batch = with_targets(rows, pad=9)
    assert batch["inputs"].tolist() == [[5, 6], [8, 9], [1, 2]]
    assert batch["targets"].tolist() == [[6, 7], [-100, -100], [2, -100]]
    assert batch["tokens"].tolist() == [2, 1, 2]


def test_the_last_window_that_is_kept_shorter_or_filled_up(tmp_path: Path) -> None:
    for last in ("keep", "pad"):
        plan = packed([5, 4, 3], 8, tmp_path, method="concat", last=last)
        batch = with_targets(plan.read([0, 1]))
        assert batch["targets"].tolist()[1] == [-100, 20, 21, -100, -100, -100, -100]
        assert batch["tokens"].tolist() == [7, 4]
    windows = fm.tokens.WindowDataset(fm.open(tmp_path / "p.pbin"), width=8, tail="pad", pad=3)
    assert with_targets(windows.read([0, 1]))["targets"].tolist()[1] == [19, 20, 21, -100, -100, -100, -100]


def test_other_fields_are_kept() -> None:
    rows = [{"input_ids": np.arange(4), "weights": np.ones(4), "source": "a", "picture": np.zeros((2, 2)), "n": 3}] * 2
    batch = with_targets(rows)
    assert batch["weights"].shape == (2, 3) and batch["source"] == ["a", "a"]
    assert batch["picture"].shape == (2, 2, 2) and batch["n"].tolist() == [3, 3]
    assert np.shares_memory(batch["inputs"], batch["targets"])


def test_ends_of_rows_are_one_array_in_batches_of_the_loader(tmp_path: Path) -> None:
    plan = packed([5, 4, 30, 6], 16, tmp_path)
    (batch,) = fm.Loader(plan, 3, rank=0, world_size=1)
    assert batch["cu_seqlens"].dtype == np.int32 and batch["cu_seqlens"].shape == (3, 5)
    wanted = [row["cu_seqlens"].tolist() for row in plan.read([0, 1, 2])]
    assert [row[: len(w)].tolist() for row, w in zip(batch["cu_seqlens"], wanted, strict=True)] == wanted
    assert set(batch["cu_seqlens"][:, -1].tolist()) == {16}


def test_tensors_give_tensors() -> None:
    torch = pytest.importorskip("torch")
    rows = [
        {"input_ids": torch.tensor([5, 6, 7]), "positions": torch.tensor([0, 1, 0])},
        {"input_ids": torch.tensor([1])},
    ]
    rows[1]["positions"] = torch.tensor([0])
    batch = with_targets(rows)
    assert all(isinstance(value, torch.Tensor) for value in batch.values())
    assert batch["targets"].tolist() == [[6, -100], [-100, -100]] and batch["positions"].tolist() == [[0, 1], [0, 0]]


def conversations(seed: int) -> tuple[list[list[int]], list[list[bool]]]:
    """Documents with answers between 1 and 2 (some without an end), and which tokens are learned, by the rule."""
    random = np.random.default_rng(seed)
    documents, masks = [], []
    for _ in range(int(random.integers(1, 12))):
        tokens: list[int] = []
        for _ in range(int(random.integers(0, 4))):
            tokens += random.integers(3, 9, int(random.integers(0, 6))).tolist()
            tokens += [1, *random.integers(3, 9, int(random.choice([0, 1, 3, 40]))).tolist(), 2]
        if tokens and random.random() < 0.3:
            tokens.pop()  # an answer that is cut off
        tokens = tokens or [int(random.integers(3, 9))]
        documents.append(tokens)
        masks.append(between(np.array(tokens), np.array([len(tokens)]), 1, 2).tolist())
    return documents, masks


def learned(rows: list[Any]) -> list[list[int]]:
    targets = with_targets(rows, mask=LossMask(1, 2), across_documents=True)["targets"]
    return targets.tolist()


@given(
    seed=st.integers(0, 10_000), width=st.integers(2, 9), known=st.sampled_from(["index", "positions", "boundaries"])
)
def test_windows_learn_what_whole_documents_learn(
    seed: int, width: int, known: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    documents, masks = conversations(seed)
    folder = tmp_path_factory.mktemp("w")
    with write_pbin(fm.open_store(folder), "p.pbin", 2) as out:
        out.add(np.concatenate(documents).astype(np.uint16), np.array([len(d) for d in documents]))
    flat, keep = [t for d in documents for t in d], [m for mask in masks for m in mask]
    if len(flat) < width:
        return
    windows = fm.tokens.WindowDataset(
        fm.open(folder / "p.pbin"), width=width, stride=3, **({} if known == "index" else {known: True})
    )
    found = learned(windows.read(range(len(windows))))
    for number, row in enumerate(found):
        at = number * 3
        assert row == [flat[i] if keep[i] else -100 for i in range(at + 1, at + width)]


@given(seed=st.integers(0, 10_000), width=st.integers(2, 20), method=st.sampled_from(["best_fit", "concat"]))
def test_packed_rows_learn_what_whole_documents_learn(
    seed: int, width: int, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    documents, masks = conversations(seed)
    folder = tmp_path_factory.mktemp("w")
    with write_pbin(fm.open_store(folder), "p.pbin", 2) as out:
        out.add(np.concatenate(documents).astype(np.uint16), np.array([len(d) for d in documents]))
    plan = fm.tokens.PackedPlan(
        fm.Plan.over(fm.open(folder / "p.pbin"), shuffle="none", epochs=1),
        fm.tokens.Packing(width, method=method, last="pad") if method == "concat" else fm.tokens.Packing(width),
        cache=folder / "cache",
    )
    rows = range(len(plan))
    spans = plan.spans(rows)
    found = learned(plan.read(rows))
    for number in rows:
        wanted: list[int] = []
        for span in range(int(spans.row_offsets[number]), int(spans.row_offsets[number + 1])):
            position, start, length = (int(x[span]) for x in (spans.position, spans.start, spans.length))
            cut = slice(start, start + length)
            wanted += [t if m else -100 for t, m in zip(documents[position][cut], masks[position][cut], strict=True)]
        assert found[number] == [*wanted, *[-100] * (width - len(wanted))][1:]


def test_an_answer_that_reaches_over_many_windows_is_learned_in_all_of_them(tmp_path: Path) -> None:
    """A window wholly inside an answer, further from its begin than is read at the first look."""
    answer = 20_000
    tokens = np.concatenate(([5, 1], np.full(answer, 7), [2, 5, 5])).astype(np.uint16)
    with write_pbin(fm.open_store(tmp_path), "p.pbin", 2) as out:
        out.add(tokens, np.array([len(tokens)]))
    plan = fm.Recipe.parse(f"source: {{path: {tmp_path}/p.pbin, windows: {{seq_len: 16}}}}\nepochs: 1\n").plan()
    collate = partial(with_targets, mask=LossMask(begin=1, end=2))
    with contextlib.closing(fm.Loader(plan, 4, rank=0, world_size=1, collate=collate)) as loader:
        count = sum(int((batch["targets"] != -100).sum()) for batch in loader)
    whole = fm.open(tmp_path / "p.pbin", seq_len=16)
    assert count == min(answer, len(whole) * 16 - 1)


def test_wrong_markers_of_a_document_are_an_error_in_its_windows(tmp_path: Path) -> None:
    with write_pbin(fm.open_store(tmp_path), "p.pbin", 2) as out:
        out.add(np.array([5, 2, 5, 5, 1, 1, 5, 5]), np.array([4, 4]))
    windows = fm.tokens.WindowDataset(fm.open(tmp_path / "p.pbin"), width=4)
    with pytest.raises(DataError, match="row 0 of the batch: an end marker has no begin marker before it, at target 1"):
        learned(windows.read([0]))
    with pytest.raises(DataError, match="row 0 of the batch: a begin marker follows another one, at target 1"):
        learned(windows.read([1]))


def test_windows_go_to_other_processes_with_all_they_know(tmp_path: Path) -> None:
    with write_pbin(fm.open_store(tmp_path), "p.pbin", 2) as out:
        out.add(np.array([1, *[7] * 20]), np.array([21]))
    for row in (fm.open(tmp_path / "p.pbin", seq_len=4, positions=True).read([2])[0],):
        again = pickle.loads(pickle.dumps(row))
        assert again["input_ids"].tolist() == row["input_ids"].tolist() and again.key == "2"
        assert again["positions"].tolist() == row["positions"].tolist()
        assert learned([again]) == learned([row]) == [[7] * 4]
