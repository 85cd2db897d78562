"""Hints for names of torch and of Hugging Face datasets that people try on a dataset out of habit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

HINTS: Mapping[str, str] = {
    **dict.fromkeys(("take", "head", "limit"), "Use dataset[:n] for samples, dataset.select(range(n)) for a dataset."),
    "skip": "Use dataset[n:] for samples, dataset.select(slice(n, None)) for a dataset.",
    "tail": "Use dataset[-n:].",
    "sample": "Use dataset.select(indices).",
    **dict.fromkeys(
        ("shuffle", "repeat", "set_epoch"),
        "A plan has the order and the epochs: fm.Plan.over(dataset, shuffle='global', seed=0, epochs=1).",
    ),
    **dict.fromkeys(
        ("column_names", "columns", "features", "schema", "dtypes"),
        "dataset[0] shows the parts of a sample; dataset.to_arrow().schema has their names and types.",
    ),
    **dict.fromkeys(("num_rows", "shape", "size"), "Use len(dataset)."),
    **dict.fromkeys(
        ("train_test_split", "random_split"),
        "Use 'feedmill prepare --split-ratio', dataset.select(indices), or 'subset' in a recipe.",
    ),
    **dict.fromkeys(
        ("with_format", "set_format", "with_transform", "set_transform"),
        "Use fm.Loader(..., output='torch'), dataset.to_torch(), to_arrow(), to_polars() or to_pandas().",
    ),
    **dict.fromkeys(("batch", "iter", "dataloader", "to_iterable_dataset"), "Use fm.Loader(dataset, batch_size)."),
    **dict.fromkeys(
        (
            "rename_column",
            "rename_columns",
            "remove_columns",
            "select_columns",
            "add_column",
            "cast",
            "cast_column",
        ),
        "Use dataset.map(function), which returns other samples.",
    ),
    "tokenize": "Use fm.open(path, tokenize='tokenizer.json'), or fm.tokenize for files of tokens.",
    "sort": "Use dataset.select(indices) with the order that you want.",
    "unique": "Use dataset.to_polars() or dataset.to_pandas().",
    "to_list": "Use list(dataset).",
    **dict.fromkeys(
        ("save_to_disk", "push_to_hub", "to_parquet", "to_json", "to_csv", "save"),
        "Use fm.write(path, dataset), or fm.convert(path, output, to=format) for another format.",
    ),
    **dict.fromkeys(
        ("shard", "n_shards", "num_shards"),
        "A loader gives each rank its part; the shards' bounds are dataset.shard_bounds.",
    ),
    **dict.fromkeys(("interleave", "concatenate", "concat"), "Use fm.Plan.over([a, b], weights=[1, 2]), or a recipe."),
    "info": "Use dataset.describe(), or fm.info(path).",
    "keys": "Use dataset.describe() for its facts, and dataset[i].key for the key of a sample.",
}
"""Attribute of a dataset elsewhere -> a sentence."""


def explain_to_torch(types: set[type]) -> None:
    """Let torch's `default_collate` name what to use instead for samples that it cannot make a batch of."""
    torch_collate = sys.modules.get("torch.utils.data._utils.collate")
    known = getattr(torch_collate, "default_collate_fn_map", None)
    if known is None:
        return
    for kind in types:
        if not issubclass(kind, Mapping | Sequence) and kind.__module__.partition(".")[0] == "feedmill":
            known.setdefault(kind, _cannot_collate)


def _cannot_collate(batch: list[Any], **_: Any) -> Any:
    raise TypeError(
        f"torch's default_collate makes no batch of a {type(batch[0]).__name__}: use DataLoader(dataset.to_torch()),"
        " whose samples are dicts, fm.Loader(dataset, batch_size, output='torch'), or plan.as_dataset()"
    )
