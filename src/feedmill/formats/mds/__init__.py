"""MosaicML's shards (MDS): `dataset.py`, `write.py`, and the types of their columns (`encodings.py`)."""

from feedmill.formats.format import SAMPLES, Format, Target

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
        Target(
            "mds",
            "MosaicML's shards and `index.json`",
            "splits, sample types, missing bytes",
            SAMPLES,
            shards="shard.%05d.mds",
            beside="feedmill.formats.mds.dataset:BESIDE",
            surveyed=True,
        ),
    ),
)
FORMATS = (MDS,)
