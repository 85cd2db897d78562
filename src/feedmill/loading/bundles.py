"""Make batches in the training loop's thread, and read several small ones at once.

Finding samples in indices, files and fetched ranges takes nearly the same time for 64 samples as for 256, and for small
samples it takes most of the time of a batch. So the reads of up to `MOST` batches are one call if it takes at most
about `SECONDS`. Everything after reading is done when the batch is requested: the transform, collating, errors. If the
joint read fails, each batch is read on its own, so that the error is raised at its sample.

A batch never waits for another one's bytes: steps are joined only if the iterator has them ready, and only while no
batch waits for remote data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from feedmill.loading.batches import BatchMaker, Made, Read
from feedmill.loading.groups import GroupMaker
from feedmill.planning.dealing.grid import Step

MOST = 4
SECONDS = 0.004
"""Maximum number of batches that are read at once, and seconds that this may take."""
PAUSE = 64
"""Batches that are read one by one after a joint read failed; four times as many after each further one."""
_LATE = 0.1
"""Share of reading that is waiting for remote data, from which on batches are read one by one."""


class Bundles(Iterator[Made]):
    """Iterator over the batches of steps, in order, each made when it is requested.

    Args:
        make: makes a batch.
        steps: the steps, in order.
        ready: returns how many of the next steps can be taken without waiting; None: all.
    """

    def __init__(
        self, make: BatchMaker | GroupMaker, steps: Iterable[Step], ready: Callable[[], int] | None = None
    ) -> None:
        self._make, self._steps, self._ready = make, iter(steps), ready
        self._begun: deque[tuple[Step, Read | None]] = deque()
        self._error: BaseException | None = None
        self._size, self._pause = 1, 1  # reading the first batch includes opening its files
        self._patience = PAUSE

    @property
    def begun(self) -> bool:
        """Return whether steps were taken whose batches, or error, have not been returned."""
        return bool(self._begun) or self._error is not None

    def __next__(self) -> Made:
        """Return the next batch. Raises as the maker does, and what the iterator of steps raises, at its step."""
        if not self._begun:
            self._begin()
        step, read = self._begun.popleft()
        try:
            made = self._make(step) if read is None else self._make(step, read)  # type: ignore[call-arg]
        except StopIteration as error:  # it would end the iteration without an error
            raise RuntimeError("making a batch raised StopIteration") from error
        self._adapt(made)
        return made

    def _begin(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        steps = [next(self._steps)]
        if self._size > 1:
            more = self._size - 1 if self._ready is None else min(self._size - 1, self._ready())
            try:
                steps += islice(self._steps, more)
            except BaseException as error:
                self._error = error
        reads: Sequence[Read | None] | None = None
        if len(steps) > 1 and isinstance(self._make, BatchMaker):
            reads = self._make.read_together(steps)
            if reads is None:
                self._pause, self._patience = self._patience, 4 * self._patience
        self._begun.extend(zip(steps, reads or [None] * len(steps), strict=True))

    def _adapt(self, made: Made) -> None:
        if self._pause:
            self._pause -= 1
            self._size = 1
        elif not self._begun and isinstance(self._make, BatchMaker) and self._make.is_plain:
            read, late = made.seconds.get("read", 0.0), made.seconds.get("fetch", 0.0)
            self._size = 1 if late > _LATE * read or not read else max(1, min(MOST, int(SECONDS / read)))
