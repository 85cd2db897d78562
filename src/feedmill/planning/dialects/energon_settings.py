"""The settings of Energon's metadatasets and split files; those of ``dataset.yaml`` are in the room that reads it."""

from __future__ import annotations

from feedmill.formats.settings import Fate, Origin, Setting, Table, mapped

_V1, _V2 = "megatron/energon/metadataset/metadataset.py", "megatron/energon/metadataset/metadataset_v2.py"
_STRUCTS = "megatron/energon/flavors/webdataset/structs.py"


def _fields(file: str, *names: str) -> tuple[Origin, ...]:
    return tuple(Origin("fields", file, name) for name in names)


_PASSES = mapped(
    "null: stored order. *n*: each sample *n* times in *n* passes, each a permutation; an epoch of `blend_epochized`,"
    " or of a single dataset, has *n* times as many passes. -1 (draws with replacement): 1, with a warning in the log,"
    " and an error in `blend_epochized`. Factors of nested files multiply"
)
_INTERNAL = Setting(Fate.REFUSED, "it is internal")
_REFERENCE = {
    "path": mapped("the dataset or metadataset, relative to the file"),
    "split_part": mapped("name of the split"),
    "subflavors": mapped("data attached to every sample; outer files override inner ones"),
    "shuffle_over_epochs_multiplier": _PASSES,
    "dataset_config": mapped("name of another description of a dataset; an error for a metadataset or a join"),
    "split_config": mapped("name of another split file of a dataset; an error for a metadataset or a join"),
    "_dataset": _INTERNAL,
}

V1 = Table(
    face="metadatasets V1",
    origin=(
        *_fields(_V1, "DatasetReference", "MetadatasetBlender"),
        Origin("parameters", _V1, "Metadataset.__init__"),
    ),
    settings={
        **_REFERENCE,
        "splits": mapped("the splits"),
        "datasets": mapped("the datasets of a split, blended by weight"),
        "weight": mapped("share of the samples"),
        "subflavor": mapped("the old name of the subflavor `__subflavor__`"),
    },
)
V2 = Table(
    face="metadatasets V2",
    origin=_fields(
        _V2,
        "DatasetReference",
        "JoinDatasetReference",
        "MetadatasetJoin",
        "BlendWeightMixin",
        "BlendRepetitionsMixin",
        "MetadatasetBlend",
        "MetadatasetBlendEpochized",
        "SubsetRatioMixin",
        "Subset",
        "MetadatasetV2",
    ),
    settings={
        **_REFERENCE,
        "splits": mapped("the splits"),
        "shuffle_over_epochs_multiplier": mapped(_PASSES.words + ". Energon 7.4.1 ignores that of a join"),
        "aux": mapped("auxiliary data of a dataset; an error for a metadataset"),
        "subset": mapped(
            "a range of the samples, excluded ones included, as in Energon; an error at a dataset of a join"
        ),
        "range": mapped(
            "sample numbers of a dataset or join, or percentages. These are exact here, floats in Energon: 29% of 100"
            " samples are 29 here, and 28 there"
        ),
        "blend": mapped("sources by weight"),
        "weight": mapped("share of the samples"),
        "blend_epochized": mapped("sources by repetitions"),
        "repetitions": mapped("passes in an epoch, also fractional"),
        "join": mapped("datasets whose samples are joined by key"),
        "joiner": mapped("the type or function (only with `trust`) that makes a sample"),
        "nonmatch": mapped("what happens without a partner: `error`, `skip` or `none`"),
    },
)
SPLIT_FILE = Table(
    face="`split.yaml`",
    origin=_fields(_STRUCTS, "WebdatasetSplits"),
    settings={
        "split_parts": mapped("split -> its shards"),
        "exclude": mapped("shards and samples that no split has"),
    },
)

TABLES = (V1, V2, SPLIT_FILE)
