"""Plan reports: for each source, requested and realized weights, samples drawn, and repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from itertools import repeat
from posixpath import commonpath
from typing import Any, NamedTuple

from feedmill.jobs.amounts import short_number
from feedmill.planning.mixing import Change
from feedmill.planning.nodes import Interleaved, Leaf, Node, Shuffle, Skip, StagedBlend, Subsample, Subset
from feedmill.planning.nodes.base import Junction
from feedmill.planning.nodes.skip import dropped
from feedmill.planning.tokens import Tokens, epoch_shares

_NAMED = 5
"""Sources that are named because their share is rounded."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One source in a plan.

    Attributes:
        name: the source's name.
        samples: samples in the dataset.
        used: samples in its subset; all samples if it has none.
        asked: its requested weight as a fraction of the whole, in the unit of the recipe's weights (`Report.unit`);
            None if it is not part of a blend.
        realized: its weight as scheduled, in this unit, too; differs from `asked` only if the blend's exact period
            would be too long.
        drawn: samples drawn from it; None for an endless plan without a budget. Of packed rows, the documents in them.
        exact: False if `drawn` is an expected value, because a shuffle across sources or a packing buffer is cut.
        tokens: tokens in the samples drawn, an expected value unless whole epochs are drawn. None if the lengths of
            the source's samples are unknown.
        token_share: its share of all sources' tokens.
        loss_tokens, loss_share: the same of the tokens that contribute to the loss; None unless the recipe's weights
            count them.
        target_repeats: of a proxy, `repeats` in the target at the same point of its run.
    """

    name: str
    samples: int
    used: int
    asked: Fraction | None
    realized: Fraction | None
    drawn: int | None
    exact: bool = True
    tokens: int | None = None
    token_share: float | None = None
    loss_tokens: int | None = None
    loss_share: float | None = None
    target_repeats: float | None = None

    @property
    def repeats(self) -> float | None:
        """Return how often each used sample is drawn on average: the number of epochs."""
        return None if self.drawn is None else self.drawn / self.used

    @property
    def repeats_apart(self) -> float | None:
        """Return how much `repeats` differ from `target_repeats`, as a share of these; None if these are 0 or None."""
        return None if self.repeats is None or not self.target_repeats else self.repeats / self.target_repeats - 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; weights as floats."""
        return {
            "name": self.name,
            "samples": self.samples,
            "used": self.used,
            "weight_asked": None if self.asked is None else float(self.asked),
            "weight_realised": None if self.realized is None else float(self.realized),
            "drawn": self.drawn,
            "exact": self.exact,
            "repeats": self.repeats,
            "tokens": self.tokens,
            "token_share": self.token_share,
            "loss_tokens": self.loss_tokens,
            "loss_share": self.loss_share,
            "target_repeats": self.target_repeats,
        }


