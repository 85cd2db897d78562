"""Drop-in support for VLA Foundry's run configurations: manifests and weights, modalities, checkpoint windows.

from feedmill.compat.vla import VlaRun

run = VlaRun.load("config.yaml", ["--data.dataset_weighting", "[0.7, 0.3]"])
loader = run.loader(rank=0, world_size=8)
for window in run.windows():
    for batch in run.batches(loader, window): ...
"""

from feedmill.compat.vla.original import OriginalOrder
from feedmill.compat.vla.run import CheckpointWindow, VlaEncoder, VlaRun

__all__ = ["CheckpointWindow", "OriginalOrder", "VlaEncoder", "VlaRun"]
