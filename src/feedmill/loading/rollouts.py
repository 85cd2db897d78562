"""The class `RolloutLoader`: batches of whole groups of answers, step by step."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.columns import load_pyarrow
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.rollouts import Record, steps_of

_log = logging.getLogger("feedmill")

_PER_TOKEN = {
    "token_ids": ("input_ids", np.int64),
    "loss_mask": ("loss_mask", np.bool_),
    "logprobs": ("logprobs", np.float32),
}
"""Column -> its name in a batch, and its type there."""


class RolloutLoader:
    """Yield this rank's answers of each step. All ranks draw the same groups without talking to one another.

    A batch is a mapping:

    - ``step`` and ``policy``: the step, and the version of the policy that it trains.
    - ``group``: names of the groups, list[n]; ``group_index``: int64[n], number of each answer's group in the step.
    - ``reward``: float64[n]; ``version``: int64[n], of the policy that made the answer.
    - ``input_ids``: int64[n, w], filled up with `pad_id` on the right; ``attention_mask``: bool[n, w], False there.
    - ``loss_mask``: bool[n, w], and ``logprobs``: float32[n, w], where the answers have them.
    - other columns under their names: arrays if they are numbers, else lists.

    The groups of a step are dealt whole if their number is a multiple of that of the ranks; otherwise ranks get equal
    parts of the answers, in order, and a group may lie on two of them (`is_whole`).

    Args:
        recipe: a recipe with ``rollouts``: its path, its data, or a `Recipe`.
        rank, world_size: this rank, and the number of ranks.
        version: version of the policy by step; by default the step itself.
        pad_id: token to fill up with.
        steps: number of the last step, exclusive; None for no end.
        clock, sleep: in place of those of `time`, for waiting.

    Raises:
        ConfigError: the recipe has no rollouts, or the rank is not below `world_size`. While iterating, of kind
            ``too-few-samples``: the groups that a step needs did not come; of kind ``plan-changed``: the run was drawn
            with other settings, and no state is loaded. After one is, that is a warning.
    """

    def __init__(
        self,
        recipe: str | os.PathLike[str] | Mapping[str, Any] | Recipe,
        *,
        rank: int = 0,
        world_size: int = 1,
        version: Callable[[int], int] | None = None,
        pad_id: int = 0,
        steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"the rank is {rank} of {world_size}",
                kind="bad-option",
                fix="Give a rank from 0, below the number of ranks.",
            )
        self.recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
        self.steps, self.settings = steps_of(self.recipe)
        assert self.recipe.model.rollouts is not None
        self.rank, self.world_size, self.pad_id = rank, world_size, pad_id
        self.step, self.end = 0, steps
        self._resumed = self._warned = False
        self._wait = float(self.recipe.model.rollouts.wait)
        self._version = version or (lambda step: step)
        self._clock, self._sleep = clock, sleep

    @property
    def is_whole(self) -> bool:
        """Return whether each group lies on one rank."""
        return self.settings.groups % self.world_size == 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.end is None or self.step < self.end:
            record = self.steps.take(
                self.step, self.settings, self._version(self.step), self._wait, self._clock, self._sleep
            )
            if record.settings != self.settings:
                self._differs(record)
            batch = self._batch(record)
            self.step += 1
            yield batch

    def _differs(self, record: Record) -> None:
        """Refuse steps of another run under this run's name, or name steps that were drawn before a change."""
        drawn, wanted = record.settings._asdict(), self.settings._asdict()
        changed = ", ".join(
            f"{name} {drawn[name]!r} instead of {wanted[name]!r}" for name in drawn if drawn[name] != wanted[name]
        )
        what = f"step {record.step} of {self.steps.run!r} was drawn with {changed}"
        if not self._resumed:
            raise ConfigError(
                what,
                file=self.steps.rollouts.path,
                kind="plan-changed",
                fix="Name a new run in the recipe ('run'), which draws its own steps, or resume the run from a state.",
            )
        if not self._warned:
            self._warned = True
            _log.warning("%s: %s. It is read as it was drawn, as are later ones", self.steps.rollouts.path, what)

    def replay(self, step: int) -> dict[str, Any]:
        """Return this rank's batch of a step that was drawn. Raises `NotFound` if it was not, and `DataError`."""
        return self._batch(self.steps.drawn(step))

    def _batch(self, record: Record) -> dict[str, Any]:
        rollouts = self.steps.rollouts
        groups = self.steps.groups(record)
        sizes = rollouts.sizes[groups]
        index = np.repeat(np.arange(len(groups)), sizes)
        first, last = (number * len(index) // self.world_size for number in (self.rank, self.rank + 1))
        if len(groups) % self.world_size == 0:
            mine = np.arange(len(groups)).reshape(self.world_size, -1)[self.rank]
            first, last = int(sizes[: mine[0]].sum()), int(sizes[: mine[-1] + 1].sum())
        needed = np.unique(index[first:last])
        begin = first - int(sizes[: needed[0]].sum()) if len(needed) else 0
        tables = rollouts.read(groups[needed])
        table = _together(tables).slice(begin, last - first) if tables else None
        found = {"step": record.step, "policy": record.version, "group_index": index[first:last]}
        return found if table is None else {**found, **_columns(table, self.pad_id)}

    def state_dict(self) -> dict[str, Any]:
        """Return the run and the next step: JSON data that loads on any number of ranks."""
        return {"feedmill_rollouts": 1, "run": self.steps.run, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the step of a state: steps that were drawn before are read again, the same groups.

        Raises:
            ConfigError: it is not the state of such a loader, or that of another run.
        """
        step = state.get("step") if isinstance(state, Mapping) else None
        if (
            not isinstance(state, Mapping)
            or state.get("feedmill_rollouts") != 1
            or not isinstance(step, int)
            or step < 0
        ):
            fix = "Load what state_dict() of a RolloutLoader returned, or begin without a state."
            raise ConfigError("this is not the state of a loader of rollouts", kind="bad-state", fix=fix)
        if state["run"] != self.steps.run:
            raise ConfigError(
                f"the state is that of the run {state['run']!r}, the recipe names {self.steps.run!r}",
                file=self.recipe.file,
                kind="bad-state",
                fix="Name the run of the state in the recipe ('run'), or begin the new run without a state.",
            )
        self.step, self._resumed = step, True


def _together(tables: list[Any]) -> Any:
    """Return tables one after another; columns that some of them lack are null there."""
    return load_pyarrow().concat_tables(tables, promote_options="permissive")


def _columns(table: Any, pad_id: int) -> dict[str, Any]:
    """Return the columns of a table as a batch has them."""
    pa = load_pyarrow()
    found: dict[str, Any] = {}
    for name in table.schema.names:
        column, kind = table[name], table.schema.field(name).type
        if name in _PER_TOKEN:
            fill = pad_id if name == "token_ids" else 0
            own, dtype = _PER_TOKEN[name]
            found[own], mask = _padded(column, fill, dtype)
            if name == "token_ids":
                found["attention_mask"] = mask
        elif column.null_count == 0 and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            found[name] = column.to_numpy()
        elif getattr(kind, "extension_name", "") == "arrow.json":
            import orjson

            found[name] = [None if text is None else orjson.loads(text) for text in column.to_pylist()]
        else:
            found[name] = column.to_pylist()
    return found


def _padded(column: Any, fill: int, dtype: Any) -> tuple[Any, Any]:
    """Return a column of lists as an array filled up on the right, and a mask of its values, both [n, w]."""
    lists = column.combine_chunks()
    offsets = lists.offsets.to_numpy()
    lengths = np.diff(offsets)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    values = np.full(mask.shape, fill, dtype)
    values[mask] = lists.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
    return values, mask
