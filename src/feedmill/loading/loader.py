"""`Loader`: a plan on one rank, as batches.

    loader = Loader(plan, batch_size=32, rank=0, world_size=8, workers=4)
    for batch in loader:
        ...
        state = loader.state_dict()

The batches of all ranks at a step are together the next samples of the plan, which make one global batch: the same for
any number of ranks and workers, also where these, and the batch size, change at a resume.
"""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from feedmill.errors import ConfigError
from feedmill.loading.batches import BatchMaker, Made
from feedmill.loading.collate import to_torch
from feedmill.loading.encoder import Prepared, TaskEncoder
from feedmill.loading.failures import Substitute, Tally, policy_for
from feedmill.loading.groups import Cursor, GroupMaker, resumed
from feedmill.loading.iteration import Iteration
from feedmill.loading.labels import Labeled, Labels
from feedmill.loading.layout import check_begin, layout_of
from feedmill.loading.metrics import Metrics, Telemetry
from feedmill.loading.plan import PlainPlan, PlanLike, completed
from feedmill.loading.ranks import given_or_found, whole
from feedmill.loading.state import make_state, read_states
from feedmill.loading.transfer import Transfer
from feedmill.loading.workers import Workers, chosen
from feedmill.planning.dealing.cuts import Budget, BudgetGrid
from feedmill.planning.dealing.dealer import Balance, Dealing
from feedmill.planning.dealing.grid import Remainder
from feedmill.planning.resuming.resume import Allowed

logger = logging.getLogger("feedmill")

OUTPUTS = ("numpy", "torch", "samples")