_FEW, _WORST = 12, 5


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Cells of one dataset, of which there are too many to be shown one by one.

    Attributes:
        prefix: their names up to the bracket.
        cells: how many there are.
        total: their sums.
        worst: names of those that repeat most; of equal ones, those farthest from their share.
    """

    prefix: str
    cells: int
    total: SourceReport
    worst: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"prefix": self.prefix, "cells": self.cells, "worst": list(self.worst), **self.total.as_dict()}


def groups_of(sources: Sequence[SourceReport]) -> tuple[GroupReport, ...]:
    """Return the groups of more than twelve cells among sources."""
    members: dict[str, list[SourceReport]] = {}
    for source in sources:
        prefix, bracket, _ = source.name.partition("[")
        if bracket and source.name.endswith("]"):
            members.setdefault(prefix, []).append(source)
    return tuple(_group(prefix, found) for prefix, found in members.items() if len(found) > _FEW)


def _group(prefix: str, cells: Sequence[SourceReport]) -> GroupReport:
    def total(name: str) -> Any:
        values = [getattr(cell, name) for cell in cells]
        return None if None in values else sum(values)

    sums = {each.name: total(each.name) for each in fields(SourceReport) if each.name not in ("name", "exact")}
    if sums["target_repeats"] is not None:
        sums["target_repeats"] = sum((cell.target_repeats or 0) * cell.used for cell in cells) / (total("used") or 1)
    whole = SourceReport(name=f"{prefix}[{len(cells)} cells]", exact=all(cell.exact for cell in cells), **sums)

    def badness(cell: SourceReport) -> tuple[float, float]:
        known = cell.asked is not None and cell.realized is not None
        return cell.repeats or 0.0, abs(float(cell.realized - cell.asked)) if known else 0.0  # type: ignore[operator]

    worst = sorted(cells, key=badness, reverse=True)[:_WORST]
    return GroupReport(prefix, len(cells), whole, tuple(cell.name for cell in worst))


def shown(rows: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of sources that a table shows, as plain data: of a group, its sums and its worst cells.

    Args:
        rows: of all sources.
        groups: `GroupReport.as_dict` of each group, with the sums of the other columns.
    """
    out: list[dict[str, Any]] = []
    seen: set[str] = set()
    by_prefix = {group["prefix"]: group for group in groups}
    by_name = {row["name"]: row for row in rows}
    for row in rows:
        prefix, bracket, _ = row["name"].partition("[")
        group = by_prefix.get(prefix) if bracket else None
        if group is None:
            out.append(row)
        elif prefix not in seen:
            seen.add(prefix)
            out += [group, *(by_name[name] for name in group["worst"])]
    return out


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a staged blend.

    Attributes:
        stage: its number, from 1.
        start: samples of the blend before this stage.
        samples: its length; None if it is open-ended.
        names: the sources of the blend.
        asked: their requested weights, in the unit of the recipe's weights (`Report.unit`).
        realized: their shares of the stage in this unit; for an open-ended stage, the shares of its schedule.
        ramp: their weights at the beginning and the end of a ramp; empty without one. `asked` are those of the samples
            between them.
        kind: ``linear`` or ``cosine``; empty without a ramp.
        max_repeats: how often the stage may repeat sources, by name; empty without limits.
    """

    stage: int
    start: int
    samples: int | None
    names: tuple[str, ...]
    asked: tuple[Fraction, ...]
    realized: tuple[Fraction, ...]
    ramp: tuple[tuple[Fraction, Fraction], ...] = ()
    kind: str = ""
    max_repeats: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; weights as floats, by name."""
        return {
            "stage": self.stage,
            "start": self.start,
            "samples": self.samples,
            "weights_asked": dict(zip(self.names, map(float, self.asked), strict=True)),
            "weights_realised": dict(zip(self.names, map(float, self.realized), strict=True)),
            "ramp": self.kind or None,
            "weights_from": {name: float(ends[0]) for name, ends in zip(self.names, self.ramp, strict=False)},
            "weights_to": {name: float(ends[1]) for name, ends in zip(self.names, self.ramp, strict=False)},
            "max_repeats": dict(self.max_repeats),
        }

    def __str__(self) -> str:
        size = "to the end" if self.samples is None else f"{self.samples:,} samples"
        ends = [*zip(*self.ramp, strict=True)] if self.ramp else []
        names, columns = _summed(self.names, [self.asked, self.realized, *ends])
        parts = [
            f"{name} {_percent(asked)} -> {_percent(realized)}"
            for name, asked, realized in zip(names, *columns[:2], strict=True)
        ]
        if self.ramp:
            ways = [f" ({_percent(begin)} to {_percent(end)})" for begin, end in zip(*columns[2:], strict=True)]
            parts = [part + way for part, way in zip(parts, ways, strict=True)]
        kind = f", {self.kind} ramp" if self.kind else ""
        caps = ", ".join(f"{name} {most}" for name, most in self.max_repeats.items())
        most = f"; max_repeats {caps}" if caps else ""
        return f"stage {self.stage}, from {self.start:,}, {size}{kind}: {', '.join(parts)}{most}"


