"""Cookers: functions that make samples of crude data, and what they are given beside the sample.

Which cooker is for a dataset depends on its subflavors and is decided once. A cooker asks for auxiliary data by the
names of its parameters: those are the names under ``aux`` in a metadataset or recipe. ``rng``, ``primary`` (the dataset
itself, by name) and ``cache`` (see `feedmill.loading.cachepool`) are given to those that ask for them.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.base import Dataset, Sample, Source, locate
from feedmill.loading.cachepool import CachePool
from feedmill.loading.failures import MISTAKES, SkipSample
from feedmill.samples.stores import DecodedFileStore, FileStore, PrimaryFileStore, open_file_store

_CACHE, _PRIMARY = "__cooker_need_cache__", "__cooker_need_primary__"
INNER = "__seeded_function__"
"""Where `stateless` keeps the function whose parameters count."""


def cooker(function: Callable[..., Any] | None = None, *, need_cache: bool = False, need_primary: bool = False) -> Any:
    """Marks a function as a cooker that is given ``cache`` or ``primary``.

    Args:
        need_cache: it has a parameter `cache`, the cache pool of the task encoder.
        need_primary: it has a parameter `primary`: the sample's own dataset as a `FileStore`, in which a name that
            begins with a dot is a part of the sample itself.
    """
    if function is None:
        return functools.partial(cooker, need_cache=need_cache, need_primary=need_primary)

    @functools.wraps(function)
    def marked(*arguments: Any, **others: Any) -> Any:
        return function(*arguments, **others)

    setattr(marked, _CACHE, need_cache)
    setattr(marked, _PRIMARY, need_primary)
    return marked


@dataclass(frozen=True, slots=True)
class Cooker:
    """A function that turns crude data into a sample, and the datasets it applies to.

    Attributes:
        cook: ``cook(sample)``; further parameters are names of auxiliary data, or `rng`, `primary`, `cache`. With
            ``**aux`` it is given all auxiliary data.
        has_subflavors: what a dataset's subflavors must have for it; None for every dataset.
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    def fits(self, subflavors: Mapping[str, Any]) -> bool:
        """Return whether the cooker applies to a dataset with these subflavors."""
        wanted = self.has_subflavors or {}
        return all(name in subflavors and subflavors[name] == value for name, value in wanted.items())

    is_match = fits

    @property
    def name(self) -> str:
        """The name used in errors."""
        return getattr(self.cook, "__qualname__", None) or repr(self.cook)

    @property
    def need_cache(self) -> bool:
        """Whether the function receives the cache pool."""
        return bool(getattr(self.cook, _CACHE, False)) or "cache" in self.parameters[1]

    @property
    def need_primary(self) -> bool:
        """Whether the function receives its dataset."""
        return bool(getattr(self.cook, _PRIMARY, False)) or "primary" in self.parameters[1]

    @property
    def parameters(self) -> tuple[bool, frozenset[str], frozenset[str]]:
        """Whether it takes anything by name; the names that it takes, and those that it needs."""
        return _parameters(self.cook)


