"""NumPy's ``.npz`` files: as bytes in memory (`arrays.py`), and as shards of samples.

`dataset.py` has the layout of shards and reads ranges of a stored file, `write.py` writes them.
"""

from feedmill.formats.format import SAMPLES, Format, TargetFormat

NPZ = Format(
    "npz",
    "NumPy's `.npz` shards",
    "samples",
    open="feedmill.formats.npz.dataset:open_found",
    files=(".npz",),
    folders=(".npz",),
    listed=(".npz",),
    data=("NumPy archives",),
    scanned=True,
    targets=(
        TargetFormat(
            "npz",
            "a folder of `.npz` files",
            "splits, sample types",
            "shards",
            SAMPLES,
            shards="shard-%06d.npz",
            writer="feedmill.formats.npz.write:WRITER",
            shard_size=64 << 20,
            surveyed=True,
        ),
    ),
)
FORMATS = (NPZ,)
