#!/usr/bin/env bash
# A photo that pillow-heif writes loses its orientation: the pixels are not turned, and it reads as upright.
#
# EXIF says "turn by a quarter" before. The HEIF file keeps that in its EXIF, which the format does not count, and states
# no turn (`irot`); opening it again sets EXIF to upright. Pillow's own AVIF writer makes the `irot` of it, and takes the
# orientation out of the EXIF object that it was given: what is saved with the same object next is upright.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pillow==13.0.0 pillow-heif==1.8.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import pillow_heif
from PIL import Image, ImageOps

pillow_heif.register_heif_opener()
photo = Image.new("RGB", (80, 40), (250, 0, 0))


def again(kind, exif):
    """Return the orientation and the upright size of the photo, saved and opened."""
    photo.save(f"photo.{kind}", exif=exif)
    opened = Image.open(f"photo.{kind}")
    return opened.getexif().get(0x112), ImageOps.exif_transpose(opened).size


def turned():
    exif = Image.Exif()
    exif[0x112] = 6
    return exif


seen = {kind: again(kind, turned()) for kind in ("jpg", "avif", "heif")}
shared = turned()
in_a_row = [again(kind, shared) for kind in ("jpg", "avif", "jpg")]
print(f"pillow {version('pillow')}, pillow-heif {version('pillow-heif')}: orientation and upright size, saved and opened")
print(f"  {seen}\n  JPEG, AVIF and JPEG saved with one EXIF object: {in_a_row}")
assert seen == {"jpg": (6, (40, 80)), "avif": (6, (40, 80)), "heif": (1, (80, 40))}, "changed"
assert in_a_row == [(6, (40, 80)), (6, (40, 80)), (None, (80, 40))], "changed"
PYTHON
