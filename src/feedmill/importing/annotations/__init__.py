"""Annotations of images: COCO, folders of YOLO, and Pascal VOC.

`find_annotations` recognizes the files, `read_annotations` reads the objects of each image, and `completed` adds what
only the image tells: its size and orientation. Whatever the source has, boxes become ``x1, y1, x2, y2`` in pixels:

    COCO    ``x, y, width, height`` in pixels
    YOLO    center, width and height as parts of the upright image; polygons and keypoints likewise
    VOC     first and last pixel, counted from 1; if a box of the folder begins at 0, the edges in pixels

`base.py` has what they share; `coco.py`, `yolo.py` and `voc.py` find and read the files of one of them.

Sources: https://cocodataset.org/#format-data, https://docs.ultralytics.com/datasets/, and the development kit of VOC
2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from feedmill.formats.orientation import turned
from feedmill.importing.annotations import coco, voc, yolo
from feedmill.importing.annotations.base import COCO, VOC, YOLO, Annotations, Read, Reader, image_size
from feedmill.importing.kinds import IMAGE, Name
from feedmill.importing.scanning import File, Files
from feedmill.jobs.reports import LeftOut
from feedmill.samples.imageheader import orientation_in

_FORWARD = {COCO: "stored", YOLO: "upright", VOC: "stored"}
"""What boxes refer to if the size of a turned image does not tell."""


def find_annotations(
    files: Files, divided: Sequence[tuple[File, Name]], tables: Sequence[File] = ()
) -> Annotations | None:
    """Return the annotations among the files; None if there are none.

    Args:
        divided: files of all kinds, images among them.
        tables: files that are about media because the user named them.

    Raises:
        DataError: a file that looks like COCO's cannot be read.
    """
    stems = {name.stem for _, name in divided if name.kind == IMAGE}
    if not stems:
        return None
    named = {*tables, *(file for file in files.files if (file.root, file.path) in files.typed)}
    for find in (coco.find, voc.find, yolo.find):
        found = find(files, divided, stems, named)
        if found is not None:
            return found
    return None


def read_annotations(
    files: Files, images: Sequence[tuple[File, Name]], found: Annotations, left: LeftOut, *, objects: bool = True
) -> Read:
    """Return the annotations of all images; those that cannot be used are added to `left`.

    Args:
        images: image files.
        objects: read objects, not only captions.

    Raises:
        ConfigError: two files give one category different names.
        DataError: a file of annotations is damaged as a whole.
    """
    readers: dict[str, type[Reader]] = {COCO: coco.Coco, YOLO: yolo.Yolo, VOC: voc.Voc}
    reader = readers[found.kind](files, images, found, left)
    reader.objects = objects
    reader.read()
    return reader.result()


def completed(content: bytes, data: bytes) -> bytes | str:
    """Return the part ``json`` of a sample, or the reason why its annotations are not those of the image.

    Adds ``size``, the height and width of the image to which boxes refer, and for an image with an orientation how the
    objects are turned, see `DetectionSample.of_parts`.

    Args:
        content: of `Annotated`.
        data: the image file.
    """
    made = orjson.loads(content)
    width, height = image_size(data)
    orientation = orientation_in(data)
    stored, upright = [height, width], [width, height] if turned(orientation) else [height, width]
    frame, size = _FORWARD[made.pop("source")], made["size"]
    if size is None:
        size = upright if frame == "upright" else stored
        _scale(made, *size)
    elif size not in (stored, upright):
        return f"annotations of another size ({size[1]} x {size[0]}, the image has {width} x {height})"
    elif stored != upright:
        frame = "stored" if size == stored else "upright"
    made["size"] = {"height": size[0], "width": size[1]}
    if orientation != 1:
        back = {6: 8, 8: 6}.get(orientation, orientation)
        made["size"] |= {"apply": orientation, "stored": 1} if frame == "stored" else {"apply": 1, "stored": back}
    return orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY)


def _scale(made: dict[str, Any], height: int, width: int) -> None:
    """Change parts of an image's size to pixels."""
    count = len(made["boxes"])
    boxes = np.array(made["boxes"], np.float64).reshape(count, 4) * [width, height, width, height]
    made["boxes"] = boxes.astype(np.float32)
    made["areas"] = [area * height * width for area in made["areas"]]
    if "keypoints" in made and count:
        made["keypoints"] = (np.array(made["keypoints"], np.float64) * [width, height, 1]).astype(np.float32)
    for polygons in made.get("masks") or ():
        for number, polygon in enumerate(polygons or ()):
            corners = np.array(polygon, np.float64).reshape(-1, 2) * [width, height]
            polygons[number] = corners.astype(np.float32).ravel()
