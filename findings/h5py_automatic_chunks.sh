#!/usr/bin/env bash
# h5py's automatic chunks cut each camera frame into 48 pieces.
#
# `chunks=True`, and any compression, let h5py choose the shape of chunks for 400 frames of 84x84x3: it halves the
# axes in turn, colors included, so one frame (21 kB) lies in 48 chunks of 100 frames each: reading it decompresses
# 2.1 MB.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check h5py==3.16.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import h5py, numpy

with h5py.File("a.h5", "w") as file:
    frames = file.create_dataset("frames", data=numpy.zeros((400, 84, 84, 3), "u1"), compression="gzip")
    chunks = frames.chunks
    touched = [info.chunk_offset for info in map(frames.id.get_chunk_info, range(frames.id.get_num_chunks()))]
of_one = [offset for offset in touched if offset[0] <= 7 < offset[0] + chunks[0]]
print(f"chunks {chunks}; frame 7 lies in {len(of_one)} of {len(touched)} chunks")
print(f"bytes decompressed for one frame of {84 * 84 * 3:,}: {len(of_one) * int(numpy.prod(chunks)):,}")
assert chunks == (100, 21, 21, 1) and len(of_one) == 48 and len(touched) == 192, "changed"
PYTHON