class Rounded(NamedTuple):
    """A source of which a proxy draws from over 1 % more samples than its share, because a sample is not divided.

    Attributes:
        name: the source.
        used: samples that the proxy draws from.
        exact: its share of the source's samples.
    """

    name: str
    used: int
    exact: float

    def __str__(self) -> str:
        return (
            f"{self.name} is drawn from {self.used:,} sample{'' if self.used == 1 else 's'} instead of {self.exact:.3g}"
        )


class Apart(NamedTuple):
    """How far the repeats of a source in a proxy are from those in its target, as a share of these: -0.01 for 1 % less.

    Attributes:
        source: its name.
        difference: the share.
    """

    source: str
    difference: float


@dataclass(frozen=True, slots=True)
class ProxyReport:
    """How a proxy compares with its target, the run that it stands for; see `feedmill.planning.proxy`.

    Attributes:
        unit: ``tokens`` or ``samples``.
        amount, of: length of the proxy and of the target.
        rounded: sources of which it draws from more than their share.
        largest: the source whose repeats differ most; None if nothing is drawn.
        largest_of_others: the same without `rounded`.
    """

    unit: str
    amount: int
    of: int
    rounded: tuple[Rounded, ...]
    largest: Apart | None = None
    largest_of_others: Apart | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {
            "unit": self.unit,
            "amount": self.amount,
            "of": self.of,
            "rounded": [each._asdict() for each in self.rounded],
            "largest": None if self.largest is None else self.largest._asdict(),
            "largest_of_others": None if self.largest_of_others is None else self.largest_of_others._asdict(),
        }

    def __str__(self) -> str:
        lines = [f"proxy of {self.amount:,} of {self.of:,} {self.unit}"]
        if self.largest is not None and not self.largest.difference:
            lines[0] += ": all sources repeat as often as in the target"
        elif self.largest is not None:
            lines[0] += f": repeats differ from those of the target by at most {_apart(self.largest)}"
            if self.largest_of_others not in (None, self.largest):
                lines[0] += f", of sources that are not rounded {_apart(self.largest_of_others)}"
        lines += [f"  {each}" for each in self.rounded[:_NAMED]]
        if len(self.rounded) > _NAMED:
            lines.append(f"  and {len(self.rounded) - _NAMED:,} more sources that are rounded up by over 1 %")
        return "\n".join(lines)


