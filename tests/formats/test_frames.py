"""Frames of video files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import DataError
from feedmill.formats.frames import Frames
from feedmill.storage import open_store

av = pytest.importorskip("av")


def write_video(path: Path, container: str) -> None:
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, 10)
        for number in range(5):
            pixels = np.full((64, 64, 3), 40 * number, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        out.mux(stream.encode())


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi", "mov"])
def test_the_containers_of_videos(container: str, tmp_path: Path) -> None:
    write_video(tmp_path / "v", container)
    frame = Frames(open_store(str(tmp_path)), 0.02).at("v", 0.2)
    assert frame.shape == (64, 64, 3) and abs(int(frame.mean()) - 80) < 8


def test_a_list_of_files_is_no_video(tmp_path: Path) -> None:
    write_video(tmp_path / "secret.mp4", "mp4")
    (tmp_path / "v.mp4").write_text("ffconcat version 1.0\nfile secret.mp4\n")
    with pytest.raises(DataError, match="cannot be decoded"):
        Frames(open_store(str(tmp_path)), 0.02).at("v.mp4", 0.2)
