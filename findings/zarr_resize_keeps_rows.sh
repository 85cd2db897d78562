#!/usr/bin/env bash
# Rows that a Zarr array loses by becoming shorter are there again when it becomes longer: up to a whole shard of them.
#
# `resize` deletes the chunks, or shards, that lie outside, and leaves the last one as it is. A buffer of episodes that is
# cut back to its last whole one and then made longer, before it is filled, has the cut frames between the others, where
# the fill value is expected. Format 2 and TensorStore do the same; HDF5 clears the end of the last chunk.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    zarr==3.1.6 h5py==3.16.0 tensorstore==0.1.86 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import h5py
import numpy as np
import tensorstore
import zarr

frames = np.arange(10, dtype="int32")


def cut_and_grown(array):
    array[:] = frames
    array.resize((2,))
    array.resize((10,))
    return array[:].tolist()


def in_zarr(**layout):
    return cut_and_grown(zarr.create_array({}, shape=(10,), dtype="int32", fill_value=-1, **layout))


def in_hdf5():
    with h5py.File("frames.h5", "w") as file:
        return cut_and_grown(
            file.create_dataset("frames", (10,), "int32", maxshape=(None,), chunks=(4,), fillvalue=-1)
        )


def in_tensorstore():
    grid = {"name": "regular", "configuration": {"chunk_shape": [4]}}
    metadata = {"shape": [10], "data_type": "int32", "fill_value": -1, "chunk_grid": grid}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    array = tensorstore.open(spec, create=True).result()
    array.write(frames).result()
    for length in (2, 10):
        array = array.resize(exclusive_max=[length]).result()
    return array.read().result().tolist()


print(", ".join(f"{name} {version(name)}" for name in ("zarr", "h5py", "tensorstore")))
print("  10 frames, cut to 2, made 10 long again:")
for name, seen, back in (
    ("zarr, chunks of 4", in_zarr(chunks=(4,)), 4),
    ("zarr, shards of 8, chunks of 4", in_zarr(chunks=(4,), shards=(8,)), 8),
    ("zarr, format 2, chunks of 4", in_zarr(chunks=(4,), zarr_format=2), 4),
    ("tensorstore, chunks of 4", in_tensorstore(), 4),
    ("h5py, chunks of 4", in_hdf5(), 2),
):
    print(f"  {name}: {seen}")
    assert seen == [*range(back), *[-1] * (10 - back)], "changed"
PYTHON
