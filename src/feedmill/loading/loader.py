"""`Loader`: yields the batches of one rank of a plan.

    loader = Loader(plan, batch_size=32, rank=0, world_size=8, workers=4)
    for batch in loader:
        ...
        state = loader.state_dict()

The batches of all ranks at one step form a global batch: the next samples of the plan. It is the same for any number of
ranks and workers, even if these numbers or the batch size change at a resume.

A `Loader` makes a `Pipeline` (workers, groups, the copy to a device), a `Delivery` (what the loop gets, and the counts)
and, for each pass, an `Iteration`. Batches that were made but not yielded do not count: a resume makes them again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from inspect import GEN_RUNNING, getattr_static, getgeneratorstate
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from feedmill.errors import ConfigError, Hinted, integer, shortened, suggesting
from feedmill.loading.batches import BatchMaker, MadeBatch
from feedmill.loading.collate import to_torch
from feedmill.loading.failures import Tally
from feedmill.loading.groups import Delivered, GroupMaker, batches_of
from feedmill.loading.labels import Labeled, Labels
from feedmill.loading.layout import given_or_found, layout_of
from feedmill.loading.metrics import Metrics, Telemetry
from feedmill.loading.plan import PlainPlan, completed, yields_rows
from feedmill.loading.progress import Progress
from feedmill.loading.workers import Pace, Workers, chosen
from feedmill.notebooks import Displayed
from feedmill.planning.dealing.dealer import dealer_of
from feedmill.planning.dealing.grid import Grid, Remainder, Step
from feedmill.storage.fetching.fetch import Interrupted, interruptible

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from feedmill.formats.sample import AnySample
    from feedmill.loading.adapters.iterable import LoaderDataset
    from feedmill.loading.encoder import TaskEncoder
    from feedmill.loading.failures import Substitute
    from feedmill.loading.groups import GroupMaker
    from feedmill.loading.transfer import Transfer
    from feedmill.planning.dealing.rules import Balance, Budget, Deal, Dealing
    from feedmill.planning.given import Given

    class AnyBatch(dict[str, Any], Any):  # type: ignore[misc]
        """A batch whose type was not declared: a `dict` of fields, or what the hooks make; for type checkers alone."""

    Batch = WithDefault("Batch", default=Any, covariant=True)

    class LoaderOptions(TypedDict, total=False):
        """The arguments of a `Loader` that do not say of which type its batches are."""

        epochs: float | str | None
        rank: int | None
        world_size: int | None
        start: int
        workers: int | Literal["auto"] | Workers
        prefetch: int
        transform: Callable[..., Any] | None
        buffer: int | None
        device: Any
        pin_memory: bool | None
        remainder: Remainder
        deal: Deal | None
        balance: Balance | Mapping[str, Any] | str | None
        on_error: Literal["raise", "substitute"] | Substitute
        rewind: bool
        labels: bool
        seed: int | None
        stall: float | None
        telemetry: Telemetry | None

else:
    Batch = TypeVar("Batch", covariant=True)  # without a default before Python 3.13

logger = logging.getLogger("feedmill")

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
REWIND = (
    "To begin each pass at the start, use Loader(..., rewind=True); for more passes in one plan, raise its 'epochs' or"
    " 'samples'."
)


class Loader(Hinted, Displayed, Generic[Batch]):
    """An iterable over the batches of one rank, with a position that can be saved and resumed.

    Args:
        plan: maps positions to samples, and reads them. A recipe or its file stands for its plan; a dataset or its path
            for `Plan.over` it: endless, shuffled by blocks.
        batch_size: samples per rank and step; or a budget per rank and step, ``{"tokens": 65536, "max_samples": 64}``,
            see `feedmill.planning.dealing.cuts.Budget`; None for the budget in the recipe (`batch`).
        epochs: passes over a dataset that is given in place of a plan, which may be fractional (0.5); None for an
            endless plan. A recipe or a plan has its own.
        rank, world_size: rank of this process and number of ranks; each rank gets its part of every global batch.
            Default: found in the environment, see `feedmill.loading.layout`, which also supports layouts in which
            several processes get the same part.
        start: position of the plan at which to start: the number of samples consumed before over all ranks, for
            example a trainer's ``consumed_train_samples``. `Plan.position_of` converts an unskipped position. A
            loaded state overrides it.
        workers: number of threads that prefetch batches (read, transform and collate); with 0, each batch is made
            when it is requested. A `Workers` sets more, such as processes; ``"auto"`` chooses.
        prefetch: maximum number of batches per worker that are in progress or ready; bounds the memory.
        transform: ``transform(sample)``, or ``transform(sample, rng)`` if it has a second parameter that is named
            `rng` or has no default. `rng` is a `numpy.random.Generator` that depends only on the seed and the position
            of the sample, so random augmentation is the same for any ranks, workers and resumes. Called from several
            threads at once.
        collate: converts a list of samples to a batch; default: `feedmill.loading.collate.collate`. If neither
            `transform` nor `collate` nor `task_encoder` is given, the recipe's ``targets`` define both.
        task_encoder: hooks that replace `transform` and `collate`, with packing and grouping; see `TaskEncoder`.
        buffer: number of positions per window from which packs or groups are selected. Required for packing; default
            for groups: 32 batches. It determines what is packed together.
        output: ``"numpy"``; ``"torch"``, tensors that share the memory of the arrays; or ``"samples"``, plain lists.
        device: with ``output="torch"``: a torch device or its name, to which batches are copied ahead of time, in a
            separate thread and stream. One batch is therefore prefetched even with 0 workers, and `close` waits for
            the batch in progress.
        pin_memory: whether tensors are copied to page-locked memory; None: only if `device` is an accelerator. Without
            `device`, use it for loops that copy the batches themselves. It needs ``output="torch"``, or hooks that make
            tensors.
        remainder: what to do with the end of a finite plan that does not fill a global batch. ``"uneven"`` spreads it
            over the ranks in contiguous parts of (nearly) equal size; it is an error if there are fewer samples than
            ranks, because some ranks would end a step earlier. ``"ragged"`` allows that. ``"pad"`` fills every batch
            with the first samples of the plan; the field ``__mask__``, bool[n], of every batch marks the real ones.
            ``"drop"`` drops it, with a warning in the log if nothing else is left.
        deal: which rank gets which position of a global batch: ``"shuffled"``, by a separate permutation of each
            global batch, or ``"contiguous"``, the `rank`-th slice. None: as in the recipe, which defaults to shuffled.
        balance: deal all ranks the same number of samples at equal cost: ``"tokens"``, or
            ``{"by": "attention", "linear": 4096}``; see `feedmill.planning.dealing.dealer.Balance`.
        on_error: what to do with a sample that cannot be read, transformed or collated: ``"raise"`` ends the iteration
            at its batch; ``"substitute"`` or a `Substitute` replaces it with another sample of the same source.
        rewind: start each iteration at the start of the plan, or once at a loaded state: for validation.
        labels: report the source, epoch and position of each sample or row of a batch, in `labels` and in the field
            ``__labels__`` of batches that are dicts. See `feedmill.loading.labels.Labels`.
        seed: seed of the transform's generators; None: the seed of the plan.
        stall: seconds after which a batch that is not ready is reported in the log, with worker, sample, stage and
            code location; None for never.
        telemetry: destination and interval of the loader's `metrics`.

    Attributes:
        ranks: the rank and its layout, as given or found.
        layout: how the plan is divided into the batches of this rank.
        metrics: the cost of loading so far, see `feedmill.loading.metrics`.

    Type checkers take a batch for a `dict` of fields, with ``output="samples"`` for a list of samples, with `collate`
    for what it returns, and let every name pass that the hooks may add.

    A loader resumes where it stopped: iterating again resumes after the last batch that was yielded. After the end of a
    finite plan it is exhausted until `load_state_dict` moves it. Batches that were only prefetched do not count. The
    threads live as long as the iteration.

    A sample that cannot be used raises at its batch, after all batches before it; the error names the sample, and
    iterating again retries the same batch. With ``on_error="substitute"``, a deterministic substitute replaces it, so
    that all ranks keep the same number of batches and no later sample moves. A transform that raises `SkipSample`
    always gets a substitute.

    Raises:
        ConfigError: an invalid argument; or, when iterated, this is a worker of a torch `DataLoader`: each of its
            workers would yield every batch.
        MissingExtra: ``output="torch"`` without torch.
    """

    hints = HINTS

    def __getitem__(self, index: object) -> Any:
        """Raise TypeError: batches come in order."""
        raise TypeError(
            "a Loader gives batches in order and is not indexed: iterate it, give a torch DataLoader"
            " loader.as_iterable_dataset() with batch_size=None, or read samples with loader.plan.read([position])"
        )

    @overload
    def __init__(
        self: Loader[list[AnySample]],
        plan: PlainPlan | Given,
        batch_size: int | Budget | Mapping[str, Any] | None = None,
        *,
        output: Literal["samples"],
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[AnyBatch],
        plan: PlainPlan | Given,
        batch_size: int | Budget | Mapping[str, Any] | None = None,
        *,
        collate: None = None,
        task_encoder: TaskEncoder | None = None,
        output: Output = "numpy",
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        plan: PlainPlan | Given,
        batch_size: int | Budget | Mapping[str, Any] | None = None,
        *,
        collate: Callable[[list[Any]], Batch] | None,
        task_encoder: TaskEncoder | None = None,
        output: Output = "numpy",
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @suggesting(
        num_workers="did you mean 'workers'?",
        shuffle="the plan decides the order: fm.Plan.over(dataset, shuffle=...), or 'shuffle' in the recipe.",
        collate_fn="did you mean 'collate'?",
        prefetch_factor="did you mean 'prefetch'?",
        drop_last="did you mean remainder='drop'?",
        sampler="the plan decides the order.",
        world="did you mean 'world_size'?",
        num_replicas="did you mean 'world_size'?",
        timeout="did you mean 'stall'?",
        max_epochs="did you mean 'epochs'?",
        num_epochs="did you mean 'epochs'?",
    )
    def __init__(
        self,
        plan: PlainPlan | Given,
        batch_size: int | Budget | Mapping[str, Any] | None = None,
        *,
        epochs: float | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        start: int = 0,
        workers: int | Literal["auto"] | Workers = 0,
        prefetch: int = 2,
        transform: Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        task_encoder: TaskEncoder | None = None,
        buffer: int | None = None,
        output: Output = "numpy",
        device: Any = None,
        pin_memory: bool | None = None,
        remainder: Remainder = "uneven",
        deal: Deal | None = None,
        balance: Balance | Mapping[str, Any] | str | None = None,
        on_error: Literal["raise", "substitute"] | Substitute = "raise",
        rewind: bool = False,
        labels: bool = False,
        seed: int | None = None,
        stall: float | None = 60.0,
        telemetry: Telemetry | None = None,
    ) -> None:
        plan = _plan_of(plan, epochs)
        prefetch = integer("prefetch", prefetch)
        check_numbers(prefetch, stall)
        ranks = given_or_found(rank, world_size)
        layout = layout_of(
            plan,
            batch_size,
            ranks,
            start=start,
            remainder=remainder,
            deal=deal,
            balance=balance,
            task_encoder=None if yields_rows(plan) else task_encoder,
            buffer=buffer,
        )
        hooks = collate is not None or task_encoder is not None
        check_output(output, device, pin_memory, hooks=hooks, pads=remainder == "pad" and plan.length is not None)
        if transform is None and collate is None and task_encoder is None and output != "samples":
            transform, collate = getattr(plan, "transform", None), getattr(plan, "collate", None)
        check_hooks(transform, collate, task_encoder)
        self.plan, self.ranks, self.layout = plan, ranks, layout
        self.prefetch = prefetch
        self.seed = integer("seed", plan.seed if seed is None else seed)
        tensors = output == "torch"
        transfer = None
        if tensors or pin_memory:
            from feedmill.loading.transfer import Transfer

            transfer = Transfer(device, pin_memory, convert=tensors)
        self.metrics = Metrics(ranks.rank, plan)
        from feedmill.loading.failures import Tally, policy_for

        tally = Tally(policy_for(on_error), self.metrics)
        if task_encoder is not None:
            from feedmill.loading.encoder import Prepared, PreparedRows

            transform = (PreparedRows if yields_rows(plan) else Prepared)(task_encoder)
            collate = task_encoder.together
        windows = layout.cursor is not None
        reading = completed(plan)
        maker = BatchMaker(
            reading,
            transform,
            collate,
            lists=output == "samples" or windows,
            seed=self.seed,
            rank=ranks.rank,
            substitute=tally.policy is not None,
            mask=remainder == "pad" and plan.length is not None,
            labels=labels,
            stall=stall,
            of_fields=task_encoder.of_fields
            if task_encoder is not None and not windows and not yields_rows(plan)
            else None,
        )
        maker.runs, maker.tensors = transfer is None or not transfer.copies, tensors
        make: BatchMaker | GroupMaker = maker
        if task_encoder is not None and windows:
            from feedmill.loading.groups import GroupMaker

            make = GroupMaker(maker, task_encoder, layout.size, drop=remainder == "drop")
        self.workers = chosen(workers, make)
        if self.workers.processes:
            from feedmill.loading.step_reader import step_reader

            maker.step_reader = step_reader(plan)
        labeled = Labeled(reading, tensors=tensors, copied=self.workers.processes) if labels else None
        self._progress = Progress.at_start(plan, layout, self.seed)
        self.metrics.position = self._progress.position
        self._pipeline = Pipeline(make, self.workers, prefetch, transfer)
        self._delivery = Delivery(tensors, labeled, tally, self.metrics, telemetry)
        self._rewind, self._loaded = rewind, False
        self._running: weakref.ref[Iteration] | None = None
        self._held: Iterator[Batch] | None = None

    @property
    def rank(self) -> int:
        """Return the rank of this process, as given or found."""
        return self.ranks.rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks, as given or found."""
        return self.ranks.world_size

    @property
    def dealing(self) -> Dealing:
        """Return how positions are dealt to ranks, and the budget of batches."""
        return self.layout.dealing

    @property
    def position(self) -> int:
        """Return the number of samples of the plan that the yielded batches have consumed, over all ranks.

        With packing or grouping: the position before which every rank has begun its windows.
        """
        return self._progress.position

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over the batches after the current position; it ends an earlier iteration.

        Raises:
            ConfigError: this is a worker of a torch `DataLoader`, or no batch can be made at the position.
        """
        check_not_torch_worker()
        if self._rewind and not self._loaded:
            self._move(self._progress.restarted())
        self._loaded = False
        return self.iterate(self._progress)

    def __next__(self) -> Batch:
        """Return the next batch of the running iteration, or of a new one: ``next(loader)``.

        Raises:
            StopIteration: the plan has ended.
        """
        self._held = self._running() if self._running is not None else None
        if self._held is None:
            self._held = iter(self)
        try:
            return next(self._held)
        except StopIteration:
            self.close()
            raise

    def iterate(self, progress: Progress, again: str = REWIND) -> Iteration:
        """Return an iterator over the batches after a position, which it advances; it ends an earlier iteration.

        For adapters, which keep a position of their own.

        Args:
            progress: the position.
            again: what to do if it is the end of the plan, as a sentence for the log.

        Raises:
            ConfigError: no batch can be made at the position, or a worker process is importing the main program.
        """
        from feedmill.jobs.main_program import check_not_importing

        check_not_importing()
        progress.check()
        self.close()
        iteration = Iteration(progress, self._pipeline, self._delivery, again)
        self._running = weakref.ref(iteration)
        return iteration

    @property
    def progress(self) -> Progress:
        """Return a copy of the position, for adapters."""
        return replace(self._progress)

    def as_iterable_dataset(self) -> LoaderDataset:
        """Return the batches as a torch `IterableDataset`, for a `DataLoader` or torchdata's `StatefulDataLoader`.

        Its workers share the batches of this rank; see `feedmill.loading.adapters.iterable`.

        Raises:
            MissingExtra: torch is missing.
        """
        to_torch([])  # raise now if torch is missing
        from feedmill.loading.adapters.iterable import LoaderDataset

        return LoaderDataset(self)

    def __len__(self) -> int:
        """Return the number of batches of this rank over the whole plan, including those before a loaded state.

        Trainers that count batches across a resume, as with other stateful loaders, therefore end where the plan does.
        """
        grid = self._progress.grid
        if self._progress.cursor is not None:
            raise TypeError("the number of packs or groups is not known before they are made")
        if not isinstance(grid, Grid):
            raise TypeError("the number of batches by budget is not known before they are made")
        if grid.steps is None:
            raise TypeError(
                "the plan never ends, so its loader has no length: give it an end, fm.Loader(path, ..., epochs=1) or"
                " 'epochs' or 'samples' in the recipe, or stop the loop after a number of steps"
            )
        return grid.steps + grid.first_number

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle: it keeps the position, but not the running iteration."""
        return {**self.__dict__, "_progress": replace(self._progress), "_running": None, "_held": None}

    def __repr__(self) -> str:
        grid = self._progress.grid
        length = "endless" if grid.length is None else f"{grid.length:,} samples"
        workers = f"{self.workers.count} {'processes' if self.workers.processes else 'workers'}"
        size = f"batch size {grid.batch_size}" if isinstance(grid, Grid) else grid.budget
        at = f"position {self._progress.consumed:,}, rank {grid.rank} of {grid.world_size}"
        return f"Loader({length}, {at}, {size}, {workers})"

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last yielded batch as JSON data: a few hundred bytes, plus about 35 per source.

        It is the same on every rank after the same step. With packing or grouping, every rank has a different state,
        because each rank has its own windows.
        """
        return self._progress.state_dict()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        allow_append: bool = False,
        allow_skip: bool = False,
        allow_change: bool = False,
    ) -> None:
        """Resume where `state` was saved, on any number of ranks and workers and with any batch size.

        Args:
            state: the state of any rank. With packing or grouping: the state of this rank, or a list of the states of
                all ranks, which can be loaded on any number of ranks.
            allow_append: allow sources that have grown since. The position is kept, and the order from there is that of
                the grown data: docs/ledger.md lists what it repeats and skips.
            allow_skip: allow a different skip list in the recipe; resumes right after the last sample that was seen.
            allow_change: allow another recipe if every position before the state is proven to yield the same sample:
                appended stages, weights that change later, a source that was not drawn before. With `allow_append`,
                the proof is for the old recipe over the grown data. It takes no time if both recipes start with the
                same text, and otherwise about a microsecond per position.

        Raises:
            ConfigError: not a state of a loader, or the state of another plan; the message lists the changes, and with
                `allow_change` the first position that differs.
        """
        from feedmill.planning.resuming.resume import Allowed

        self._move(self._progress.resumed(state, Allowed(allow_append, allow_skip, allow_change)))
        self._loaded = True

    def again(self, positions: Sequence[int]) -> Batch:
        """Return the batch of the samples at these positions, for example to inspect the batch of an earlier step.

        The samples are transformed and collated as in this loader's own batches.

        Args:
            positions: positions of the plan, in the order of the batch.

        Raises:
            ConfigError: no position is given; or the loader packs or groups, and positions do not determine batches.
            FeedmillError: a sample fails and has no substitute.
        """
        make = self._pipeline.make
        if not isinstance(make, BatchMaker) or not positions:
            raise ConfigError(
                "packs and groups cannot be made from positions" if positions else "no position was given",
                kind="unsupported",
                fix="Read the samples with plan.read(positions)." if positions else "Give at least one position.",
            )
        grid = self.layout.grid
        number = replace(grid, start=0).number_of(positions[0]) if isinstance(grid, Grid) else 0
        made = make.again(positions, number or 0)
        return cast(Batch, self._delivery.finished(made.batch, made.labels))

    def again_packs(self, packs: Sequence[tuple[int, int]]) -> Batch:
        """Return the batch of packs, for example to inspect the batch of an earlier step.

        Args:
            packs: for each pack, the first position of its window and its number there.

        Raises:
            ConfigError: the loader does not pack, or there is no such pack.
            FeedmillError: a sample fails and has no substitute.
        """
        make, cursor = self._pipeline.make, self._progress.cursor
        from feedmill.loading.groups import GroupMaker

        if not isinstance(make, GroupMaker) or not make.packs or cursor is None or not packs:
            raise ConfigError("this loader has no packs to make again", kind="unsupported", fix="Use again().")
        try:
            return cast(Batch, self._delivery.finished(make.again(packs, cursor.step), None))
        except IndexError:
            raise ConfigError(f"there are no packs {packs!r:.80}", kind="bad-state") from None

    @property
    def labels(self) -> Labels:
        """Return source, epoch and position of each sample of the last yielded batch; see `feedmill.loading.labels`.

        Raises:
            ConfigError: the loader was created without ``labels=True``, or no batch has been yielded yet.
        """
        labeled = self._delivery.labeled
        if labeled is None:
            raise ConfigError("this loader has no labels", kind="unsupported", fix="Pass labels=True.")
        return labeled.last

    @property
    def failures(self) -> int:
        """Return the number of samples of this rank that could not be used since the loader was created."""
        return self.metrics.failures

    @property
    def skipped(self) -> int:
        """Return the number of samples of this rank that the transform skipped since the loader was created."""
        return self.metrics.skipped

    def _move(self, progress: Progress) -> None:
        """End the running iteration and set the position."""
        self.close()
        self._progress = progress
        self.metrics.position = progress.position

    def close(self) -> None:
        """End the running iteration and its threads. The position is kept; iterating again resumes there."""
        iteration = self._running() if self._running is not None else None
        self._running = self._held = None
        if iteration is not None:
            iteration.close()


def _plan_of(given: Any, epochs: float | str | None) -> PlainPlan:
    """Return the plan of what a loader is given, with the fingerprints of local data computed."""
    is_plan = hasattr(given, "length") and hasattr(given, "locate")
    if epochs is not None and is_plan:
        raise ConfigError(
            f"epochs={epochs!r} has no use: a plan has its own end",
            kind="bad-option",
            fix="Give it to the plan, fm.Plan.over(dataset, epochs=...) or 'epochs' in the recipe, or give the loader"
            " the dataset.",
        )
    # Looked up without computing them, which takes requests; a wrapper may delegate the attribute.
    if getattr_static(given, "fingerprints", None) is None and not hasattr(given, "fingerprints"):  # not a plan
        from feedmill.planning.given import plan_of

        given = plan_of(given, epochs)
    plan = cast(PlainPlan, given)
    _hash_local_data(plan)
    return plan


def _hash_local_data(plan: PlainPlan) -> None:
    """Compute the fingerprints now unless all data is remote.

    A local file can be rewritten in place before the first state, which would then identify other data than was read.
    Remote objects are pinned to their versions, and hashing them takes requests, which the first batch need not await.
    """
    sources = getattr(plan, "sources", ())
    if not sources or not all(getattr(source, "is_remote", False) for source in sources):
        _ = plan.fingerprints


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


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Makes the batches of a loader.

    Attributes:
        make: makes one batch, or one window of packs or groups.
        workers: threads or processes that make them.
        prefetch: maximum number of batches per worker that are in progress or ready.
        transfer: copies batches to a device; None if they stay where they are.
        pace: decides whether workers or the loop make batches; kept from one iteration to the next.
    """

    make: BatchMaker | GroupMaker
    workers: Workers
    prefetch: int
    transfer: Transfer | None
    pace: Pace = field(default_factory=Pace)

    def batches(self, progress: Progress) -> Generator[Delivered, None, None]:
        """Return a generator of the batches from `progress` on. Its threads or processes end with it."""
        given = self._steps(progress) if progress.cursor is None else self._packs(progress)
        return given if self.transfer is None else self.transfer.ahead(given)

    def _made(self, steps: Iterator[Step], progress: Progress) -> Generator[MadeBatch, None, None]:
        """Yield the batches of steps in order, and read their remote data ahead."""
        grid = progress.grid
        walked = None
        if getattr(progress.plan, "is_remote", False):
            from feedmill.loading.ahead import walk

            walked = walk(steps, progress.plan, grid.rank, grid.world_size, processes=self.workers.processes)
        ready = walked.ready if walked else None
        from feedmill.loading.workers import make_ahead

        made_ahead = make_ahead(self.make, walked or steps, self.workers, self.prefetch, self.pace, ready)
        with closing(walked) if walked else nullcontext(), closing(made_ahead) as ahead:
            for made in ahead:
                if walked:
                    walked.done()
                    if walked.waited:
                        made.seconds["fetch"] = made.seconds.get("fetch", 0.0) + walked.waited
                        walked.waited = 0.0
                yield made
                del made

    def _steps(self, progress: Progress) -> Generator[Delivered, None, None]:
        """Yield the batches of the grid."""
        dealer = dealer_of(progress.plan, progress.grid, progress.layout.dealing)
        steps = dealer.batches(progress.consumed, progress.skip, progress.every)
        with closing(self._made(steps, progress)) as ahead:
            for made in ahead:
                given = Delivered(made.batch, made.step.end, [made], labels=made.labels, rest=made.rest)
                made.batch = None
                del made  # or the batch would stay in memory while the loop waits for the next one
                yield given
                del given

    def _packs(self, progress: Progress) -> Generator[Delivered, None, None]:
        """Yield the batches of packs or groups."""
        cursor, make, grid = progress.cursor, self.make, progress.grid
        assert cursor is not None and isinstance(make, GroupMaker) and isinstance(grid, Grid)
        steps = (cursor.step(first) for _, first, _ in cursor.windows())
        together = make.batch if make.packs else None
        with closing(self._made(steps, progress)) as ahead:
            keep = grid.remainder != "drop"
            yield from batches_of(cursor.windows(), ahead, together, grid.batch_size, keep_last=keep)


