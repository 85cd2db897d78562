"""Turn validation errors of recipes into messages with the location, the value found, and a suggestion."""

from __future__ import annotations

from typing import Any

from pydantic import (
    BaseModel,
    ValidationError,
)

from feedmill.errors import did_you_mean
from feedmill.planning.recipes.fields import (
    TAGS,
    BalanceModel,
    DecodeModel,
    FimModel,
    JoinPart,
    MarkersModel,
    PackModel,
    ShuffleModel,
    StageModel,
    TargetsModel,
    TokenizeModel,
    WindowsModel,
)
from feedmill.planning.recipes.order_fields import OrderModel
from feedmill.planning.recipes.schema import Member, RecipeModel
from feedmill.planning.recipes.skip_fields import SkipModel
from feedmill.planning.recipes.storage_fields import CacheModel, StorageModel

_MODELS: dict[str, type[BaseModel]] = {
    "shuffle": ShuffleModel,
    "order": OrderModel,
    "pack": PackModel,
    "stages": StageModel,
    "windows": WindowsModel,
    "tokenize": TokenizeModel,
    "decode": DecodeModel,
    "skip": SkipModel,
    "balance": BalanceModel,
    "targets": TargetsModel,
    "mask": MarkersModel,
    "fim": FimModel,
    "cache": CacheModel,
}
"""Models of the mappings that are not sources, by key."""

_FOR_RECIPES = {
    **dict.fromkeys(("datasets", "sources", "mixture", "mix", "blends", "dataset_mixer", "data_sources"), "blend"),
    **dict.fromkeys(("dataset", "path", "train", "train_data"), "source"),
    **dict.fromkeys(("num_samples", "max_samples", "total_samples", "train_samples", "size", "length"), "samples"),
    **dict.fromkeys(("num_epochs", "num_train_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("packing", "sequence_length", "seq_length", "seq_len", "max_seq_length"), "pack"),
    **dict.fromkeys(("batch_size", "micro_batch_size"), "batch"),
    **dict.fromkeys(("curriculum", "schedule", "phases", "data_stages"), "stages"),
    **dict.fromkeys(("concatenate", "interleave"), "concat"),
    "random_seed": "seed",
}
_FOR_SOURCES = {
    **dict.fromkeys(
        ("proportion", "ratio", "probability", "prob", "share", "fraction", "percent", "weights"), "weight"
    ),
    **dict.fromkeys(("file", "files", "url", "data_files", "data_path", "dataset", "dataset_path", "folder"), "path"),
    **dict.fromkeys(("repeat", "repeats", "times"), "epochs"),
    **dict.fromkeys(("limit", "max_samples", "num_samples", "range", "slice"), "subset"),
    **dict.fromkeys(("datasets", "sources"), "blend"),
}
"""Keys of other tools, and which key here has their meaning."""


def problems(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Return each problem of a recipe: the place of the value and a message."""
    found = []
    for item in error.errors(include_url=False):
        place = tuple(step for step in item["loc"] if step not in TAGS)
        found.append((place, _in_words(place, item["type"], item["msg"], item["input"])))
    return found


def _in_words(place: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(place[:-1])
        key = str(place[-1])
        here = _FOR_SOURCES if "path" in known else _FOR_RECIPES
        ours = here.get(key.lower())
        meant = f" (did you mean {ours!r}?)" if ours in known else did_you_mean(key, known)
        hint = _elsewhere(place, key) or meant or f"; known keys: {', '.join(known)}"
        return f"unknown key {key!r}{hint}"
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    text = message.removeprefix("Value error, ")
    if kind == "value_error":
        return f"{dotted}: {text}" if dotted else text
    if kind == "model_type":
        text = "expected a mapping, such as {path: my-data/}" if _is_member(place) else "expected a mapping"
    shown = repr(value)
    return f"{dotted or 'the recipe'}: {text[:1].lower()}{text[1:]}, found {shown[:60]}"


def _elsewhere(place: tuple[int | str, ...], key: str) -> str:
    """Return where a key belongs that is valid at another place of a recipe, or nothing."""
    if len(place) > 1:
        return ": it belongs at the top of the recipe" if key in RecipeModel.model_fields else ""
    owners = [owner for owner, model in _MODELS.items() if key in model.model_fields]
    return f": it belongs in {owners[0]!r}" if len(owners) == 1 else ""


def _keys_at(place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are valid for a mapping at this place."""
    if not place:
        return list(RecipeModel.model_fields)
    if place[-2:-1] == ("join",):
        return list(JoinPart.model_fields)
    if place[0] == "storage":  # by URL
        return list(StorageModel.model_fields)
    return list(_MODELS.get(_owner(place), Member).model_fields)


def _is_member(place: tuple[int | str, ...]) -> bool:
    return bool(place) and place[-2:-1] != ("join",) and _owner(place) not in _MODELS


def _owner(place: tuple[int | str, ...]) -> str:
    """Return the key of a mapping, or of the list that contains it."""
    return str(place[-2] if isinstance(place[-1], int) and len(place) > 1 else place[-1])
