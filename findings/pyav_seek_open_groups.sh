#!/usr/bin/env bash
# Seeking to a frame's own time and decoding up to it gives another frame, in files of x265's default settings.
#
# The usual recipe (seek backward to a pts, decode until pts >= x) lands on the key frame *after* the wanted one where
# pictures are decoded after a key frame and shown before it (open groups, the default of x265): containers seek by
# the time of decoding. The decoder drops those pictures, and the first frame that comes is a later one. Equality of
# times detects it; `>=` does not.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check av==18.1.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import io

import av
import numpy as np

out = io.BytesIO()
with av.open(out, "w", format="mp4") as container:
    parameters = "keyint=20:min-keyint=20:scenecut=0:bframes=3:frame-threads=1:pools=1:log-level=none"
    stream = container.add_stream("libx265", rate=30, options={"x265-params": parameters})
    stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
    for number in range(100):
        pixels = np.full((64, 96, 3), number, np.uint8)
        pixels[:, number % 88 : number % 88 + 8] = 255 - number
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
    container.mux(stream.encode())

with av.open(io.BytesIO(out.getvalue())) as container:
    times = [frame.pts for frame in container.decode(video=0)]
wrong = []
with av.open(io.BytesIO(out.getvalue())) as container:
    stream = container.streams.video[0]
    for number, time in enumerate(times):
        container.seek(time, stream=stream, backward=True)
        found = next(frame.pts for frame in container.decode(stream) if frame.pts >= time)
        if found != time:
            wrong.append((number, times.index(found)))
print(f"{len(wrong)} of {len(times)} frames are others (wanted, found): {wrong}")
assert len(times) == 100 and 4 <= len(wrong) <= 20 and all(found > wanted for wanted, found in wrong), "changed"
PYTHON
