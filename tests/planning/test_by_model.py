"""Random mixtures beside a model of what the pages promise: it knows no node, and counts documents one by one.

The model is written from `docs/recipes.md`, `docs/order.md`, `docs/packing.md`, `docs/mixtures.md` and the two pages of
internals about order and cells. It knows the datasets, the weights and the lengths of stages; the plan is only asked
which document comes at which position.
"""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.cells import OUTSIDE, Rule
from feedmill.loading.batches import now
from helpers.cells import BY, codes_of, labels_of, put_in_cells, values_of
from helpers.token_dataset import Tokenized

SLACK = 1e-6
"""Weights with long denominators are rounded to 2^-50; and the model's integrals are floats."""
QUALITY = 3


class Documents(Tokenized):
    """Documents with a score, and with tokens of the loss."""

    def __init__(self, name: str, lengths: np.ndarray, score: np.ndarray, learnt: np.ndarray) -> None:
        super().__init__(name, lengths)
        self.score, self.learnt = score, learnt

    def _find_values(self, by: str, *, texts: bool) -> np.ndarray | None:
        return {"score": self.score}.get(by, super()._find_values(by, texts=texts) if by != "score" else None)

    def _find_costs(self, by: str) -> np.ndarray | None:
        return self.learnt if by == "loss_tokens" else None


@dataclass
class Source:
    """What the model knows of a source: which documents of which dataset it has, in stored order, and its options."""

    name: str
    base: Documents
    numbers: np.ndarray
    parent: int
    weight: Fraction = Fraction(1)
    cap: int | None = None
    group: int = 1
    curriculum: dict[str, Any] | None = None

    def mean(self, unit: str) -> Fraction:
        if unit == "samples":
            return Fraction(1)
        costs = self.base.lengths if unit == "tokens" else self.base.learnt
        return Fraction(int(costs[self.numbers].sum()), len(self.numbers))


@dataclass
class Stage:
    """A stage: where it begins and ends, the weight of each member per unit, and how it is reached."""

    begin: int
    end: int | None
    weights: list[Fraction]
    ramp: str | None = None
    caps: dict[int, int] = field(default_factory=dict)
    seq_len: int | None = None


def opened(path: str, *, by_name: dict[str, Documents], **_: Any) -> Documents:
    return by_name[Path(path).name]


