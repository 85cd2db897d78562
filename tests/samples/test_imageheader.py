"""Headers that are answered without Pillow say what Pillow says, for every file that Pillow writes and for cut ones."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.samples.imageheader import image_header
from helpers.durations import examples

Image = pytest.importorskip("PIL.Image")


def saved(image, format: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def noise(mode: str, size: tuple[int, int] = (13, 9)):
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


def pillows(data: bytes):
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return image.width, image.height, image.format, image.mode
    except Exception:
        return None


def grey_palette(size=(13, 9)):
    image = noise("L", size).convert("P")
    image.putpalette(np.repeat(np.arange(256, dtype=np.uint8), 3).tobytes())
    return image


FILES = {
    **{f"gif {mode}": saved(noise(mode), "GIF") for mode in ("P", "L", "RGB", "RGBA", "1")},
    "gif grey palette": saved(grey_palette(), "GIF"),
    "gif many": saved(noise("P"), "GIF", save_all=True, append_images=[noise("P"), noise("P")], comment=b"x" * 600),
    "gif transparent": saved(noise("P"), "GIF", transparency=3, interlace=1),
    **{f"bmp {mode}": saved(noise(mode), "BMP") for mode in ("1", "L", "P", "RGB", "RGBA")},
    "bmp grey palette": saved(grey_palette(), "BMP"),
    **{f"tiff {mode}": saved(noise(mode), "TIFF") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")},
    **{f"tiff {how}": saved(noise("RGB"), "TIFF", compression=how) for how in ("tiff_lzw", "tiff_deflate", "jpeg")},
    "tiff packbits": saved(noise("L", (200, 100)), "TIFF", compression="packbits"),
    "tiff turned": saved(noise("RGB"), "TIFF", tiffinfo={274: 6}),
    "tiff 16": saved(Image.fromarray(np.zeros((4, 5), np.uint16)), "TIFF"),
    "tiff float": saved(Image.fromarray(np.zeros((4, 5), np.float32)), "TIFF"),
    "tiff many": saved(noise("RGB"), "TIFF", save_all=True, append_images=[noise("L", (4, 4))]),
}
ANSWERED = ("gif", "bmp L", "bmp P", "bmp RGB", "bmp grey", "tiff L", "tiff P", "tiff RGB", "tiff CMYK", "tiff tiff_")


@pytest.mark.parametrize("name", FILES)
def test_answers_are_pillows(name: str) -> None:
    answer = image_header(FILES[name])
    assert answer is None or answer == pillows(FILES[name])
    if name.startswith(ANSWERED) and name not in ("tiff LA", "bmp RGBA"):
        assert answer is not None


@pytest.mark.parametrize("name", FILES)
def test_files_cut_short_are_left_to_pillow(name: str) -> None:
    data = FILES[name]
    for length in {*range(0, len(data), max(len(data) // 60, 1)), *range(max(len(data) - 40, 0), len(data))}:
        answer = image_header(data[:length])
        assert answer is None or answer == pillows(data[:length])


@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(FILES)), st.integers(0, 120), st.integers(0, 255), st.integers(0, 200))
def test_no_header_breaks_the_reading(name: str, at: int, value: int, cut: int) -> None:
    data = bytearray(FILES[name])
    data[min(at, len(data) - 1)] = value
    image_header(bytes(data))
    image_header(bytes(data[:cut]))
