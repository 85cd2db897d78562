"""Batches on a device before they are asked for: pinned memory, a stream of its own, one batch ahead.

A thread takes each batch as soon as it is made, copies its tensors to page-locked memory, and from there to the device
on a stream of its own, while the device still computes on the batch before. So two batches are on the device: the one
in use, and the next. A batch is handed out when its copy is complete, hence what the loop waits for is all there is.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from feedmill.errors import ConfigError
from feedmill.jobs.threads import ahead
from feedmill.loading.collate import to_torch
from feedmill.loading.groups import Given


class Lane(Protocol):
    """How tensors get to a device; what `Transfer` asks of torch."""

    def begun(self) -> AbstractContextManager[Any]:
        """On the copying thread: copies begun in this context are the lane's."""

    def moved(self, value: Any) -> Any:
        """Begin to copy a tensor, or an object with a `to` like a tensor's."""

    def complete(self) -> None:
        """On the copying thread: wait until all copies begun so far are complete."""

    def used(self, tensor: Any) -> None:
        """On the training loop's thread, whose stream uses the tensor from now on."""


class Pinned:
    """Copies to page-locked memory, and no further: the loop copies to its device itself."""

    def begun(self) -> AbstractContextManager[Any]:
        """Nothing is asynchronous here."""
        return nullcontext()

    def moved(self, value: Any) -> Any:
        """Return the copy."""
        return value.pin_memory() if hasattr(value, "pin_memory") else value

    def complete(self) -> None:
        """It is."""

    def used(self, tensor: Any) -> None:
        """By nobody but the host."""


class Streamed:
    """Copies on a stream of its own.

    Args:
        api: `torch.cuda`, or another module of torch with its names.
        device: the `torch.device`, with its number.
        pin: copy through page-locked memory, without which a copy waits for what the host does.
    """

    def __init__(self, api: Any, device: Any, pin: bool) -> None:
        self._api, self._device, self._pin = api, device, pin
        self._stream = api.Stream(device=device)

    def begun(self) -> AbstractContextManager[Any]:
        """Make the stream the current one of the calling thread, and its device the current device."""
        context: AbstractContextManager[Any] = self._api.stream(self._stream)
        return context

    def moved(self, value: Any) -> Any:
        """Return the tensor on the device, its copy begun."""
        if self._pin and hasattr(value, "pin_memory"):
            value = value.pin_memory()
        return value.to(self._device, non_blocking=True)

    def complete(self) -> None:
        """Waits without keeping a core busy."""
        event = self._api.Event(blocking=True)
        event.record(self._stream)
        event.synchronize()

    def used(self, tensor: Any) -> None:
        """Its memory was taken on the copying stream: it is not given to another copy before the loop's is done."""
        if tensor.device == self._device:
            tensor.record_stream(self._api.current_stream(self._device))


class Transfer:
    """The stage behind batching.

    Args:
        device: a torch device or its name, or None: batches stay on the host.
        pin_memory: whether batches pass through page-locked memory; None: on the way to an accelerator.

    Raises:
        ConfigError: no such device here, or nothing to pin memory for.
    """

    def __init__(self, device: Any = None, pin_memory: bool | None = None) -> None:
        self._device = None if device is None else known_device(device)
        on_host = self._device is None or self._device.type == "cpu"
        if pin_memory and not _has_accelerator():
            raise ConfigError(
                "pin_memory=True: torch sees no accelerator here, for which memory could be pinned",
                kind="no-device",
                fix="Leave pin_memory out: it is on where device= names an accelerator.",
            )
        self._pin = not on_host if pin_memory is None else pin_memory
        self.copies = not on_host or self._pin

    def lane(self) -> Lane:
        """Where a pass copies: made on the thread that iterates, as each thread of torch has its own current device."""
        import torch

        if self._device is None or self._device.type == "cpu":
            return Pinned()
        api = getattr(torch, self._device.type)
        device = self._device
        if device.index is None:
            device = torch.device(device.type, api.current_device())
        return Streamed(api, device, self._pin)

    def ahead(self, batches: Generator[Given, None, None]) -> Generator[Given, None, None]:
        """Return the batches with their tensors on the device, copied while the one before is in use.

        Without anything to copy: the batches as they come.
        """
        if not self.copies:
            return batches
        return _ahead(batches, self.lane())


def _ahead(batches: Generator[Given, None, None], lane: Lane) -> Generator[Given, None, None]:
    """See `Transfer.ahead`. However it ends, its thread has ended then, and `batches` is closed."""
    copied = ahead(_copied(batches, lane), depth=1)
    try:
        for given in copied:
            for tensor in tensors(given.batch):
                lane.used(tensor)
            yield given
            del given  # or two batches would stay on the device while the next is waited for
    finally:
        copied.close()


def _copied(batches: Generator[Given, None, None], lane: Lane) -> Generator[Given, None, None]:
    try:
        for given in batches:
            begun = time.perf_counter()
            with lane.begun():
                given.batch = mapped(to_torch(given.batch), lane.moved)
                lane.complete()
            given.transfer = time.perf_counter() - begun
            yield given
            del given
    finally:
        batches.close()


def known_device(device: Any) -> Any:
    """Return the `torch.device` that is meant. Raises ConfigError if there is none here, MissingExtra without torch."""
    to_torch([])  # says what is missing where torch is
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is unknown to torch ({str(error).splitlines()[0]})") from None
    if found.type == "cpu":
        return found
    api = getattr(torch, found.type, None)
    if not all(hasattr(api, name) for name in ("is_available", "device_count", "Stream", "Event", "stream")):
        raise ConfigError(
            f"device={str(found)!r}: batches cannot be copied there ahead of time",
            kind="no-device",
            fix="Leave device= out, and copy each batch in the loop.",
        )
    assert api is not None
    count = api.device_count() if api.is_available() else 0
    if count <= (found.index or 0):
        seen = f"{count or 'no'} such device{'s' * (count > 1)}"
        raise ConfigError(
            f"device={str(found)!r}: torch {torch.__version__} sees {seen} here",
            kind="no-device",
            fix="Use device='cpu', or a machine and a build of torch that have it.",
        )
    return found


def _has_accelerator() -> bool:
    import torch

    modules = (getattr(torch, name, None) for name in ("cuda", "xpu"))
    return any(module is not None and module.is_available() for module in modules)


def mapped(batch: Any, move: Callable[[Any], Any]) -> Any:
    """Return the batch with `move` of its tensors, and of objects that have a `to` as tensors do.

    Goes into dicts, tuples (named ones too), lists and dataclasses; everything else stays as it is.
    """
    if _moves(batch):
        return move(batch)
    if type(batch) is dict:
        return {name: mapped(value, move) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, move) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(mapped(value, move) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(changed, field.name, mapped(getattr(batch, field.name), move))
        return changed
    return batch


def tensors(batch: Any) -> Iterator[Any]:
    """Yield the tensors of a batch, those inside objects with a `to` among them."""
    if hasattr(batch, "record_stream"):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors(getattr(batch, field.name))
    elif _moves(batch):
        yield from tensors(vars(batch) if hasattr(batch, "__dict__") else [])


def _moves(value: Any) -> bool:
    return callable(getattr(value, "to", None)) and not isinstance(value, type)