class Delivery(NamedTuple):
    """Converts batches for the training loop, and counts their samples and failures.

    Attributes:
        tensors: whether to convert arrays to tensors.
        labeled: holds the labels of the last batch; None without labels.
        tally: counts failures against their budget.
        metrics: metrics of the loader.
        telemetry: destination and interval of the metrics; None for no reports.
    """

    tensors: bool
    labeled: Labeled | None
    tally: Tally
    metrics: Metrics
    telemetry: Telemetry | None

    def finished(self, batch: Any, labels: Labels | None) -> Any:
        """Return a batch in the form that the loop gets."""
        batch = to_torch(batch) if self.tensors else batch
        if self.labeled is not None and labels is not None:
            self.labeled.finish(labels, batch)
        return batch

    def deliver(self, given: Delivered, progress: Progress, requested_at: float) -> Any:
        """Return the batch of a request, and count it; `progress` advances last, after everything that can fail."""
        batch = self.finished(given.batch, given.labels)
        seconds = {"transfer": given.transfer}
        for made in given.made:
            for stage, taken in made.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + taken
            self.metrics.skipped += made.skipped
            self.metrics.counted(made.counts)
            self.tally.note_all(made.step.positions.tolist() if made.troubles else (), made.troubles)
            self.metrics.made(made.seconds, made.step.real, made.step.spread, made.step.budget_share)
        self.metrics.transferred(given.transfer)
        progress.advance(given.after)
        if self.labeled is not None:
            self.labeled.keep(given.labels)
        now = time.perf_counter()
        self.metrics.given(now - requested_at, now, seconds)
        self.metrics.position = progress.position
        if self.telemetry is not None:
            self.metrics.report(self.telemetry, time.monotonic())
        return batch

    def deliver_next(self, given: Delivered, progress: Progress) -> Any:
        """Return the next batch of the `rest` of a delivery, and count it."""
        requested_at = time.perf_counter()
        batch, after = given.rest.popleft()
        progress.advance(after)
        self.metrics.position = after
        self.metrics.given_ready(requested_at, given.size)
        if self.telemetry is not None:
            self.metrics.report(self.telemetry, time.monotonic())
        return batch


