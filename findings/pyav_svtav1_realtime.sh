#!/usr/bin/env bash
# Encoding one AV1 frame as root makes the program real-time, for good.
#
# Opened by root, as in most containers, SVT-AV1 sets the scheduling of the thread that opens it to SCHED_FIFO with the
# highest priority, and does not set it back when the encoder is closed. In Python that is the thread of the program:
# every thread and process that it starts later (workers of a loader, a shell) is real-time too. A busy one then keeps
# all usual processes of its core waiting, but for the 5 % that the kernel holds back. H.264 and HEVC change nothing.
# Needs root. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "this is so for root alone" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check av==18.1.0 numpy==2.4.6
SVT_LOG=1 "$work/venv/bin/python" - <<'PYTHON'
import io
import os
import subprocess
import sys

import av
import numpy as np

NAMES = {os.SCHED_OTHER: "usual", os.SCHED_FIFO: "real-time (FIFO)", os.SCHED_RR: "real-time (RR)"}


def policy():
    return NAMES[os.sched_getscheduler(0)], os.sched_getparam(0).sched_priority


def encode(codec, options):
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))))
        container.mux(stream.encode())
    return policy()


seen = {"before": policy()}
seen["after H.264"] = encode("libx264", {})
seen["after HEVC"] = encode("libx265", {"x265-params": "log-level=none"})
seen["after AV1"] = encode("libsvtav1", {"preset": "12"})
child = "import os; print(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)"
scheduler, priority = map(int, subprocess.check_output([sys.executable, "-c", child]).split())
seen["a process started then"] = NAMES[scheduler], priority
for when, (name, priority) in seen.items():
    print(f"{when}: {name}, priority {priority}")
assert [seen[when] for when in ("before", "after H.264", "after HEVC")] == [("usual", 0)] * 3, "changed"
assert seen["after AV1"] == seen["a process started then"] == ("real-time (FIFO)", 99), "changed"
PYTHON
