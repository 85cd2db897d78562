"""Record what pycocotools decodes: ``pip install pycocotools==2.0.11 numpy``, then ``python record.py``."""

import json
from pathlib import Path

import numpy as np
from pycocotools import mask

POLYGONS = [
    [[0, 0, 10, 0, 10, 10, 0, 10]],
    [[-5, -5, 30, -5, 30, 30, -5, 30]],
    [[1.5, 1.5, 1.5, 1.5, 1.5, 1.5]],
    [[3, 3, 9, 3, 3, 3]],
    [[2, 2, 12, 9, 2, 9], [5, 5, 15, 5, 15, 14]],
    [[20, 1, 1, 1, 1, 12, 9.5, 4.5]],
    [[100, 100, 120, 100, 110, 120]],
    [[4.6, 2.2, 9.9, 7.7, 4.6, 13.1, 0.3, 7.7]],
]


def runs(bitmap):
    flat = np.asarray(bitmap).T.ravel()
    edges = np.flatnonzero(np.diff(flat, prepend=0))
    return np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()


def packed(bitmap):
    return {"size": list(bitmap.shape), "counts": mask.encode(np.asfortranarray(bitmap))["counts"].decode()}


def main():
    rng = np.random.default_rng(3)
    out = []
    for _ in range(16):
        corners = int(rng.integers(3, 10))
        POLYGONS.append([rng.uniform(-4, 26, 2 * corners).round(2).tolist() for _ in range(int(rng.integers(1, 3)))])
    for number, polygons in enumerate(POLYGONS):
        size = (14, 21) if number % 2 else (19, 16)
        bitmap = mask.decode(mask.merge(mask.frPyObjects(polygons, *size)))
        out.append({"size": size, "segmentation": polygons, "runs": runs(bitmap)})
    for share in (0, 1, 0.5, 0.02, 0.98, 0.3, 0.7, 0.5):
        bitmap = (rng.random(rng.integers(1, 40, 2)) < share).astype(np.uint8)
        out.append({"size": bitmap.shape, "segmentation": packed(bitmap), "runs": runs(bitmap)})
    large = np.zeros((300, 400), np.uint8)  # its runs have numbers of several characters
    large[20:280, 30:390] = 1
    large[100:110] = 0
    out.append({"size": large.shape, "segmentation": packed(large), "runs": runs(large)})
    table = {"made by": "pycocotools 2.0.11", "masks": out}
    Path(__file__).with_name("masks.json").write_text(json.dumps(table, separators=(",", ":")) + "\n")


main()
