"""Annotations of COCO, YOLO and Pascal VOC become samples with boxes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.importing.annotations.base import flip_of
from feedmill.samples.vision import flip, resize

WIDTH, HEIGHT = 40, 30
NAMES = ["nose", "left_eye", "right_eye"]
CATEGORIES = [{"id": 1, "name": "person", "supercategory": "x", "keypoints": NAMES}, {"id": 90, "name": "cup"}]
POLYGON = [[2, 3, 20, 3, 20.5, 13]]


def put(root: Path, files: dict[str, Any]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(data) if isinstance(data, dict | list) else data
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def picture(number: int = 0, *, turn: int = 1, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    exif = Image.Exif()
    if turn != 1:
        exif[0x0112] = turn
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue()


def run(source: Path | list[Path], out: Path, **options: Any) -> fm.reports.ImportReport:
    return fm.import_data(source, out, progress=False, workers=1, **options)


def reasons(report: fm.reports.ImportReport) -> dict[str, int]:
    return dict(report.left_out.counts)


def image(number: int, **more: Any) -> dict[str, Any]:
    return {"id": 10 + number, "file_name": f"{number}.jpg", "width": WIDTH, "height": HEIGHT, **more}


def thing(number: int, image_id: int, box: list[float], category: int = 90, **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": image_id, "bbox": box, "category_id": category, "iscrowd": 0, **more}


def instances(**more: Any) -> dict[str, Any]:
    crowd = {"size": [HEIGHT, WIDTH], "counts": [100, 30, WIDTH * HEIGHT - 130]}
    return {
        "info": {"year": 2026},
        "images": [image(0, license=3), image(1), image(2)],
        "annotations": [
            thing(1, 10, [2, 3, 18.5, 10], 1, area=90.25, segmentation=POLYGON),
            thing(2, 10, [3, 10, 1, 20], 90, iscrowd=1, area=30, segmentation=crowd),
            thing(3, 11, [0, 0, 40, 30], 90, score=0.5),
        ],
        "categories": CATEGORIES,
        **more,
    }


def coco(root: Path, **files: Any) -> Path:
    named = {f"imgs/{n}.jpg": picture(n) for n in range(3)}
    return put(root, {**named, **({"instances.json": instances()} if not files else {}), **files})


def test_a_folder_of_coco(tmp_path: Path) -> None:
    root = put(tmp_path / "coco", {f"{split}2017/{n}.jpg": picture(n) for split in ("train", "val") for n in range(3)})
    points = thing(1, 10, [2, 3, 18.5, 10], 1, keypoints=[3, 4, 2, 0, 0, 0, 9, 9, 1], num_keypoints=2)
    for split in ("train", "val"):
        captions = [{"id": n, "image_id": 10 + n % 2, "caption": f"{split} {n}"} for n in range(3)]
        tables = {
            "instances": instances(),
            "person_keypoints": instances(annotations=[points], categories=CATEGORIES[:1]),
            "captions": {"images": [image(n) for n in range(3)], "annotations": captions},
        }
        put(root, {f"annotations/{kind}_{split}2017.json": table for kind, table in tables.items()})
    report = run(root, tmp_path / "out")
    assert (report.type, report.sample_type, report.splits) == ("detection", "DetectionSample", {"train": 3, "val": 3})
    assert report.recognized[1].startswith(
        "annotations of COCO: 6 boxes of 2 categories, 6 captions, 4 masks, 2 objects with keypoints, 2 of the boxes"
        " around crowds, in annotations/captions_train2017.json and 5 more"
    )
    assert "2 images without annotations, which are kept" in report.recognized and not report.left_out
    assert "not imported of the annotations: info, supercategory" in report.recognized
    sample = fm.open(tmp_path / "out", split="val")["val2017/0"]
    assert type(sample).__name__ == "DetectionSample" and sample.image.shape == (HEIGHT, WIDTH, 3)
    assert sample.boxes.tolist() == [[2, 3, 20.5, 13], [3, 10, 4, 30]] and sample.size == (HEIGHT, WIDTH)
    assert (sample.labels.tolist(), sample.label_names, sample.ids.tolist()) == ([1, 90], ["person", "cup"], [1, 2])
    assert (sample.crowd.tolist(), sample.areas.tolist()) == ([False, True], [90.25, 30])
    assert sample.masks[1].sum() == 30 and sample.masks[1][10:, 3].all() and 80 < sample.masks[0].sum() < 100
    assert sample.keypoints.tolist() == [[[3, 4, 2], [0, 0, 0], [9, 9, 1]], [[0, 0, 0]] * 3]
    assert (sample.keypoint_names, sample.keypoint_flip) == (NAMES, [0, 2, 1])
    assert sample.captions == ["val 0", "val 2"]
    raw = fm.open(tmp_path / "out", split="val", raw=True)["val2017/0"]
    assert raw["json"]["image"] == {"id": 10, "license": 3} and raw.raw("jpg") == picture(0)
    other = fm.open(tmp_path / "out", split="val")["val2017/1"]
    assert other.attributes == [{"score": 0.5}] and len(fm.open(tmp_path / "out", split="val")["val2017/2"].boxes) == 0


@pytest.mark.parametrize("place", ["source", "captions", "below"])
def test_one_file_of_annotations_beside_images(place: str, tmp_path: Path) -> None:
    root = coco(tmp_path)
    if place == "source":
        report = run([root / "imgs", root / "instances.json"], tmp_path / "out")
    elif place == "captions":
        table = {"images": [image(0), image(2)], "annotations": [{"id": 1, "image_id": 10, "caption": "zero"}]}
        put(root, {"c.json": table})
        report = run(root / "imgs", tmp_path / "out", captions=[root / "c.json"])
        assert (report.type, report.samples, report.sample_type) == ("captioning", 1, "CaptioningSample")
        assert reasons(report) == {"not listed in the annotations": 1, "image without a caption": 1}
        assert [sample.caption for sample in fm.open(tmp_path / "out")] == ["zero"]
        return
    else:
        report = run(root, tmp_path / "out")
    assert (report.type, report.samples, reasons(report)) == ("detection", 3, {})
    keys = [sample.__key__ for sample in fm.open(tmp_path / "out")]
    assert keys == ([f"{n}" for n in range(3)] if place == "source" else [f"imgs/{n}" for n in range(3)])


def test_captions_alone_are_asked_for(tmp_path: Path) -> None:
    root = coco(tmp_path)
    captions = [{"id": n, "image_id": 10, "caption": f"c{n}"} for n in range(2)] + [
        {"id": 9, "image_id": 11, "caption": " "}
    ]
    put(root, {"captions.json": {"images": [image(n) for n in range(3)], "annotations": captions}})
    report = run(root, tmp_path / "out", type="captioning")
    assert report.samples == 1 and "the caption of a sample is the first one" in report.recognized[-1]
    assert fm.open(tmp_path / "out", raw=True)[0]["json"]["captions"] == ["c0", "c1"]
    with pytest.raises(DataError, match="no caption of an image can be used"):
        run([root / "imgs", root / "instances.json"], tmp_path / "no", type="captioning")


def test_what_is_wrong_with_annotations_is_named(tmp_path: Path) -> None:
    bad = [
        thing(4, 99, [0, 0, 5, 5]),
        thing(5, 13, [0, 0, 5, 5]),
        thing(6, 10, [0, 0, 5, 5], 7),
        thing(7, 10, [0, 0, 0, 5]),
        thing(8, 10, [0, 0, -3, 5]),
        thing(9, 10, [40, 0, 5, 5]),
        thing(10, 10, [0, 0, 5]),  # type: ignore[list-item]
        thing(11, 10, [0, 0, None, 5]),  # type: ignore[list-item]
        {"id": 12, "image_id": 10, "category_id": 90},
        thing(13, 10, [0, 0, 5, 5], segmentation={"size": [3, 3], "counts": [9]}),
        thing(14, 10, [0, 0, 5, 5], segmentation=[[1, 2, 3]]),
        thing(15, 10, [0, 0, 5, 5], keypoints=[1, 2]),
        thing(16, 10, [0, 0, 5, 5]),
        thing(16, 10, [0, 0, 5, 5]),
        thing(16, 10, [0, 0, 6, 5]),
        thing(17, 10, [35, 0, 15, 5]),
    ]
    table = instances()
    table["annotations"] += bad
    table["images"] += [image(3), image(0, id=10), {"id": 5}, image(1, file_name="2.jpg")]
    table["categories"] = [*CATEGORIES, {"id": 1, "name": "again"}, {"name": "none"}]
    root = put(coco(tmp_path, **{"instances.json": table}), {"imgs/unlisted.jpg": picture(9)})
    report = run(root, tmp_path / "out")
    assert reasons(report) == {
        "a second category with an id": 1,
        "a category without id and name": 1,
        "an image that is not there": 1,
        "a second image with an id": 2,
        "an image without id and file_name": 1,
        "an annotation of an image that is not listed": 1,
        "an annotation of an image that is left out": 1,
        "an annotation of a category that is not listed": 1,
        "a box without area": 2,
        "a box outside the image": 1,
        "an annotation without a valid box": 3,
        "a mask that is not valid; its box is kept": 2,
        "keypoints that are not triples of numbers; their box is kept": 1,
        "an annotation that is there already": 1,
        "not listed in the annotations": 1,
    }
    assert report.left_out.names["a box outside the image"] == ["instances.json:8 (annotation 9, image 10)"]
    text = "\n".join(report.recognized)
    assert "warning: 1 box reaches beyond its image, and is kept (instances.json:18 (annotation 17" in text
    assert "warning: 1 id of several annotations in instances.json, which are kept (such as 16)" in text
    assert fm.open(tmp_path / "out")["imgs/0"].ids.tolist() == [1, 2, 13, 14, 15, 16, 16, 17]


@pytest.mark.parametrize(
    ("files", "error", "why"),
    [
        (
            {"instances.json": '{"images": [], "annotations": ['},
            DataError,
            "looks like annotations of COCO, and is not",
        ),
        ({"instances.json": {"images": {}, "annotations": []}}, DataError, "'images' of annotations of COCO must be"),
        ({"instances.json": {"images": [], "annotations": []}}, DataError, "no annotation of an image can be used"),
        ({"instances.json": instances(annotations=[])}, DataError, "no annotation of an image can be used"),
        (
            {"a.json": instances(), "b.json": instances(categories=[{"id": 1, "name": "dog"}])},
            ConfigError,
            "the category 1 is 'person' in one file and 'dog' in this one",
        ),
        ({"instances.json": instances(), "imgs/0.jpg": picture(size=(8, 9))}, None, "annotations of another size"),
        ({"instances.json": instances(), "imgs/0.jpg": b"no image"}, None, "an image that does not decode"),
        ({"instances.json": instances(), "imgs/0.jpg": b""}, None, "an empty file"),
    ],
)
def test_files_that_cannot_be_used(
    files: dict[str, Any], error: type[Exception] | None, why: str, tmp_path: Path
) -> None:
    root = coco(tmp_path / "raw", **files)
    if error is None:
        assert [why in reason for reason in reasons(run(root, tmp_path / "out"))] == [True]
        return
    for dry_run in (False, True):
        with pytest.raises(error, match=why):
            run(root, tmp_path / "out", dry_run=dry_run)


def test_types_that_do_not_fit(tmp_path: Path) -> None:
    root = coco(tmp_path)
    put(root, {"t.csv": "image,caption\nimgs/0.jpg,x\n"})
    with pytest.raises(
        ConfigError, match="there are no annotations of COCO, YOLO or Pascal VOC for the type 'detection'"
    ):
        run(root / "imgs", tmp_path / "out", type="detection")
    with pytest.raises(ConfigError, match=r"there are annotations of COCO \('instances.json'\), and this table"):
        run([root / "imgs", root / "instances.json"], tmp_path / "out", captions=[root / "t.csv"])
    with pytest.raises(ConfigError, match="this source is not used"):
        run([root / "imgs", root / "instances.json"], tmp_path / "out", type="media")


@pytest.mark.parametrize("declared", ["stored", "upright", "square"])
def test_boxes_of_images_with_an_orientation(declared: str, tmp_path: Path) -> None:
    size = (30, 30) if declared == "square" else (WIDTH, HEIGHT)
    listed = dict(zip(("width", "height"), size[::-1] if declared == "upright" else size, strict=True))
    table = instances(images=[image(0, **listed)], annotations=[thing(1, 10, [2, 3, 10, 5])])
    put(tmp_path, {"imgs/0.jpg": picture(turn=6, size=size), "a.json": table})
    report = run(tmp_path, tmp_path / "out")
    assert report.turned == 1 and "boxes of these images are turned with them" in report.recognized[-1]
    upright = fm.open(tmp_path / "out")[0]
    stored = fm.open(tmp_path / "out", decode={"orientation": "stored"})[0]
    for sample in (upright, stored):
        assert sample.size == sample.image.shape[:2]
    # a quarter turn clockwise makes it upright: x is height - y
    if declared == "upright":
        assert upright.boxes.tolist() == [[2, 3, 12, 8]] and stored.boxes.tolist() == [[3, 18, 8, 28]]
    else:
        assert stored.boxes.tolist() == [[2, 3, 12, 8]] and upright.boxes.tolist() == [[22, 2, 27, 12]]


LABELS = {
    "0": "0 0.5 0.5 0.25 0.2\n1 0.1 0.2 0.3 0.2 0.3 0.5\n",
    "1": "",
    "2": "0 .5 .5 .25 .2\n0 .5 .5 .25 .2\nx\n7 .5 .5 .1 .1\n0 2 2 .1 .1\n0 .5 .5 0 .1\n1 .5 .5 .1 .1 .3\n",
}


def yolo(form: Callable[[str, str], str], **more: Any) -> dict[str, Any]:
    """Return the files of a folder; `form` makes the path of an image or a label."""
    files: dict[str, Any] = {form("images", f"{n}.jpg"): picture(n) for n in range(4)}
    return {**files, **{form("labels", f"{n}.txt"): text for n, text in LABELS.items()}, **more}


@pytest.mark.parametrize("layout", ["ultralytics", "roboflow", "beside", "two sources", "listed"])
def test_folders_of_yolo(layout: str, tmp_path: Path) -> None:
    root, yaml = tmp_path / "raw", "path: .\ntrain: images/train\nval: images/val\nnames: {0: cat, 1: no}\n"
    form, more = {
        "ultralytics": (lambda kind, name: f"{kind}/val/{name}", {"data.yaml": yaml}),
        "roboflow": (lambda kind, name: f"valid/{kind}/{name}", {"data.yaml": "nc: 2\nnames: [cat, 'no']\n"}),
        "beside": (lambda _, name: f"val/{name}", {"val/classes.txt": "cat\nno\n"}),
        "two sources": (lambda kind, name: f"{kind}/{name}", {"labels/classes.txt": "cat\nno\n"}),
        "listed": (
            lambda kind, name: f"{kind}/{name}",
            {
                "data.yaml": "val: val.txt\nnames: [cat, no]\n",
                "val.txt": "".join(f"./images/{n}.jpg\n" for n in range(4)),
            },
        ),
    }[layout]
    put(root, yolo(form, **more))
    report = run([root / "images", root / "labels"] if layout == "two sources" else root, tmp_path / "out")
    assert report.type == "detection" and report.splits == {"train" if layout == "two sources" else "val": 4}
    assert report.recognized[1].startswith("annotations of YOLO: 3 boxes of 2 categories, 1 mask, in ")
    assert "2 images without annotations, which are kept" in report.recognized
    assert reasons(report) == {
        "a line of labels that is there already": 1,
        "a line of labels that is no class with numbers": 1,
        "a label of a class that is not listed": 1,
        "a box outside the image": 1,
        "a box without area": 1,
        "a line of labels that is neither a box, a polygon nor keypoints": 1,
    }
    samples = list(fm.open(tmp_path / "out", split=next(iter(report.splits))))
    assert samples[0].boxes.tolist() == [[15, 12, 25, 18], [4, 6, 12, 15]]
    assert samples[0].label_names == ["cat", "no"] and samples[0].labels.tolist() == [0, 1]
    assert not samples[0].masks[0].any() and samples[0].masks[1].sum() == pytest.approx(36, abs=6)
    assert [len(sample.boxes) for sample in samples] == [2, 0, 1, 0]
    assert resize(samples[0], 60, 80).masks[1].sum() == 4 * samples[0].masks[1].sum()


def test_keypoints_of_yolo_and_turned_images(tmp_path: Path) -> None:
    yaml = "names: [person]\nkpt_shape: [2, {}]\nflip_idx: [1, 0]\n"
    for size, points in ((3, "0.25 0.5 2 0 0 0"), (2, "0.25 0.5 0 0")):
        files = {"images/0.jpg": picture(turn=6), "labels/0.txt": f"0 0.5 0.5 0.2 0.4 {points}"}
        run(put(tmp_path / f"raw{size}", {**files, "data.yaml": yaml.format(size)}), tmp_path / f"out{size}")
        sample = fm.open(tmp_path / f"out{size}")[0]  # YOLO's labels are those of the upright image
        assert sample.size == (WIDTH, HEIGHT) and sample.boxes.tolist() == [[12, 12, 18, 28]]
        assert sample.keypoints.tolist() == [[[7.5, 20, 2], [0, 0, 0]]]
        assert flip(sample).keypoints.tolist() == [[[0, 0, 0], [21.5, 20, 2]]]


def test_texts_beside_images_are_no_labels_of_yolo(tmp_path: Path) -> None:
    root = put(tmp_path / "raw", {**{f"{n}.jpg": picture(n) for n in range(3)}, "c.yaml": "a: 1\n"})
    put(root, {f"{n}.txt": f"{n} 2 3 4 5\n" for n in range(3)})
    assert run(root, tmp_path / "out", exclude=["*.yaml"]).type == "captioning"
    put(root, {"c.yaml": "names: [a]\n", **{f"{n}.txt": "a caption\n" for n in range(3)}})
    assert run(root, tmp_path / "out2", exclude=["*.yaml"]).type == "captioning"


@pytest.mark.parametrize("names", ["[{a: 1}]", "{x: cat}"])
def test_names_of_classes_that_are_none(names: str, tmp_path: Path) -> None:
    root = put(tmp_path / "raw", yolo(lambda kind, name: f"{kind}/{name}", **{"data.yaml": f"names: {names}\n"}))
    with pytest.raises(DataError, match="the names of classes must be texts by number"):
        run(root, tmp_path / "out")


def voc(name: str, *boxes: tuple[str, int, int, int, int], size: bool = True) -> str:
    objects = "".join(
        f"<object><name>{kind}</name><difficult>1</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax>"
        f"<ymax>{d}</ymax></bndbox></object>"
        for kind, a, b, c, d in boxes
    )
    about = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>" if size else ""
    return f"<annotation><filename>{name}</filename>{about}{objects}</annotation>"


def test_a_folder_of_voc(tmp_path: Path) -> None:
    root = put(tmp_path / "VOC2012", {f"JPEGImages/{n}.jpg": picture(n) for n in range(4)})
    put(
        root,
        {
            "Annotations/0.xml": voc("0.jpg", ("dog", 1, 1, 40, 30), ("cat", 5, 6, 5, 6)),
            "Annotations/1.xml": voc("1.jpg", ("cat", 2, 3, 10, 20), ("cat", 9, 9, 3, 20), size=False),
            "Annotations/2.xml": "<annotation>",
            "Annotations/3.xml": voc("3.jpg"),
            "Annotations/9.xml": voc("9.jpg", ("cat", 2, 3, 10, 20)),
            "Annotations/x.xml": "<!DOCTYPE a [<!ENTITY b 'c'>]><annotation/>",
            "ImageSets/Main/train.txt": "0\n1\n",
            "ImageSets/Main/val.txt": "3 -1\n",
            "ImageSets/Main/cat_train.txt": "0 1\n1 -1\n",
            "SegmentationObject/0.png": picture(5, size=(8, 8)),
        },
    )
    report = run(root, tmp_path / "out")
    assert (report.type, report.splits) == ("detection", {"train": 2, "val": 1})
    found = reasons(report)
    assert found.pop("document beside image files") == 1  # cat_train.txt
    assert found == {
        "a picture of masks of another size than its image": 1,
        "XML that is not valid": 1,
        "XML with entities, which is not read": 1,
        "annotations without an image": 1,
        "a box without area": 1,
        "in no list of ImageSets/Main": 1,
    }
    sample = fm.open(tmp_path / "out", split="train")["JPEGImages/0"]
    assert sample.boxes.tolist() == [[0, 0, 40, 30], [4, 5, 5, 6]] and sample.label_names == ["dog", "cat"]
    assert sample.labels.tolist() == [1, 0] and sample.attributes == [{"difficult": 1}] * 2 and sample.ids is None
    assert fm.open(tmp_path / "out", split="train")["JPEGImages/1"].boxes.tolist() == [[1, 2, 10, 20]]


def masks(*things: tuple[int, int, int, int, int], colors: bool = False) -> bytes:
    """Return a picture of masks as VOC has it: numbers with a palette, 0 for none and 255 for borders."""
    numbers = np.zeros((HEIGHT, WIDTH), np.uint8)
    for number, left, top, right, bottom in things:
        numbers[top:bottom, left:right] = number
    file = io.BytesIO()
    made = Image.fromarray(numbers, "P")
    made.putpalette(
        [(37 * n + 11 * c) % 256 if 0 < n < 255 else 0 for n in range(255) for c in range(3)] + [224, 224, 192]
    )
    (made.convert("RGB") if colors else made).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("colors", [False, True])
def test_masks_of_voc(colors: bool, tmp_path: Path) -> None:
    """Object 2 has no mask, mask 3 begins with the border around it, and mask 7 is of no object."""
    things = ((1, 0, 0, 10, 10), (255, 19, 9, 31, 21), (3, 20, 10, 30, 20), (7, 35, 25, 40, 30))
    boxes = (("dog", 1, 1, 10, 10), ("cat", 12, 1, 16, 8), ("dog", 21, 11, 30, 20))
    files = {f"JPEGImages/{n}.jpg": picture(n) for n in range(3)} | {
        "Annotations/0.xml": voc("0.jpg", *boxes),
        "Annotations/1.xml": voc("1.jpg", ("cat", 2, 3, 10, 20)),
        "Annotations/2.xml": voc("2.jpg", ("cat", 2, 3, 10, 20)),
        "SegmentationObject/0.png": masks(*things, colors=colors),
        "SegmentationClass/0.png": masks(*things),
        "SegmentationObject/2.png": b"no picture",
        "SegmentationObject/5.png": masks(*things),
    }
    report = run(put(tmp_path / "VOC2012", files), tmp_path / "out")
    assert reasons(report) == {
        "pictures of the masks of classes, not of objects": 1,
        "masks of an image without annotations": 1,
        "a picture of masks that cannot be read": 1,
        "a mask that fills the box of no object": 1,
        "an object that no mask of its image fits; its box is kept": 1,
    }
    assert "annotations of Pascal VOC: 5 boxes of 2 categories, 2 masks" in report.recognized
    sample = fm.open(tmp_path / "out")["JPEGImages/0"]
    expected = np.zeros((3, HEIGHT, WIDTH), bool)
    expected[0, :10, :10] = expected[2, 10:20, 20:30] = True
    assert (sample.masks.bitmaps() == expected).all() and sample.masks.segments[1] is None


def test_masks_of_voc_in_another_order(tmp_path: Path) -> None:
    boxes = (("dog", 1, 1, 10, 10), ("cat", 21, 11, 30, 20))
    files = {"JPEGImages/0.jpg": picture(), "Annotations/0.xml": voc("0.jpg", *boxes)}
    files["SegmentationObject/0.png"] = masks((2, 0, 0, 10, 10), (1, 20, 10, 30, 20))
    run(put(tmp_path / "VOC", files), tmp_path / "out")
    sample = fm.open(tmp_path / "out")[0]
    assert sample.masks[0][:10, :10].all() and sample.masks[1][10:20, 20:30].all() and sample.masks[0].sum() == 100


def test_voc_that_begins_at_0(tmp_path: Path) -> None:
    files = {f"train/{n}.jpg": picture(n) for n in range(2)}
    put(tmp_path, {**files, "train/0.xml": voc("x.jpg", ("dog", 0, 0, 40, 30)), "train/1.xml": voc("1.jpg")})
    report = run(tmp_path, tmp_path / "out")
    assert "warning: boxes begin at 0, not at 1 as in VOC: they are taken as edges in pixels" in report.recognized
    assert fm.open(tmp_path / "out")[0].boxes.tolist() == [[0, 0, 40, 30]] and report.splits == {"train": 2}


def test_counterparts_of_keypoints() -> None:
    assert flip_of(["L_eye", "nose", "r_eye", "Left-ear", "right-EAR"]) == [2, 1, 0, 4, 3]
    assert flip_of(["left_eye", "nose"]) == [0, 1] and flip_of([]) is None


def test_two_ranks_and_a_second_source(tmp_path: Path) -> None:
    run(coco(tmp_path / "raw"), tmp_path / "boxes")
    put(
        tmp_path / "more",
        {f"{n}.{end}": picture(n) if end == "jpg" else f"c{n}" for n in range(4) for end in ("jpg", "txt")},
    )
    run(tmp_path / "more", tmp_path / "captions")
    blend = [{"path": str(tmp_path / "boxes"), "weight": 0.7}, {"path": str(tmp_path / "captions"), "weight": 0.3}]
    plan = fm.Recipe.parse({"blend": blend}).plan()
    known = {sample.__key__: flip(resize(sample, 16, 24)) for sample in fm.open(tmp_path / "boxes")}
    counts = [0, 0]
    for rank in range(2):
        loader = fm.Loader(plan, 5, rank=rank, world_size=2, transform=lambda s: flip(resize(s, 16, 24)))
        for _, batch in zip(range(10), loader, strict=False):
            assert batch["image"].shape == (5, 16, 24, 3) and type(batch["boxes"]) is list
            for key, boxes, masks, caption in zip(
                batch["__key__"], batch["boxes"], batch["masks"], batch["caption"], strict=True
            ):
                counts[boxes is None] += 1
                assert (boxes is None) == (caption is not None)
                if boxes is not None:
                    assert (boxes == known[key].boxes).all() and (masks.bitmaps() == known[key].masks.bitmaps()).all()
    assert counts == [70, 30]


def test_boxes_of_a_batch_are_a_list_even_if_their_numbers_agree(tmp_path: Path) -> None:
    table = instances(annotations=[thing(n, 10 + n, [0, 0, 5, 5]) for n in range(3)])
    run(coco(tmp_path, **{"instances.json": table}), tmp_path / "out")
    torch = pytest.importorskip("torch")
    batch = next(iter(fm.Loader(fm.Plan.over(fm.open(tmp_path / "out"), epochs=1), 3, output="torch")))
    assert [tuple(one.shape) for one in batch["boxes"]] == [(1, 4)] * 3 and type(batch["labels"]) is list
    assert all(isinstance(one, torch.Tensor) for one in batch["boxes"]) and batch["image"].shape == (
        3,
        HEIGHT,
        WIDTH,
        3,
    )


def test_labels_are_of_no_other_image_of_the_same_name(tmp_path: Path) -> None:
    files = {f"images/{split}/0.jpg": picture() for split in ("train", "val")}
    put(tmp_path / "raw", {**files, "labels/train/0.txt": "0 .5 .5 .1 .1", "labels/train/1.txt": "0 .5 .5 .1 .1"})
    report = run(put(tmp_path / "raw", {"data.yaml": "names: [a]"}), tmp_path / "out")
    assert [len(fm.open(tmp_path / "out", split=split)[0].boxes) for split in ("train", "val")] == [1, 0]
    assert reasons(report) == {"labels without an image": 1}


HUGE = [9e6, -9e6, -9e6, 9e6, 9e6, 9e6, -9e6, -9e6] * 20
ODD_COCO = {
    "crowd as text": ({"iscrowd": "0"}, "an annotation whose iscrowd is neither 0 nor 1"),
    "crowd in a list": ({"iscrowd": [0]}, "an annotation whose iscrowd is neither 0 nor 1"),
    "a class beyond 64 bits": ({"category_id": 2**70}, "an annotation of a category that is not listed"),
    "a box that is no area in float32": ({"bbox": [1, 1, 1e-9, 1]}, "a box without area"),
    "a far keypoint": ({"keypoints": [1e39, 1, 2]}, "keypoints that are not pairs of numbers with 0, 1 or 2"),
    "an odd visibility": ({"keypoints": [1, 1, 7]}, "keypoints that are not pairs of numbers with 0, 1 or 2"),
    "a long polygon": ({"segmentation": [HUGE]}, "a mask that is not valid; its box is kept"),
    "a number out of range": ({"score": "NUMBER"}, "an entry with a value that JSON readers refuse"),
    "a polygon out of range": ({"segmentation": [["NUMBER", 1, 2, 3, 4, 5]]}, "a mask that is not valid"),
}


@pytest.mark.parametrize("name", ODD_COCO)
def test_odd_values_of_coco_are_named_and_what_is_imported_is_read(name: str, tmp_path: Path) -> None:
    more, reason = ODD_COCO[name]
    odd = {**thing(2, 11, [1, 1, 5, 5]), **more}
    text = json.dumps(instances(annotations=[thing(1, 10, [2, 3, 8, 9]), odd])).replace('"NUMBER"', "1e400")
    report = run(coco(tmp_path / "raw", **{"instances.json": text}), tmp_path / "out")
    assert [(one[: len(reason)], count) for one, count in reasons(report).items()] == [(reason, 1)]
    for sample in fm.open(tmp_path / "out"):
        assert np.isfinite(sample.boxes).all() and sample.crowd.sum() == 0
        assert sample.masks is None or len(sample.masks.bitmaps()) == len(sample.boxes)


def test_an_id_that_is_a_list_in_two_files(tmp_path: Path) -> None:
    both = {f"{n}.json": instances(annotations=[thing([1], 10, [2, 3, 8, 9])]) for n in range(2)}  # type: ignore[arg-type]
    assert run(coco(tmp_path / "raw", **both), tmp_path / "out").samples == 3


@pytest.mark.parametrize("side", ["xmin", "xmax", "ymax"])
def test_a_box_of_voc_that_is_no_number(side: str, tmp_path: Path) -> None:
    edges = {"xmin": 1, "ymin": 2, "xmax": 9, "ymax": 8, side: "nan"}
    box = "".join(f"<{name}>{value}</{name}>" for name, value in edges.items())
    xml = f"<annotation><object><name>cup</name><bndbox>{box}</bndbox></object></annotation>"
    good = xml.replace("nan", "1" if side == "xmin" else "10")
    raw = put(tmp_path / "raw", {"0.jpg": picture(0), "0.xml": xml, "1.jpg": picture(1), "1.xml": good})
    assert reasons(run(raw, tmp_path / "out")) == {"an annotation without a valid box": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 nan .5 .5 .5", "a line of labels that is no class with numbers"),
        ("9.3e18 .5 .5 .5 .5", "a line of labels that is no class with numbers"),
        ("0 300 .5 .2 .2", "an annotation without a valid box"),
    ],
)
def test_odd_lines_of_yolo(line: str, reason: str, tmp_path: Path) -> None:
    files = {
        "images/0.jpg": picture(0),
        "images/1.jpg": picture(1),
        "labels/0.txt": line,
        "labels/1.txt": "0 .5 .5 .2 .2",
    }
    report = run(put(tmp_path / "raw", files), tmp_path / "out")
    assert reasons(report) == {reason: 1} and [len(each.boxes) for each in fm.open(tmp_path / "out")] == [0, 1]
