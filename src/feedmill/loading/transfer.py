"""Copy batches to a device before the training loop requests them: pinned memory, a separate stream, one batch ahead.

A `Loader` with ``device=`` or ``pin_memory=True`` uses this module. A thread takes each batch as soon as it is made. It
copies the tensors to page-locked memory, and from there to the device on a separate stream, while the device computes
on the previous batch. So two batches are on the device: the current one and the next. A batch is yielded only when its
copy is complete, so the time that the loop waits includes the copy, and no later operation waits for it.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from feedmill.errors import ConfigError
from feedmill.loading.collate import to_torch
from feedmill.loading.groups import Delivered
from feedmill.storage.fetching.fetch import current_stop


class Lane(Protocol):
    """Interface of a way to copy tensors to a device."""

    def begun(self) -> AbstractContextManager[Any]:
        """Return a context for the copying thread; copies that begin in it belong to this lane."""

    def moved(self, value: Any) -> Any:
        """Begin to copy a tensor or an object with a method `to` like a tensor's; return the copy."""

    def complete(self) -> None:
        """Wait, on the copying thread, until all copies begun so far are complete."""

    def used(self, tensor: Any) -> None:
        """Record, on the training loop's thread, that its stream uses the tensor from now on."""


class Pinned:
    """Lane that only copies to page-locked memory; the loop copies to its device itself."""

    def begun(self) -> AbstractContextManager[Any]:
        """Return an empty context: these copies are synchronous."""
        return nullcontext()

    def moved(self, value: Any) -> Any:
        """Return the copy in page-locked memory."""
        return value.pin_memory() if hasattr(value, "pin_memory") else value

    def complete(self) -> None:
        """Return at once: these copies are synchronous."""

    def used(self, tensor: Any) -> None:
        """Do nothing: the tensor is in memory of the host."""


class Streamed:
    """Lane that copies to a device on a separate stream.

    Args:
        api: `torch.cuda`, or another module of torch with its names.
        device: the `torch.device`, with its number.
        pin: whether to copy through page-locked memory. Without it, copies are not asynchronous.
    """

    def __init__(self, api: Any, device: Any, pin: bool) -> None:
        self._api, self._device, self._pin = api, device, pin
        self._stream = api.Stream(device=device)

    def begun(self) -> AbstractContextManager[Any]:
        """Return a context in which the stream and its device are current on the calling thread."""
        context: AbstractContextManager[Any] = self._api.stream(self._stream)
        return context

    def moved(self, value: Any) -> Any:
        """Begin the copy, and return the tensor on the device."""
        if self._pin and hasattr(value, "pin_memory"):
            value = value.pin_memory()
        return value.to(self._device, non_blocking=True)

    def complete(self) -> None:
        """Wait for the copies without spinning on a core."""
        event = self._api.Event(blocking=True)
        event.record(self._stream)
        event.synchronize()

    def used(self, tensor: Any) -> None:
        """Record the use of the tensor on the loop's stream.

        Its memory was allocated on the copying stream. Without the record, the allocator could reuse the memory for the
        next copy while the loop's stream still reads it.
        """
        if tensor.device == self._device:
            tensor.record_stream(self._api.current_stream(self._device))


