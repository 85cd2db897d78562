"""MosaicML's shards (MDS): `dataset.py`, with the types of their columns, and `write.py`."""

from feedmill.formats.format import SAMPLES, Format, TargetFormat

MDS = Format(
    "mds",
    "MosaicML's MDS",
    "samples",
    open="feedmill.formats.mds.dataset:open_found",
    marks=("index.json",),
    is_folder="feedmill.formats.mds.dataset:mark",
    data=("MDS",),
    beside=("index.json",),
    targets=(
        TargetFormat(
            "mds",
            "MosaicML's shards and `index.json`",
            "splits, sample types, missing bytes",
            "shards",
            SAMPLES,
            shards="shard.%05d.mds",
            surveyed=True,
            writer="feedmill.formats.mds.write:WRITER",
            shard_size=64 << 20,
        ),
    ),
)
FORMATS = (MDS,)
