"""VLA Foundry's datasets: WebDataset tars that a ``manifest.jsonl`` lists.

Layout::

    manifest.jsonl              {"shard": "shards/shard-000000.tar", "num_sequences": 512} on each line
    shards/shard-000000.tar     samples: consecutive members with one key, see `feedmill.formats.tar.dataset`
    stats.json                  statistics of robotics data: see `feedmill.samples.robotics.statistics`
    .feedmill/manifest.jsonl.tars   Feedmill's own index, if it was written; it may be in another folder

Names are relative to the manifest's folder, with ``.tar`` (as in VLA Foundry's documentation) or without (as in its
code). Their order is the order of the dataset; a shard may be listed twice. Further keys of a line are ignored. Empty
lines are errors. So are names that leave the folder, absolute paths, URLs, and names with ``::`` or ``pipe:``, with
which WebDataset would run a command.

VLA Foundry takes the number of samples from the manifest and never compares it with the shards. Feedmill raises an
error at opening if a count differs from the shard's.
"""

from feedmill.formats.format import SAMPLES, Format, TargetFormat

COMPANIONS = ("stats.json", "preprocessing_config.yaml", "processing_metadata.json")
"""Files beside the manifest of robotics data that a training run needs."""
VLA = Format(
    "vla",
    "VLA Foundry's manifest",
    "samples",
    open="feedmill.formats.vla.dataset:open_found",
    files=(".jsonl",),
    is_file="feedmill.formats.vla.manifest:looks_like_manifest",
    marks=("manifest.jsonl",),
    is_folder="feedmill.formats.vla.manifest:mark",
    check="manifest",
    repair=(
        "a folder of VLA Foundry has a manifest instead of an index, and cannot be repaired as a whole",
        "Repair the shards that 'feedmill check' reports one by one ('feedmill edit repair {folder}/SHARD.tar'), then"
        " write the manifest again: 'feedmill compat vla manifest {folder} --overwrite'.",
    ),
    data=("tars",),
    beside=("manifest.jsonl", *COMPANIONS),
    scanned=True,
    targets=(
        TargetFormat(
            "vla",
            "a folder of tars and `manifest.jsonl`",
            "splits, sample types, subflavors",
            "manifest",
            SAMPLES,
            shards="shards/shard-%06d.tar",
            beside="feedmill.formats.vla.manifest:BESIDE",
            keeps=("companions",),
        ),
    ),
)
FORMATS = (VLA,)
