"""The training program in this process over a stand-in plan, and the comparison of what it logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.demo import train as train_module
from feedmill.demo.runs import Layout, difference, run, saved_position, stream
from feedmill.demo.train import augment, main, newest_state, save_state, train
from feedmill.errors import FeedmillError
from helpers.fakes import FakePlan

pytest.importorskip("PIL")


class PagesAndDocs(FakePlan):
    """Pages at even positions, documents at odd ones."""

    def read(self, positions: np.ndarray) -> list[dict[str, Any]]:
        samples = super().read(positions)
        return [page(s["x"][0]) if s["position"] % 2 == 0 else doc(s["x"][0]) for s in samples]


def page(number: int) -> dict[str, Any]:
    pixels = np.arange(300 * 280 * 3, dtype=np.uint32).reshape(300, 280, 3) * (int(number) + 1) % 251
    return {"__key__": f"page-{number}", "image": pixels.astype(np.uint8), "caption": "c"}


def doc(number: int) -> dict[str, Any]:
    return {"__key__": str(number), "json": {"text": " ".join(f"w{i}" for i in range(200))}}


def train_all(out: Path, layout: Layout, until: int, resume: Path | None = None) -> None:
    out.mkdir()
    for rank in range(layout.ranks):
        train(
            PagesAndDocs(), out=out, until=until, batch_size=layout.batch_size, rank=rank, world_size=layout.ranks,
            workers=layout.workers, save_every=2, resume=resume,
        )  # fmt: skip


def test_a_run_resumed_in_another_layout_logs_the_same_stream(tmp_path: Path) -> None:
    train_all(tmp_path / "calm", Layout(1, 0, 8), 96)
    train_all(tmp_path / "first", Layout(2, 1, 4), 50)
    saved = saved_position(tmp_path / "first")
    assert saved == 48
    train_all(tmp_path / "second", Layout(3, 2, 5), 96, tmp_path / "first")
    wanted = stream(tmp_path / "calm", 96)
    second = stream(tmp_path / "second", 96)
    assert list(wanted) == list(range(96)) and min(second) == saved
    assert difference(wanted, {**stream(tmp_path / "first", saved), **second}) is None
    assert len({digest for _, digest in wanted.values()}) > 60, "the crops are random"


def test_a_difference_is_named() -> None:
    wanted = {0: ("pages/a", "1"), 1: ("docs/b", "2")}
    assert difference(wanted, dict(wanted)) is None
    assert difference(wanted, {0: ("pages/a", "1")}) == (
        "position 1: docs/b with hash 2 in the undisturbed run, nothing in the resumed one"
    )
    assert "position 0" in (difference(wanted, {**wanted, 0: ("pages/a", "9")}) or "")


def test_a_position_given_twice_and_a_cut_line(tmp_path: Path) -> None:
    line = json.dumps({"step": 0, "position": 4, "keys": ["a", "b"], "digests": ["1", "2"]})
    (tmp_path / "rank-0.jsonl").write_text(f"{line}\n{line[:20]}")
    assert stream(tmp_path, 100) == {4: ("a", "1"), 5: ("b", "2")}
    assert stream(tmp_path, 5) == {4: ("a", "1")}
    (tmp_path / "rank-1.jsonl").write_text(f"{line}\n")
    with pytest.raises(FeedmillError, match="position 4 was given to two ranks"):
        stream(tmp_path, 100)


def test_only_states_that_all_ranks_reached_count(tmp_path: Path) -> None:
    assert newest_state(tmp_path) is None
    for position, ranks in ((8, (0, 1)), (16, (0, 1)), (24, (0,))):
        for rank in ranks:
            save_state(tmp_path, {"position": position}, rank, 2)
    assert newest_state(tmp_path) == {"position": 16}


def test_augmentation_depends_on_the_generator_alone() -> None:
    for sample in (page(1), doc(1)):
        same = [augment(sample, np.random.default_rng(3)) for _ in range(2)]
        np.testing.assert_equal(same[0], same[1])
    assert augment(page(1), np.random.default_rng(3))["image"].shape == (256, 256, 3)
    assert len(augment(doc(1), np.random.default_rng(3))["text"].split()) == 64


def test_a_rank_that_fails_is_told_with_its_own_message(tmp_path: Path) -> None:
    recipe = tmp_path / "missing.yaml"
    with pytest.raises(FeedmillError, match="a training process ended with status 1"):
        run(Layout(1, 0, 4), recipe, tmp_path / "run", until=8)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "open_plan", lambda recipe: PagesAndDocs())
    assert main(["--recipe", "r.yaml", "--out", str(tmp_path), "--until", "8", "--batch-size", "4"]) == 0
    assert list(stream(tmp_path, 8)) == list(range(8))
