"""Merged transforms give what the single ones of torchvision give. Skipped without torchvision."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
T = pytest.importorskip("torchvision.transforms")

from PIL import Image  # noqa: E402

from feedmill.compat.energon.transforms import CustomTransform, MergeTransform  # noqa: E402
from feedmill.errors import ConfigError  # noqa: E402

BILINEAR = T.InterpolationMode.BILINEAR


def picture(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x * 255 // width, y * 255 // height, x * 0], -1).astype(np.uint8))


def both(transforms, image, seed):
    torch.manual_seed(seed)
    merged = MergeTransform(transforms)(image)
    torch.manual_seed(seed)
    for transform in transforms:
        image = transform(image)
    return merged, image


@pytest.mark.parametrize(
    ("transforms", "size"),
    [
        ([T.Resize((40, 30), interpolation=T.InterpolationMode.NEAREST)], (60, 20)),
        ([T.Resize(20, max_size=30, interpolation=T.InterpolationMode.NEAREST)], (60, 20)),
        ([T.RandomHorizontalFlip(0.5), T.RandomVerticalFlip(0.5)], (31, 17)),
        ([T.CenterCrop((20, 40))], (31, 30)),
        ([T.CenterCrop(12)], (33, 30)),
        ([T.RandomCrop((20, 10))], (31, 30)),
        ([T.RandomCrop((50, 60), pad_if_needed=True)], (31, 30)),
        ([T.RandomRotation((-90, 269), interpolation=BILINEAR, expand=True)], (55, 33)),
        ([T.RandomRotation((45, 200), interpolation=BILINEAR), T.RandomCrop(20)], (55, 43)),
    ],
)
def test_merged_transforms_equal_single_ones(transforms, size):
    for seed in range(4):
        merged, single = both(transforms, picture(*size), seed)
        assert merged.size == single.size
        difference = np.abs(np.asarray(merged, int) - np.asarray(single, int))
        assert np.mean(difference > 3) < 0.01


def test_tensors_and_transforms_of_ones_own():
    class Shift(CustomTransform):
        def apply_transform(self, matrix, dst_size):
            return self.translate(2, 1) @ matrix, dst_size, "Shift"

    image = torch.arange(24.0).reshape(1, 4, 6)
    shifted = MergeTransform([Shift()])(image)
    assert torch.allclose(shifted[0, 1:, 2:], image[0, :3, :4], atol=1e-4) and not shifted[0, 0].any()
    flipped = MergeTransform([T.RandomHorizontalFlip(1.0)])(image)
    assert torch.allclose(flipped, image.flip(-1), atol=1e-4)


def test_what_cannot_be_merged():
    for transforms, words in (
        ([T.ColorJitter()], "ColorJitter cannot be merged"),
        ([T.RandomRotation(10, fill=1), T.RandomCrop(3, fill=2)], "differ in fill"),
        ([T.Resize(3), T.RandomRotation(1)], "differ in interpolation"),
    ):
        with pytest.raises(ConfigError, match=words):
            MergeTransform(transforms)
    for transform, words in (
        (T.RandomRotation(10, center=(1, 1)), "around a point"),
        (T.RandomCrop(3, padding=1), "pad"),
    ):
        with pytest.raises(ConfigError, match=words):
            MergeTransform([transform])(picture(9, 9))
