"""A dataset's description: the content of ``dataset.yaml`` for a sample type, and the settings that it may have."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Order
from feedmill.formats.energon.database import META
from feedmill.formats.settings import Fate, Origin, Setting, Table, mapped
from feedmill.storage import Store

if TYPE_CHECKING:
    from feedmill.kernels.files.tar import ShardScan

CRUDE = ("CrudeWebdataset", "CrudeSample")
MODULE = "megatron.energon"
OWN_MODULE = "feedmill.samples.types"
OWN_TYPES = ("DetectionSample",)
"""Sample types that Energon does not have."""


def type_names() -> list[str]:
    """Return all sample type names that a description accepts; crude data is last."""
    from feedmill.samples.types import SAMPLE_TYPES

    return [*sorted(SAMPLE_TYPES), CRUDE[0]]


def describe_type(name: str, field_map: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the description for a sample type.

    Args:
        name: Name of the sample type.
        field_map: Field name -> expression. Without it the description refers to a ``sample_loader.py``.

    Raises:
        ConfigError: The type is unknown, or the field map does not fit it.
    """
    if name in CRUDE:
        if field_map:
            raise ConfigError(
                "crude data cannot have a field map",
                kind="bad-field-map",
                fix="Remove the field map, or choose a sample type.",
            )
        return {"__module__": MODULE, "__class__": CRUDE[0]}
    from feedmill.samples.types import sample_type

    cls = sample_type(name)
    module = OWN_MODULE if cls.__name__ in OWN_TYPES else MODULE
    out: dict[str, Any] = {"sample_type": {"__module__": module, "__class__": cls.__name__}}
    if field_map is None:
        return {**out, "sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}
    from feedmill.samples.fieldmap import FieldMap

    FieldMap.parse(field_map, cls)
    return {**out, "field_map": dict(field_map)}


def check_parts(field_map: Mapping[str, str], parts: Sequence[str]) -> None:
    """Raise `ConfigError` if a field map reads parts that no sample has."""
    from feedmill.samples.fieldmap import parse_expression

    for name, expression in field_map.items():
        options = [option.part for option in parse_expression(expression)]
        if not any(option in parts or option == "__key__" for option in options):
            raise ConfigError(
                f"the field {name!r} is mapped to {expression!r}, but no sample has a part"
                f" {' or '.join(map(repr, options))}",
                kind="bad-field-map",
                fix=f"The samples have: {', '.join(map(repr, parts))}.",
            )


def declared_map(store: Store) -> dict[str, str]:
    """Return the field map of a prepared dataset's ``dataset.yaml``; empty if it has none.

    Raises `ConfigError` if the file cannot be read.
    """
    path = f"{META}/dataset.yaml"
    if not store.exists(path):
        return {}
    from feedmill.formats import yamls

    content = yamls.read_config(store.read_small(path), store.locate(path)).value
    found = content.get("field_map") if isinstance(content, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: text for name, text in found.items() if isinstance(name, str) and isinstance(text, str)}


def unreadable(field_map: Mapping[str, str], scan: ShardScan, file: str, out: Container[str] = ()) -> DataError | None:
    """Return the error for the first sample of a shard that lacks all parts of some field; None if there is none.

    Args:
        field_map: Field name -> expression.
        scan: Samples and parts of the shard.
        file: Name of the shard in the error.
        out: Keys to skip because no split contains them.
    """
    lacking: dict[int, str] = {}
    from feedmill.samples.fieldmap import parse_expression

    for name, expression in field_map.items():
        wanted = {option.part for option in parse_expression(expression)}
        if "__key__" not in wanted:
            having = np.zeros(len(scan.keys), np.bool_)
            having[scan.sample[np.fromiter(map(wanted.__contains__, scan.parts), np.bool_, len(scan.parts))]] = True
            for sample in np.flatnonzero(~having).tolist():
                if scan.keys[sample] not in out:
                    lacking.setdefault(sample, name)
    if not lacking:
        return None
    first = min(lacking)
    expression, there = field_map[lacking[first]], scan.parts[slice(*np.searchsorted(scan.sample, [first, first + 1]))]
    return DataError(
        f"the field {lacking[first]!r} is read from {expression!r}, but the sample has no such part (it has:"
        f" {', '.join(map(repr, there)) or 'none'}). Fields are missing in {len(lacking)} of {len(scan.keys)} samples"
        " of this shard",
        file=file,
        offset=int(scan.starts[first]),
        record=scan.keys[first],
        kind="missing-field",
        fix="Add the part to the samples, exclude them, or change the field map in dataset.yaml.",
    )


def loader_template(name: str, parts: Sequence[str]) -> str:
    """Return a template of ``sample_loader.py`` with one line per field, for the user to edit."""
    from feedmill.samples.types import fields_of, sample_type

    obligatory, optional = fields_of(sample_type(name))
    lines = [f'        {field}=raw["{parts[0] if parts else "part"}"],  # required' for field in obligatory]
    lines += [f"        # {field}=...,  # optional" for field in optional]
    body = "\n".join(lines)
    return (
        "# Builds a sample of this dataset from its parts. Feedmill runs this file only if the user allows it\n"
        "# (--trust).\n\n\n"
        "def sample_loader(raw: dict) -> dict:\n"
        f'    """Return the fields of {name}; raw has the decoded parts and "__key__"."""\n'
        f'    return dict(\n        __key__=raw["__key__"],\n{body}\n    )\n\n\n'
        "def part_filter(part: str) -> bool:\n"
        '    """Return whether to read a part."""\n'
        f"    return part in {tuple(parts)!r}\n"
    )


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
