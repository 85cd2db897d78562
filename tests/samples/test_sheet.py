from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.samples.sheet import as_image, contact_sheet

Image = pytest.importorskip("PIL.Image")

RED = np.zeros((10, 20, 3), np.uint8) + np.array([255, 0, 0], np.uint8)


def encoded(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "value",
    [RED, RED.transpose(2, 0, 1), RED.astype(np.float32) / 255, RED[:, ::-1], Image.fromarray(RED), encoded(RED)],
)
def test_images_of_every_kind(value: Any) -> None:
    np.testing.assert_array_equal(np.asarray(as_image(value)), RED)


def test_tensors_are_images() -> None:
    torch = pytest.importorskip("torch")
    image = as_image(torch.from_numpy(RED.transpose(2, 0, 1).astype(np.float32) / 255))
    np.testing.assert_array_equal(np.asarray(image), RED)


@pytest.mark.parametrize("value", ["text", b"bytes", 3, None, np.zeros(3), np.zeros((5, 5), np.int64), {"a": 1}])
def test_what_is_not_an_image(value: Any) -> None:
    assert as_image(value) is None


def test_every_image_is_on_the_sheet_in_its_place(tmp_path: Path) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    images = [np.zeros((50, 50, 3), np.uint8) + np.array(colour, np.uint8) for colour in colours]
    size = contact_sheet(images, ["a", "b" * 500, ""], tmp_path / "s.png", columns=2, cell=50)
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.size == size == (124, 156)
        centres = [(33, 33), (91, 33), (33, 107)]
        assert [sheet.getpixel(centre) for centre in centres] == colours


def test_bad_sheets_are_refused(tmp_path: Path) -> None:
    for images, name in (([], "s.png"), (["text"], "s.png"), ([RED], "s.nonsense")):
        with pytest.raises(ConfigError):
            contact_sheet(images, [""] * len(images), tmp_path / name)
    with pytest.raises(NotFound, match=r"none/s\.png"):
        contact_sheet([RED], [""], tmp_path / "none/s.png")
