"""Rows of text, images and token documents from shards to batches: planned lengths, ranks, resuming, workers."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_media import prepare_media
from feedmill.samples.media import MediaFilter
from helpers.durations import needs
from helpers.forked_ranks import run_groups
from helpers.tars import tar_bytes
from helpers.vision_models import (
    TEMPLATE,
    picture,
    qwen3_config,
    qwen3_model,
    qwen3_processor,
    row_of,
    talk,
    tokenizer,
)

torch = pytest.importorskip("torch")
needs("transformers", "jinja2", "PIL.Image")
from helpers.row_rank import bytes_of, lines_of  # noqa: E402

COUNT = 40


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of conversations with 0 to 3 images and of token documents, in rows of 256."""
    root = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(1)
    members: list[tuple[str, bytes]] = []
    for number in range(COUNT):
        pictures = int(rng.integers(0, 4))
        for at in range(pictures):
            data = picture(*rng.integers(32, 130, 2).tolist(), seed=number, orientation=int(rng.integers(1, 9)))
            members.append((f"{number:03}.{at}.jpg", data))
        members.append((f"{number:03}.json", talk(["look", *[None] * pictures, "q" * number], "a" * (number % 7 + 1))))
    (root / "vqa").mkdir()
    (root / "vqa/s.tar").write_bytes(tar_bytes(members))
    prepare(str(root / "vqa"), split_ratio=[1, 0, 0], progress=False)
    prepare_media(str(root / "vqa"), media=MediaFilter.parse(extension=True), progress=False)
    lines = [json.dumps({"input_ids": list(range(int(size)))}) for size in rng.integers(5, 60, 20)]
    (root / "docs.jsonl").write_text("\n".join(lines))
    model = root / "model"
    tokenizer().save_pretrained(model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    images = {"patch_size": 16, "size": {"shortest_edge": 1024, "longest_edge": 65536}}
    (model / "preprocessor_config.json").write_text(json.dumps({**images, "processor_class": "Qwen3VLProcessor"}))
    (root / "recipe.yaml").write_text(
        "seed: 3\n"
        "blend:\n"
        "  - {path: vqa, weight: 0.7, lengths: small}\n"
        "  - {path: docs.jsonl, weight: 0.3, tokens: input_ids}\n"
        "lengths:\n"
        "  small: {processor: model, messages: json, media: [0.jpg, 1.jpg, 2.jpg]}\n"
        "pack: {seq_len: 256, multiple: 8, media: 12, long: drop, rows: 12}\n"
    )
    return root / "recipe.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))


@cache
def collate() -> Any:
    return fm.tokens.collate_rows(qwen3_processor(), config=qwen3_config())


def loader(recipe: Path, rank: int = 0, world_size: int = 1, **options: Any) -> fm.Loader:
    plan = fm.Recipe.load(str(recipe)).plan()
    return fm.Loader(plan, 1, rank=rank, world_size=world_size, collate=collate(), remainder="drop", **options)


def seen(batch: Any) -> tuple[Any, ...]:
    pixels = batch.get("pixel_values")
    return (
        tuple(batch["input_ids"][0].tolist()),
        tuple(batch["labels"][0].tolist()),
        tuple(batch["cu_seq_lens_q"].tolist()),
        None if pixels is None else (tuple(pixels.shape), float(pixels.double().sum())),
    )


def test_rows_killed_on_three_ranks_resume_on_two(recipe: Path, tmp_path: Path) -> None:
    """Processes that SIGKILL ends at some of their rows: later ones make the rows that are left, every byte the same.

    Lengths are as predicted. Ranks get the rows of a global batch by cost, so each of these is compared as a set.
    """
    text = recipe.read_text().replace("rows: 12", "rows: 18")
    (recipe.parent / "longer.yaml").write_text(text)
    whole = loader(recipe.parent / "longer.yaml")
    batches = list(whole)
    wanted = [bytes_of(batch) for batch in batches]
    assert len(set(wanted)) == 18 and all(batch["input_ids"].shape == (1, 256) for batch in batches)
    assert sum("pixel_values" in batch for batch in batches) > 9
    metrics = whole.metrics.snapshot()
    assert metrics["row_samples"] > 36 and metrics["length_misses"] == metrics["row_drops"] == 0
    assert "feedmill_loader_length_misses_total" in whole.metrics.prometheus()
    rng, legs = random.Random(8), [str(tmp_path / f"leg-{number}") for number in range(3)]
    groups = []
    for number, (ranks, workers) in enumerate(((3, 0), (2, 2), (1, 0))):
        common = {"recipe": str(recipe.parent / "longer.yaml"), "world_size": ranks, "workers": workers}
        common |= {"leg": legs[number], "before": legs[:number]}
        dies = [rng.randint(2, 4) + workers if number < 2 else 0 for _ in range(ranks)]
        groups.append([{**common, "rank": rank, "dies": dies[rank]} for rank in range(ranks)])
    begins = [begin for (begin,) in run_groups("row_rank.py", groups)]
    position = 0
    for leg, group, begin in zip(legs, groups, begins, strict=True):
        assert begin == position
        for step in zip(*lines_of(leg), strict=False):
            assert {line["row"] for line in step} == set(wanted[position : position + len(group)])
            assert {line["state"]["position"] for line in step} == {position + len(group)}
            position += len(group)
    first = min(rank["dies"] for rank in groups[0])
    assert position == 18 and 3 * (first - 1) == begins[1] <= begins[2]


@pytest.mark.slow
def test_a_model_that_learns_rows_learns_their_samples(recipe: Path) -> None:
    """Qwen3-VL, trained on rows and on the same samples one by one: equal losses at each step, so equal weights."""
    plan: Any = fm.Recipe.load(str(recipe)).plan()
    together, alone = qwen3_model().train(), qwen3_model().train()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (together, alone)]
    losses = []
    for batch, row in zip(loader(recipe), plan.read(range(12)), strict=True):
        loss = together(**batch).loss
        loss.backward()
        count = int((batch["labels"][0, 1:] != -100).sum())
        total = 0.0
        for sample, length in zip(row, row.lengths.tolist(), strict=True):
            single = collate()([row_of([sample], [length], length)])
            targets = int((single["labels"][0, 1:] != -100).sum())
            if targets:  # a sample without is nothing, and its mean is no number
                part = alone(**single).loss * (targets / count)
                part.backward()
                total += part.item()
        assert abs(loss.item() - total) < 1e-4
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert min(losses[-3:]) < losses[0] - 0.1
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_threads_collate_the_same(recipe: Path) -> None:
    plan: Any = fm.Recipe.load(str(recipe)).plan()
    collate()(list(plan.read(range(1))))  # as one tries it before: it is not counted
    one = loader(recipe, workers=2)
    assert [seen(batch) for batch in one] == [seen(batch) for batch in loader(recipe)]
    assert one.metrics.snapshot()["row_samples"] == loader_samples(recipe)