class Mixture:
    """A random recipe, and the model of it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw, self.seed, self.folder = random.Random(seed), seed, folder
        self.data: dict[str, Documents] = {}
        self.sources: list[Source] = []
        self.members: list[str] = []
        self.given: list[Fraction] = []
        self.own_units: dict[int, str] = {}
        self.recipe: dict[str, Any] = {"seed": seed}
        draw = self.draw
        self.unit = draw.choice(["samples", "samples", "tokens", "loss_tokens"])
        if self.unit != "samples" or draw.random() < 0.2:
            self.recipe["unit"] = self.unit
        self.recipe["shuffle"] = draw.choice(["none", "global", "block", {"kind": "block", "block": 8, "window": 3}])
        self.packed = draw.random() < 0.4
        self.group = 1 if self.packed else draw.choice([1, 1, 1, 2, 3])
        staged = draw.random() < 0.6
        (self._cells_alone if self.group == 1 and draw.random() < 0.5 else self._several)(staged)
        self.stages = self._stages() if staged else [Stage(0, None, self.given)]
        self._end(staged)

    # The data, and the members of the blend.

    def _documents(self, name: str, cells: int = 1) -> tuple[Documents, np.ndarray]:
        draw = np.random.default_rng(self.draw.randrange(2**32))
        count = int(draw.integers(cells, 60 if self.draw.random() < 0.5 else 400)) + 12
        lengths = draw.integers(1, 50, count)
        learnt = 1 + draw.integers(0, 50, count) % lengths
        score = draw.integers(0, self.draw.choice([3, 1000]), count) / 4 - 1
        url = str(self.folder / name)
        self.data[name] = base = Documents(url, lengths, score, learnt)
        codes = codes_of(self.draw.randrange(2**32), count, cells)
        return base, codes

    def _weight(self) -> Any:
        return self.draw.choice([1, 2, "0.3", "0.125", "1/7", 5])

    def _options(self, source: dict[str, Any], *, cells: bool = False) -> dict[str, Any]:
        """Draw the options of one source, and put them into its mapping."""
        found: dict[str, Any] = {}
        if self.draw.random() < 0.25:
            source["max_repeats"] = found["cap"] = self.draw.randint(1, 12)
        if self.draw.random() < 0.3:
            found["curriculum"] = {
                "by": "score",
                "from": self.draw.choice(["easy", "hard"]),
                "window": self.draw.choice([1, 2, 10, 1000]),
            }
            source["curriculum"] = found["curriculum"]
        if self.group > 1 and not cells:
            found["group"] = self.group
            source["groups"] = {"size": self.group, "within": self.draw.choice(["stored", "shuffled"])}
        return found

    def _add_cells(self, name: str, prefix: str, parent: int | None, options: dict[str, Any]) -> list[str]:
        cells = self.draw.randint(1, 6)
        base, codes = self._documents(name, cells)
        put_in_cells(self.folder, base, codes, values_of(cells))
        for cell, label in enumerate(labels_of(cells)):
            numbers = np.flatnonzero(codes == cell)
            of = len(self.sources) if parent is None else parent
            self.sources.append(Source(f"{prefix}[{label}]", base, numbers, of, Fraction(len(numbers)), **options))
        return labels_of(cells)

    def _cells_alone(self, staged: bool) -> None:
        blend: dict[str, Any] = {"cells": {"of": "tok", "by": list(BY)}}
        labels = self._add_cells("tok", "tok", None, self._options(blend, cells=True))
        self.members = labels
        self.given = [source.weight for source in self.sources]
        for_documents = [source.weight * source.mean(self.unit) for source in self.sources]  # natural, in every unit
        kind = self.draw.choice(["natural", "mapping", "csv", "columns"])
        if kind == "natural" or staged:
            self.given = for_documents
        else:
            weights = [self._weight() for _ in labels]
            self.given = [fraction(weight) for weight in weights]
            blend["weights"] = self._weights(kind, weights)
        self.recipe["blend"] = blend

    def _weights(self, kind: str, weights: list[Any]) -> Any:
        """Write the weights of all members as a mapping, or as a file of one of the two kinds."""
        if kind == "mapping":
            return dict(zip(self.members, weights, strict=True))
        path = self.folder / f"w{len(list(self.folder.glob('w*.csv')))}.csv"
        if kind == "csv":
            rows = [f'"{name}",{weight}' for name, weight in zip(self.members, weights, strict=True)]
            path.write_text("\n".join(["cell,weight", *rows]) + "\n")
        else:
            rows = [
                f"{weight},{topic},{quality}"
                for weight, (quality, topic) in zip(weights, values_of(len(weights)), strict=True)
            ]
            path.write_text("\n".join(["weight,topic,quality", *rows]) + "\n")
        return path.name

    def _several(self, staged: bool) -> None:
        blend: list[dict[str, Any]] = []
        for number in range(self.draw.randint(2, 4)):
            kind = self.draw.choice(["plain", "where", "subset", "cells", "cells"])
            kind = "plain" if kind == "cells" and self.group > 1 else kind
            name = f"m{number}"
            member: dict[str, Any] = {"name": name}
            options = self._options(member, cells=kind == "cells")
            parent = len(self.members)
            if kind == "cells":
                first = len(self.sources)
                member["cells"] = {"of": {"path": name, "name": name}, "by": list(BY)}
                del member["name"]
                labels = self._add_cells(name, name, parent, options)
                if self.draw.random() < 0.5:
                    weights = [self._weight() for _ in labels]
                    inside = {key: member.pop(key) for key in list(member) if key in OF_CELLS}
                    member |= {"name": name, "blend": {**inside, "weights": dict(zip(labels, weights, strict=True))}}
                    if self.draw.random() < 0.5:
                        member["unit"] = self.unit
                    self.own_units[parent] = member.get("unit", "samples")
                    prefixed(self.sources[first:], name)
                    for source, weight in zip(self.sources[first:], weights, strict=True):
                        source.weight = fraction(weight)
                else:
                    for source in self.sources[first:]:
                        source.weight *= source.mean(self.unit)
            else:
                base, codes = self._documents(name, 3)
                numbers = np.arange(len(base))
                member["path"] = name
                if kind == "where":
                    member["where"] = {"quality": {"min": 1}}
                    chosen = np.where((codes >= 1) & (codes < OUTSIDE), 0, OUTSIDE).astype(np.uint16)
                    if (chosen == 0).sum() < 4 * self.group:
                        chosen[: 4 * self.group] = 0
                    put_in_cells(self.folder, base, chosen, [[]], Rule(where=member["where"]))
                    numbers = np.flatnonzero(chosen == 0)
                if self.group > 1:
                    most = len(numbers) // self.group * self.group  # bounds are moved down to groups
                    first, stop = self.draw.randint(0, self.group), self.draw.randint(most - self.group, most)
                    member["subset"] = [first, stop]
                    numbers = numbers[first - first % self.group : stop - stop % self.group]
                elif kind == "subset" or self.draw.random() < 0.2:
                    member["subset"] = ["25%", "end"]
                    numbers = numbers[len(numbers) // 4 :]
                self.sources.append(Source(name, base, numbers, parent, **options))
            self.members.append(name)
            weight = self._weight()
            self.given.append(fraction(weight))
            if not staged:
                member["weight"] = weight
            blend.append(member)
        self.recipe["blend"] = blend

    # The lengths.

    def _stages(self) -> list[Stage]:
        stages, texts, begin = [], [], 0
        for number in range(self.draw.randint(1, 4)):
            weights = [self.draw.choice([0, 1, 2, "0.3", "1/7"]) for _ in self.members]
            weights[self.draw.randrange(len(weights))] = 3
            text: dict[str, Any] = {"weights": dict(zip(self.members, weights, strict=True))}
            if "cells" in self.recipe["blend"] and self.draw.random() < 0.3:
                text["weights"] = self._weights(self.draw.choice(["csv", "columns"]), weights)
            length = self.draw.randint(1, 90) * self.group
            if self.packed:
                length += 150
            stage = Stage(begin, begin + length, [fraction(weight) for weight in weights])
            if self.draw.random() < 0.2 and not self.packed and length % 3 == 0:
                self.recipe["global_batch"], text["steps"] = 3, length // 3
            else:
                text["samples"] = length
            if number and self.draw.random() < 0.5:
                text["ramp"] = stage.ramp = self.draw.choice(["linear", "cosine"])
            if self.packed and self.draw.random() < 0.4:
                text["seq_len"] = stage.seq_len = self.draw.choice([96, 128])
            if self.draw.random() < 0.3:
                cap = self.draw.randint(1, 9)
                if self.draw.random() < 0.5:
                    text["max_repeats"] = cap
                    stage.caps = dict.fromkeys(range(len(self.members)), cap)
                else:
                    chosen = self.draw.randrange(len(self.members))
                    text["max_repeats"] = {self.members[chosen]: cap}
                    stage.caps = {chosen: cap}
            begin += length
            stages.append(stage)
            texts.append(text)
        if stages[-1].ramp is None and self.draw.random() < 0.5:
            stages[-1].end = None
            texts[-1].pop("samples", None)
            texts[-1].pop("steps", None)
        self.recipe["stages"] = texts
        return stages

    def _end(self, staged: bool) -> None:
        last = self.stages[-1].end
        if last is None:
            begin = self.stages[-1].begin
            self.end = begin + self.draw.randint(50, 900)
            if (
                len(self.sources) == 1
                and len(self.members) == 1
                and not staged
                and isinstance(self.recipe["blend"], list)
            ):
                self.end = math.floor(2.5 * len(self.sources[0].numbers))
                self.recipe["epochs"] = 2.5
            else:
                self.recipe["samples"] = self.end
        else:
            self.end = last
        if self.packed:
            self.method = self.draw.choice(["best_fit", "concat"])
            self.recipe["pack"] = {"seq_len": 64, "method": self.method}
            if self.method == "best_fit":
                self.recipe["pack"]["long"] = "split"
        self.end -= self.end % self.group

    # What is promised.

    def plan(self, **more: Any) -> Any:
        recipe = {**self.recipe, **more}
        return fm.Recipe.parse(recipe, base=str(self.folder)).plan(partial(opened, by_name=self.data))

    def bare(self) -> dict[str, Any]:
        """The recipe without caps: of all stages and of all sources."""
        out = dict(self.recipe)
        if "stages" in out:
            out["stages"] = [{k: v for k, v in stage.items() if k != "max_repeats"} for stage in out["stages"]]
        out["blend"] = without_caps(out["blend"])
        return out

    def inner(self, member: int) -> list[int]:
        return [number for number, source in enumerate(self.sources) if source.parent == member]

    def mean(self, member: int) -> Fraction:
        """Mean units a document: of a blend, by the shares of its documents."""
        inside = self.inner(member)
        shares = self.inner_shares(member)
        return sum((shares[n] * self.sources[n].mean(self.unit) for n in inside), Fraction(0))

    def inner_shares(self, member: int) -> dict[int, Fraction]:
        inside = self.inner(member)
        if len(inside) == 1:
            return {inside[0]: Fraction(1)}
        unit = self.own_units.get(member, self.unit)
        raw = {n: self.sources[n].weight / self.sources[n].mean(unit) for n in inside}
        return {n: raw[n] / sum(raw.values()) for n in inside}

    def shares(self, weights: list[Fraction]) -> list[Fraction]:
        """Shares of the samples of each member."""
        raw = [w / self.mean(member) if w else Fraction(0) for member, w in enumerate(weights)]
        return [w / sum(raw) for w in raw]

    def integrals(self) -> Iterator[tuple[int, int, list[np.ndarray]]]:
        """Yield begin and end of each stage, and the draws asked for of each member before each of its positions."""
        before: list[Fraction] = []
        for stage in self.stages:
            end = min(self.end, self.end if stage.end is None else stage.end)
            if end <= stage.begin:
                return
            goal = self.shares(stage.weights)
            k = np.arange(end - stage.begin + 1)
            if stage.ramp is None:
                yield stage.begin, end, [float(share) * k for share in goal]
            else:
                assert stage.end is not None
                way = integral(stage.ramp, stage.end - stage.begin)[: len(k)]
                pairs = zip(before, goal, strict=True)
                yield stage.begin, end, [float(a) * k + float(b - a) * way for a, b in pairs]
            before = goal


def without_caps(blend: Any) -> Any:
    if isinstance(blend, list):
        return [without_caps(member) for member in blend]
    kept = {key: value for key, value in blend.items() if key != "max_repeats"}
    return kept | {"blend": without_caps(kept["blend"])} if "blend" in kept else kept


OF_CELLS = ("cells", "max_repeats", "curriculum")


def prefixed(sources: list[Source], name: str) -> None:
    for source in sources:
        source.name = f"{name}/{source.name}"


def integral(ramp: str, length: int) -> np.ndarray:
    """The integral of the part of the way that is done, from 0 to 1, before each position of a ramp."""
    knots = np.array([0.0, 1.0]) if ramp == "linear" else np.arange(65) / 64
    values = knots if ramp == "linear" else (1 - np.cos(np.pi * knots)) / 2
    fine = np.unique(np.concatenate([knots * length, np.arange(length + 1)]))
    height = np.interp(fine, knots * length, values)
    sums = np.concatenate([[0], np.cumsum(np.diff(fine) * (height[1:] + height[:-1]) / 2)])
    return np.interp(np.arange(length + 1), fine, sums)


def fraction(weight: Any) -> Fraction:
    text = str(weight)
    return Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)


# The checks, each of one statement.


def check_shares(model: Mixture, source: np.ndarray) -> None:
    """Each member is within one sample (or one group) of the integral since its stage began, at every position."""
    for member in range(len(model.members)):
        inside = model.inner(member)
        hits = np.concatenate([[0], np.cumsum(np.isin(source, inside))])
        for begin, end, asked in model.integrals():
            apart = np.abs(hits[begin : end + 1] - hits[begin] - asked[member])
            assert apart.max() < model.group + SLACK, (member, begin, apart.max(), apart.argmax())
        for number, share in model.inner_shares(member).items():
            own = np.cumsum(source[np.isin(source, inside)] == number)
            apart = np.abs(own - float(share) * np.arange(1, len(own) + 1))
            assert not len(apart) or apart.max() < model.group + SLACK, (member, number)


def check_epochs(model: Mixture, source: np.ndarray, document: np.ndarray, epoch: np.ndarray) -> None:
    """Every pass has each document of the source once, and ends before the next one begins."""
    for number, one in enumerate(model.sources):
        rows = source == number
        mine, passes = document[rows], epoch[rows]
        size = len(one.numbers)
        assert (passes == np.arange(len(mine)) // size).all(), one.name
        for first in range(0, len(mine), size):
            part = mine[first : first + size]
            assert len(set(part.tolist())) == len(part) and np.isin(part, one.numbers).all(), one.name


def check_curriculum(model: Mixture, source: np.ndarray, document: np.ndarray) -> None:
    """Each sample is fewer than `window` places from its place in the sorted order; of groups, by their means."""
    for number, one in enumerate(model.sources):
        if one.curriculum is None:
            continue
        size, mine = len(one.numbers), document[source == number]
        scores = one.base.score[one.numbers].reshape(-1, one.group).mean(1)
        if one.curriculum["from"] == "hard":
            scores = -scores
        ordered = np.sort(scores)
        of = dict(zip(one.numbers.tolist(), np.repeat(scores, one.group).tolist(), strict=True))
        window = one.curriculum["window"]
        reach = max(1, window // one.group) if one.group > 1 else window
        for first in range(0, len(mine), size):
            units = mine[first : first + size].reshape(-1, one.group)[:, 0].tolist()
            for place, unit in enumerate(units):
                low = np.searchsorted(ordered, of[unit] - 1e-12)
                high = np.searchsorted(ordered, of[unit] + 1e-12, "right") - 1
                assert low - reach < place < high + reach, (one.name, place, low, high, window)


def check_groups(model: Mixture, source: np.ndarray, document: np.ndarray) -> None:
    """Groups of neighbors come one after another, and whole."""
    if model.group == 1:
        return
    assert len(source) % model.group == 0
    for begin in range(0, len(source), model.group):
        one = model.sources[source[begin]]
        assert len(set(source[begin : begin + model.group].tolist())) == 1
        places = np.searchsorted(one.numbers, document[begin : begin + model.group])
        assert sorted(places.tolist()) == list(range(places.min(), places.min() + model.group))
        assert places.min() % model.group == 0


def where_caps_end(model: Mixture, source: np.ndarray) -> tuple[int, bool]:
    """Return the position at which a limit would be broken, and whether this is an error."""
    end, wrong = model.end, False
    for number, one in enumerate(model.sources):
        places = np.flatnonzero(source == number)
        if one.cap is not None and len(places) > one.cap * len(one.numbers):
            wrong = True
        for stage in model.stages:
            stop = model.end if stage.end is None else min(stage.end, model.end)
            inside = places[(places >= stage.begin) & (places < stop)]
            cap = stage.caps.get(one.parent)
            if cap is not None and len(inside) > cap * len(one.numbers):
                if stage.end is None and "samples" not in model.recipe:
                    end = min(end, int(inside[cap * len(one.numbers)]))
                else:
                    wrong = True
    return end, wrong


def check_report(model: Mixture, plan: Any, total: int, source: np.ndarray) -> None:
    """The report has what was counted."""
    found = plan.report(total)
    for number, (one, shown) in enumerate(zip(model.sources, found.sources, strict=True)):
        assert shown.name == one.name and shown.samples >= len(one.numbers)
        drawn = int((source == number).sum())
        assert shown.used == len(one.numbers), (shown.name, shown.used, len(one.numbers))
        assert abs(shown.drawn - drawn) <= (0 if shown.exact else 1 + drawn // 2), (shown.name, shown.drawn, drawn)
        if shown.exact:
            assert shown.repeats == drawn / len(one.numbers)


def check_inverse(model: Mixture, plan: Any, source: np.ndarray, index: np.ndarray) -> None:
    """All positions of a sample are those at which the plan gives it."""
    for number in range(len(model.sources)):
        for sample in {0, len(model.sources[number].numbers) // 2}:
            found = plan.positions(number, sample, len(source))
            assert found.tolist() == np.flatnonzero((source == number) & (index == sample)).tolist()


def check_layouts(model: Mixture, plan: Any, expected: list[Any]) -> None:
    """Every split into ranks and batches gives the same stream."""
    for _ in range(2):
        ranks, batch = model.draw.choice([1, 2, 3]), model.draw.choice([1, 2, 5]) * model.group
        seen: dict[int, Any] = {}
        limit = min(len(expected) // (ranks * batch), 6)
        start = model.draw.randrange(max(1, len(expected) - limit * ranks * batch))
        start -= start % model.group
        for rank in range(ranks):
            how: dict[str, Any] = {"transform": noted, "collate": list, "remainder": "drop", "start": start}
            loader = fm.Loader(plan, batch, rank=rank, world_size=ranks, **how)
            for _, rows in zip(range(limit), loader, strict=False):
                seen |= dict(rows)
            loader.close()
        assert all(expected[position] == content for position, content in seen.items())
        wide = any(stage.seq_len for stage in model.stages)  # rows before a longer one may be dropped
        assert wide or sorted(seen) == list(range(start, start + len(seen)))
        assert seen or not limit


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("source", "index", "epoch"))


def noted(sample: Any) -> Any:
    return now.position, content_of(sample)


def content_of(sample: Any) -> Any:
    return sample["input_ids"].tolist() if "input_ids" in sample else sample.raw("txt")


def check_rows(model: Mixture, plan: Any, source: np.ndarray, epoch: np.ndarray) -> None:
    """Each token of the documents is in one row, no row has two passes of a source or two widths."""
    rows = plan.length
    spans = plan.spans(range(rows))
    widths = plan.widths(range(rows))
    borders = [stage.begin for stage in model.stages[1:]]
    lengths_of = [model.sources[s].base.lengths for s in source.tolist()]
    located = plan.documents.locate(range(len(source)))
    read = plan.documents.bases.read_from(located).index
    length = np.array([each[number] for each, number in zip(lengths_of, read.tolist(), strict=True)])
    held = np.zeros(len(source), int)
    begins: Counter[Any] = Counter()
    capacity = [one.seq_len or 64 for one in model.stages]
    stage_of = np.searchsorted(borders, np.arange(len(source)), "right")
    for row, (a, b) in enumerate(pairwise(spans.row_offsets.tolist())):
        at = spans.position[a:b]
        held[at] += spans.length[a:b]
        assert spans.length[a:b].sum() <= widths[row]
        assert {capacity[stage] for stage in set(stage_of[at].tolist())} == {int(widths[row])}
        for position, start in zip(at.tolist(), spans.start[a:b].tolist(), strict=True):
            begins[position, start] += 1
        if model.method == "best_fit":
            for one in set(source[at].tolist()):
                assert len(set(epoch[at][source[at] == one].tolist())) == 1
    assert max(begins.values()) == 1
    if model.method == "best_fit":
        assert (held == length).all()
    else:
        lost = length - held
        assert (lost >= 0).all()
        for first, stop in pairwise([0, *borders, len(source)]):
            if first < stop:
                assert lost[first:stop].sum() < 2 * 128


def mixture_holds(seed: int, folder: Path, seen: Counter[str]) -> None:
    model = Mixture(seed, folder)
    bare = model.plan(**model.bare())
    documents = bare.documents if model.packed else bare
    assert documents.length == model.end
    located = documents.locate(range(model.end))
    expected, wrong = where_caps_end(model, located.source)
    if wrong:
        seen["refused"] += 1
        with pytest.raises(ConfigError, match="too often"):
            model.plan()
        check_plan(model, model.bare(), seen)
        return
    model.end = expected
    check_plan(model, {}, seen)
    check_proxies(model, seen)


def check_plan(model: Mixture, more: dict[str, Any], seen: Counter[str]) -> None:
    plan = model.plan(**more)
    documents = plan.documents if model.packed else plan
    assert documents.length == model.end
    at = documents.locate(range(model.end))
    read = documents.bases.read_from(at).index
    assert documents.names == [one.name for one in model.sources]
    check_shares(model, at.source)
    check_epochs(model, at.source, read, at.epoch)
    check_curriculum(model, at.source, read)
    check_groups(model, at.source, read)
    check_report(model, documents, model.end, at.source)
    some = model.draw.randrange(model.end + 1)
    check_report(model, documents, some, at.source[:some])
    check_inverse(model, documents, at.source, at.index)
    again = pickle.loads(pickle.dumps(plan))
    assert again.fingerprint == plan.fingerprint and again.length == plan.length
    repeated = (again.documents if model.packed else again).locate(range(model.end))
    assert same(repeated, at)
    if model.packed:
        check_rows(model, plan, at.source, at.epoch)
    rows = [content_of(one) for one in plan.read(range(plan.length))]
    check_layouts(model, plan, rows)
    if model.draw.random() < 0.4:
        check_skips(model, rows, more)
        seen["skipped"] += 1
    seen["plans"] += 1
    seen["positions"] += model.end
    seen["packed"] += model.packed
    seen["ramps"] += any(stage.ramp for stage in model.stages)
    seen["widths"] += any(stage.seq_len for stage in model.stages)
    seen["groups"] += model.group > 1
    seen["curricula"] += any(one.curriculum is not None for one in model.sources)
    seen["cells"] += sum("[" in one.name for one in model.sources)
    seen[model.unit] += 1


def check_skips(model: Mixture, rows: list[Any], more: dict[str, Any]) -> None:
    """Skipped positions are absent, and the rest is in the same order."""
    unit = model.group
    first = model.draw.randrange(0, len(rows), unit)
    gone = [first, min(len(rows), first + model.draw.choice([1, 7]) * unit)]
    if gone == [0, len(rows)]:
        return
    skipping, left = model.plan(**more, skip=[gone]), rows[: gone[0]] + rows[gone[1] :]
    assert skipping.length == len(left)
    assert [content_of(one) for one in skipping.read(range(len(left)))] == left


def check_proxies(model: Mixture, seen: Counter[str]) -> None:
    """A larger proxy has the documents of a smaller one; each source repeats as in the target."""
    if model.group > 1 or model.packed:
        return
    bare = model.bare()
    sizes = sorted(model.draw.sample(range(1, 24), 2))
    used: list[list[set[int]]] = []
    for size in sizes:
        samples = max(1, model.end * size // 24)
        lengths = [one.end - one.begin for one in model.stages if one.end is not None]
        if lengths and min(lengths) * samples < 2 * model.end:
            return  # a stage would have less than one sample, which is an error
        plan = model.plan(**bare, proxy={"samples": samples, "of": model.end})
        factor = Fraction(samples, model.end)
        # The end of a plan in epochs is that of its own epochs.
        if "epochs" not in model.recipe:
            assert plan.length == samples, (plan.length, samples)
        at = plan.locate(range(plan.length))
        read = plan.bases.read_from(at).index
        report = plan.report()
        parts = []
        target = model.plan(**bare).locate(range(model.end)).source
        for number, one in enumerate(model.sources):
            share = math.ceil(factor * len(one.numbers))
            mine = read[at.source == number]
            assert report.sources[number].used == share and np.isin(mine, one.numbers).all()
            for first in range(0, len(mine), share):
                assert len(set(mine[first : first + share].tolist())) == len(mine[first : first + share])
            assert len(set(mine.tolist())) == min(share, len(mine))
            parts.append(set(mine.tolist()))
            whole = int((target == number).sum())
            own = len(mine)
            # Each stage is within a sample of its share in both, and blends in blends twice; ends are rounded down.
            steps = 2 * (len(model.stages) + 1) * (1 + float(factor))
            assert abs(own - whole * factor) <= steps, (one.name, own, float(whole * factor))
            if "epochs" not in model.recipe:
                assert report.sources[number].target_repeats == pytest.approx(whole / len(one.numbers))
        used.append(parts)
        if len(used) == 2:
            for one, smaller, larger in zip(model.sources, *used, strict=True):
                if len(larger) == math.ceil(factor * len(one.numbers)):  # all of its documents have come
                    assert smaller <= larger, one.name
                    seen["nested"] += 1
    seen["proxies"] += 2


@pytest.mark.parametrize("part", range(2))
def test_plans_are_as_the_pages_say(part: int, tmp_path: Path) -> None:
    seen = many(range(10 * part, 10 * part + 10), tmp_path)
    assert seen["plans"] >= 10 and seen["positions"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_three_hundred_plans_are_as_the_pages_say(part: int, tmp_path: Path) -> None:
    seen = many(range(1000 + 30 * part, 1030 + 30 * part), tmp_path)
    assert seen["plans"] >= 30 and seen["positions"] > 3000


def many(seeds: range, folder: Path) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        (folder / str(seed)).mkdir()
        mixture_holds(seed, folder / str(seed), seen)
    return seen
