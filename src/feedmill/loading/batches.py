"""One batch from its positions: read in bulk, transform, collate; failures are told with the sample they came from."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.base import Source
from feedmill.loading.collate import collate as default_collate
from feedmill.loading.collate import to_torch
from feedmill.loading.plan import PlanLike
from feedmill.planning.grid import Step

OUTPUTS = ("numpy", "torch", "samples")


class BatchMaker:
    """Makes batches of one plan. Keeps nothing between calls, so that any thread may make any batch.

    Args:
        transform: ``transform(sample)`` or ``transform(sample, rng)``, or None.
        collate: list of samples -> batch, or None for the default.
        output: ``"numpy"``, ``"torch"``, or ``"samples"`` for the plain list.
        seed: seed of the generators that the transform gets.
    """

    def __init__(
        self,
        plan: PlanLike,
        transform: Callable[..., Any] | None,
        collate: Callable[[list[Any]], Any] | None,
        output: str,
        seed: int,
    ) -> None:
        if output not in OUTPUTS:
            raise ConfigError(f"output={output!r} is unknown", fix=f"Use one of: {', '.join(OUTPUTS)}.")
        if output == "torch":
            to_torch([])  # where torch is missing, say so now and not in the first batch
        if output == "samples" and collate is not None:
            raise ConfigError('output="samples" gives lists that are not collated', fix="Leave collate or output out.")
        self._plan = plan
        self._transform = transform
        self._random = transform is not None and takes_rng(transform)
        self._collate = collate or default_collate
        self._output = output
        self._seed = seed

    def __call__(self, step: Step) -> Any:
        """The batch of the positions ``[step.first, step.stop)``."""
        positions = np.arange(step.first, step.stop, dtype=np.int64)
        samples = self._read(positions)
        if self._transform is not None:
            samples = [self._transformed(sample, step.first + i) for i, sample in enumerate(samples)]
        if self._output == "samples":
            return samples
        try:
            batch = self._collate(samples)
            return to_torch(batch) if self._output == "torch" else batch
        except Exception as error:
            self._tell_which_of(samples, step, error)

    def _read(self, positions: npt.NDArray[np.int64]) -> list[Any]:
        try:
            samples = self._plan.read(positions)
        except Exception as error:
            self._tell_which(positions, error)
        if len(samples) != len(positions):
            raise FeedmillError(f"the plan gave {len(samples)} samples for {len(positions)} positions", kind="bad-plan")
        return samples

    def _tell_which(self, positions: npt.NDArray[np.int64], error: Exception) -> NoReturn:
        """A bulk read does not say which sample failed: find it by reading one at a time."""
        for i in range(len(positions)):
            try:
                self._plan.read(positions[i : i + 1])
            except Exception as single:
                where = self._where(int(positions[i]))
                _fail(single, f"reading the sample at {where}", where, kind="read-failed")
        where = f"one of the positions {positions[0]} to {positions[-1]}"
        _fail(error, f"reading {where} (each can be read alone)", where, kind="read-failed")

    def _tell_which_of(self, samples: list[Any], step: Step, error: Exception) -> NoReturn:
        """Parts are decoded when the batch is put together: find the sample that can't even be a batch by itself."""
        fix = "Give the samples of a batch fields that can be put together, or pass your own collate."
        for i, sample in enumerate(samples):
            try:
                self._collate([sample])
            except Exception as single:
                where = self._where(step.first + i)
                _fail(single, f"collating the sample at {where}", where, sample, kind="collate-failed", fix=fix)
        where = f"positions {step.first} to {step.stop - 1}"
        _fail(error, f"collating the samples at {where}", where, kind="collate-failed", fix=fix)

    def _transformed(self, sample: Any, position: int) -> Any:
        assert self._transform is not None
        try:
            if self._random:
                return self._transform(sample, generator(self._seed, position))
            return self._transform(sample)
        except Exception as error:
            where = self._where(position)
            fix = "Mend the transform, or let it accept such samples."
            _fail(error, f"transforming the sample at {where}", where, sample, kind="transform-failed", fix=fix)

    def _where(self, position: int) -> str:
        located = self._plan.locate(np.array([position], dtype=np.int64))
        source, index, epoch = int(located.source[0]), int(located.index[0]), int(located.epoch[0])
        return f"position {position} (source {source}, sample {index}, epoch {epoch})"


def generator(seed: int, position: int) -> np.random.Generator:
    """The random generator of one position: Philox with the key (seed, position), which takes some 6 us to make.

    Counter-based generators with different keys are independent streams (Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3", 2011), so what a transform draws depends on the sample's position alone.
    """
    return np.random.Generator(np.random.Philox(key=(seed % (1 << 64) << 64) | position))


def takes_rng(transform: Callable[..., Any]) -> bool:
    """Whether the transform wants a generator: it has a parameter ``rng``, or a second one that it can't do without."""
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].name == "rng" or positional[1].default is inspect.Parameter.empty)


def _fail(
    error: Exception, doing: str, where: str, sample: Any = None, *, kind: str, fix: str | None = None
) -> NoReturn:
    """Raise the error again, saying which sample it concerns; a `FeedmillError` keeps its class and its own fix."""
    if isinstance(error, FeedmillError):
        told = copy.copy(error)
        told.what = f"{error.what} (at {where})"
        told.args = (told.what,)
        raise told from error
    source = _source(sample)
    raise DataError(
        f"{doing} failed with {type(error).__name__}: {error}",
        file=source.where if source else None,
        offset=source.offset if source else None,
        record=source.key if source else None,
        kind=kind,
        fix=fix,
    ) from error


def _source(sample: Any) -> Source | None:
    source = getattr(sample, "source", None)
    return source if isinstance(source, Source) else None
