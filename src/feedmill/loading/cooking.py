"""Cookers: functions that convert crude samples to samples of a task, and the arguments that they receive.

A task encoder with `cookers` uses this module, as in Megatron Energon. The subflavors of a dataset determine its
cooker, once per dataset. A cooker receives auxiliary data through parameters with the names that are under ``aux`` in
the metadataset or recipe. Three further parameters are optional: ``rng``, ``primary`` (the dataset of the sample, with
files by name) and ``cache`` (see `feedmill.loading.cachepool`).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample, Source, locate
from feedmill.loading.cachepool import CachePool
from feedmill.loading.failures import MISTAKES, SkipSample

if TYPE_CHECKING:
    from feedmill.samples.stores import FileStore

_CACHE, _PRIMARY = "__cooker_need_cache__", "__cooker_need_primary__"
INNER = "__seeded_function__"
"""Attribute in which `stateless` stores the undecorated function, whose parameters count."""


def cooker(function: Callable[..., Any] | None = None, *, need_cache: bool = False, need_primary: bool = False) -> Any:
    """Mark a function as a cooker that receives ``cache`` or ``primary``.

    Args:
        function: the function; None to return a decorator.
        need_cache: whether it receives `cache`, the cache pool of the task encoder.
        need_primary: whether it receives `primary`: the dataset of the sample as a `FileStore`, in which a name that
            begins with a dot is a part of the sample.
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
    """A function that converts crude data to a sample, and the datasets that it applies to.

    Attributes:
        cook: ``cook(sample)``; further parameters are names of auxiliary data, or `rng`, `primary`, `cache`. With
            ``**aux`` it receives all auxiliary data.
        has_subflavors: entries that the subflavors of a dataset must have; None for every dataset.
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    def fits(self, subflavors: Mapping[str, Any]) -> bool:
        """Return whether the cooker applies to a dataset with these subflavors."""
        required = self.has_subflavors or {}
        return all(name in subflavors and subflavors[name] == value for name, value in required.items())

    is_match = fits

    @property
    def name(self) -> str:
        """Return the name of the function for errors."""
        return getattr(self.cook, "__qualname__", None) or repr(self.cook)

    @property
    def need_cache(self) -> bool:
        """Return whether the function receives the cache pool."""
        return bool(getattr(self.cook, _CACHE, False)) or "cache" in self.parameters[1]

    @property
    def need_primary(self) -> bool:
        """Return whether the function receives the dataset of the sample."""
        return bool(getattr(self.cook, _PRIMARY, False)) or "primary" in self.parameters[1]

    @property
    def parameters(self) -> tuple[bool, frozenset[str], frozenset[str]]:
        """Return whether the function has ``**kwargs``, its parameters after the sample, and the required ones."""
        return _parameters(self.cook)


@functools.lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> tuple[bool, frozenset[str], frozenset[str]]:
    inner = getattr(function, INNER, function)
    if inner is not function and inspect.ismethod(function):
        inner = MethodType(inner, function.__self__)
    try:
        parameters = list(inspect.signature(inner).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False, frozenset(), frozenset()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = named[1:] if parameters and parameters[0].kind is parameters[0].POSITIONAL_OR_KEYWORD else named
    rng = {"rng"} if inner is not function else set()  # the seeded wrapper takes a generator
    return (
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        frozenset({p.name for p in named} | rng),
        frozenset(p.name for p in named if p.default is p.empty),
    )


@dataclass(slots=True)
class _CookingContext:
    """The cooker of one dataset and its arguments.

    `home` is kept although it is not read: while the dataset lives, no other one has its id, the key of the context.
    """

    home: Dataset | None
    cooker: Cooker
    stores: dict[str, FileStore[Any]]
    primary: FileStore[Any] | None
    rng: bool
    cache: bool


class Kitchen:
    """Runs cookers on the samples of any number of datasets; opens each auxiliary source once.

    Args:
        cookers: the cookers; the first one that fits a dataset is used for it.
    """

    def __init__(self, cookers: Sequence[Cooker]) -> None:
        self._cookers = tuple(cookers)
        self._contexts: dict[Any, _CookingContext] = {}
        self._open: dict[str, FileStore[Any]] = {}
        self._lock = threading.Lock()

    def cook(self, given: Any, sample: Any, rng: np.random.Generator, cache: CachePool) -> Any:
        """Return the cooked sample.

        Args:
            given: argument of the cooker: `sample`, or another form of it.
            sample: the sample as the dataset returned it.
            rng: generator for a cooker that takes one.
            cache: cache pool for a cooker that takes one.

        Raises:
            ConfigError: no cooker fits, or a cooker requires auxiliary data that the dataset does not have.
            DataError: the cooker failed; the message has its name and the location of the sample.
        """
        home = sample.home if isinstance(sample, Sample) else None
        subflavors = getattr(sample, "subflavors", None) or getattr(sample, "__subflavors__", None) or {}
        context = self._contexts.get(id(home) if home is not None else _subflavors_key(subflavors))
        if context is None:
            context = self._create_context(home, subflavors)
        arguments: dict[str, Any] = dict(context.stores)
        if context.primary is not None:
            from feedmill.samples.stores import PrimaryFileStore

            arguments["primary"] = PrimaryFileStore(context.primary, sample)
        if context.cache:
            arguments["cache"] = cache
        if context.rng:
            arguments["rng"] = rng
        try:
            return context.cooker.cook(given, **arguments)
        except (SkipSample, *MISTAKES):
            raise
        except FeedmillError as error:
            error.add_note(f"in the cooker {context.cooker.name}")
            raise (error if home is None else locate(error, sample.source)) from error.__cause__
        except Exception as error:
            raise _failed(context.cooker, sample, error) from error

    def _create_context(self, home: Dataset | None, subflavors: Mapping[str, Any]) -> _CookingContext:
        with self._lock:
            chosen = self._matching_cooker(subflavors)
            takes_all, names, required = chosen.parameters
            aux = {} if home is None else dict(home.aux)
            aux_urls = {name: url for name, url in aux.items() if takes_all or name in names}
            if chosen.need_primary and home is not None and "primary" not in aux:
                primary = self._decoded(home.url, home)
            else:
                primary = None
            provided = {*aux_urls, "rng", *(["cache"] if chosen.need_cache else ()), *(["primary"] if primary else ())}
            missing = sorted(required - provided)
            if missing:
                raise _no_aux(chosen, missing, home, aux)
            stores = {name: self._decoded(url, home) for name, url in aux_urls.items()}
            context = _CookingContext(home, chosen, stores, primary, "rng" in names, chosen.need_cache)
            self._contexts[id(home) if home is not None else _subflavors_key(subflavors)] = context
            return context

    def _matching_cooker(self, subflavors: Mapping[str, Any]) -> Cooker:
        for candidate in self._cookers:
            if candidate.fits(subflavors):
                return candidate
        raise ConfigError(
            f"no cooker fits a dataset with the subflavors {dict(subflavors)}",
            kind="no-cooker",
            fix="Add a cooker whose has_subflavors matches them, or one without has_subflavors.",
        )

    def _decoded(self, url: str, home: Dataset | None) -> FileStore[Any]:
        """Return the store of a URL, opened once, with the decoder of the dataset."""
        from feedmill.samples.stores import DecodedFileStore, open_file_store

        if url not in self._open:
            self._open[url] = open_file_store(url)
        decode = None if home is None else home.decode
        return self._open[url] if decode is None else DecodedFileStore(self._open[url], decode)


def _subflavors_key(subflavors: Mapping[str, Any]) -> str:
    return repr(sorted(map(repr, subflavors.items())))


def _no_aux(chosen: Cooker, missing: list[str], home: Dataset | None, aux: Mapping[str, str]) -> ConfigError:
    names = ", ".join(map(repr, missing))
    return ConfigError(
        f"the cooker {chosen.name} requires {names}, and the dataset has"
        f" {'the auxiliary data ' + ', '.join(aux) if aux else 'no auxiliary data'}",
        file=None if home is None else home.url,
        kind="bad-recipe",
        fix="Add it under 'aux' of the dataset in the metadataset, or give the parameter a default"
        " (Feedmill passes 'primary' and 'cache').",
    )


def _failed(chosen: Cooker, sample: Any, error: Exception) -> DataError:
    source: Source | None = sample.source if isinstance(sample, Sample) else None
    sources = getattr(sample, "__sources__", None)
    if source is None and sources:
        source = sources[0]
    hint = ""
    if isinstance(error, KeyError) and isinstance(sample, Sample):
        hint = f" (the sample has: {', '.join(sorted(sample))})"
    return DataError(
        f"the cooker {chosen.name} failed: {type(error).__name__}: {error}{hint}",
        file=None if source is None else source.where,
        offset=None if source is None else source.offset,
        record=getattr(sample, "key", None) if source is None else source.key,
        kind="function-failed",
        fix="Fix the sample, or the cooker.",
    )