def _apart(apart: Apart | None) -> str:
    return "" if apart is None else f"{abs(apart.difference):.3%} ({apart.source})"


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of a plan; prints as a table.

    Attributes:
        length: samples of the plan; None if it is endless.
        total: samples that the report covers.
        sources: one entry per source.
        stages: one entry per stage of each staged blend.
        proxy: how a proxy compares with its target; None for other plans.
        unit: what weights count: ``samples``, ``tokens``, ``loss_tokens``, ``hours`` or ``episodes``.
    """

    length: int | None
    total: int | None
    sources: tuple[SourceReport, ...]
    stages: tuple[StageReport, ...]
    proxy: ProxyReport | None = field(default=None, kw_only=True)
    unit: str = field(default="samples", kw_only=True)

    @property
    def groups(self) -> tuple[GroupReport, ...]:
        """The groups of more than twelve cells; a table has their sums, and the cells that repeat most."""
        return groups_of(self.sources)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {
            "length": self.length,
            "total": self.total,
            "unit": self.unit,
            "sources": [source.as_dict() for source in self.sources],
            "stages": [stage.as_dict() for stage in self.stages],
            **({} if self.proxy is None else {"proxy": self.proxy.as_dict()}),
        }

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("source", "samples", "used", "asked", "realized", "drawn", "repeats")]
        sources = self._shown
        rows += [_cells(source) for source in sources]
        if any(source.tokens is not None for source in sources):
            tokens = [("tokens", "token share"), *(_token_cells(source) for source in sources)]
            rows = [(*row, *more) for row, more in zip(rows, tokens, strict=True)]
        if any(source.loss_tokens is not None for source in sources):
            loss = [("loss tokens", "loss share"), *(_loss_cells(source) for source in sources)]
            rows = [(*row, *more) for row, more in zip(rows, loss, strict=True)]
        if any(source.target_repeats is not None for source in sources):
            target = ["in the target", *(_repeats(source.target_repeats) for source in sources)]
            rows = [(*row[:7], own, *row[7:]) for row, own in zip(rows, target, strict=True)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        total = "an endless plan" if self.total is None else f"{self.total:,} samples"
        lines = [f"{total}, from {len(self.sources)} source{'s' if len(self.sources) != 1 else ''}"]
        for name, *numbers in rows:
            cells = [name.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True))]
            lines.append("  ".join(cells).rstrip())
        if note := self.unit_note:
            lines.append(note)
        for group in self.groups:
            lines.append(f"{group.prefix}: of {group.cells:,} cells those that repeat most; as_dict() has all")
        lines += [] if self.proxy is None else [str(self.proxy)]
        return "\n".join([*lines, *map(str, self.stages)])

    @property
    def unit_note(self) -> str:
        """What shares are of, unless weights count samples; empty if nothing has a weight."""
        weighed = self.unit != "samples" and any(source.asked is not None for source in self.sources)
        return f"asked and realized are shares of {self.unit.replace('_', ' ')}" if weighed else ""

    @property
    def _shown(self) -> list[SourceReport]:
        groups = self.groups
        known = {source.name: source for source in (*self.sources, *(group.total for group in groups))}
        plain = [{"name": source.name} for source in self.sources]
        return [known[row["name"]] for row in shown(plain, [group.as_dict() for group in groups])]


def _summed(names: Sequence[str], columns: Sequence[Sequence[Fraction]]) -> tuple[list[str], list[list[Fraction]]]:
    """Return names and shares with the sums of each group of more than twelve cells."""
    prefixes = [name.partition("[")[0] if name.endswith("]") else "" for name in names]
    often = Counter(prefixes)
    out: dict[str, list[Fraction]] = {}
    for name, prefix, *shares in zip(names, prefixes, *columns, strict=True):
        known = out.setdefault(f"{prefix}[{often[prefix]} cells]" if prefix and often[prefix] > _FEW else name, [])
        known[:] = [a + b for a, b in zip(known, shares, strict=True)] if known else shares
    return list(out), [list(column) for column in zip(*out.values(), strict=True)]


class Dropped(NamedTuple):
    """Samples of a source that are in no row.

    Attributes:
        reason: why.
        samples: how many there are in a pass.
        keys: of the first of them; of those that are too large, the largest first.
    """

    reason: str
    samples: int
    keys: list[str]

    def __str__(self) -> str:
        return (
            f"{self.samples:,} {self.reason} ({', '.join(self.keys)}{', ...' if self.samples > len(self.keys) else ''})"
        )


@dataclass(frozen=True, slots=True)
class WholeSamples:
    """Lengths and media of a source whose samples have lengths, and what of any source is not whole in rows.

    Attributes:
        name: the source.
        samples: samples in its subset; `kept`: those that rows hold.
        shortest, median, longest: tokens of those that are kept.
        dropped: the others, by reason.
        processor: class of the processor that counts; None for token data.
        media: images, videos and sounds of a sample on average; `most_media`: the most of one.
        long: what happens to `dropped`: ``drop``, or ``split`` or ``truncate``.
    """

    name: str
    samples: int
    kept: int
    shortest: int
    median: int
    longest: int
    dropped: tuple[Dropped, ...]
    processor: str | None = None
    media: float = 0.0
    most_media: int = 0
    long: str = "drop"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {**asdict(self), "dropped": [each._asdict() for each in self.dropped]}

    def __str__(self) -> str:
        lengths = f"{self.shortest:,} to {self.longest:,} tokens (median {self.median:,})"
        if self.processor is not None:
            lengths += f", {self.media:.2f} media each" + (f", at most {self.most_media:,}" if self.most_media else "")
            lengths += f", by {self.processor}"
        done = {"split": "split", "truncate": "truncated"}.get(self.long, "dropped")
        lines = [f"{self.name}: {self.kept:,} samples of {lengths}"]
        return "\n".join([*lines, *(f"  {done}: {each}" for each in self.dropped)])


class RowsOfWidth(NamedTuple):
    """The rows of one width, where stages have a `seq_len` of their own.

    Attributes:
        start: rows before them.
        rows: how many they are.
        width: tokens in each, if it is full.
        documents: documents that they come from, as `PackedReport.documents`.
        tokens: tokens that they hold.
        left_out: tokens of their documents that no row holds.
    """

    start: int
    rows: int
    width: int
    documents: int | None
    tokens: int
    left_out: int

    @property
    def fill(self) -> float:
        """Return the share of their slots that hold a token."""
        return self.tokens / (self.rows * self.width) if self.rows else 0.0

    def __str__(self) -> str:
        return (
            f"rows of {self.width:,} tokens, from row {self.start:,}: {self.rows:,} rows, {self.documents or 0:,}"
            f" documents, {self.tokens:,} tokens ({1 - self.fill:.4%} of the slots are padding),"
            f" {self.left_out:,} tokens dropped"
        )


@dataclass(frozen=True, slots=True)
class PackedReport(Report):
    """The numbers of a packed plan: `length` and `total` count rows; the sources' numbers count documents.

    Attributes:
        documents: documents that the rows come from; for best-fit packing, all documents of the buffers they come from,
            of which the last may be used in part.
        width: token slots per row; of the widest ones, if there are several widths.
        tokens: slots that hold a token; None for an endless plan without a budget.
        left_out: tokens of those documents that are in no row, by the recipe's rules for long documents and for the
            last window.
        media: of rows of samples, images, videos and sounds in a row on average, an expected value.
        whole: lengths and media of the sources whose samples have lengths, and what is dropped or cut of any source.
        used_up: limit of a row, ``media`` or ``patches`` -> rows in which it is used up while tokens are free, and how
            many tokens. Skipped rows count, too.
        widths: the rows of each width, if there are several.
    """

    documents: int | None
    width: int
    tokens: int | None
    left_out: int | None
    media: float | None = None
    whole: tuple[WholeSamples, ...] = ()
    used_up: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    widths: tuple[RowsOfWidth, ...] = ()

    @property
    def slots(self) -> int | None:
        """Return the token slots of all rows."""
        if self.widths:
            return sum(each.rows * each.width for each in self.widths)
        return None if self.total is None else self.total * self.width

    @property
    def fill(self) -> float | None:
        """Return the share of the slots that hold a token; the rest is padding."""
        return self.tokens / self.slots if self.tokens is not None and self.slots else None

    @property
    def short(self) -> list[str]:
        """Return in words what `used_up` says."""
        return [
            f"{rows:,} rows are short because their {name} are used up, and have {free:,} free slots"
            for name, (rows, free) in self.used_up.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        names = ("documents", "width", "slots", "tokens", "left_out", "fill")
        packing = {name: getattr(self, name) for name in names}
        packing["widths"] = [{**each._asdict(), "fill": each.fill} for each in self.widths]
        if self.whole:
            packing |= {"media": self.media, "whole_samples": [each.as_dict() for each in self.whole]}
            packing["used_up"] = {name: {"rows": rows, "free": free} for name, (rows, free) in self.used_up.items()}
        return {**Report.as_dict(self), "packing": packing}

    def __str__(self) -> str:
        inner = Report(None, self.documents, self.sources, self.stages, proxy=self.proxy, unit=self.unit)
        table = str(inner).partition("\n")[2]
        if self.total is None or self.tokens is None:
            return f"an endless plan of rows of {self.width:,} tokens, from {len(self.sources)} sources\n{table}"
        padding = (self.slots or 0) - self.tokens
        fill = "" if self.fill is None else f" ({1 - self.fill:.4%} of the slots)"
        widths = ", then ".join(f"{each.width:,}" for each in self.widths) or f"{self.width:,}"
        head = f"{self.total:,} rows of {widths} tokens, from {self.documents or 0:,} documents"
        left = f"{self.left_out:,} tokens dropped"
        media = "" if self.media is None else f", {self.media:.2f} media a row"
        own = "".join(f"\n{each}" for each in self.whole)
        own += "".join(f"\n{line}" for line in (*self.short, *self.widths))
        return f"{head}\n{self.tokens:,} tokens, {padding:,} slots of padding{fill}, {left}{media}\n{table}{own}"


def held(
    sources: Sequence[SourceReport],
    drawn: Sequence[Fraction],
    tokens: int,
    fit: Sequence[Fraction],
    loss_fit: Sequence[Fraction],
) -> tuple[SourceReport, ...]:
    """Return the sources with the documents that some rows hold, and with their shares of the rows' tokens.

    Args:
        sources: with the documents of whole buffers.
        drawn: of each source, the documents in the rows.
        tokens: tokens in the rows.
        fit, loss_fit: of each source, the share of its tokens, and of its loss tokens, that are not dropped.
    """
    pairs = list(zip(sources, drawn, strict=True))
    expected = [
        None if each.tokens is None else each.tokens * count * share / max(each.drawn or 0, 1)
        for (each, count), share in zip(pairs, fit, strict=True)
    ]
    known = [own for own in expected if own is not None]
    whole = sum(known)
    out = []
    for (source, count), own in zip(pairs, expected, strict=True):
        source = replace(source, drawn=round(count), exact=source.exact and count == source.drawn)
        if own is not None and whole and len(known) == len(expected):
            source = replace(source, tokens=round(tokens * own / whole), token_share=float(own / whole))
        out.append(source)
    if all(source.loss_tokens is None for source in sources):
        return tuple(out)
    learned = [
        round((each.loss_tokens or 0) * count * share / max(each.drawn or 0, 1))
        for (each, count), share in zip(pairs, loss_fit, strict=True)
    ]
    return tuple(_with_loss(out, learned))


def _with_loss(sources: Sequence[SourceReport], learned: Sequence[int | None]) -> list[SourceReport]:
    """Return the sources with their loss tokens, and with their shares of these if all are known."""
    whole = sum(count or 0 for count in learned)
    known = whole > 0 and None not in learned
    return [
        replace(source, loss_tokens=count, loss_share=(count or 0) / whole if known else None)
        for source, count in zip(sources, learned, strict=True)
    ]


def _cells(source: SourceReport) -> tuple[str, ...]:
    drawn = "" if source.drawn is None else f"{'' if source.exact else '≈'}{source.drawn:,}"
    repeats = _repeats(source.repeats)
    numbers = (f"{source.samples:,}", f"{source.used:,}", _percent(source.asked), _percent(source.realized))
    return (source.name, *numbers, drawn, repeats)


def _repeats(repeats: float | None) -> str:
    return "" if repeats is None else short_number(repeats)


def _token_cells(source: SourceReport) -> tuple[str, str]:
    share = "" if source.token_share is None else f"{source.token_share:.4%}"
    return "" if source.tokens is None else f"{source.tokens:,}", share


def _loss_cells(source: SourceReport) -> tuple[str, ...]:
    share = "" if source.loss_share is None else f"{source.loss_share:.4%}"
    return "" if source.loss_tokens is None else f"{source.loss_tokens:,}", share


def _percent(share: Fraction | None) -> str:
    return "" if share is None else f"{float(share):.4%}"


Mean = Callable[[Node], Fraction | None]


def report(
    root: Node,
    names: list[str],
    length: int | None,
    total: int | None,
    tokens: Mean,
    loss: Mean | None = None,
    units: Tokens | None = None,
) -> Report:
    """Return the report of a plan.

    Args:
        root: the root node of the plan.
        names: names of the sources.
        length: length of the plan.
        total: report on the first `total` positions.
        tokens: returns the mean tokens per sample of a node, or None if unknown.
        loss: the same for the tokens that contribute to the loss; None if they are not shown.
        units: means of what the weights count; None for samples.
    """
    drawn = draws(root, total) if total is not None else {}
    sources = []
    leaves = sorted(_leaves(root, None, None, total), key=lambda each: each[0].number)
    parts: list[Node] = [used for _, used, _, _ in leaves]
    asked = _in_units(parts, [share for _, _, share, _ in leaves], units)
    realized = _in_units(parts, [share for _, _, _, share in leaves], units)
    for (leaf, used, _, _), *weights in zip(leaves, asked, realized, strict=True):
        count, exact = drawn.get(leaf.number, (None, True))
        sources.append(
            SourceReport(
                names[leaf.number],
                leaf.length,
                used.length,
                asked=weights[0],
                realized=weights[1],
                drawn=count,
                exact=exact,
                tokens=_expected(count, tokens(used)),
            )
        )
    whole = sum(part.tokens or 0 for part in sources)
    if whole and all(part.tokens is not None for part in sources):
        sources = [replace(part, token_share=(part.tokens or 0) / whole) for part in sources]
    if loss is not None:
        learned = [_expected(part.drawn, loss(used)) for part, used in zip(sources, parts, strict=True)]
        sources = _with_loss(sources, learned)
    unit = "samples" if units is None else units.unit
    return Report(length, total, tuple(sources), tuple(_stages(root, names, units)), unit=unit)


def _in_units(
    nodes: Sequence[Node], of_samples: Sequence[Fraction | None], units: Tokens | None
) -> Sequence[Fraction | None]:
    """Return shares of what weights count, from shares of samples. Those of sources outside of blends stay None."""
    known = [share for share in of_samples if share is not None]
    return of_samples if units is None or len(known) < len(nodes) else units.shares(nodes, known)


def used_of(root: Node) -> list[Leaf | Subset | Subsample]:
    """Return what a plan draws from of each source: its leaf, or the subset of it."""
    leaves = sorted(_leaves(root, None, None, None), key=lambda each: each[0].number)
    return [used for _, used, _, _ in leaves]


def _expected(count: int | None, mean: Fraction | None) -> int | None:
    return None if count is None or mean is None else round(count * mean)


def _leaves(
    node: Node,
    asked: Fraction | None,
    realized: Fraction | None,
    total: int | None,
    cut: Subset | Subsample | None = None,
) -> Iterator[tuple[Leaf, Leaf | Subset | Subsample, Fraction | None, Fraction | None]]:
    """Yield each leaf with its subset (itself if it has none), and the products of requested and realized weights."""
    if isinstance(node, Leaf):
        yield node, cut or node, asked, realized
        return
    if isinstance(node, Subset | Subsample):
        cut = cut or node  # the outermost subset is the smallest
    if len(node.children) == 1 and not isinstance(node, Interleaved):
        (count,) = [None] if total is None else node.draws(total)
        yield from _leaves(node.children[0], asked, realized, count, cut)
        return
    shares: Sequence[tuple[Fraction | None, Fraction | None]] = [(None, None)] * len(node.children)
    if isinstance(node, Interleaved):
        known = node.shares(total)
        shares = shares if known is None else list(zip(*known, strict=True))
    elif asked is not None:
        parts = epoch_shares(node) if isinstance(node, Junction) else [Fraction(1)]
        shares = [(part, part) for part in parts]
    counts = [None] * len(node.children) if total is None else node.draws(total)
    for child, (wanted, given), count in zip(node.children, shares, counts, strict=True):
        yield from _leaves(child, _times(asked, wanted), _times(realized, given), count, cut)


def _times(above: Fraction | None, own: Fraction | None) -> Fraction | None:
    return own if above is None or own is None else own * above


def _stages(node: Node, names: Sequence[str], units: Tokens | None) -> Iterator[StageReport]:
    """Yield the stages of every staged blend in the tree, from the root down."""
    if isinstance(node, StagedBlend):
        titles = tuple(_title(child, names) for child in node.children)
        plan = node.stages
        for number, (part, size) in enumerate(zip(plan.schedules, plan.samples, strict=True)):
            given = part.realized if size is None else tuple(Fraction(count, size) for count in part.drawn(size))
            ends = [(each.begin, each.end) for each in plan.weights[number] if isinstance(each, Change)]
            kind = next((each.kind for each in plan.weights[number] if isinstance(each, Change)), "")
            caps = node.caps[number] if node.caps else None
            most = {} if caps is None else {titles[child]: most for child, most in caps.most.items()}
            if units is not None:
                of_it = partial(units.shares, node.children)
                asked, given = of_it(part.asked), of_it(given)
                ends = list(zip(*map(of_it, zip(*ends, strict=True)), strict=True))
            else:
                asked = part.asked
            stage = number + 1, plan.starts[number], size, titles, asked, given
            yield StageReport(*stage, tuple(ends), kind, most)
    for child in node.children:
        yield from _stages(child, names, units)


def _title(node: Node, names: Sequence[str]) -> str:
    """Return the display name of a node: the name of its source, or the common path of its sources' names."""
    own = [names[leaf] for leaf in node.leaves]
    return own[0] if len(own) == 1 else commonpath(own) or " + ".join(own)


