"""The loss of each source and cell, from a log of a run.

A log is a CSV with a header, or JSON lines, with the columns ``loss`` and

- ``position``: the loss of one sample or packed row (`feedmill.Labels.position`); or
- ``step``, and ``rank`` if each rank logs its own: the mean loss of the batch.

The plan says what each line is the mean of. If each is of one source, the means are exact. Otherwise they are
estimated: the loss of a line is the mean over sources by their shares of the batch, plus what all sources have in
common at that point of the run, which is that of the lines near it (a step, or eight lines). These are weighted least
squares with fixed effects; the means are over the tokens or samples that the log covers, and their standard errors are
White's, which do not assume equal noise (Econometrica 48, 1980). Of packed rows, the tokens count; with
``unit: loss_tokens`` those that the loss counts, of a part of a document in proportion to its length. Without packing,
each sample counts once.

Of several lines for one batch or position, the last one counts: a resumed run logs again what came after its state.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.csv_rows import csv_rows
from feedmill.loading.labels import values_of
from feedmill.planning import ledger
from feedmill.storage import open_store, split_url

if TYPE_CHECKING:
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.planning.plan import Plan

Floats = npt.NDArray[np.float64]
_MOST, _CELLS = 256 << 20, 1 << 26  # bytes of a log; lines x sources
_NEAR = 8  # lines that have a time in common, at least
_CHUNK = 1 << 16  # positions that are located at once
_TINY = 1e-7


@dataclass(frozen=True, slots=True)
class Log:
    """Lines of a log: positions int64[n], or steps and ranks int64[n]; losses float64[n]; what was left out."""

    positions: npt.NDArray[np.int64] | None
    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64] | None
    losses: Floats
    left_out: dict[str, int]


def losses_of(
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    by: str | None = None,
    global_batch: int | None = None,
    world: int | None = None,
    start: int = 0,
    first_step: int = 0,
) -> dict[str, Any]:
    """Return the mean loss of each source over the lines of a log.

    Args:
        plan: the plan of the run.
        path: path or URL of the log.
        by: a column of cells, whose values are then the names, as in `feedmill.Labels.mean`.
        global_batch, world, start, first_step: as for `feedmill.planning.ledger.batch`.

    Returns:
        ``losses``, the log; ``lines`` used, and ``left_out`` by reason; ``unit`` of the shares; whether the means are
        ``exact``; ``sources``: of each its ``name``, ``amount`` in the unit, ``loss``, and ``error``, its standard
        error (None if it is exact). ``loss`` is None if the log does not tell it apart from others: ``together`` has
        the ``names`` of such sources, with the ``loss`` and ``error`` of all of them if these are known.

    Raises:
        DataError: the log has no such columns, or one twice; or a line without numbers, or with other columns.
        ConfigError: options are missing, or the log has fewer lines than an estimate needs.
        NotFound: the plan has no such step or position.
    """
    where = os.fspath(path)
    log = _read(where)
    names = list(plan.names) if by is None else values_of(plan.names, by)
    titles = list(dict.fromkeys(names))
    if len(log.losses) * len(titles) > _CELLS:
        raise ConfigError(
            f"{len(log.losses):,} lines and {len(titles):,} sources are more than {_CELLS:,} numbers",
            file=where,
            kind="too-large",
            fix="Pass --by COLUMN, or a part of the log.",
        )
    column = np.array([titles.index(name) for name in names], np.int64)
    amounts = _amounts(plan, log, column, len(titles), where, global_batch, world, start, first_step)
    used = amounts.any(axis=1)
    left_out = {**log.left_out, **({"lines without a token": int((~used).sum())} if not used.all() else {})}
    amounts, losses = amounts[used], log.losses[used]
    present = np.flatnonzero(amounts.any(axis=0))
    amounts = amounts[:, present]
    exact = bool((np.count_nonzero(amounts, axis=1) == 1).all())
    together: list[dict[str, Any]] = []
    if exact:
        means: list[float | None] = ((amounts.T @ losses) / amounts.sum(axis=0)).tolist()
        errors: list[float | None] = [None] * len(present)
    else:
        times = log.positions if log.positions is not None else log.steps
        means, errors, groups = _estimated(amounts, losses, _blocks(times[used]), where)
        together = [{**group, "names": [titles[present[n]] for n in group["names"]]} for group in groups]
    rows = [
        {"name": titles[number], "amount": int(amount), "loss": mean, "error": error}
        for number, amount, mean, error in zip(
            present.tolist(), amounts.sum(axis=0).tolist(), means, errors, strict=True
        )
    ]
    return {
        "losses": where,
        "lines": len(losses),
        "left_out": left_out,
        "by": by,
        "unit": _unit(plan),
        "exact": exact,
        "sources": rows,
        "together": together,
        "not_seen": [title for number, title in enumerate(titles) if number not in set(present.tolist())],
    }


def _read(where: str) -> Log:
    """Return the lines of a log; of several lines for the same batch or position, the last one."""
    folder, name = split_url(where)
    store = open_store(folder)
    size = store.stat(name).size
    if size > _MOST:
        raise DataError(f"the log has {size:,} bytes; at most {_MOST:,} are read", file=where, kind="too-large")
    try:
        text = store.read(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("the log is not UTF-8", file=where, offset=error.start, fix="Save it as UTF-8.") from None
    found: dict[tuple[int, ...], float] = {}
    keys: tuple[str, ...] | None = None
    known = ("position", "step", "rank")
    columns: list[str] = []
    left_out: dict[str, int] = {}
    for number, row in _rows(text, where):
        if keys is None:
            columns = [name for name in known if name in row]
            keys = ("position",) if "position" in row else ("step", "rank") if "rank" in row else ("step",)
            missing = [name for name in (*keys, "loss") if name not in row]
            if missing:
                raise DataError(
                    f"the log has no column {missing[0]!r}; its columns are {', '.join(list(row)[:12])}",
                    file=where,
                    kind="bad-log",
                    fix="Give it the columns 'loss' and 'step', with 'rank' if each rank logs its own; or 'position'.",
                )
        if columns != (here := [name for name in known if name in row]):
            raise DataError(
                f"line {number:,} has {' and '.join(here) or 'no step'}, the first line {' and '.join(columns)}",
                file=where,
                kind="bad-line",
                fix="Give all lines the same columns: what a loss is the mean of depends on them.",
            )
        key = tuple(_whole(row.get(name), name, number, where) for name in keys)
        loss = _real(row.get("loss"))
        if loss is None:
            raise DataError(
                f"line {number:,} has the loss {row.get('loss')!r}: expected a number", file=where, kind="bad-line"
            )
        if found.pop(key, None) is not None:
            reason = f"earlier lines for the same {'position' if keys == ('position',) else 'batch'}"
            left_out[reason] = left_out.get(reason, 0) + 1
        if not math.isfinite(loss):
            left_out["losses that are not finite"] = left_out.get("losses that are not finite", 0) + 1
            continue
        found[key] = loss
    if not found or keys is None:
        raise DataError("the log has no line with a finite loss", file=where, kind="bad-log")
    order = sorted(found)
    table = np.array(order, np.int64)
    losses = np.array([found[key] for key in order], np.float64)
    if keys == ("position",):
        return Log(table[:, 0], table[:, 0], None, losses, left_out)
    return Log(None, table[:, 0], table[:, 1] if len(keys) == 2 else None, losses, left_out)


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and values of each line."""
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)  # also NaN, which Python writes and JSON does not know
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise DataError(f"line {number:,} is no JSON object", file=where, kind="bad-line")
            yield number, row
        return
    try:
        rows = [row for row in csv_rows(io.StringIO(text, newline=""), 1 << 20) if row]
    except csv.Error as error:
        raise DataError(f"this is not valid CSV: {error}", file=where, kind="bad-line") from None
    head = [cell.strip() for cell in rows[0]] if rows else []
    twice = next((name for name in ("position", "step", "rank", "loss") if head.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"two columns are called {twice!r}", file=where, kind="bad-log", fix="Keep the one that counts."
        )
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(head):
            raise DataError(
                f"row {number:,} has {len(row)} cells, the first row {len(head)}", file=where, kind="bad-line"
            )
        yield number, dict(zip(head, row, strict=True))


def _whole(value: Any, name: str, line: int, where: str) -> int:
    number = _real(value)
    if number is None or not 0 <= number < 1 << 53 or number != int(number):
        raise DataError(
            f"line {line:,} has the {name} {value!r}: expected a whole number from 0", file=where, kind="bad-line"
        )
    return int(number)


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and "_" in value:  # Python would read 1_5 as 15
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _amounts(
    plan: Plan,
    log: Log,
    column: npt.NDArray[np.int64],
    width: int,
    where: str,
    global_batch: int | None,
    world: int | None,
    start: int,
    first_step: int,
) -> Floats:
    """Return how much of each column the batch of each line has, float64[lines, width]."""
    out = np.zeros((len(log.losses), width))
    if log.positions is not None:
        if global_batch is not None or world is not None or start or first_step:
            raise ConfigError(
                "the log has positions: the size of batches and the begin of the run have no effect",
                file=where,
                kind="bad-option",
                fix="Omit --global-batch, --world, --from-state and --first-step; or give the log steps instead.",
            )
        _add(plan, out, column, [(np.arange(len(out)), log.positions)])
        return out
    if log.ranks is not None and (world is None or log.ranks.max() >= world):
        raise ConfigError(
            f"the log has rank {log.ranks.max():,}"
            + (", and the number of ranks is unknown" if world is None else f" of {world:,} ranks"),
            file=where,
            kind="missing-option",
            fix="Give the number of ranks: --world.",
        )
    numbers, owner = np.unique(log.steps, return_inverse=True)
    ends = np.searchsorted(owner, np.arange(len(numbers) + 1))
    steps = ledger.ranks_of_steps(plan, numbers.tolist(), global_batch, world, start=start, first_step=first_step)
    pending: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    size = 0
    for number, parts in enumerate(steps):
        for line in range(ends[number], ends[number + 1]):
            own = np.concatenate(parts) if log.ranks is None else parts[int(log.ranks[line])]
            pending.append((np.full(len(own), line), own))
            size += len(own)
        if size >= _CHUNK:
            _add(plan, out, column, pending)
            pending, size = [], 0
    _add(plan, out, column, pending)
    return out


def _add(
    plan: Plan,
    out: Floats,
    column: npt.NDArray[np.int64],
    pending: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
) -> None:
    """Add the tokens or samples of some positions to the lines that they belong to."""
    if not pending:
        return
    lines, positions = (np.concatenate(each) for each in zip(*pending, strict=True))
    for at in range(0, len(positions), _CHUNK):
        line, some = lines[at : at + _CHUNK], positions[at : at + _CHUNK]
        if hasattr(plan, "documents"):
            packed: PackedPlan = plan  # type: ignore[assignment]
            found = packed.locate_spans(some)
            line = np.repeat(line, np.diff(found.spans.row_offsets))
            np.add.at(out, (line, column[found.located.source]), packed.amounts(found))
        else:
            np.add.at(out, (line, column[plan.locate(some).source]), 1)


def _unit(plan: Plan) -> str:
    """Return what `_amounts` counts."""
    if not hasattr(plan, "documents"):
        return "samples"
    return LOSS_TOKENS if plan.units is not None and plan.units.unit == LOSS_TOKENS else "tokens"


def _blocks(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of the block of each line, from 0: lines of whole steps, at least eight of them."""
    steps, owner, counts = np.unique(times, return_inverse=True, return_counts=True)
    if len(times) >= _NEAR // 2 * len(steps):
        return owner
    before = np.cumsum(counts) - counts
    block = (before // _NEAR)[owner]
    last = int(block.max())
    if last and np.count_nonzero(block == last) < _NEAR:
        block[block == last] = last - 1
    numbers: npt.NDArray[np.int64] = np.unique(block, return_inverse=True)[1]
    return numbers


def _estimated(
    amounts: Floats, losses: Floats, block: npt.NDArray[np.int64], where: str
) -> tuple[list[float | None], list[float | None], list[dict[str, Any]]]:
    """Return estimated means and their standard errors, None where undetermined, and the groups of the latter.

    With ``b`` the losses of the sources and ``g`` those of the blocks, the mean of source s is ``b[s]`` plus the mean
    of ``g`` over its amounts. ``g`` is eliminated by subtracting the means of the blocks, so that the mean of s is
    ``mean[s] + left[s] . b``; it is known if ``left[s]`` is orthogonal to all ``b`` that the lines cannot show.
    """
    lines, sources = amounts.shape
    sizes = amounts.sum(axis=1)
    blocks = int(block.max()) + 1
    whole = np.bincount(block, sizes, blocks)
    of_blocks = np.zeros((blocks, sources))
    np.add.at(of_blocks, block, amounts)
    middle = np.bincount(block, sizes * losses, blocks) / whole
    part = of_blocks / amounts.sum(axis=0)  # of each source in each block
    left = np.eye(sources) - part.T @ (of_blocks / whole[:, None])
    x = amounts / sizes[:, None] - (of_blocks / whole[:, None])[block]
    root = np.sqrt(sizes)[:, None]
    _, values, rows = np.linalg.svd(np.linalg.qr(x * root, mode="r"))
    values = np.append(values, np.zeros(sources - len(values)))
    seen = values > _TINY * max(float(values.max()), float(root.max()) * _TINY)
    rank = int(seen.sum())
    free = lines - blocks - rank
    if free < 1:
        raise ConfigError(
            f"{lines:,} line{'' if lines == 1 else 's'} cannot tell {sources:,} sources apart: an estimate needs"
            f" more than {blocks + rank:,}",
            file=where,
            kind="bad-option",
            fix="Log more steps, or each rank's loss; or pass --by COLUMN.",
        )
    inverse = (rows[seen].T / values[seen] ** 2) @ rows[seen]
    b = inverse @ (x.T @ (sizes * (losses - middle[block])))
    rest = (losses - middle[block] - x @ b) * sizes * math.sqrt(lines / free)
    hidden = rows[~seen]
    unknown = np.abs(left @ hidden.T).max(axis=1, initial=0.0) > 1e3 * _TINY

    def told(weights: Floats) -> tuple[float, float]:
        """Return the mean, and its error, of a combination of sources, whose weights add up to 1."""
        of_block = (part @ weights) / whole
        each = of_block[block] + x @ (inverse @ (weights @ left))
        return float(weights @ (part.T @ middle + left @ b)), float(np.sqrt(np.sum((each * rest) ** 2)))

    found = [None if lost else told(row) for lost, row in zip(unknown.tolist(), np.eye(sources), strict=True)]
    together = []
    flat = np.full(sources, sources**-0.5)  # all losses raised alike: always hidden, and always in the mean
    shown = hidden.T @ hidden - np.outer(flat, flat)
    todo = set(np.flatnonzero(unknown).tolist())
    while todo:
        group, new = set(), {min(todo)}
        while new:
            group |= new
            near = np.abs(shown[sorted(new)]).max(axis=0) > 1e3 * _TINY
            new = {number for number in np.flatnonzero(near).tolist() if number in todo} - group
        todo -= group
        names = sorted(group)
        weights = np.zeros(sources)
        weights[names] = amounts[:, names].sum(axis=0) / amounts[:, names].sum()
        known = np.abs((weights @ left) @ hidden.T).max(initial=0.0) <= 1e3 * _TINY
        loss, error = told(weights) if known else (None, None)
        together.append({"names": names, "loss": loss, "error": error})
    means = [None if each is None else each[0] for each in found]
    errors = [None if each is None else each[1] for each in found]
    return means, errors, together
