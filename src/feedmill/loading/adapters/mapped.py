"""A plan as a map-style dataset: sample *k* is the sample at position *k* of the plan.

Torch's `DataLoader`, Megatron-LM, Grain and every other library that indexes a dataset can load it. The plan is
shuffled already, so samplers must take the indices in order, and a position is all that a resume requires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError, FeedmillError, MissingExtra, integer, shortened
from feedmill.loading.batches import BatchMaker
from feedmill.loading.collate import collate, to_torch
from feedmill.loading.plan import PlainPlan, completed
from feedmill.planning.plan import Plan
from feedmill.samples.types import named_fields

if TYPE_CHECKING:  # what a `DataLoader` expects; torch itself is not required
    from torch.utils.data import Dataset

    from feedmill.formats.base import Dataset as Samples

    class _Dataset(Dataset[Any]):  # type: ignore[misc]
        pass

else:
    _Dataset = object


class PlanDataset(_Dataset):
    """The samples of a plan by position. Thread-safe; it can be pickled if the plan and the transform can.

        dataset = plan.as_dataset(transform=encode)
        torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=dataset.collate)

    Args:
        plan: the plan.
        transform: as for `Loader`: ``transform(sample)`` or ``transform(sample, rng)``. A sample is the same as in a
            `Loader`, whatever the number of workers.
        samples: number of samples, `len`. Required for samplers if the plan never ends; default: all of the plan.
        seed: seed of the transform's generators; None: the seed of the plan.

    Raises:
        ConfigError: the plan has fewer samples.
    """

    def __init__(
        self,
        plan: PlainPlan,
        *,
        transform: Callable[..., Any] | None = None,
        samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        length = plan.length if samples is None else integer("samples", samples)
        if samples is not None and not 0 < samples <= (samples if plan.length is None else plan.length):
            raise ConfigError(
                f"samples={samples} is invalid: the plan has {'no end' if plan.length is None else plan.length}",
                fix="Give a number from 1 to the length of the plan.",
            )
        self.plan, self.length = plan, length
        seed = integer("seed", plan.seed if seed is None else seed)
        self._maker = BatchMaker(
            completed(plan), transform, None, lists=True, seed=seed, rank=0, substitute=False, stall=None
        )

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(
                "the plan never ends, so its dataset has no length: give as_dataset() a number of samples, or the plan"
                " its 'epochs'"
            )
        return self.length

    def __getitem__(self, position: int) -> Any:
        """Return the sample at a position; a negative one counts from the end.

        Raises:
            IndexError: the position lies outside the dataset.
            FeedmillError: the sample cannot be read or transformed.
        """
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the samples at these positions, in that order, with one bulk read per source."""
        try:
            return self._maker.again([self._checked(position) for position in positions]).batch if positions else []
        except FeedmillError as error:  # its own cause stays
            raise shortened(error)  # noqa: B904

    @staticmethod
    def collate(samples: list[Any]) -> Any:
        """Return a list of samples as a batch of tensors, as a `Loader` does; of arrays if torch is missing."""
        batch = collate(samples)
        try:
            return to_torch(batch)
        except MissingExtra:
            return batch

    def __repr__(self) -> str:
        return f"PlanDataset({'endless' if self.length is None else f'{self.length:,} samples'}, {self.plan!r})"

    def _checked(self, position: int) -> int:
        number = integer("the index of a sample", position)
        if number < 0:
            number += len(self)
        if number < 0 or (self.length is not None and number >= self.length):
            raise IndexError(f"there is no sample {position}: the dataset has {self.length} samples")
        return number


def of_dataset(dataset: Samples, transform: Callable[[Any], Any] | None = None) -> PlanDataset:
    """Return the samples of a dataset in stored order; see `Dataset.to_torch`. Raises `MissingExtra`."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("to_torch needs torch, which is not installed", extra="torch") from None
    plan = Plan.over([dataset], shuffle="none", epochs=1)
    return PlanDataset(plan, transform=transform or as_dict)


def as_dict(sample: Any) -> Any:
    """Return a sample's key and decoded parts as a dict; samples without parts as they are."""
    fields = named_fields(sample)
    if fields is None:
        return sample
    key = getattr(sample, "key", None)
    named = {} if key is None else {"__key__": key}
    return {**named, **{name: fields[name] for name in fields if name == "__key__" or not name.startswith("__")}}