def draws(root: Node, total: int) -> dict[int, tuple[int, bool]]:
    """Return the number of samples that the first `total` positions draw from each leaf, and whether it is exact."""
    if not isinstance(root, Skip):
        return _drawn(root, total)
    reach = root.reach(total)[0]
    less = dropped(root, reach, len(root.leaves))
    counts = _drawn(root.child, reach)
    if less is None:  # too many to count: in proportion
        return {leaf: (count * total // (reach or 1), False) for leaf, (count, _) in counts.items()}
    return {leaf: (count - less[leaf], exact) for leaf, (count, exact) in counts.items()}


def _drawn(node: Node, total: int) -> dict[int, tuple[int, bool]]:
    """Return the samples drawn from each leaf by the first `total` positions of a node, and whether that is exact."""
    found: dict[int, tuple[int, bool]] = {}
    _add_drawn(found, node, total, mixed=False, exact=True)
    return found


def _add_drawn(found: dict[int, tuple[int, bool]], node: Node, total: int, *, mixed: bool, exact: bool) -> None:
    """Add what is drawn below a node.

    Below a shuffle that is cut in mid-epoch (`mixed`), the positions are not a prefix of their nodes' streams. Only the
    expected share of each source is then known without evaluating the whole epoch.
    """
    if len(node.leaves) == 1:  # every position draws one sample
        found[node.leaves[0]] = (total, exact)
        return
    if isinstance(node, Shuffle):
        mixed = mixed or bool(total % node.length)
    counts = node.draws(total)
    if mixed and isinstance(node, Junction) and len(node.children) > 1:
        exact, length = False, node.length or total
        counts = [(2 * total * count + length) // (2 * length) for count in node.draws(length)]
    if len(node.leaves) == len(node.children):  # each child has one: no need to ask a thousand of them
        found.update(zip(node.leaves, zip(counts, repeat(exact)), strict=True))
        return
    for child, count in zip(node.children, counts, strict=True):
        _add_drawn(found, child, count, mixed=mixed, exact=exact)
