"""The nodes of a plan: pure, invertible maps from positions to samples, composed into a tree."""

from feedmill.planning.nodes.base import Leaf, Located, Node
from feedmill.planning.nodes.blend import Blend, Interleaved
from feedmill.planning.nodes.concat import Concat
from feedmill.planning.nodes.epochized import EpochizedBlend
from feedmill.planning.nodes.repeat import Repeat
from feedmill.planning.nodes.shards import ShardShuffle, shuffled
from feedmill.planning.nodes.shuffle import BlockShuffle, Shuffle
from feedmill.planning.nodes.skip import Skip
from feedmill.planning.nodes.staged import StagedBlend
from feedmill.planning.nodes.subset import Subset

__all__ = [
    "Blend",
    "BlockShuffle",
    "Concat",
    "EpochizedBlend",
    "Interleaved",
    "Leaf",
    "Located",
    "Node",
    "Repeat",
    "ShardShuffle",
    "Shuffle",
    "Skip",
    "StagedBlend",
    "Subset",
    "shuffled",
]
