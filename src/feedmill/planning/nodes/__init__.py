"""The nodes of a plan: pure, invertible maps from positions to samples, composed into a tree."""

from feedmill.planning.nodes.base import Leaf, Located, Node
from feedmill.planning.nodes.blend import Blend, Concat, EpochizedBlend, Interleaved, StagedBlend
from feedmill.planning.nodes.curriculum import Curriculum
from feedmill.planning.nodes.groups import Groups
from feedmill.planning.nodes.repeat import Repeat
from feedmill.planning.nodes.shuffle import BlockShuffle, ShardShuffle, Shuffle, shuffled
from feedmill.planning.nodes.skip import Skip
from feedmill.planning.nodes.subset import Subsample, Subset

__all__ = [
    "Blend",
    "BlockShuffle",
    "Concat",
    "Curriculum",
    "EpochizedBlend",
    "Groups",
    "Interleaved",
    "Leaf",
    "Located",
    "Node",
    "Repeat",
    "ShardShuffle",
    "Shuffle",
    "Skip",
    "StagedBlend",
    "Subsample",
    "Subset",
    "shuffled",
]
