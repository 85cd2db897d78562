"""The settings of ``dataset.yaml``, and what some of them say of the order in which samples are read for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.base import Order
from feedmill.formats.settings import Fate, Origin, Setting, Table, mapped

_FACTORIES = "megatron/energon/flavors/webdataset"


def _never(why: str) -> Setting:
    """Return a setting that is an error with every value: also null and false change what Energon reads."""
    return Setting(Fate.REFUSED, why)


DATASET_YAML = Table(
    face="`dataset.yaml`",
    origin=tuple(
        Origin("parameters", f"{_FACTORIES}/{module}.py", f"{name}.__init__")
        for module, name in (
            ("standard_webdataset", "StandardWebdatasetFactory"),
            ("default_decoder_webdataset", "DefaultDecoderWebdatasetFactory"),
            ("default_generic_webdataset", "DefaultGenericWebdatasetFactory"),
            ("base_webdataset", "BaseWebdatasetFactory"),
        )
    ),
    settings={
        "sample_type": mapped("the type of the samples; a type of your own only with `trust`"),
        "field_map": mapped("field -> parts"),
        "sample_loader": mapped("a function that fills the fields, only with `trust`; needs `part_filter`"),
        "part_filter": mapped("names of parts, or a function of a name (only with `trust`)"),
        "subflavors": mapped("data attached to every sample"),
        "split_part": mapped("the split, whichever is asked for; not for a JSONL file"),
        "split_config": mapped("name of another split file"),
        "shuffle_over_epochs": mapped(
            "null keeps the stored order, unless a source of a recipe has its own `shuffle`. *n*: every epoch is a"
            " permutation, and a loop with `repeat=False` has *n* of them. -1 (draws with replacement): the same"
            " without end, with a warning"
        ),
        "parallel_shard_iters": mapped("shards that are read side by side, if only shards are shuffled"),
        "max_samples_per_sequence": mapped("samples of the pieces that shards are cut into, if only shards are"),
        "subset": _never("Energon 7.4.1 fails on it; write it in a metadataset, or give it to the function"),
        "decoder": _never("a program chooses the decoder: in its task encoder, or in the call"),
        "training": _never("a program chooses whether it trains, so that validation is never shuffled"),
        "worker_config": _never("a program chooses its ranks and workers"),
        "path": _never("the file describes the folder that it is in"),
        "**kwargs": _never("any other key is an error"),
    },
)
TABLES = (DATASET_YAML,)
LOADER_ARGUMENTS = frozenset(
    {"split_config", "split_part", "shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence"}
)


def order_of(arguments: Mapping[str, Any], error: Callable[[str, str, str], ConfigError]) -> Order:
    """Return what loader arguments say of the order.

    Args:
        arguments: those of `LOADER_ARGUMENTS` that are given.
        error: returns the error for a key, from the problem and the fix.

    Raises:
        ConfigError: a value is invalid.
    """
    for name in ("split_part", "split_config"):
        given = arguments.get(name)
        if given is not None and (not isinstance(given, str) or not given):
            raise error(name, f"{name!r} must be a name, found {given!r}", "Write it in quotes.")
    return Order(
        shuffles=arguments.get("shuffle_over_epochs", 1) is not None,
        passes=_count(arguments, "shuffle_over_epochs", error, or_endless=True),
        parallel=_count(arguments, "parallel_shard_iters", error),
        sequence=_count(arguments, "max_samples_per_sequence", error),
    )


def _count(
    arguments: Mapping[str, Any], name: str, error: Callable[[str, str, str], ConfigError], *, or_endless: bool = False
) -> int | None:
    given = arguments.get(name)
    if given is None or (or_endless and type(given) is int and given == -1):
        return given
    if type(given) is not int or given < 1:
        also = "-1 or null" if or_endless else "or null"
        raise error(name, f"{name!r} must be a number from 1, {also}, found {given!r}", "Remove it for the default.")
    return given