class Iteration(Iterator[Any]):
    """One pass of a loader. Its threads or processes end when it is exhausted, closed, or no longer referred to.

    Args:
        progress: the position at which the pass begins; it advances with each batch.
        pipeline: makes the batches.
        delivery: converts them for the training loop and counts them.
        again: what to do if the pass begins at the end of the plan.

    A pass without a batch is reported in the log: a loop over it does nothing.
    """

    def __init__(self, progress: Progress, pipeline: Pipeline, delivery: Delivery, again: str = REWIND) -> None:
        self._progress, self._delivery, self._again = progress, delivery, again
        self._began_at_end, self._is_empty = progress.ended, True
        self._stop = threading.Event()
        self._given = pipeline.batches(progress)
        self._last: Delivered | None = None  # whose `rest` comes next
        self._closed = self._forked = False
        self._in_next = threading.Lock()
        _running.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise _ended()
        if self._forked:
            raise ConfigError(
                "this iteration cannot continue in a forked process: its threads were not inherited",
                kind="wrong-process",
                fix="Iterate the loader again in this process: it continues from its position.",
            )
        if not self._in_next.acquire(blocking=False):
            raise ConfigError(
                "another thread is taking a batch from this iteration: it cannot be shared by threads",
                kind="wrong-process",
                fix="Take batches in one thread and hand them on, or give each thread a loader with a rank of its own.",
            )
        try:
            last = self._last
            if last is not None:
                if last.rest:
                    return self._delivery.deliver_next(last, self._progress)
                self._last = None
            return self._next()
        except Exception as error:  # its own cause stays
            raise shortened(error)  # noqa: B904
        finally:
            self._in_next.release()

    def _next(self) -> Any:
        requested_at = time.perf_counter()
        try:
            with interruptible(self._stop):
                given = next(self._given, None)
            if self._closed:  # by another thread or a signal handler during the wait
                raise _ended()
            if given is not None:
                self._is_empty = False
                batch = self._delivery.deliver(given, self._progress, requested_at)
                if given.rest:
                    given.batch, given.size, self._last = None, given.made[0].step.real, given
                return batch
        except BaseException as error:
            interrupted = isinstance(error, Interrupted) and self._stop.is_set()
            self.close()
            if interrupted:
                raise _ended() from None
            if isinstance(error, StopIteration):  # raised by a handler: the loop would end early without an error
                raise RuntimeError("the handler of failures raised StopIteration") from error
            raise
        self._delivery.metrics.pause()
        if self._is_empty:
            self._report_empty()
        self._progress.finish()
        raise StopIteration

    def _report_empty(self) -> None:
        progress = self._progress
        # Of several processes, the first reports it; that a whole plan gives no batch was reported when it was made.
        if self._began_at_end and progress.skip == 0 and progress.position:
            logger.warning(
                "this pass of the loader gave no batch: position %s is the end of its plan. %s",
                f"{progress.position:,}",
                self._again,
            )
        elif progress.cursor is not None and not self._began_at_end:
            logger.warning(
                "this pass of the loader gave no batch: its task encoder made none of the samples from position %s on."
                " Check its hooks of packing and grouping.",
                f"{progress.position:,}",
            )

    def close(self) -> None:
        """End the iteration. If another thread waits for a batch, that thread ends it, and its wait for remote data."""
        self._closed, self._last = True, None
        self._stop.set()
        self._delivery.metrics.pause()
        if self._forked:
            return
        try:
            self._given.close()
        except ValueError:
            if getgeneratorstate(self._given) != GEN_RUNNING:
                raise


def _ended() -> ConfigError:
    return ConfigError(
        "this iteration was ended by an error, close(), load_state_dict() or a newer iteration of its loader",
        fix="Iterate the loader again: it continues from its position.",
    )


_running: weakref.WeakSet[Iteration] = weakref.WeakSet()
_of_parent: list[Any] = []


def _leave_to_parent() -> None:
    """Disable running iterations in a forked process: a fork has no threads, and their locks may stay locked.

    The iterations can therefore neither continue nor be closed here. Their generators are kept alive, because
    collecting them would close them.
    """
    for iteration in list(_running):
        iteration._forked = True
        _of_parent.append(iteration._given)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