@functools.lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> tuple[bool, frozenset[str], frozenset[str]]:
    inner = getattr(function, INNER, function)
    if inner is not function and inspect.ismethod(function):
        inner = MethodType(inner, function.__self__)
    try:
        found = list(inspect.signature(inner).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False, frozenset(), frozenset()
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = named[1:] if found and found[0].kind is found[0].POSITIONAL_OR_KEYWORD else named
    rng = {"rng"} if inner is not function else set()  # the seeded form of a function needs one
    return (
        any(p.kind is p.VAR_KEYWORD for p in found),
        frozenset({p.name for p in named} | rng),
        frozenset(p.name for p in named if p.default is p.empty),
    )


@dataclass(slots=True)
class _Station:
    """What one dataset's samples are cooked with; `home` is held so that its id stays its own."""

    home: Dataset | None
    cooker: Cooker
    stores: dict[str, FileStore[Any]]
    primary: FileStore[Any] | None
    rng: bool
    cache: bool


class Kitchen:
    """Cooks the samples of any number of datasets; opens each auxiliary source once.

    Args:
        cookers: the first that fits a dataset is used for it.
    """

    def __init__(self, cookers: Sequence[Cooker]) -> None:
        self._cookers = tuple(cookers)
        self._stations: dict[Any, _Station] = {}
        self._open: dict[str, FileStore[Any]] = {}
        self._lock = threading.Lock()

    def cook(self, given: Any, sample: Any, rng: np.random.Generator, cache: CachePool) -> Any:
        """Return the cooked sample.

        Args:
            given: what the cooker is given: `sample`, or another form of it.
            sample: as the dataset gave it.

        Raises:
            ConfigError: no cooker fits, or one wants auxiliary data that there is none of.
            DataError: the cooker failed; names it and the sample.
        """
        home = sample.home if isinstance(sample, Sample) else None
        subflavors = getattr(sample, "subflavors", None) or getattr(sample, "__subflavors__", None) or {}
        station = self._stations.get(id(home) if home is not None else _word(subflavors))
        if station is None:
            station = self._set_up(home, subflavors)
        arguments: dict[str, Any] = dict(station.stores)
        if station.primary is not None:
            arguments["primary"] = PrimaryFileStore(station.primary, sample)
        if station.cache:
            arguments["cache"] = cache
        if station.rng:
            arguments["rng"] = rng
        try:
            return station.cooker.cook(given, **arguments)
        except (SkipSample, *MISTAKES):
            raise
        except FeedmillError as error:
            error.add_note(f"in the cooker {station.cooker.name}")
            raise (error if home is None else locate(error, sample.source)) from error.__cause__
        except Exception as error:
            raise _failed(station.cooker, sample, error) from error

    def _set_up(self, home: Dataset | None, subflavors: Mapping[str, Any]) -> _Station:
        with self._lock:
            chosen = self._chosen(subflavors)
            anything, takes, needs = chosen.parameters
            aux = {} if home is None else dict(home.aux)
            wanted = {name: url for name, url in aux.items() if anything or name in takes}
            if chosen.need_primary and home is not None and "primary" not in aux:
                primary = self._decoded(home.url, home)
            else:
                primary = None
            given = {*wanted, "rng", *(["cache"] if chosen.need_cache else ()), *(["primary"] if primary else ())}
            missing = sorted(needs - given)
            if missing:
                raise _no_aux(chosen, missing, home, aux)
            stores = {name: self._decoded(url, home) for name, url in wanted.items()}
            found = _Station(home, chosen, stores, primary, "rng" in takes, chosen.need_cache)
            self._stations[id(home) if home is not None else _word(subflavors)] = found
            return found

    def _chosen(self, subflavors: Mapping[str, Any]) -> Cooker:
        for each in self._cookers:
            if each.fits(subflavors):
                return each
        raise ConfigError(
            f"no cooker fits a dataset with the subflavors {dict(subflavors)}",
            kind="no-cooker",
            fix="Add a cooker whose has_subflavors it has, or one without.",
        )

    def _decoded(self, url: str, home: Dataset | None) -> FileStore[Any]:
        """Return a store, opened once, that decodes as the dataset does."""
        if url not in self._open:
            self._open[url] = open_file_store(url)
        decode = None if home is None else home.decode
        return self._open[url] if decode is None else DecodedFileStore(self._open[url], decode)


def _word(subflavors: Mapping[str, Any]) -> str:
    return repr(sorted(map(repr, subflavors.items())))


def _no_aux(chosen: Cooker, missing: list[str], home: Dataset | None, aux: Mapping[str, str]) -> ConfigError:
    words = ", ".join(map(repr, missing))
    return ConfigError(
        f"the cooker {chosen.name} wants {words}, and the dataset has"
        f" {'the auxiliary data ' + ', '.join(aux) if aux else 'no auxiliary data'}",
        file=None if home is None else home.url,
        kind="no-aux",
        fix="Name it under 'aux' of the dataset in the metadataset, or give the parameter a default"
        " ('primary' and 'cache' are given by Feedmill).",
    )


def _failed(chosen: Cooker, sample: Any, error: Exception) -> DataError:
    source: Source | None = sample.source if isinstance(sample, Sample) else None
    found = getattr(sample, "__sources__", None)
    if source is None and found:
        source = found[0]
    hint = ""
    if isinstance(error, KeyError) and isinstance(sample, Sample):
        hint = f" (the sample has: {', '.join(sorted(sample))})"
    return DataError(
        f"the cooker {chosen.name} failed: {type(error).__name__}: {error}{hint}",
        file=None if source is None else source.where,
        offset=None if source is None else source.offset,
        record=getattr(sample, "key", None) if source is None else source.key,
        kind="cooker-failed",
        fix="Fix the sample, or the cooker.",
    )