class Loader:
    """Iterates the batches of `plan` that belong to one rank, and remembers how far it came.

    Args:
        plan: says which sample comes at which position, and reads samples.
        batch_size: samples per rank and step; or a budget per rank and step, ``{"tokens": 65536, "max_samples": 64}``,
            see `feedmill.planning.dealing.cuts.Budget`; None for the budget in the recipe (`batch`).
        rank, world_size: this process among those that share the plan, each taking its part of every global batch.
            Where neither is given, they are found: see `feedmill.loading.ranks`, which also knows layouts in which
            several processes get the same share.
        start: the position of the plan at which to start: samples that were consumed before, over all ranks, for
            example a trainer's ``consumed_train_samples``; `Plan.position_of` is that of an unskipped position. A
            state that is loaded overrides it.
        workers: threads that make whole batches ahead (reading, transforming and collating them); with 0 each batch
            is made when it is asked for. A `Workers` says more, processes among it; ``"auto"`` chooses.
        prefetch: batches per worker that are begun or wait to be taken; bounds the memory.
        transform: ``transform(sample)``, or ``transform(sample, rng)`` where it has a second parameter that is called
            `rng` or has no default. `rng` is a `numpy.random.Generator` that depends on the seed and the sample's
            position alone, so random augmentation too is the same for any ranks, workers and resumes. Called from
            several threads at once.
        collate: list of samples -> batch, instead of `feedmill.loading.collate.collate`.
        task_encoder: hooks in place of `transform` and `collate`, for packing and grouping too; see `TaskEncoder`.
        buffer: samples that packs or groups are selected from: windows of this many positions. Needed for packing; 32
            batches by default for groups. It decides what is packed together.
        output: ``"numpy"``; ``"torch"``, arrays as tensors that share their memory; or ``"samples"``, plain lists.
        device: with ``output="torch"``: a torch device or its name, to which batches are copied ahead of time, on a
            thread and a stream of their own. So one batch is made ahead also with 0 workers, and `close` waits for the
            one that is being made.
        pin_memory: whether tensors are copied to page-locked memory; where it is None, they are on the way to an
            accelerator. Without `device` it is for loops that copy the batches themselves.
        remainder: what becomes of the end of a finite plan that does not fill a global batch: ``"uneven"`` spreads it
            over the ranks in contiguous shares of (nearly) equal size, and is refused where it has fewer samples than
            there are ranks, as some ranks would end a step before the others; ``"ragged"`` lets them; ``"pad"`` fills
            every rank's batch up with the plan's first samples, and the field ``__mask__``, bool[n], of every batch
            says which are real; ``"drop"`` leaves it out (where nothing else is there, a warning in the log says so).
        deal: which rank gets which position of a global batch: ``"shuffled"``, by a permutation of its own for each
            global batch, or ``"contiguous"``, the `rank`-th slice. What the recipe says where it is None, and shuffled
            by default.
        balance: give all ranks as many samples of equal cost: ``"tokens"``, or ``{"by": "attention", "linear": 4096}``;
            see `feedmill.planning.dealing.dealer.Balance`.
        on_error: what a sample does that can't be read, transformed or collated: ``"raise"`` ends the iteration at its
            batch; ``"substitute"`` or a `Substitute` puts another sample of the same source into its place.
        rewind: begin each iteration at the plan's start, or once where a state says that was loaded: for validation.
        labels: say for each sample or row of a batch which source, epoch and position it is from: in `labels`, and in
            the field ``__labels__`` of batches that are dicts. See `feedmill.loading.labels.Labels`.
        seed: seed of the transform's generators; the plan's own where it is None.
        stall: seconds after which a batch that is still being made is remarked on in the log: worker, sample, stage,
            and where in the code; None for never.
        telemetry: where the loader's `metrics` go, and how often.

    Attributes:
        ranks: this process's share, as given or found.
        metrics: what loading has cost so far, see `feedmill.loading.metrics`.

    A loader continues where it stopped: leaving the loop and iterating again continues after the last batch that was
    given out, and after the end of a finite plan it is exhausted until `load_state_dict` moves it. Batches that were
    only prefetched do not count. The threads live as long as the iteration does.

    A sample that can't be used raises at its batch, after all batches before it; the error names the sample, and
    iterating again tries the same batch again. With ``on_error="substitute"`` a deterministic substitute takes its
    place, so that all ranks keep as many batches and nothing behind it moves. A transform that raises `SkipSample`
    gets a substitute in any case.

    Raises:
        ConfigError: an invalid argument; or, where it is iterated, that this is a worker of a torch
            `DataLoader`: each of its workers would give every batch.
        MissingExtra: ``output="torch"`` without torch.
    """

    def __init__(
        self,
        plan: PlainPlan | PlanLike,
        batch_size: int | Budget | Mapping[str, Any] | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        start: int = 0,
        workers: int | Literal["auto"] | Workers = 0,
        prefetch: int = 2,
        transform: Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        task_encoder: TaskEncoder | None = None,
        buffer: int | None = None,
        output: Literal["numpy", "torch", "samples"] = "numpy",
        device: Any = None,
        pin_memory: bool | None = None,
        remainder: Remainder = "uneven",
        deal: Literal["shuffled", "contiguous"] | None = None,
        balance: Balance | Mapping[str, Any] | str | None = None,
        on_error: Literal["raise", "substitute"] | Substitute = "raise",
        rewind: bool = False,
        labels: bool = False,
        seed: int | None = None,
        stall: float | None = 60.0,
        telemetry: Telemetry | None = None,
    ) -> None:
        prefetch = whole("prefetch", prefetch)
        _check_numbers(prefetch, stall)
        if output not in OUTPUTS:
            raise ConfigError(f"output={output!r} is unknown", fix=f"Use one of: {', '.join(OUTPUTS)}.")
        ranks = given_or_found(rank, world_size)
        layout = layout_of(
            plan,
            batch_size,
            ranks,
            start=start,
            remainder=remainder,
            deal=deal,
            balance=balance,
            task_encoder=task_encoder,
            buffer=buffer,
        )
        if output == "samples" and (collate is not None or task_encoder is not None):
            raise ConfigError('output="samples" gives lists that are not collated', fix="Leave collate or output out.")
        if output == "samples" and remainder == "pad" and plan.length is not None:
            raise ConfigError(
                "a batch that is filled up says so in its field '__mask__', and a list of samples is no dict",
                fix="Leave output='samples' out, or use remainder='drop' or 'uneven'.",
            )
        if output == "torch":
            to_torch([])  # where torch is missing, say so now and not in the first batch
        elif device is not None or pin_memory:
            raise ConfigError("device and pin_memory are for tensors", fix="Give output='torch' with them.")
        self.plan, self.ranks = plan, ranks
        self._plan = plan = completed(plan)
        self.prefetch = prefetch
        self.seed = whole("seed", plan.seed if seed is None else seed)
        self._output = output
        self._transfer = Transfer(device, pin_memory) if output == "torch" else None
        self._layout, self._grid, self._cursor = layout, layout.grid, layout.cursor
        self._start = layout.grid.start
        self.metrics = Metrics(ranks.rank)
        self._telemetry = telemetry
        self._tally = Tally(policy_for(on_error), self.metrics)
        if task_encoder is not None:
            if transform is not None or collate is not None:
                raise ConfigError("a task encoder has its own transform and collate", fix="Give one or the other.")
            transform, collate = Prepared(task_encoder), task_encoder.together
        make = BatchMaker(
            plan,
            transform,
            collate,
            lists=output == "samples" or self._cursor is not None,
            seed=self.seed,
            rank=ranks.rank,
            substitute=self._tally.policy is not None,
            mask=remainder == "pad" and plan.length is not None,
            labels=labels,
            stall=stall,
            of_fields=task_encoder.of_fields if task_encoder is not None and self._cursor is None else None,
        )
        self._make: BatchMaker | GroupMaker = make
        if task_encoder is not None and self._cursor is not None:
            self._make = GroupMaker(make, task_encoder, layout.size, drop=remainder == "drop")
        self.workers = chosen(workers, self._make)
        self._labeled = Labeled(plan, tensors=output == "torch", copied=self.workers.processes) if labels else None
        self._position = self._start
        self._rewind, self._loaded = rewind, False
        self._running: weakref.ref[Iteration] | None = None

    @property
    def dealing(self) -> Dealing:
        """How positions are dealt to the ranks, and by which budget batches are cut."""
        return self._layout.dealing

    @property
    def position(self) -> int:
        """Samples of the plan that the batches given out so far have consumed, over all ranks.

        With packing or grouping: the position before which every rank's windows have been begun.
        """
        cursor = self._cursor
        if cursor is None:
            return self._position
        reached = cursor.start + cursor.next * cursor.world_size * cursor.size
        return reached if cursor.length is None else min(reached, cursor.length)

    def __iter__(self) -> Iterator[Any]:
        _refuse_torch_worker()
        if self._rewind and not self._loaded:
            self._to_start()
        self._loaded = False
        if self._cursor is None:
            check_begin(self.plan, replace(self._layout, grid=self._grid), self._position)
        self.close()
        iteration = Iteration(self)
        self._running = weakref.ref(iteration)
        return iteration

    def __len__(self) -> int:
        """Batches of this rank over the whole plan, those before a state that was loaded included.

        So trainers that count batches over a resume, as they do with other stateful loaders, end where the plan does.
        """
        grid = self._grid
        if self._cursor is not None:
            raise TypeError("how many packs or groups there are is not known before they are made")
        if isinstance(grid, BudgetGrid):
            raise TypeError("how many batches by budget there are is not known before they are made")
        if grid.steps is None:
            raise TypeError("the plan never ends, so its loader has no length; stop after the steps that you want")
        return grid.steps + -(-grid.start // grid.global_batch)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a loader that is sent elsewhere, has the position; the iteration stays with this one."""
        return {**self.__dict__, "_running": None}

    def __repr__(self) -> str:
        grid = self._grid
        length = "endless" if grid.length is None else f"{grid.length:,} samples"
        workers = f"{self.workers.count} {'processes' if self.workers.processes else 'workers'}"
        size = grid.budget if isinstance(grid, BudgetGrid) else f"batch size {grid.batch_size}"
        return (
            f"Loader({length}, position {self._position:,}, rank {grid.rank} of {grid.world_size}, {size}, {workers})"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch given out, as JSON: some hundred bytes, and about 35 for each source.

        It is the same on every rank after the same step.

        With packing or grouping every rank has a state of its own, as its samples wait for packs of their own.
        """
        state = make_state(self._plan, self.position, self.seed)
        return state if self._cursor is None else {**state, "windows": self._cursor.to_json()}

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
            state: the state of any rank. With packing or grouping: this rank's own, or the list of all ranks', which
                serves any number of ranks.
            allow_append: resume although sources have more samples than then, behind those they had. The position stays
                and the order from there is that of the grown data: docs/ledger.md says what it repeats and skips.
            allow_skip: resume although the recipe's skip list is another, right after the last sample that was seen.
            allow_change: resume with another recipe where every position before the state's is proven to give the same
                sample: stages appended, weights that change later, a source that was not drawn before. With
                `allow_append` that is proven for the old recipe over the grown data. It takes no time where the two
                recipes begin alike as they are written, and else about a microsecond a position.

        Raises:
            ConfigError: not a loader's state, or that of another plan; the message says what changed, and with
                `allow_change` which position is the first that differs.
        """
        several = self._cursor is not None and isinstance(state, list | tuple)
        states: list[Any] = list(state) if several else [state]
        allowed = Allowed(allow_append, allow_skip, allow_change)
        positions = read_states(states, self._plan, self.seed, allowed)
        if not states or any(("windows" in each) is (self._cursor is None) for each in states):
            raise ConfigError(
                "the state is not of a loader that packs or groups" if self._cursor else "the state is of other packs",
                kind="bad-state",
                fix="Load it with the task encoder that it was saved with.",
            )
        if self._cursor is not None:
            if positions != [each["position"] for each in states]:
                raise ConfigError(
                    "the skip list has changed before the samples that wait in packs, and has moved them",
                    kind="plan-changed",
                    fix="Skip what comes later only, or begin without a state.",
                )
            cursor = resumed([each["windows"] for each in states], self._cursor)
            self.close()
            self._cursor = cursor
        else:
            self.close()
            self._grid, self._position = self._grid.started_at(positions[0]), positions[0]
        self._loaded = True

    def again(self, positions: Sequence[int]) -> Any:
        """The batch of the samples at these positions of the plan, made as this loader makes batches: to look at what a
        step has seen, whichever rank saw it.

        Raises:
            ConfigError: with packing or grouping, where batches are not known by positions; or no position is given.
            FeedmillError: a sample fails that has no substitute.
        """
        if not isinstance(self._make, BatchMaker) or not positions:
            raise ConfigError(
                "packs and groups are not made again by positions" if positions else "no position was given",
                kind="not-supported",
                fix="Read the samples: plan.read(positions).",
            )
        made = self._make.again(positions)
        batch = to_torch(made.batch) if self._output == "torch" else made.batch
        if self._labeled is not None and made.labels is not None:
            self._labeled.finish(made.labels, batch)
        return batch

    @property
    def labels(self) -> Labels:
        """Source, epoch and position of each sample of the batch given out last; see `feedmill.loading.labels`.

        Raises:
            ConfigError: made without ``labels=True``, or no batch was given out yet.
        """
        if self._labeled is None:
            raise ConfigError("this loader makes no labels", kind="no-labels", fix="Give it labels=True.")
        return self._labeled.last

    @property
    def failures(self) -> int:
        """Samples of this rank that could not be used, since the loader was made; see `on_error`."""
        return self.metrics.failures

    @property
    def skipped(self) -> int:
        """Samples of this rank that the transform did not want (`SkipSample`), since the loader was made."""
        return self.metrics.skipped

    def _to_start(self) -> None:
        self.close()
        self._grid, self._position = self._grid.started_at(self._start), self._start
        if self._cursor is not None:
            self._cursor = replace(self._cursor, start=self._start, pending=(), next=0)

    def _consumed(self, after: int | Cursor) -> None:
        """The batches given out so far end here."""
        if isinstance(after, Cursor):
            self._cursor = after
        else:
            self._position = after

    def _ended(self) -> None:
        """The plan has no more batches: all ranks are at its end, also one that had no sample in the last step."""
        self.metrics.pause()
        if self._cursor is None and self._grid.end is not None:
            self._position = self._grid.end

    def _count(self, made: Made) -> None:
        """Note what became of samples whose batch is given out; the failures among them may be too many."""
        self.metrics.skipped += made.skipped
        self._tally.note_all(made.step.positions.tolist() if made.troubles else (), made.troubles)
        self.metrics.made(made.seconds, made.step.real, made.step.spread, made.step.budget_share)

    def _measured(self, asked: float) -> None:
        """A batch was given out that had been asked for at `asked`."""
        now = time.perf_counter()
        self.metrics.given(now - asked, now)
        self.metrics.position = self.position
        if self._telemetry is not None:
            self.metrics.report(self._telemetry, time.monotonic())

    def close(self) -> None:
        """End the running iteration and its threads. The position stays; iterating again continues from there."""
        iteration = self._running() if self._running is not None else None
        self._running = None
        if iteration is not None:
            iteration.close()


def _refuse_torch_worker() -> None:
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    if info is not None:
        raise ConfigError(
            f"a Loader is iterated in worker {info.id} of the {info.num_workers} of a torch DataLoader, each of which"
            " would give every batch",
            kind="in-torch-worker",
            fix="Iterate the Loader itself, with Loader(..., workers=N), or give the DataLoader num_workers=0.",
        )


def _check_numbers(prefetch: int, stall: float | None) -> None:
    for name, value, least in (("prefetch", prefetch, 1), ("stall", 1 if stall is None else stall, 1e-3)):
        if value < least:
            raise ConfigError(f"{name}={value} is invalid", fix=f"Give at least {least}.")
