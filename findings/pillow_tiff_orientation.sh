#!/usr/bin/env bash
# Pillow turns a TIFF upright by itself, while it loads: width and height change, and so do the pixels.
#
# `Image.open` gives pixels of JPEG, PNG and WebP as they are stored, and `ImageOps.exif_transpose` turns them by EXIF.
# TIFF is different: `size` is that of the upright image after opening already, loading turns the pixels, and the EXIF
# orientation is gone afterwards. So one pipeline without `exif_transpose` has stored pixels for one format and upright
# ones for another, and boxes of stored pixels do not fit. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pillow==13.0.0
"$work/venv/bin/python" - <<'PYTHON'
import io

from PIL import Image

exif = Image.Exif()
exif[0x0112] = 6  # a quarter turn clockwise makes it upright
seen = {}
for form in ("JPEG", "PNG", "WEBP", "TIFF"):
    out = io.BytesIO()
    Image.new("RGB", (32, 24)).save(out, form, exif=exif)
    image = Image.open(out)
    opened, stated = image.size, image.getexif().get(0x0112)
    image.load()
    seen[form] = opened, stated, image.size, image.getexif().get(0x0112)
    print(f"{form}: stored as 32 x 24; opened {opened}, orientation {stated}; loaded {image.size}, {seen[form][3]}")
for form in ("JPEG", "PNG", "WEBP"):
    assert seen[form] == ((32, 24), 6, (32, 24), 6), "changed"
assert seen["TIFF"][1:] == (6, (24, 32), None), "changed"
PYTHON
