"""What a unit needs: processors, memory, and on clusters also GPUs, custom resources, and labels of the node.

A verb's options declare it for an engine, and a step of a pipeline for its own stages (`needing`). Ray places units by
it. Processes of this machine are as few as have enough of its cores and memory (`limited`).

The number of available cores.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from feedmill.errors import ConfigError, did_you_mean
from feedmill.storage.limits import machine_memory, parse_size

logger = logging.getLogger("feedmill")

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OWN = {"cpu": "cpus", "gpu": "gpus", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class Resources:
    """What one unit needs. Fields that are None or empty are not declared.

    Attributes:
        cpus: processors; fractions below 1, so that several units share one.
        memory: bytes.
        gpus: GPUs; fractions below 1, so that several units share one.
        custom: resources that nodes were started with, by name.
        labels: labels that a node must have, each with its value.

    Raises:
        ConfigError: a number or a label is invalid.
    """

    cpus: float | None = None
    memory: int | None = None
    gpus: float | None = None
    custom: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        amounts = {"cpus": self.cpus, "memory": self.memory, "gpus": self.gpus, **self.custom}
        for name, amount in amounts.items():
            if amount is None:
                continue
            if isinstance(amount, bool) or not isinstance(amount, int | float):
                raise _bad(f"{amount!r} of {name} is no number", "Use a number such as 1, or 0.5 for a share of one.")
            if not 0 < amount < 2**53 or (amount > 1 and amount != int(amount)):
                raise _bad(f"{amount:g} of {name} is invalid", "Use a whole number, or a fraction between 0 and 1.")
        for name in self.custom:
            if not isinstance(name, str) or not name or name.lower() in _OWN:
                own = _OWN.get(str(name).lower())
                raise _bad(f"{name!r} is not the name of a custom resource", f"Use {own}." if own else "Give a name.")
        for name, value in self.labels.items():
            if not isinstance(name, str) or not name or not _LABEL.fullmatch(str(value)) or not isinstance(value, str):
                fix = "Use letters, digits, '-', '_' and '.', at most 63 characters; true and numbers in quotes."
                raise _bad(f"{value!r} is not the value of a label {name!r}", fix)

    def over(self, other: Resources) -> Resources:
        """Return these resources, and those of `other` that are not declared here."""
        return replace(other, **self.declared())

    def declared(self) -> dict[str, Any]:
        """Return the declared fields."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}

    @property
    def processors(self) -> float:
        """Processors of a unit: one unless declared."""
        return self.cpus or 1.0

    def of_ray(self) -> list[str]:
        """Return the names of declared fields that only Ray considers."""
        return [name for name in self.declared() if name in ("gpus", "custom", "labels")]

    def fit(self, node: Mapping[str, float], labels: Mapping[str, str]) -> bool:
        """Return whether a node with these resources, by Ray's names, and labels has enough for a unit."""
        needs = {"CPU": self.processors, "memory": self.memory or 0, "GPU": self.gpus or 0, **self.custom}
        return all(node.get(name, 0) >= amount for name, amount in needs.items()) and all(
            labels.get(name) == value for name, value in self.labels.items()
        )

    def at_once(self, node: Mapping[str, float]) -> int:
        """Return how many units a node has processors, GPUs and custom resources for."""
        needs = {"CPU": self.processors, "GPU": self.gpus or 0, **self.custom}
        return int(min(node.get(name, 0) / amount for name, amount in needs.items() if amount))

    def __str__(self) -> str:
        amounts = [f"{self.processors:g} core{'' if self.processors == 1 else 's'}"]
        amounts += [] if self.memory is None else [f"{self.memory / 2**30:.1f} GiB of memory"]
        amounts += [] if self.gpus is None else [f"{self.gpus:g} GPU{'' if self.gpus == 1 else 's'}"]
        amounts += [f"{amount:g} {name}" for name, amount in self.custom.items()]
        amounts += [f"the label {name}={value}" for name, value in self.labels.items()]
        return f"{', '.join(amounts[:-1])} and {amounts[-1]}" if amounts[1:] else amounts[0]


KEYS = ("cpus", "memory", "gpus", "custom", "labels")


def parse(value: Any) -> Resources:
    """Return resources from a mapping with some of `KEYS`, as in pipelines.

    Raises:
        ConfigError: it is not one, or a value is invalid.
    """
    if not isinstance(value, dict) or not value:
        raise _bad("resources are not a mapping", f"Use some of {', '.join(KEYS)}.")
    for key, inner in value.items():
        if key not in KEYS:
            raise _bad(f"unknown resource {key!r}{did_you_mean(str(key), list(KEYS))}", f"Use {', '.join(KEYS)}.")
        if key in ("custom", "labels") and not isinstance(inner, dict):
            raise _bad(f"{key!r} is not a mapping", "Give names and values.")
        if key == "memory" and (isinstance(inner, bool) or not isinstance(inner, int | str)):
            raise _bad(f"the memory {inner!r} is not a size", "Use bytes, or a size such as 4GiB.")
    memory = parse_size(value["memory"], "memory") if "memory" in value else None
    return Resources(**{**value, "memory": memory})


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return the values of ``NAME=VALUE``, by name. Raises `ConfigError` for other texts."""
    found = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name or not value:
            raise _bad(f"{option} {text!r} is not NAME=VALUE", f"Use {option} NAME=VALUE; repeat it for more.")
        found[name] = value
    return found


def amounts(texts: list[str], option: str) -> dict[str, float]:
    """Return the numbers of ``NAME=NUMBER``, by name. Raises `ConfigError` for other texts."""
    found = {}
    for name, value in pairs(texts, option).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise _bad(f"{option} {name}={value} is not a number", f"Use {option} NAME=NUMBER.") from None
    return found


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-option", fix=fix)


NOTHING = Resources()
_needed: ContextVar[Resources] = ContextVar("feedmill-resources", default=NOTHING)


def needed() -> Resources:
    """Return what units of stages need that run in this block of `needing`."""
    return _needed.get()


@contextlib.contextmanager
def needing(resources: Resources) -> Iterator[None]:
    """Declare, for the duration of a block, what the units of its stages need; over what is declared around it."""
    token = _needed.set(resources.over(needed()))
    try:
        yield
    finally:
        _needed.reset(token)


def limited(workers: int) -> int:
    """Return the number of processes of this machine, at most `workers`, that have what each needs.

    Raises:
        ConfigError: this machine has less than one process needs.
    """
    need = needed()
    most, what = workers, ""
    for name, amount, counted in (
        ("cores", need.cpus, available_cores),
        ("bytes of memory", need.memory, machine_memory),
    ):
        if amount is None or (there := counted()) is None:
            continue
        if amount > there:
            raise ConfigError(
                f"a unit needs {amount:,g} {name}, and this machine has {there:,}",
                kind="no-resources",
                fix="Declare less, or run it on a larger machine or a cluster (--engine ray).",
            )
        if (fit := int(there / amount)) < most:
            most, what = fit, f"{amount:,g} {name} of {there:,}"
    if what:
        logger.info("%d instead of %d workers: each needs %s", most, workers, what)
    return most


def available_cores() -> int:
    """Return the cores that this process may use: its affinity, and its container's quota (cgroup v2 ``cpu.max``)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max") as f:
            quota, period = f.read().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores
