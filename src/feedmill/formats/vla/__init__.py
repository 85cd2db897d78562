"""VLA Foundry's datasets: WebDataset tars that a ``manifest.jsonl`` lists.

Layout::

    manifest.jsonl              {"shard": "shards/shard-000000.tar", "num_sequences": 512} on each line
    shards/shard-000000.tar     samples: consecutive members with one key, see `feedmill.formats.tar.dataset`
    stats.json                  of robotics data: see `feedmill.samples.robotics.statistics`
    .feedmill/manifest.jsonl.tars   Feedmill's own index, where it was made; it may lie in another folder

Names are relative to the manifest's folder, with ``.tar`` (as VLA Foundry's documentation has them) or without (as its
code does). Their order is the order of the dataset; a shard may be listed twice. Further keys of a line are left
alone; empty lines are refused. So are names that leave the folder, are absolute or URLs, or hold ``::`` or ``pipe:``,
with which WebDataset would run a command.

The manifest's counts decide how many samples training takes, and nothing compares them with the shards there: here a
count that is not the shard's is an error at opening.
"""

from feedmill.formats.format import SAMPLES, Format, TargetFormat

COMPANIONS = ("stats.json", "preprocessing_config.yaml", "processing_metadata.json")
"""Files of VLA Foundry's robotics beside a manifest: a run needs them."""
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
        "a folder of VLA Foundry has a manifest and no index, and cannot be repaired as a whole",
        "Repair the shards that 'feedmill check' reports one by one ('feedmill repair {folder}/SHARD.tar'), then"
        " write the manifest again: 'feedmill vla manifest {folder} --overwrite'.",
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