def loader_samples(recipe: Path) -> int:
    plan: Any = fm.Recipe.load(str(recipe)).plan()
    return sum(len(row) for row in plan.read(range(12)))


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_are_of_the_tokens_that_are_there(recipe: Path, tmp_path: Path, workers: int) -> None:
    """Samples that are longer than predicted move those after them, and the loss of each source with them."""
    longer = tmp_path / "longer.jinja"
    longer.write_text("and more" + TEMPLATE)
    (recipe.parent / "roomy.yaml").write_text(
        recipe.read_text().replace("multiple: 8,", "multiple: 8, headroom: 80, mismatch: drop,")
    )
    plan = fm.Recipe.load(str(recipe.parent / "roomy.yaml")).plan()
    collate = fm.tokens.collate_rows(qwen3_processor(), config=qwen3_config(), chat_template=longer)
    loader = fm.Loader(plan, 2, rank=0, world_size=1, collate=collate, labels=True, workers=workers)
    docs = loader.plan.names.index("docs")
    moved = 0
    for batch in loader:
        ids, labels = batch["input_ids"].numpy(), loader.labels
        sources = labels.of_tokens(256)
        assert (sources.reshape(1, -1) >= 0).tolist() == (ids != collate.encoder.pad).tolist()
        of_docs = ids.reshape(2, -1)[sources == docs]
        expected = [
            np.arange(size) for size, source in zip(labels.tokens, labels.source, strict=True) if source == docs
        ]
        assert of_docs.tolist() == np.concatenate([[], *expected]).tolist()
        means = labels.mean(ids.astype(float))
        assert "docs" not in means or means["docs"] == of_docs.mean()
        assert labels.mean(ids[0, :-1].astype(float), batch["labels"][0, 1:] != -100).keys() <= {"docs", "vqa"}
        moved += int((labels.tokens > 0).sum())
    metrics = loader.metrics.snapshot()
    assert metrics["length_misses"] > 5 and moved == metrics["row_samples"] - metrics["row_drops"]