class Transfer:
    """The stage of a pipeline that copies batches to a device.

    Args:
        device: a torch device or its name; None to leave batches on the host.
        pin_memory: whether to copy batches to page-locked memory; None: only if `device` is an accelerator.
        convert: whether to make tensors of arrays first. Without it, only the tensors of a batch are copied.

    Attributes:
        copies: whether there is anything to copy.

    Raises:
        ConfigError: this machine has no such device, or `pin_memory` is set and it has no accelerator.
    """

    def __init__(self, device: Any = None, pin_memory: bool | None = None, *, convert: bool = True) -> None:
        self._convert = convert
        self._device = None if device is None else known_device(device)
        on_host = self._device is None or self._device.type == "cpu"
        if pin_memory and not has_accelerator():
            raise ConfigError(
                "pin_memory=True requires an accelerator, and torch sees no accelerator on this machine",
                kind="bad-option",
                fix="Omit pin_memory: it is on by default if device= is an accelerator.",
            )
        self._pin = not on_host if pin_memory is None else pin_memory
        self.copies = not on_host or self._pin

    def lane(self) -> Lane:
        """Return the lane of one pass. Call it on the iterating thread: each thread of torch has a current device."""
        import torch

        if self._device is None or self._device.type == "cpu":
            return Pinned()
        api = getattr(torch, self._device.type)
        device = self._device
        if device.index is None:
            device = torch.device(device.type, api.current_device())
        return Streamed(api, device, self._pin)

    def ahead(self, batches: Generator[Delivered, None, None]) -> Generator[Delivered, None, None]:
        """Return the batches with their tensors on the device, each copied while the previous one is in use.

        If there is nothing to copy, return `batches`.
        """
        if not self.copies:
            return batches
        return _ahead(batches, self.lane(), to_torch if self._convert else _as_it_is)


def _ahead(
    batches: Generator[Delivered, None, None], lane: Lane, convert: Callable[[Any], Any]
) -> Generator[Delivered, None, None]:
    """Yield batches as `Transfer.ahead`. When the generator ends, its thread has ended and `batches` is closed."""
    from feedmill.jobs.threads import ahead

    copied = ahead(_copied(batches, lane, convert), depth=1, interrupt=current_stop().set)
    try:
        for given in copied:
            for tensor in tensors(given.batch):
                lane.used(tensor)
            yield given
            del given  # or a third batch would be on the device while the loop waits
    finally:
        copied.close()


def _copied(
    batches: Generator[Delivered, None, None], lane: Lane, convert: Callable[[Any], Any]
) -> Generator[Delivered, None, None]:
    try:
        for given in batches:
            begun = time.perf_counter()
            with lane.begun():
                given.batch = mapped(convert(given.batch), lane.moved)
                lane.complete()
            given.transfer = time.perf_counter() - begun
            yield given
            del given
    finally:
        batches.close()


def _as_it_is(batch: Any) -> Any:
    return batch


def known_device(device: Any) -> Any:
    """Return the `torch.device` of a device or its name.

    Raises:
        ConfigError: this machine has no such device, or torch cannot copy to it ahead of time.
        MissingExtra: torch is not installed.
    """
    to_torch([])  # raises MissingExtra without torch
    import torch

    try:
        known = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device={device!r} is unknown to torch ({str(error).splitlines()[0]})",
            fix="Give the name of a torch device, such as 'cuda:0'.",
        ) from None
    if known.type == "cpu":
        return known
    api = getattr(torch, known.type, None)
    if not all(hasattr(api, name) for name in ("is_available", "device_count", "Stream", "Event", "stream")):
        raise ConfigError(
            f"device={str(known)!r}: batches cannot be copied there ahead of time, because it has no streams",
            kind="bad-option",
            fix="Omit device=, and copy each batch in the loop.",
        )
    assert api is not None
    count = api.device_count() if api.is_available() else 0
    if count <= (known.index or 0):
        available = f"{count or 'no'} such device{'s' * (count > 1)}"
        raise ConfigError(
            f"device={str(known)!r}: torch {torch.__version__} sees {available} on this machine",
            kind="bad-option",
            fix="Use device='cpu', or a machine and a build of torch with that device.",
        )
    return known


def has_accelerator() -> bool:
    """Return whether torch sees an accelerator on this machine. Requires torch."""
    import torch

    modules = (getattr(torch, name, None) for name in ("cuda", "xpu"))
    return any(module is not None and module.is_available() for module in modules)


def mapped(batch: Any, move: Callable[[Any], Any]) -> Any:
    """Return the batch with `move` applied to its tensors, and to other objects with a method `to`.

    Tensors in dicts, tuples (including named tuples), lists and dataclasses are included. Other values are unchanged.
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
    """Yield the tensors of a batch, including those inside objects with a method `to`."""
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
