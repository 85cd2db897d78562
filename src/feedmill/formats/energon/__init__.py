"""WebDataset tars with ``.nv-meta``, as Megatron Energon prepares them.

- `prepared.py`: names of its files, shards (and whether they changed), and opening; `write.py`: writing them.
- `database.py`, `index.py`, `members.py`, `media.py`, `costs.py`: what ``index.sqlite`` and the files beside it hold.
- `join.py`: joins of a metadataset; `sidecar.py`: hashes of shards, and the split file; `all_offsets.py`: the offsets
  of all shards.
"""

from feedmill.formats.format import SAMPLES, Format, TargetFormat

ENERGON = Format(
    "energon",
    "prepared WebDataset",
    "samples",
    open="feedmill.formats.energon.prepared:open_found",
    marks=(".nv-meta/.info.json",),
    later_marks=(".nv-meta/.info.yaml",),
    small=(
        ".nv-meta/dataset.yaml",
        ".nv-meta/split.yaml",
        ".nv-meta/feedmill.shards.json",
        ".nv-meta/feedmill.offsets",
        ".nv-meta/index.uuid",
    ),
    shared=(".nv-meta/feedmill.offsets",),
    splits=True,
    options=("split_config",),
    finds_train=True,
    check="tars",
    repair="tars",
    targets=(
        TargetFormat(
            "webdataset",
            "a prepared folder: tars and `.nv-meta`, with crude samples if the source has no sample type",
            "media metadata, unless all samples are converted",
            "prepared",
            SAMPLES,
            shards="shards/%06d.tar",
            beside="feedmill.formats.energon.write:BESIDE",
            keeps=("splits", "description", "media"),
        ),
    ),
)
FORMATS = (ENERGON,)
