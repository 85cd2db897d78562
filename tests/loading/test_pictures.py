"""Pictures of one size are decoded straight into their batch: the same batch, and the same errors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedmill as fm
from feedmill.errors import DataError
from feedmill.loading.collate import collate, column
from helpers.tars import write_tar


def jpeg(seed: int, size: tuple[int, int] = (40, 24), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def opened(tmp_path: Path, pictures: list[bytes], name: str = "jpg", **options: Any) -> fm.Dataset:
    files = [(f"{i:03d}.{name}", data) for i, data in enumerate(pictures)]
    write_tar(tmp_path / "a.tar", [part for i, one in enumerate(files) for part in (one, (f"{i:03d}.txt", b"x"))])
    return fm.open(str(tmp_path / "a.tar"), raw=True, **options)


def plainly(samples: list[Any], name: str) -> Any:
    return column([sample[name] for sample in samples])


@pytest.mark.parametrize("spec", ["rgb8", "l8", "rgb", "rgba8", "torchrgb", "torchrgb8", "torchl", "pilrgb"])
@pytest.mark.parametrize(
    "pictures",
    [
        [jpeg(i) for i in range(5)],
        [jpeg(i, mode="L") for i in range(3)],
        [jpeg(0), jpeg(1, mode="L"), jpeg(2, kind="PNG")],
        [jpeg(0), jpeg(1, (24, 40))],
        [jpeg(i, (400, 300)) for i in range(3)],
    ],
    ids=["alike", "grey", "mixed", "sizes", "large"],
)
def test_the_same_batch(spec: str, pictures: list[bytes], tmp_path: Path) -> None:
    dataset = opened(tmp_path, pictures, decode=fm.samples.Decoder(image=spec))
    found = collate(dataset.read(range(len(pictures))))
    wanted = plainly(dataset.read(range(len(pictures))), "jpg")
    assert list(found) == ["__key__", "jpg", "txt"] and found["txt"] == ["x"] * len(pictures)
    assert type(found["jpg"]) is type(wanted)
    if isinstance(wanted, list):
        assert [np.asarray(a).tolist() for a in found["jpg"]] == [np.asarray(a).tolist() for a in wanted]
    else:
        assert found["jpg"].dtype == wanted.dtype and np.asarray(found["jpg"] == wanted).all()


def test_it_is_one_array(tmp_path: Path) -> None:
    decoder = fm.samples.Decoder()
    pictures = [jpeg(i) for i in range(4)]
    made = decoder.together("jpg", pictures)
    assert made is not None and made.shape == (4, 24, 40, 3) and made.flags.c_contiguous
    for name, parts in (("txt", [b"a"]), ("__key__", [b"a"]), ("jpg", [b"no"]), ("jpg", [*pictures, pictures[0][:50]])):
        assert decoder.together(name, parts) is None


def test_what_was_looked_at_already_stays(tmp_path: Path) -> None:
    samples = opened(tmp_path, [jpeg(i) for i in range(3)]).read(range(3))
    samples[1]["jpg"][:] = 0  # a transform that draws into the picture
    batch = collate(samples)["jpg"]
    assert not batch[1].any() and batch[0].any() and batch[2].any()


def test_a_bad_picture_is_named(tmp_path: Path) -> None:
    pictures = [jpeg(i) for i in range(4)]
    pictures[2] = pictures[2][:200]
    loader = fm.Loader(fm.Plan.over(opened(tmp_path, pictures), shuffle="none", epochs=1), 4)
    with pytest.raises(DataError, match=r"002\.jpg.*position 2"):
        next(iter(loader))


def test_samples_without_the_part(tmp_path: Path) -> None:
    first = opened(tmp_path, [jpeg(0)]).read([0])
    (tmp_path / "b").mkdir()
    other = opened(tmp_path / "b", [jpeg(1)], "png").read([0])
    batch = collate(first + other)
    assert batch["jpg"][1] is None and batch["png"][0] is None and batch["jpg"][0].shape == (24, 40, 3)


class Dark(fm.samples.Decoder):
    """A decoder with a call of its own."""

    def __call__(self, name: str, data: bytes) -> Any:
        found = super().__call__(name, data)
        return found // 2 if name == "jpg" else found


def test_a_decoder_with_a_call_of_its_own_is_called(tmp_path: Path) -> None:
    batch = collate(opened(tmp_path, [jpeg(i) for i in range(3)], decode=Dark()).read(range(3)))
    assert 0 < batch["jpg"].max() <= 127
