"""How a dataset was opened (`Opened`): what turns the bytes of its samples into what users get, and opens it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from feedmill.errors import DataError
from feedmill.formats.sample import Decode, Sample

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset

View = Callable[[list["Sample"]], list[Any]]
"""Raw samples -> what the user gets, one for one and in order."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a dataset's description says of the order in which it is read for training.

    Attributes:
        shuffles: False for the stored order.
        passes: passes over the data in one loop, -1 for draws with replacement; None for what the caller says.
        parallel, sequence: as in a shuffle of shards; None for what the recipe says.
    """

    shuffles: bool = True
    passes: int | None = None
    parallel: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The settings with which a dataset was opened, except its location.

    Attributes:
        view: converts raw samples; None returns them unchanged.
        decode: decodes parts; None leaves them as bytes.
        subflavors: data attached to every sample, by the dataset's description or by a recipe.
        about: facts from the dataset's description, for `describe`.
        aux: name -> URL of data that samples refer to, as a metadataset gives them.
        order: what the dataset's description says of the order.
        reopen: opens the dataset again, so that another process gets its own instance instead of a copy.
    """

    view: View | None = None
    decode: Decode | None = None
    subflavors: Mapping[str, Any] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    aux: Mapping[str, str] = field(default_factory=dict)
    order: Order = Order()
    reopen: Callable[[], Dataset] | None = None


def changed(reopen: Callable[[], Dataset], changes: Mapping[str, Any]) -> Dataset:
    """Return a dataset opened again with other settings."""
    return reopen().opened_as(**changes)


def reopened(reopen: Callable[[], Dataset], fingerprint: str) -> Dataset:
    """Return a dataset opened again. Raises `DataError` if its data is not what it was."""
    dataset = reopen()
    if dataset.fingerprint() != fingerprint:
        raise DataError(
            "the dataset has changed since it was opened in the main process",
            file=dataset.url,
            kind="changed",
            fix="Open the dataset again in a new run.",
        )
    return dataset
