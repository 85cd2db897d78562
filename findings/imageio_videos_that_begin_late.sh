#!/usr/bin/env bash
# imageio's frame `index=n` of a video is counted from time 0: where the first frame is later, it is an earlier frame.
#
# Its pyav plugin seeks to n / rate. A clip that begins at 0.1 s, as pieces of recordings and of streams often do, gives
# frame n - 2 at 25 frames a second, for all but the first two, and its last frames are never given. Nothing is raised.
# Reading all frames, or `constant_framerate=False`, is right, and so is OpenCV's seeking.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    imageio==2.38.1 av==18.1.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from fractions import Fraction
from importlib.metadata import version

import av
import cv2
import imageio.v3 as iio
import numpy as np

COUNT = 60


def write(path, begin):
    """Frames of 40 ms, from `begin` ms on; the brightness of frame n is 4 n."""
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = 12
        stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(COUNT):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 4 * number, np.uint8), "rgb24")
            frame.pts, frame.time_base = begin + 40 * number, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def number_of(pixels):
    return round(float(pixels.mean()) / 4)


def by_opencv(path, index):
    video = cv2.VideoCapture(path)
    video.set(cv2.CAP_PROP_POS_FRAMES, index)
    return number_of(video.read()[1])


print(", ".join(f"{name} {version(name)}" for name in ("imageio", "av", "opencv-python-headless")))
for path, begin, behind in (("zero.mp4", 0, 0), ("late.mp4", 100, 2), ("zero.mkv", 0, 0), ("late.mkv", 100, 2)):
    write(path, begin)
    at_once = [number_of(frame) for frame in iio.imread(path, plugin="pyav")]
    single = [number_of(iio.imread(path, index=index, plugin="pyav")) for index in range(COUNT)]
    slow = [number_of(iio.imread(path, index=index, plugin="pyav", constant_framerate=False)) for index in (5, 30, 59)]
    wrong = sum(seen != index for index, seen in enumerate(single))
    opencv = [by_opencv(path, index) for index in (5, 30, 59)]
    print(f"  {path}, from {begin} ms: {wrong} of {COUNT} wrong; frames 5, 30 and 59: {[single[n] for n in (5, 30, 59)]},",
          f"without constant_framerate {slow}, opencv {opencv}")
    assert at_once == list(range(COUNT)) and slow == opencv == [5, 30, 59], "changed"
    assert [single[n] for n in (5, 30, 59)] == [5 - behind, 30 - behind, 59 - behind], "changed"
PYTHON
