"""What a plan gives: per source the weights asked and realised, the samples drawn, and how often they repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from feedmill.planning.nodes import Blend, Concat, Leaf, Node, Shuffle, Skip, Subset
from feedmill.planning.nodes.base import Junction
from feedmill.planning.skip import dropped


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One source's part in a plan.

    Attributes:
        name: the source's name.
        samples: samples in the data set.
        used: samples that its subset leaves; all without one.
        asked: its weight as asked, as a share of the whole; None where no blend stands above it.
        realised: its weight as scheduled; differs from `asked` only where the blend's period would be too long.
        drawn: samples drawn from it; None for an endless plan without a budget.
        exact: False where `drawn` is the expected number, because a shuffle across sources is cut in mid-epoch.
    """

    name: str
    samples: int
    used: int
    asked: Fraction | None
    realised: Fraction | None
    drawn: int | None
    exact: bool = True

    @property
    def repeats(self) -> float | None:
        """How often each of the used samples is drawn on average: the epochs."""
        return None if self.drawn is None else self.drawn / self.used

    def as_dict(self) -> dict[str, Any]:
        """Plain data; weights as floats."""
        return {
            "name": self.name,
            "samples": self.samples,
            "used": self.used,
            "weight_asked": None if self.asked is None else float(self.asked),
            "weight_realised": None if self.realised is None else float(self.realised),
            "drawn": self.drawn,
            "exact": self.exact,
            "repeats": self.repeats,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A plan in numbers; prints as a table.

    Attributes:
        length: samples of the plan, None where it is endless.
        total: samples that the report is about.
        sources: one entry per source.
    """

    length: int | None
    total: int | None
    sources: tuple[SourceReport, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {"length": self.length, "total": self.total, "sources": [source.as_dict() for source in self.sources]}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("source", "samples", "used", "asked", "realised", "drawn", "repeats")]
        rows += [_cells(source) for source in self.sources]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        total = "an endless plan" if self.total is None else f"{self.total:,} samples"
        lines = [f"{total}, from {len(self.sources)} source{'s' if len(self.sources) != 1 else ''}"]
        for name, *numbers in rows:
            cells = [name.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PackedReport(Report):
    """A packed plan in numbers: `length` and `total` are rows; the sources' numbers are documents.

    Attributes:
        documents: documents that the rows come from; for best-fit packing, all of the buffers they come from.
        width: token slots per row.
        tokens: slots that hold a token; None for an endless plan without a budget.
        left_out: tokens of those documents that are in no row by what the recipe says of long documents and of the
            last window.
    """

    documents: int | None
    width: int
    tokens: int | None
    left_out: int | None

    @property
    def slots(self) -> int | None:
        """Token slots of all rows."""
        return None if self.total is None else self.total * self.width

    @property
    def fill(self) -> float | None:
        """Share of the slots that hold a token; the rest is padding."""
        return self.tokens / self.slots if self.tokens is not None and self.slots else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        names = ("documents", "width", "slots", "tokens", "left_out", "fill")
        return {**Report.as_dict(self), "packing": {name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        table = str(Report(None, self.documents, self.sources)).partition("\n")[2]
        if self.total is None or self.tokens is None:
            return f"an endless plan of rows of {self.width:,} tokens, from {len(self.sources)} sources\n{table}"
        padding = self.total * self.width - self.tokens
        fill = "" if self.fill is None else f" ({1 - self.fill:.4%} of the slots)"
        head = f"{self.total:,} rows of {self.width:,} tokens, from {self.documents or 0:,} documents"
        left = f"{self.left_out:,} tokens left out"
        return f"{head}\n{self.tokens:,} tokens, {padding:,} slots of padding{fill}, {left}\n{table}"


def _cells(source: SourceReport) -> tuple[str, ...]:
    drawn = "" if source.drawn is None else f"{'' if source.exact else '≈'}{source.drawn:,}"
    repeats = "" if source.repeats is None else f"{source.repeats:.3g}"
    numbers = (f"{source.samples:,}", f"{source.used:,}", _percent(source.asked), _percent(source.realised))
    return (source.name, *numbers, drawn, repeats)


def _percent(share: Fraction | None) -> str:
    return "" if share is None else f"{float(share):.4%}"


def report(root: Node, names: list[str], length: int | None, total: int | None) -> Report:
    """The report of the plan under `root`, for its first `total` positions."""
    drawn = draws(root, total) if total is not None else {}
    sources = []
    for leaf, used, asked, realised in _leaves(root, None, None):
        count, exact = drawn.get(leaf.number, (None, True))
        part = SourceReport(names[leaf.number], leaf.length, used, asked, realised, count, exact)
        sources.append((leaf.number, part))
    return Report(length, total, tuple(part for _, part in sorted(sources, key=lambda item: item[0])))


def _leaves(
    node: Node, asked: Fraction | None, realised: Fraction | None, used: int | None = None
) -> Iterator[tuple[Leaf, int, Fraction | None, Fraction | None]]:
    """Every leaf with the samples its subsets leave and the product of the weights above it."""
    if isinstance(node, Leaf):
        yield node, used or node.length, asked, realised
    if isinstance(node, Subset):
        used = used or node.length  # the outermost subset is the smallest
    for number, child in enumerate(node.children):
        if isinstance(node, Blend):
            shares = node.schedule.asked[number], node.schedule.realised[number]
            yield from _leaves(child, shares[0] * (asked or 1), shares[1] * (realised or 1))
        elif isinstance(node, Concat) and asked is not None and realised is not None:
            share = Fraction(node.draws(node.length)[number], node.length)
            yield from _leaves(child, asked * share, realised * share)
        else:
            yield from _leaves(child, asked, realised, used)


def draws(root: Node, total: int) -> dict[int, tuple[int, bool]]:
    """Samples that the first `total` positions of a plan draw from each leaf, and whether that is exact."""
    if not isinstance(root, Skip):
        return dict(_drawn(root, total))
    reach = root.reach(total)[0]
    less = dropped(root, reach, len(root.leaves))
    counts = dict(_drawn(root.child, reach))
    if less is None:  # too many to count: in proportion
        return {leaf: (count * total // (reach or 1), False) for leaf, (count, _) in counts.items()}
    return {leaf: (count - less[leaf], exact) for leaf, (count, exact) in counts.items()}


def _drawn(node: Node, total: int, mixed: bool = False, exact: bool = True) -> Iterator[tuple[int, tuple[int, bool]]]:
    """Samples drawn from each leaf by the first `total` positions of the node's stream, and whether that is exact.

    Below a shuffle that is cut in mid-epoch (`mixed`) the positions are no longer the first ones of their nodes, and
    only the expected shares of several sources are known without evaluating the whole epoch.
    """
    if isinstance(node, Leaf):
        yield node.number, (total, exact)
        return
    if isinstance(node, Shuffle):
        mixed = mixed or bool(total % node.length)
    counts = node.draws(total)
    if mixed and isinstance(node, Junction) and len(node.children) > 1:
        exact, length = False, node.length or total
        counts = [(2 * total * count + length) // (2 * length) for count in node.draws(length)]
    for child, count in zip(node.children, counts, strict=True):
        yield from _drawn(child, count, mixed, exact)
