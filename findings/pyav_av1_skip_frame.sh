#!/usr/bin/env bash
# Frames that were skipped for a moment stay away for good, but for AV1 only.
#
# `CodecContext.skip_frame = "NONREF"` leaves out frames that no other frame needs, until it is set to "DEFAULT" again:
# so for H.264 and HEVC. FFmpeg's wrapper of libdav1d reads the option once, when the decoder is opened: a program that
# sets it before the first packet, to get faster to a time in the video, loses every second AV1 frame from then on,
# and one that sets it later skips nothing. No error, no warning.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check av==18.1.0 numpy==2.4.6
SVT_LOG=1 "$work/venv/bin/python" - <<'PYTHON'
import io

import av
import numpy as np


def video(codec, options):
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            pixels = np.full((48, 64, 3), number * 6, np.uint8)
            pixels[:, number : number + 8] = 255 - number
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return out.getvalue()


def frames(data, skipped, before_opening):
    """Number of frames, where `skip_frame` is NONREF for the first packets only."""
    count = 0
    with av.open(io.BytesIO(data)) as container:
        context = container.streams.video[0].codec_context
        for number, packet in enumerate(container.demux(video=0)):
            on = number < skipped and (before_opening or number > 0)
            if skipped:
                context.skip_frame = "NONREF" if on else "DEFAULT"
            count += len(packet.decode())
    return count


seen = {}
for name, codec, options in (
    ("H.264", "libx264", {"g": "40", "bf": "1", "b_strategy": "0", "crf": "20"}),
    ("HEVC", "libx265", {"x265-params": "bframes=1:b-adapt=0:keyint=40:log-level=none"}),
    ("AV1", "libsvtav1", {"g": "40", "crf": "30", "preset": "12"}),
):
    data = video(codec, options)
    seen[name] = frames(data, 0, False), frames(data, 5, True), frames(data, 5, False)
    print(f"{name}: {seen[name][0]} frames, {seen[name][1]} if the first 5 packets skip, {seen[name][2]} if 1 to 4 do")
for name in ("H.264", "HEVC"):
    assert seen[name][0] == 40 and 36 <= seen[name][1] < 40, "changed"
assert seen["AV1"][0] == 40 and seen["AV1"][1] <= 25 and seen["AV1"][2] == 40, "changed"
PYTHON
