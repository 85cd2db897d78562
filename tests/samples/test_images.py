from __future__ import annotations

import io

import numpy as np
import pytest

from feedmill.errors import DataError
from feedmill.samples.decode import Decoder
from feedmill.samples.images import IMAGE_SPECS, IMAGE_SUFFIXES, decode_image, decode_images

Image = pytest.importorskip("PIL.Image")


def picture(mode: str, width: int = 13, height: int = 9):
    noise = np.random.default_rng(1).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(noise, "RGBA").convert(mode)


def encoded(mode: str, format: str, **options) -> bytes:
    stream = io.BytesIO()
    picture(mode).save(stream, format, **options)
    return stream.getvalue()


FILES = {
    "rgb.jpg": encoded("RGB", "JPEG", quality=80),
    "progressive.jpg": encoded("RGB", "JPEG", progressive=True, subsampling=0),
    "grey.jpg": encoded("L", "JPEG"),
    "cmyk.jpg": encoded("CMYK", "JPEG"),
    "rgba.png": encoded("RGBA", "PNG"),
    "palette.png": encoded("P", "PNG"),
    "bit.png": encoded("1", "PNG"),
    "p.gif": encoded("P", "GIF"),
    "x.webp": encoded("RGBA", "WEBP", lossless=True),
    "x.bmp": encoded("RGB", "BMP"),
    "x.TIFF": encoded("LA", "TIFF"),
}


@pytest.mark.parametrize("spec", sorted(IMAGE_SPECS))
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_pillows_in_the_form_of_the_spec(name: str, spec: str) -> None:
    found = Decoder(spec)(name, FILES[name])
    mode = "RGBA" if "rgba" in spec else "L" if spec.strip("8") in ("l", "torchl", "pill") else "RGB"
    wanted = np.asarray(Image.open(io.BytesIO(FILES[name])).convert(mode))
    if spec.startswith("pil"):
        assert found.mode == mode
        found = np.asarray(found)
    elif spec.startswith("torch"):
        assert type(found).__name__ == "Tensor" and found.is_contiguous()
        found, wanted = found.numpy(), wanted.transpose(2, 0, 1) if wanted.ndim == 3 else wanted
    if not spec.endswith("8") and not spec.startswith("pil"):
        wanted = wanted.astype(np.float32) / 255.0
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(found, wanted)
    if not spec.startswith("pil"):
        found += 0  # the user owns the pixels


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (33, 17), (130, 99)])
@pytest.mark.parametrize("quality", [30, 95])
def test_the_fast_jpeg_path_is_pillow_to_the_bit(
    mode: str, subsampling: int, size: tuple[int, int], quality: int
) -> None:
    stream = io.BytesIO()
    picture(mode, *size).save(stream, "JPEG", quality=quality, subsampling=subsampling)
    data = stream.getvalue()
    for spec, wanted in (("rgb8", "RGB"), ("l8", "L")):
        assert np.array_equal(Decoder(spec)("jpg", data), np.asarray(Image.open(io.BytesIO(data)).convert(wanted)))


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith("bmp")])
def test_a_picture_cut_short_is_an_error(name: str) -> None:
    with pytest.raises(DataError, match=f"the part '{name}' cannot be decoded"):
        Decoder()(name, FILES[name][: len(FILES[name]) * 2 // 3])


@pytest.mark.parametrize(("format", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2"), ("PPM", "<u2")])
def test_grey_of_16_bits_keeps_its_high_byte(format: str, dtype: str) -> None:
    grey = np.arange(1024, dtype=np.uint16).reshape(16, 64) * 64
    stream = io.BytesIO()
    Image.fromarray(grey.astype(dtype)).save(stream, format)
    assert np.array_equal(decode_image(stream.getvalue(), "l8"), grey >> 8)
    assert np.array_equal(decode_image(stream.getvalue(), "rgb8"), np.repeat((grey >> 8)[:, :, None], 3, 2))


def test_a_header_that_promises_gigabytes_is_refused_before_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr("feedmill.samples.images.empty", lambda *shape: taken.append(shape) or np.empty(*shape))
    data = FILES["rgb.jpg"]
    at = data.index(b"\xff\xc0") + 5
    data = data[:at] + bytes((0x40, 0, 0x40, 0)) + data[at + 4 :]
    with pytest.raises(DataError, match="exceeds limit"):
        Decoder()("jpg", data)
    assert decode_images([data, data], "rgb8") is None
    assert not taken


def test_suffixes_are_ones_that_pillow_reads_by_itself() -> None:
    Image.init()
    readable = {suffix[1:] for suffix, format in Image.EXTENSION.items() if format in Image.OPEN}
    assert {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "tga"} <= IMAGE_SUFFIXES & readable
    assert not {"ps", "eps", "h5", "hdf", "mpg", "mpeg", "wmf", "emf", "pdf"} & IMAGE_SUFFIXES


@pytest.mark.parametrize("spec", ["rgb8", "rgb", "torchrgb", "torchrgb8", "torch"])
def test_many_at_once_are_as_each(spec: str) -> None:
    if "torch" in spec:
        pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(9):  # 120 KB of pixels each: more than are decoded before they are divided
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (160, 250, 3), np.uint8)).save(out, "JPEG", quality=70)
        parts.append(out.getvalue())
    found = decode_images(parts, spec)
    for one, data in zip(found, parts, strict=True):
        want = decode_image(data, spec)
        assert type(one) is type(want) and one.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(want))
    assert decode_images([*parts, parts[0][:200]], spec) is None
