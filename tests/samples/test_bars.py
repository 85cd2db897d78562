from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.samples.chart import Histogram, draw_histograms

Image = pytest.importorskip("PIL.Image")


def test_bars_are_as_high_as_their_counts(tmp_path: Path) -> None:
    counts = np.array([0, 5, 10])
    draw_histograms([Histogram("x", np.arange(4.0), counts)], tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    blue = (np.abs(pixels - [0x1A, 0x6D, 0xD7]).sum(axis=2) < 10).sum(axis=0)
    panel = blue[46:406].reshape(3, 120)[:, 60]
    assert panel.tolist() == pytest.approx([0, 75, 150], abs=1)


def test_refused(tmp_path: Path) -> None:
    one = [Histogram("x" * 99, np.arange(2.0), np.array([0]))]
    with pytest.raises(ConfigError, match="histograms"):
        draw_histograms([], tmp_path / "p.png")
    with pytest.raises(ConfigError, match="picture format"):
        draw_histograms(one, tmp_path / "p.doc")
    with pytest.raises(NotFound):
        draw_histograms(one, tmp_path / "no" / "p.png")
