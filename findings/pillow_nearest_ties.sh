#!/usr/bin/env bash
# Pillow's NEAREST takes another pixel than the one under the center where the center lies on an edge.
#
# Resizing from n to m pixels, the center of pixel i is at (i + 1/2) * n / m. Pillow adds up steps of n / m in floating
# point, so that a center on the edge of two pixels falls to one side or the other: from 2 to 7 pixels, the middle one
# is pixel 0, and its center is at 1.0. A mask that is resized with Pillow therefore differs in single rows or columns
# from one that is resized exactly. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pillow==13.0.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import numpy as np
from PIL import Image

odd = []
for n in range(2, 200):
    row = Image.fromarray(np.arange(n, dtype=np.uint8)[None])
    for m in range(2, 200):
        found = np.array(row.resize((m, 1), Image.Resampling.NEAREST))[0]
        wanted = (2 * np.arange(m) + 1) * n // (2 * m)
        if (found != wanted).any():
            at = int(np.flatnonzero(found != wanted)[0])
            odd.append((n, m, at, int(found[at]), int(wanted[at])))
print(f"{len(odd):,} of {198 * 198:,} pairs of lengths differ; the first ones (from, to, pixel, is, center in): {odd[:3]}")
assert (2, 7, 3, 0, 1) in odd and (96, 40, 12, 29, 30) in odd, "changed"
PYTHON
