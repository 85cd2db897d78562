"""What stays whole in rows, samples and groups of them: which no row can hold, and lengths and media of the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Groups, Leaf, Node, Subset
from feedmill.planning.nodes.groups import groups_in
from feedmill.planning.packing.best_fit import fitting_groups
from feedmill.planning.packing.documents import Documents, IntArray
from feedmill.planning.packing.options import Packing
from feedmill.planning.report import Dropped, WholeSamples
from feedmill.samples.cells import CellDataset

_NAMED = 5
_AT_ONCE = 1 << 18
_LACKING = "are of groups with a sample that has no tokens, no length or too many media"


class Kept(NamedTuple):
    """The samples of a source that rows can hold.

    Attributes:
        start, stop: those of its subset.
        kept: bool[stop - start]; None for all of them.
        dropped: the others, by reason.
    """

    start: int
    stop: int
    kept: npt.NDArray[np.bool_] | None
    dropped: tuple[Dropped, ...]


def kept_samples(
    documents: Documents, packing: Packing, where: str | None, drawn: Collection[int] | None = None
) -> dict[int, Kept]:
    """Return which samples rows can hold, by the number of each source with lengths.

    Args:
        documents: the stream.
        packing: how they become rows of one width.
        where: ``file:line`` for messages.
        drawn: the sources whose samples the rows hold; None for all of them.

    Raises:
        ConfigError: an option is for such sources, and there is none; a sample has no length, or no row can hold it,
            and it is not to be dropped; no sample remains; or the patches of a processor are not known.
    """
    if not documents.samples and packing.of_samples:
        raise ConfigError(
            f"{packing.of_samples[0]!r} is for rows of samples, and no source has 'lengths'",
            file=where,
            kind="bad-recipe",
            fix="Declare 'lengths' and name them at a source, or remove the option.",
        )
    if documents.samples and documents.grouped and packing.mismatch == "drop":
        raise ConfigError(
            "'mismatch: drop' would leave groups without one of their samples",
            file=where,
            kind="bad-recipe",
            fix="Remove it, and give rows a 'headroom' for samples that turn out longer.",
        )
    if documents.samples and packing.method == "concat":
        raise ConfigError(
            "windows cut samples with media anywhere",
            file=where,
            kind="bad-recipe",
            fix="Use 'method: best_fit' for sources with 'lengths'.",
        )
    ranges = ranges_of(documents.plan.node) if documents.samples or documents.grouped else {}
    found = {
        number: _source(documents, packing, number, *ranges[number], where)
        for number in documents.samples
        if drawn is None or number in drawn
    }
    if packing.method == "best_fit":
        for node in groups_in(documents.plan.node):
            if drawn is None or not set(drawn).isdisjoint(node.leaves):
                _group(documents, packing, node, ranges, found, where)
    return found


def _group(
    documents: Documents,
    packing: Packing,
    node: Groups,
    ranges: Mapping[int, tuple[int, int]],
    found: dict[int, Kept],
    where: str | None,
) -> None:
    """Add to `found` which samples are of groups that rows can hold; see `kept_samples`."""
    sources = documents.plan.sources
    if any(sources[leaf].lengths is None for leaf in node.leaves):
        return  # counted when read: the packing of each buffer finds them
    bounds, limits = node.bounds, np.array(list(packing.limits.values()), np.int64)
    for start in range(0, node.count, _AT_ONCE):
        own = bounds[start : start + _AT_ONCE + 1]
        samples = node.child.locate(np.arange(own[0], own[-1]))
        lengths, needs = documents.sized_at(samples, tuple(packing.limits))
        starts = own[:-1] - own[0]
        fits, sums = fitting_groups(lengths, needs, starts, packing.multiple, packing.capacity, limits)
        if fits.all():
            continue
        over, name = sums > packing.capacity, documents.plan.names[node.leaves[0]]
        reason = f"more than the {packing.capacity:,} tokens of a row"
        if packing.long != "drop" and over.any():
            worst = int(sums.argmax())
            place = int(starts[worst])
            key = sources[int(samples.source[place])].locate(int(samples.index[place])).key
            raise ConfigError(
                f"{int(over.sum()):,} of {node.count:,} groups of {name!r} have {reason}, the largest is that of"
                f" {key!r} with {int(sums[worst]):,}: 'long: {packing.long}' cannot cut groups",
                file=where,
                kind="too-large",
                fix="Use 'long: drop', which counts them in the report, or a larger seq_len.",
            )
        lost, sizes = ~fits, np.diff(own)
        for leaf in np.unique(samples.source).tolist():
            first, stop = ranges[leaf]
            before = found.get(leaf, Kept(first, stop, None, ()))
            kept = np.ones(stop - first, bool) if before.kept is None else before.kept.copy()
            mine = np.flatnonzero((samples.source == leaf) & np.repeat(lost, sizes))
            alone = mine[kept[samples.index[mine] - first]]  # what is dropped by itself has a reason
            kept[samples.index[mine] - first] = False
            of = np.repeat(np.arange(len(sums)), sizes)[alone]
            why = before.dropped
            for words, which in ((f"are of groups with {reason}", over[of]), (_LACKING, ~over[of])):
                if which.any():
                    order = alone[which][np.argsort(-sums[of[which]], kind="stable")][:_NAMED]
                    keys = [sources[leaf].locate(index).key for index in samples.index[order].tolist()]
                    why = _with(why, Dropped(words, int(which.sum()), keys))
            found[leaf] = Kept(first, stop, kept, why)


def _with(dropped: tuple[Dropped, ...], more: Dropped) -> tuple[Dropped, ...]:
    """Return what is dropped, with more of it: what has the same reason is counted together."""
    same = next((each for each in dropped if each.reason == more.reason), None)
    if same is None:
        return (*dropped, more)
    both = Dropped(same.reason, same.samples + more.samples, [*same.keys, *more.keys][:_NAMED])
    return tuple(both if each is same else each for each in dropped)


def _source(documents: Documents, packing: Packing, number: int, start: int, stop: int, where: str | None) -> Kept:
    name, dataset = documents.plan.names[number], documents.samples[number]
    tokens = dataset.counts.tokens[start:stop]
    limits = _limits(documents, packing, number, start, stop)
    if int(tokens.min()) >= 0 and all(int(values.max()) <= most for _, values, most in limits):
        return Kept(start, stop, None, ())
    kept = tokens >= 0
    dropped: list[Dropped] = []
    if not kept.all():
        dropped.append(_refused(name, len(tokens), int((~kept).sum()), documents, number, packing, where))
    for reason, values, most in limits:
        over = kept & (values > most)
        if not over.any():
            continue
        worst = np.flatnonzero(over)[np.argsort(-values[over], kind="stable")][:_NAMED]
        keys = [dataset.locate(start + each).key for each in worst.tolist()]
        dropped.append(Dropped(f"have {reason}", int(over.sum()), keys))
        kept &= ~over
        if packing.long != "drop":
            raise ConfigError(
                f"{int(over.sum()):,} of {len(tokens):,} samples of {name!r} have {reason}, the largest is {keys[0]!r}"
                f" with {int(values[worst[0]]):,}: 'long: {packing.long}' cannot cut samples with media",
                file=where,
                kind="too-large",
                fix="Use 'long: drop', which counts them in the report, or allow more in a row.",
            )
    if not kept.any():
        raise ConfigError(
            f"no row can hold a sample of {name!r}: {'; '.join(map(str, dropped))}",
            file=where,
            kind="too-few-samples",
            fix="Allow more in a row, or remove the source.",
        )
    return Kept(start, stop, kept, tuple(dropped))


def fit(
    documents: Documents, packing: Packing, number: int, start: int, stop: int, kept: Kept | None, by: str = "tokens"
) -> Fraction:
    """Return the share of the tokens of a source that rows hold: of its samples from `start` to `stop`.

    Args:
        by: ``tokens``, or ``loss_tokens``. Of a document that is cut, as large a share of these is held.
    """
    dataset = documents.plan.sources[number]
    if isinstance(dataset, CellDataset) and stop - start == len(dataset):
        return _fit_of_cell(dataset, packing, by)
    lengths = dataset.lengths
    if lengths is None or not int(lengths[start:stop].sum()):
        return Fraction(1)
    mine = lengths[start:stop]
    if kept is not None:
        held = mine if kept.kept is None else np.where(kept.kept, mine, 0)
    else:
        held = _held(mine, packing)
    if by == "tokens":
        return Fraction(int(held.sum()), int(mine.sum()))
    costs = dataset.costs(by)
    if costs is None or not (total := int(costs[start:stop].sum())) or held is mine:
        return Fraction(1)
    return Fraction(float((costs[start:stop] * (held / np.maximum(mine, 1))).sum())) / total


def _held(lengths: IntArray, packing: Packing) -> IntArray:
    """Return how many of the tokens of documents rows hold."""
    if packing.long == "drop":
        return np.where(lengths <= packing.capacity, lengths, 0)
    return np.minimum(lengths, packing.capacity) if packing.long == "truncate" else lengths


def _fit_of_cell(cell: CellDataset, packing: Packing, by: str) -> Fraction:
    """Return `fit` of a whole cell. The cells of a dataset are counted together, without copies of their lengths."""
    dataset = cell.dataset
    lengths, total = dataset.lengths, cell.total(by)
    costs = lengths if by == "tokens" else dataset.costs(by)
    if lengths is None or costs is None or not total or packing.long == "split":
        return Fraction(1)

    def held(start: int, stop: int) -> npt.NDArray[Any]:
        mine = lengths[start:stop]
        part = _held(mine, packing)
        return part if by == "tokens" else costs[start:stop] * (part / np.maximum(mine, 1))

    return Fraction(cell.sum_of(held, (by, packing.long, packing.capacity))) / total


def whole_samples(documents: Documents, found: Mapping[int, Kept]) -> tuple[WholeSamples, ...]:
    """Return lengths and media of each source that has lengths, and what is dropped of it."""
    out = []
    for number, (start, stop, kept, dropped) in found.items():
        mine = slice(None) if kept is None else kept
        name = documents.plan.names[number]
        if number not in documents.samples:
            tokens = documents.plan.sources[number].lengths
            assert tokens is not None  # otherwise nothing was found
            out.append(_summary(name, stop - start, tokens[start:stop][mine], dropped))
            continue
        counts = documents.samples[number].counts
        media = counts.media[start:stop][mine]
        whole = _summary(name, stop - start, counts.tokens[start:stop][mine], dropped)
        processor = counts.identity["processor"].split()[0]
        most = int(media.max(initial=0))
        out.append(replace(whole, processor=processor, media=float(media.sum()) / max(len(media), 1), most_media=most))
    return tuple(out)


def _summary(name: str, samples: int, held: npt.NDArray[Any], dropped: tuple[Dropped, ...]) -> WholeSamples:
    numbers = (int(held.min()), int(np.median(held)), int(held.max())) if len(held) else (0, 0, 0)
    return WholeSamples(name, samples, len(held), *numbers, dropped)


def long_documents(documents: Documents, packing: Packing, ranges: Mapping[int, tuple[int, int]]) -> list[WholeSamples]:
    """Return the sources of which documents are too long for a row, and are not packed whole.

    Documents that are split are ordinary, but for those with a loss mask: a conversation lacks its beginning then.
    """
    out = []
    for number, (start, stop) in ranges.items() if packing.method == "best_fit" else ():
        dataset = documents.plan.sources[number]
        if packing.long == "split" and getattr(dataset, "masks", None) is None:
            continue
        if isinstance(dataset, CellDataset) or (lengths := dataset.lengths) is None:
            continue  # not named: cells would copy their lengths, and others are counted when they are read
        over = lengths[start:stop] > packing.capacity
        if not over.any():
            continue
        worst = np.flatnonzero(over)[np.argsort(-lengths[start:stop][over], kind="stable")][:_NAMED]
        keys = [dataset.locate(start + each).key for each in worst.tolist()]
        reason = f"have more than the {packing.capacity:,} tokens of a row"
        held = lengths[start:stop] if packing.long != "drop" else lengths[start:stop][~over]
        whole = _summary(documents.plan.names[number], stop - start, held, (Dropped(reason, int(over.sum()), keys),))
        out.append(replace(whole, long=packing.long))
    return out


def _refused(
    name: str, samples: int, count: int, documents: Documents, number: int, packing: Packing, where: str | None
) -> Dropped:
    """Return the samples without a length. Raises `ConfigError` if these are not to be dropped."""
    found = documents.samples[number].counts.refused
    reasons = "; ".join(map(str, found))
    if sum(each.samples for each in found) != count:  # of a subset: no sample's own reason is kept
        reasons += f"; counted over all {len(documents.samples[number]):,} samples of the source"
    if packing.refused == "error":
        raise ConfigError(
            f"{count:,} of {samples:,} samples of {name!r} have no length: {reasons}",
            file=where,
            kind="no-costs",
            fix="Correct them, or leave them out with 'refused: drop' in 'pack'.",
        )
    return Dropped(f"have no length: {reasons}", count, [key for each in found for key in each.keys][:_NAMED])


def _limits(
    documents: Documents, packing: Packing, number: int, start: int, stop: int
) -> Sequence[tuple[str, npt.NDArray[Any], int]]:
    """Return what samples must fit into: in words, what each sample needs, and how much there is."""
    tokens = documents.samples[number].counts.tokens[start:stop]
    out: list[tuple[str, IntArray | npt.NDArray[np.int32], int]] = [
        (f"more than the {packing.capacity:,} tokens of a row", tokens, packing.capacity)
    ]
    for name, most in packing.limits.items():
        out.append((f"more than {most:,} {name}", documents.needs(number, name)[start:stop], most))
    return out


def ranges_of(node: Node) -> dict[int, tuple[int, int]]:
    """Return the samples of each leaf that a tree uses: first and end."""
    if isinstance(node, Leaf):
        return {node.number: (0, node.length)}
    if isinstance(node, Subset) and isinstance(node.child, Leaf):
        return {node.child.number: (node.start, node.start + node.length)}
    return {leaf: bounds for child in node.children for leaf, bounds in ranges_of(child).items()}
