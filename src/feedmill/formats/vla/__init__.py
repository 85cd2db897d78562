"""VLA Foundry's datasets: WebDataset tars that a ``manifest.jsonl`` lists.

Layout::

    manifest.jsonl              {"shard": "shards/shard-000000.tar", "num_sequences": 512} on each line
    shards/shard-000000.tar     samples: consecutive members with one key, see `feedmill.formats.webdataset`
    stats.json                  of robotics data: see `feedmill.samples.robotics.statistics`
    .feedmill/manifest.jsonl.tars   Feedmill's own index, where it was made; it may lie in another folder

Names are relative to the manifest's folder, with ``.tar`` (as VLA Foundry's documentation has them) or without (as its
code does). Their order is the order of the dataset; a shard may be listed twice. Further keys of a line are left
alone; empty lines are refused. So are names that leave the folder, are absolute or URLs, or hold ``::`` or ``pipe:``,
with which WebDataset would run a command.

The manifest's counts decide how many samples training takes, and nothing compares them with the shards there: here a
count that is not the shard's is an error at opening.
"""
