"""The picture of a mixture: the colours stand where the numbers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.samples.chart import draw_mixture

Image = pytest.importorskip("PIL.Image")


def drawn(path: Path, shares: np.ndarray) -> np.ndarray:
    epochs = np.cumsum(shares, axis=0)
    names = [f"source-{n}" for n in range(shares.shape[1])]
    draw_mixture(names, np.arange(1, len(shares) + 1) * 1000, shares, epochs, path)
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def test_shares_are_areas(tmp_path: Path) -> None:
    """Two sources that change places half-way; blue is the first color, orange the second."""
    picture = drawn(tmp_path / "mix.png", np.array([[0.75, 0.25]] * 5 + [[0.25, 0.75]] * 5))
    panel = picture[41:279, 71:849].astype(int)
    blue, red = (np.abs(panel - colour).sum(axis=2) < 10 for colour in ([0x1A, 0x6D, 0xD7], [0xC7, 0x73, 0x43]))
    left, right = slice(5, 380), slice(400, 770)
    assert abs(blue[:, left].mean() - 0.75) < 0.01 and abs(red[:, left].mean() - 0.25) < 0.01
    assert abs(blue[:, right].mean() - 0.25) < 0.01 and abs(red[:, right].mean() - 0.75) < 0.01


def test_many_sources_are_drawn_as_ten_and_the_rest(tmp_path: Path) -> None:
    picture = drawn(tmp_path / "mix.png", np.full((4, 40), 1 / 40))
    grey = (np.abs(picture[41:279, 71:849].astype(int) - [0x85, 0x87, 0x8D]).sum(axis=2) < 10).mean()
    assert abs(grey - 30 / 40) < 0.01


def test_labels_at_the_ends_do_not_touch(tmp_path: Path) -> None:
    """Ten equal lines end at one height; their labels stand below each other, beside the plot."""
    picture = drawn(tmp_path / "mix.png", np.full((4, 10), 0.1))
    marks = picture[350:590, 860].astype(int)  # the squares before the names
    rows = np.flatnonzero(np.abs(marks - 255).sum(axis=1) > 60)
    assert len(np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)) == 10


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mix.what: the picture format is unknown"):
        drawn(tmp_path / "mix.what", np.ones((3, 1)))
    with pytest.raises(NotFound, match=r"mix.png"):
        drawn(tmp_path / "none" / "mix.png", np.ones((3, 1)))
