#!/usr/bin/env bash
# OpenCV turns JPEG, PNG and WebP upright as their EXIF says, but no AVIF: boxes and sizes then depend on the format.
#
# The AVIF file states the turn as its format has it (`irot`), and Pillow and FFmpeg know it.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    opencv-python-headless==5.0.0.93 pillow==13.0.0 av==18.1.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import av
import cv2
from PIL import Image, ImageOps

print(", ".join(f"{name} {version(name)}" for name in ("opencv-python-headless", "pillow", "av")))
seen = {}
for kind in ("jpg", "png", "webp", "avif"):
    name = f"photo.{kind}"
    exif = Image.Exif()
    exif[0x112] = 6  # a quarter clockwise makes it upright
    Image.new("RGB", (80, 40)).save(name, exif=exif)
    height, width, _ = cv2.imread(name).shape
    frame = next(av.open(name).decode(video=0))
    seen[kind] = (width, height), ImageOps.exif_transpose(Image.open(name)).size, frame.rotation
    print(f"  {kind}: OpenCV {seen[kind][0]}, Pillow, upright {seen[kind][1]}, FFmpeg: turned by {frame.rotation}")
for kind, (opencv, pillow, rotation) in seen.items():
    assert pillow == (40, 80) and rotation == -90, "changed"
    assert opencv == ((80, 40) if kind == "avif" else (40, 80)), "changed"
PYTHON
