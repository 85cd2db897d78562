"""Options of a `Loader` that are invalid or exclude each other, and places where it cannot be iterated."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, get_args

from feedmill.errors import ConfigError
from feedmill.loading.collate import to_torch

Output = Literal["numpy", "torch", "samples"]
OUTPUTS = get_args(Output)

HINTS: Mapping[str, str] = {
    "set_epoch": "Each epoch of a plan has an order of its own already: iterate the loader, or start it with"
    " rewind=True to repeat the same epoch.",
    "sampler": "The plan decides the order.",
    "dataset": "Its data is loader.plan.",
    "batch_size": "It is loader.layout.size.",
    "num_workers": "It is loader.workers.count.",
    "collate_fn": "It is an argument: fm.Loader(..., collate=...).",
    "num_replicas": "It is loader.world_size.",
    "num_batches": "It is len(loader).",
    "save": "Save loader.state_dict(), for example with json.dump.",
    "load": "Load a saved state with loader.load_state_dict(state).",
    "reset": "Start it with rewind=True, or load the state of its start.",
    "shuffle": "The plan decides the order: fm.Plan.over(dataset, shuffle=...), or 'shuffle' in the recipe.",
}
"""Attribute of a loader elsewhere -> what to use here."""


def check_not_torch_worker() -> None:
    """Raise `ConfigError` in a worker of a torch `DataLoader`: each of them would yield every batch."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    if info is not None:
        raise ConfigError(
            f"a Loader cannot be iterated in a worker of a torch DataLoader (worker {info.id} of {info.num_workers}):"
            " each worker would yield every batch",
            kind="wrong-process",
            fix="Pass loader.as_iterable_dataset() to the DataLoader, or iterate the Loader itself, with"
            " Loader(..., workers=N).",
        )


def check_output(output: str, device: Any, pin_memory: bool | None, *, hooks: bool, pads: bool) -> None:
    """Raise `ConfigError` for an unknown output, or for options that cannot be combined with it."""
    if output not in OUTPUTS:
        raise ConfigError(f"output={output!r} is unknown", fix=f"Use one of: {', '.join(OUTPUTS)}.")
    if output == "samples" and hooks:
        raise ConfigError(
            'output="samples" cannot be combined with collate or task_encoder: its lists are not collated',
            fix="Omit output, or collate and task_encoder.",
        )
    if output == "samples" and pads:
        raise ConfigError(
            "remainder='pad' requires batches that are dicts: the mask is their field '__mask__', and"
            " output='samples' yields lists",
            fix="Omit output='samples', or use remainder='drop' or 'uneven'.",
        )
    if output == "torch":
        to_torch([])  # raise now if torch is missing, not at the first batch
    elif device is not None or (pin_memory and not hooks):  # hooks may make tensors
        raise ConfigError("device and pin_memory require tensors", fix="Add output='torch'.")


def check_numbers(prefetch: int, stall: float | None) -> None:
    """Raise `ConfigError` for numbers that are too small."""
    for name, value, least in (("prefetch", prefetch, 1), ("stall", 1 if stall is None else stall, 1e-3)):
        if value < least:
            raise ConfigError(f"{name}={value} is invalid", fix=f"Give at least {least}.")


def check_hooks(transform: Any, collate: Any, task_encoder: Any) -> None:
    """Raise `ConfigError` for a task encoder beside the hooks that it replaces."""
    if task_encoder is not None and (transform is not None or collate is not None):
        raise ConfigError(
            "task_encoder cannot be combined with transform or collate, which it replaces",
            fix="Give either the task encoder, or transform and collate.",
        )
