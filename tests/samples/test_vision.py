"""Masks of COCO, and transforms that move pixels and objects together."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.orientation import upright
from feedmill.samples.detection import Masks, as_runs, decode_mask
from feedmill.samples.types import CaptioningSample, DetectionSample
from feedmill.samples.vision import crop, drawn, flip, objects_in, resize

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/coco/masks.json").read_text())["masks"]
BASE: dict[str, Any] = {"__key__": "k", "__restore_key__": ()}
HEIGHT, WIDTH = 30, 40


def of_runs(runs: list[int], height: int, width: int) -> np.ndarray[Any, Any]:
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


@pytest.mark.parametrize("number", range(len(GOLDEN)))
def test_masks_are_those_of_pycocotools(number: int) -> None:
    (height, width), segment, runs = (GOLDEN[number][name] for name in ("size", "segmentation", "runs"))
    assert (decode_mask(segment, height, width) == of_runs(runs, height, width)).all()
    plain = {"size": [height, width], "counts": runs}
    assert (decode_mask(plain, height, width) == of_runs(runs, height, width)).all()


@pytest.mark.parametrize(
    ("segment", "why"),
    [
        ({"size": [3, 4], "counts": [5, 6]}, "its runs have 11 pixels, expected 12"),
        ({"size": [4, 3], "counts": [12]}, r"its size is \[4, 3\], expected \[3, 4\]"),
        ({"size": [3, 4], "counts": [-1, 13]}, "neither text nor whole numbers"),
        ({"size": [3, 4], "counts": [5.0, 7.0]}, "neither text nor whole numbers"),
        ({"size": [3, 4], "counts": "\x7f"}, "not compressed runs"),
        ({"size": [3, 4], "counts": "P"}, "not compressed runs"),
        ({"size": [3, 4], "counts": ""}, "not compressed runs"),
        ({"size": [3, 4], "counts": "o" * 40}, "not compressed runs"),
        ({"counts": [12]}, "its size is None"),
        ([[0, 0, 1, 1]], "three or more pairs"),
        ([[0, 0, 1, 1, 2]], "three or more pairs"),
        ([[0, 0, 1, 1, 2, None]], "three or more pairs"),
        ([[0, 0, 1, 1, 2, 1e30]], "three or more pairs"),
        ("text", "expected polygons or runs, found str"),
    ],
)
def test_what_is_no_mask(segment: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        decode_mask(segment, 3, 4)


def pixels() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def parts() -> dict[str, Any]:
    """Return the part ``json`` of a sample: a polygon, runs, and an object without a mask."""
    block = np.zeros((HEIGHT, WIDTH), bool)
    block[20:28, 1:9:2] = True
    flat = block.T.ravel()
    edges = np.flatnonzero(np.diff(flat, prepend=False))
    runs = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return {
        "size": {"height": HEIGHT, "width": WIDTH},
        "boxes": [[2, 3, 20.5, 13], [1, 20, 9, 28], [30, 0, 40, 5]],
        "labels": [7, 1, 7],
        "label_names": ["cat", "person", "cat"],
        "ids": [11, 12, 13],
        "areas": [90.0, 32.0, 50.0],
        "crowd": [False, True, False],
        "masks": [[[2, 3, 20, 3, 20, 13, 11, 6]], {"size": [HEIGHT, WIDTH], "counts": runs}, None],
        "keypoints": [[[4, 5, 2], [0, 0, 0], [19, 12, 1]], [[0, 0, 0]] * 3, [[39, 0, 2], [31, 3, 2], [35, 2, 2]]],
        "keypoint_names": ["nose", "left_eye", "right_eye"],
        "keypoint_flip": [0, 2, 1],
        "attributes": [{"a": 1}, {}, {}],
    }


def sample(orientation: str | None = "apply", image: Any = None, **changes: Any) -> DetectionSample:
    image = pixels() if image is None else image
    return DetectionSample.of_parts(orientation, **BASE, image=image, **{**parts(), **changes})


def test_fields_and_their_views() -> None:
    made = sample()
    assert (made.boxes.dtype, made.labels.dtype, made.areas.dtype, made.keypoints.shape) == (
        np.float32,
        np.int64,
        np.float64,
        (3, 3, 3),
    )
    assert made.size == (HEIGHT, WIDTH)
    assert made.xywh[0].tolist() == [2, 3, 18.5, 10]
    assert np.allclose(made.normalized[2], [0.75, 0, 1, 5 / 30])
    assert made.masks.bitmaps().sum(axis=(1, 2)).tolist() == [made.masks[0].sum(), 32, 0]
    again = pickle.loads(pickle.dumps(made))
    assert (again.masks.bitmaps() == made.masks.bitmaps()).all() and "Masks(3 of 40 x 30)" in repr(again)
    assert (copy.copy(made.masks)[1:].bitmaps() == made.masks.bitmaps()[1:]).all()


def test_an_image_without_objects() -> None:
    none = {name: [] for name in parts() if name not in ("size", "keypoint_names", "keypoint_flip")}
    made = sample(**none)
    for change in (lambda s: resize(s, 9, 7), lambda s: crop(s, 1, 2, 9, 7), flip):
        moved = change(made)
        assert moved.boxes.shape == (0, 4) and moved.keypoints.shape == (0, 3, 3)
        assert moved.masks.bitmaps().shape == (0, *moved.size) and moved.size == moved.image.shape[:2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"boxes": [[1, 2, 3]] * 3}, r"shape \[3, 3\], expected \[3, 4\]"),
        ({"labels": [1]}, r"shape \[1\], expected \[3\]"),
        ({"label_names": ["x"]}, "1 label_names of 3 boxes"),
        ({"masks": []}, "0 masks of 3 boxes"),
        ({"size": None}, "not those of a DetectionSample"),
        ({"size": {"height": 3}}, "not those of a DetectionSample"),
        ({"size": {"height": 3, "width": 3, "apply": 9}}, "no orientation 9"),
        ({"keypoints": [[[1, 2]]] * 3}, r"shape \[3, 1, 2\]"),
    ],
)
def test_parts_that_are_no_objects(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why):
        sample(**changes)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_objects_turn_with_the_pixels(orientation: int) -> None:
    turns = {"height": HEIGHT, "width": WIDTH, "apply": orientation, "stored": 1}
    made = sample(size=turns, image=upright(pixels(), orientation))
    stored = sample(size=turns, orientation="stored")
    assert made.size == made.image.shape[:2]
    masks = upright(stored.masks.bitmaps()[..., None], orientation)[..., 0]
    assert (made.masks.bitmaps() == masks).all()
    for number in range(3):  # a box as a bitmap, and each keypoint as one pixel
        x1, y1, x2, y2 = np.rint(stored.boxes[number]).astype(int)
        box = np.zeros((HEIGHT, WIDTH, 1))
        box[y1:y2, x1:x2] = 1
        x1, y1, x2, y2 = np.rint(made.boxes[number] + [0.01, 0.01, -0.01, -0.01]).astype(int)
        if number:  # whole numbers
            assert upright(box, orientation)[y1:y2, x1:x2].sum() == box.sum() == (y2 - y1) * (x2 - x1)
        for (x, y, v), (x_, y_, v_) in zip(
            stored.keypoints[number].astype(int), made.keypoints[number].astype(int), strict=True
        ):
            point = np.zeros((HEIGHT, WIDTH, 1))
            point[y, x] = 1
            assert v == v_ and (not v or upright(point, orientation)[y_, x_] == 1)


def test_resized_objects() -> None:
    made, height, width = sample(), 45, 20
    moved = resize(made, height, width)
    assert (moved.image == np.array(Image.fromarray(pixels()).resize((width, height), Image.Resampling.BILINEAR))).all()
    assert np.allclose(moved.boxes, made.boxes * np.float32([0.5, 1.5, 0.5, 1.5]))
    assert np.allclose(moved.areas, made.areas * 0.75) and moved.size == (height, width)
    rows = np.floor((np.arange(height) + 0.5) * HEIGHT / height).astype(int)
    columns = np.floor((np.arange(width) + 0.5) * WIDTH / width).astype(int)
    assert (moved.masks.bitmaps() == made.masks.bitmaps()[:, rows][:, :, columns]).all()
    assert np.allclose(moved.keypoints[0], [[4.5 / 2 - 0.5, 5.5 * 1.5 - 0.5, 2], [0, 0, 0], [9.25, 18.25, 1]])
    assert made.size == (HEIGHT, WIDTH) and made.boxes[0, 0] == 2  # the sample itself is unchanged


@pytest.mark.parametrize("vertical", [False, True])
def test_flipped_objects(vertical: bool) -> None:
    made, axis = sample(), int(vertical)
    moved = flip(made, vertical=vertical)
    back = slice(None, None, -1)
    turn = (back,) if vertical else (slice(None), back)
    assert (moved.image == made.image[turn]).all()
    assert (moved.masks.bitmaps() == made.masks.bitmaps()[(slice(None), *turn)]).all()
    assert moved.boxes[1].tolist() == ([1, 2, 9, 10] if vertical else [31, 20, 39, 28])
    wanted = made.keypoints[:, [0, 2, 1]].copy()
    wanted[..., axis] = (WIDTH, HEIGHT)[axis] - 1 - wanted[..., axis]
    wanted[wanted[..., 2] == 0] = 0
    assert (moved.keypoints == wanted).all()
    twice = flip(moved, vertical=vertical)
    assert np.allclose(twice.boxes, made.boxes) and (twice.keypoints == made.keypoints).all()


def test_cropped_objects() -> None:
    made = sample()
    moved = crop(made, 2, 4, 20, 20)
    assert (moved.image == made.image[2:22, 4:24]).all()
    assert moved.boxes.tolist() == [[0, 1, 16.5, 11], [0, 18, 5, 20]]
    assert (moved.labels.tolist(), moved.label_names, moved.ids.tolist()) == ([7, 1], ["cat", "person"], [11, 12])
    assert (moved.masks.bitmaps() == made.masks.bitmaps()[:2, 2:22, 4:24]).all()
    assert moved.areas.tolist() == moved.masks.bitmaps().sum(axis=(1, 2)).tolist()
    assert moved.keypoints[0].tolist() == [[0, 3, 2], [0, 0, 0], [15, 10, 1]] and moved.attributes == [{"a": 1}, {}]
    last = crop(made, 0, 30, 10, 5)
    assert last.areas.tolist() == [25] and last.keypoints[0].tolist() == [[0, 0, 0], [1, 3, 2], [0, 0, 0]]


def test_a_chain_of_transforms_is_that_of_the_bitmaps() -> None:
    made = sample()
    moved = crop(flip(resize(flip(made), 17, 53), vertical=True), 3, 5, 11, 40)
    bitmaps = made.masks.bitmaps()[..., ::-1]
    rows, columns = ((2 * np.arange(new) + 1) * old // (2 * new) for new, old in ((17, HEIGHT), (53, WIDTH)))
    bitmaps = bitmaps[:, rows][:, :, columns][:, ::-1][:, 3:14, 5:45]
    kept = [made.ids.tolist().index(one) for one in moved.ids.tolist()]
    assert (moved.masks.bitmaps() == bitmaps[kept]).all() and len(kept)


@pytest.mark.parametrize("kind", ["tensor", "tensor8", "pillow", "float", "gray"])
def test_all_forms_of_images(kind: str) -> None:
    torch = pytest.importorskip("torch") if kind.startswith("tensor") else None
    array = pixels()
    image: Any = {
        "pillow": lambda: Image.fromarray(array),
        "float": lambda: array.astype(np.float32) / 255,
        "gray": lambda: array[..., 0],
        "tensor8": lambda: torch.from_numpy(array.transpose(2, 0, 1).copy()),  # type: ignore[union-attr]
        "tensor": lambda: torch.from_numpy(array.transpose(2, 0, 1).astype(np.float32) / 255),  # type: ignore[union-attr]
    }[kind]()
    plain = CaptioningSample(**BASE, image=image, caption="c")
    for change in (lambda s: resize(s, 11, 9), lambda s: crop(s, 3, 4, 11, 9), flip, lambda s: flip(s, vertical=True)):
        moved, wanted = change(plain), change(dataclasses.replace(plain, image=array)).image
        found = np.asarray(moved.image)
        found = found.transpose(1, 2, 0) if kind.startswith("tensor") else found
        wanted = wanted[..., 0] if kind == "gray" else wanted
        found = found * 255 if found.dtype == np.float32 else found
        assert type(moved.image) is type(image) and moved.caption == "c"
        assert found.shape == wanted.shape and np.abs(found.astype(float) - wanted).max() < 1.01


@pytest.mark.parametrize("moved", [False, True])
def test_samples_are_written_and_read_again(moved: bool, tmp_path: Path) -> None:
    made = sample()
    wanted = flip(resize(made, 17, 21)) if moved else made
    whole = np.ones((17, 21), bool)
    wanted.masks = wanted.masks if not moved else Masks([*wanted.masks.as_json()[:2], as_runs(whole)], wanted.size)
    fields = {field: f"json[{field}]" for field in parts()}
    description = {"sample_type": "DetectionSample", "field_map": {"image": "png", **fields}}
    fm.write(tmp_path / "out", [wanted], progress=False, **description)
    again = fm.open(tmp_path / "out")[0]
    assert (again.image == wanted.image).all() and again.size == wanted.size
    for name in ("boxes", "labels", "ids", "areas", "crowd", "keypoints"):
        assert (getattr(again, name) == getattr(wanted, name)).all() and (again.label_names == wanted.label_names)
    assert (again.masks.bitmaps() == wanted.masks.bitmaps()).all() and again.masks[2].all() == moved


def test_transforms_that_cannot_be() -> None:
    made = sample()
    with pytest.raises(ConfigError, match="the boxes refer to an image of 40 x 30 pixels, and this one has 20 x 30"):
        flip(dataclasses.replace(made, image=made.image[:, :20]))
    with pytest.raises(ConfigError, match="not within the image: rows 20 to 40 of 30"):
        crop(made, 20, 0, 20, 5)
    with pytest.raises(ConfigError, match="has no pixels"):
        resize(made, 0, 5)
    with pytest.raises(ConfigError, match="left and right is not known"):
        flip(dataclasses.replace(made, keypoint_flip=None))
    with pytest.raises(ConfigError, match="no decoded image: found bytes"):
        flip(dataclasses.replace(made, image=b"x"))


def test_objects_are_drawn() -> None:
    found = objects_in({**parts(), "image": {"id": 3}})
    assert found is not None and objects_in({"boxes": 3}) is None and objects_in({**parts(), "labels": [1]}) is None
    for size in ((WIDTH, HEIGHT), (10 * WIDTH, 10 * HEIGHT)):
        plain = Image.new("RGB", size)
        picture = np.array(drawn(plain, found))
        assert picture.shape[:2] == size[::-1] and not np.array(plain).any()
        scale = size[0] // WIDTH
        assert picture[20 * scale, 4 * scale].any() and not picture[18 * scale, 30 * scale].any()
    bad = dataclasses.replace(found, masks=Masks([[[1, 2]], None, None], found.size))
    assert np.array(drawn(Image.new("RGB", (WIDTH, HEIGHT)), bad)).any()
