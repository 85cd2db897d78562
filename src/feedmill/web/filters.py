"""View 5: limits on the scores of documents, what they keep and drop, and the same as a file for `feedmill filter`.

A document is dropped if a score is below its least or above its most. One without this score is kept, as by the
``exclude`` rules of a filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.mix.limits import PRESETS, Limit
from feedmill.errors import ConfigError, did_you_mean
from feedmill.web.charts import histogram
from feedmill.web.corpus import Corpus, NoDocuments, corpus_of, slot
from feedmill.web.documents import short
from feedmill.web.library import OpenItem
from feedmill.web.parts import next_step
from feedmill.web.state import State

LEAST, MOST = "min.", "max."
"""Beginnings of the parameters that limit a score: ``min.words=50``."""
SHOWN, EXCERPT = 6, 700
_SHORT = 6  # letters of a name that says little by itself
_SPANS = "spans of "
_PLAIN = re.compile(r"[A-Za-z]\w*")

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """A number that documents have.

    Attributes:
        name: in the address; `label` on the page.
        set: the attribute set that has it; None for numbers in the documents.
        values: float64[n]; NaN for documents without one.
        documents: how many have one.
        drawing: see `feedmill.web.charts.histogram`; `bins` is the bar of each document from 1, int64[n], 0 for none.
        below, above: expressions that are true for documents below or above a number.
    """

    name: str
    label: str
    set: str | None
    values: Floats
    documents: int
    drawing: dict[str, Any]
    bins: npt.NDArray[np.int64]
    below: Callable[[float], str]
    above: Callable[[float], str]

    @property
    def marks(self) -> bool:
        """Whether it marks some documents, with one number, as `dedupe` does."""
        return not self.drawing["bars"] and self.documents < len(self.values) and self.drawing["low"] > 0

    def dropped(self, low: float | None, high: float | None) -> Bools:
        """Return which documents the limits drop, bool[n]."""
        drop = np.zeros(len(self.values), np.bool_)
        if low is not None:
            drop |= self.values < low
        if high is not None:
            drop |= self.values > high
        return drop


def filters(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return what the limits in the address keep and drop, and the documents around a limit, as plain data.

    Raises:
        ConfigError: the address has an unknown score or an invalid number.
    """
    try:
        corpus, scores = _prepared(thing)
    except NoDocuments as error:
        return {"name": thing.name, "path": thing.path, "absent": error.as_dict()}
    limits = _limits(scores, state)
    known_presets = _presets(scores, len(corpus))
    heights = state.choice("heights", ("log", "linear"), "log")
    drops = {name: scores[name].dropped(*limit) for name, limit in limits.items()}
    times = sum((drop.astype(np.int16) for drop in drops.values()), np.zeros(len(corpus), np.int16))
    kept = times == 0
    weights = kept.astype(np.float64) if drops else None
    rules = [
        {
            "name": name,
            "label": scores[name].label,
            "low": limits[name][0],
            "high": limits[name][1],
            "dropped": int(drop.sum()),
            "alone": int((drop & (times == 1)).sum()),
            "missing": len(corpus) - scores[name].documents,
        }
        for name, drop in drops.items()
    ]
    return {
        "name": thing.name,
        "path": thing.path,
        "sample": corpus.sample,
        "kept": int(kept.sum()),
        "dropped": int(len(corpus) - kept.sum()),
        "heights": heights,
        "presets": known_presets,
        "next": _next(thing, corpus, scores, limits, known_presets, int(kept.sum()), state),
        "scores": [
            _drawn(
                score,
                weights,
                limits.get(score.name),
                heights == "log",
                int(drops[score.name].sum()) if score.name in drops else 0,
            )
            for score in scores.values()
        ],
        "problems": corpus.documents.problems,
        "rules": rules,
        "sources": _sources(corpus, kept),
        "border": _border(corpus, scores, limits, drops, times, state),
        "filter": filter_file(thing, state) if drops else None,
    }


def _presets(scores: dict[str, Score], documents: int) -> list[dict[str, Any]]:
    """Return the published presets whose scores the documents have: their limits as parameters, and what they drop."""
    found = []
    for preset, rules in PRESETS.items():
        given: dict[str, dict[str, float]] = {}
        missing, drop = 0, np.zeros(documents, np.bool_)
        for rule in map(Limit.parse, rules):
            name = next((one for one in scores if one.endswith(f"__{rule.key}") or one == rule.key), None)
            if name is None:
                missing += 1
                continue
            drop |= ~_holds(scores[name].values, rule)
            # `< 1` of a score that is 0 or 1 is a most of 0
            value = rule.value - 1 if rule.test == "<" else rule.value
            given.setdefault(name, {})[LEAST if rule.test.startswith(">") else MOST] = value
        if given:
            query = {f"{end}{name}": _number_text(v) for name, ends in given.items() for end, v in ends.items()}
            found.append(
                {"name": preset, "rules": len(rules), "missing": missing, "dropped": int(drop.sum()), "query": query}
            )
    marked = {f"max.{score.name}": "0" for score in scores.values() if score.marks}
    if marked:
        drop = np.zeros(documents, np.bool_)
        for name in marked:
            drop |= scores[name.removeprefix(MOST)].values > 0
        found.insert(
            0, {"name": "duplicates", "rules": len(marked), "missing": 0, "dropped": int(drop.sum()), "query": marked}
        )
    return found


def _holds(values: Floats, rule: Limit) -> Bools:
    """Return which documents a rule keeps: those without a score, too."""
    tests = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}
    return np.isnan(values) | tests[rule.test](values, rule.value)


def _next(
    thing: OpenItem,
    corpus: Corpus,
    scores: dict[str, Score],
    limits: dict[str, Any],
    presets: list[dict[str, Any]],
    kept: int,
    state: State,
) -> dict[str, Any] | None:
    if limits:
        text = f"These limits keep {kept:,} of {len(corpus):,} documents."
        query = state.link(by=None, keys=None, theme=None, heights=None)
        return next_step(text, href=f"/{thing.name}/filter.yaml{query}", label="Download the filter")
    if presets:
        best = max(presets, key=lambda one: one["dropped"])
        share = best["dropped"] / max(1, len(corpus))
        text = f"The preset {best['name']} would drop {best['dropped']:,} of {len(corpus):,} documents, {share:.0%}."
        return next_step(text, href=State(best["query"].items()).link(), label=f"Use {best['name']}")
    if scores:
        return next_step(
            "Published limits need the scores of their tagger:", code=f"feedmill tag {thing.path} -t gopher_v2"
        )
    return None


def filter_file(thing: OpenItem, state: State) -> str:
    """Return the limits in the address as a configuration of `feedmill filter`.

    Raises:
        ConfigError: there are no limits, no documents, or invalid numbers.
    """
    import yaml

    corpus, scores = _prepared(thing)
    limits = _limits(scores, state)
    if not limits:
        raise ConfigError(
            "there are no limits, so the filter would keep everything", kind="bad-address", fix="Set one."
        )
    rules, kept = [], np.ones(len(corpus), np.bool_)
    for name, (low, high) in limits.items():
        score = scores[name]
        kept &= ~score.dropped(low, high)
        rules += [] if low is None else [score.below(low)]
        rules += [] if high is None else [score.above(high)]
    sets = sorted({found for name in limits if (found := scores[name].set) is not None})
    stream: dict[str, Any] = {"name": thing.name, "documents": [thing.path]}
    if sets:
        stream["attributes"] = sets
    stream["filter"] = {"exclude": rules}
    stream["output"] = {"path": f"{thing.name}-filtered"} | ({"discard_fields": ["attributes"]} if sets else {})
    tree: dict[str, Any] = {"streams": [stream]}
    if corpus.documents.partial & set(sets):
        tree["allow_missing"] = True
    of = f"the first {len(corpus):,}" if corpus.documents.unread else f"{len(corpus):,}"
    head = f"# Keeps {int(kept.sum()):,} of {of} documents. Run: feedmill filter FILE\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000)


def _prepared(thing: OpenItem) -> tuple[Corpus, dict[str, Score]]:
    corpus = corpus_of(thing)
    known = thing.__dict__.get("_scores")
    if known is None:
        known = thing.__dict__["_scores"] = _scores(corpus)
    scores: dict[str, Score] = known
    return corpus, scores


def _scores(corpus: Corpus) -> dict[str, Score]:
    """Return the scores of documents: those of attributes, numbers of spans, and numbers in the documents."""
    documents, found = corpus.documents, []
    for column, values in documents.columns.items():
        name = column.removeprefix(_SPANS)
        if name not in documents.set_of:  # made of the text, so a filter cannot use it
            continue
        if column != name:
            found.append(_score(column, f"{_label(name)}, spans", documents.set_of[name], values, *_counts(name)))
        elif not (name.endswith("_cluster") and name.removesuffix("_cluster") in documents.set_of):
            path = f"@{_step(name)}" + ("" if name in documents.plain else "[0][2]")
            found.append(_score(name, _label(name), documents.set_of[name], values, *_tests("$.attributes", path)))
    for place, values in corpus.fields.items():
        folder, _, name = place.rpartition(".") if place.startswith("metadata.") else ("", "", place)
        holder = "$.metadata" if folder else "$"
        found.append(_score(place, place, None, values, *_tests(holder, "@" + _step(name or place))))
    return {score.name: score for score in found}


def _score(
    name: str,
    label: str,
    set_: str | None,
    values: Floats,
    below: Callable[[float], str],
    above: Callable[[float], str],
) -> Score:
    known = np.isfinite(values)
    numbers = values[known]
    whole = bool(np.all(np.mod(numbers, 1) == 0) and np.all(np.abs(numbers) < 1 << 53))
    empty: dict[str, Any] = {"low": 0, "high": 0, "log": False, "bars": []}
    drawing = histogram(numbers.astype(np.int64) if whole else numbers) if known.any() else empty
    bars = drawing["bars"]
    bins = np.zeros(len(values), np.int64)
    if bars:
        edges = np.array([bar["low"] for bar in bars[1:]])
        bins[known] = 1 + np.searchsorted(edges, values[known], side="right")
        for bar, count in zip(bars, np.bincount(bins, minlength=len(bars) + 1)[1:].tolist(), strict=True):
            bar["count"] = count
    return Score(name, label, set_, values, int(known.sum()), {**drawing, "whole": whole}, bins, below, above)


def _label(name: str) -> str:
    """Return the last word of an attribute's name, after that of its tagger if it is short.

    >>> _label("q__gopher_v1__word_count"), _label("q__pii_regex_v2__doc")
    ('word_count', 'pii_regex_v2 doc')
    """
    last = short(name)
    return last if len(last) > _SHORT else " ".join(name.split("__")[-2:])


def _step(name: str) -> str:
    """Return a key as a step of a JSONPath.

    >>> _step("words"), _step("it's")
    ('.words', "['it\\\\'s']")
    """
    if _PLAIN.fullmatch(name):
        return f".{name}"
    return "['" + name.replace("\\", "\\\\").replace("'", "\\'") + "']"


def _tests(holder: str, path: str) -> tuple[Callable[[float], str], Callable[[float], str]]:
    return (
        lambda low: f"{holder}[?({path} < {_number_text(low)})]",
        lambda high: f"{holder}[?({path} > {_number_text(high)})]",
    )


def _counts(name: str) -> tuple[Callable[[float], str], Callable[[float], str]]:
    """Return the expressions for numbers of spans. Spans are numbered from 0: fewer than N have no span N - 1."""
    step = _step(name)
    return (
        lambda low: f"$.attributes[?(!@{step}[{max(int(np.ceil(low)), 1) - 1}])]",
        lambda high: "$.attributes" if high < 0 else f"$.attributes{step}[{int(np.floor(high))}]",
    )


def _number_text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _limits(scores: dict[str, Score], state: State) -> dict[str, tuple[float | None, float | None]]:
    """Return the limits in the address by score. A limit at the end of a scale drops nothing: it is none."""
    given: dict[str, dict[str, float]] = {}
    for parameter, text in state.items():
        kind = parameter[:4]
        if kind not in (LEAST, MOST):
            continue
        name = parameter[4:]
        if name not in scores:
            raise ConfigError(
                f"no document has a score {name[:80]!r}{did_you_mean(name, list(scores))}",
                kind="bad-address",
                fix=f"Scores: {', '.join(list(scores)[:20]) or 'none'}.",
            )
        given.setdefault(name, {})[kind] = _float(parameter, text)
    limits = {}
    for name in (score for score in scores if score in given):
        drawing = scores[name].drawing
        low, high = given[name].get(LEAST), given[name].get(MOST)
        if low is not None and high is not None and low > high:
            fix = "Swap them."
            raise ConfigError(f"{name}: the least, {low:g}, is above the most, {high:g}", kind="bad-address", fix=fix)
        limit = (
            None if low is None or low <= drawing["low"] else low,
            None if high is None or high >= drawing["high"] else high,
        )
        if limit != (None, None):
            limits[name] = limit
    return limits


def _float(parameter: str, text: str) -> float:
    try:
        value = float(text.replace(",", "").replace("\u2212", "-"))
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise ConfigError(f"{parameter[:80]}={text[:40]} is not a number", kind="bad-address", fix="Use a number.")
    return value


def _drawn(
    score: Score, kept: Floats | None, limit: tuple[float | None, float | None] | None, log: bool, dropped: int
) -> dict[str, Any]:
    """Return a score with its histogram, in which ``kept`` of each bar's ``count`` documents are kept.

    With `log`, heights are logarithms of the counts, so that a bar of a few documents is seen beside one of thousands.
    """
    drawing = score.drawing
    bars: list[dict[str, Any]] = drawing["bars"]
    counts = [bar["count"] for bar in bars]
    if kept is not None and bars:
        counts = np.bincount(score.bins, kept, len(bars) + 1)[1:].astype(np.int64).tolist()
    low, high = limit or (None, None)
    top = max((bar["count"] for bar in bars), default=1)

    def height(count: int) -> float:
        share = np.log1p(count) / np.log1p(top) if log else count / max(top, 1)
        return max(1.0, round(32 * float(share), 1)) if count else 0.0

    return {
        "dropped": dropped,
        "name": score.name,
        "label": score.label,
        "set": score.set,
        "low": drawing["low"],
        "high": drawing["high"],
        "log": drawing["log"],
        "whole": drawing["whole"],
        "documents": score.documents,
        "varies": bool(bars) or score.marks,
        "min": low,
        "max": high,
        "fields": ["" if limit is None else _number_text(limit) for limit in (low, high)],
        "edges": [bar["low"] for bar in bars] + ([bars[-1]["high"]] if bars else []),
        "at": [_place(low, bars, 0.0), _place(high, bars, float(len(bars)))],
        "bars": [
            {
                **bar,
                "kept": count,
                "height": height(bar["count"]),
                "y": round(33 - height(bar["count"]), 1),
                "kept_height": height(count),
            }
            for bar, count in zip(bars, counts, strict=True)
        ],
    }


def _place(value: float | None, bars: list[dict[str, Any]], otherwise: float) -> float:
    """Return where a value is on the axis of a histogram, in bars."""
    if value is None or not bars:
        return otherwise
    edges = [bar["low"] for bar in bars] + [bars[-1]["high"]]
    return round(float(np.interp(value, edges, np.arange(len(edges)))), 2)


def _sources(corpus: Corpus, kept: Bools) -> list[dict[str, Any]]:
    count = len(corpus.sources)
    whole = np.bincount(corpus.source, minlength=count).tolist()
    inside = np.bincount(corpus.source[kept], minlength=count).tolist()
    return [
        {"name": name, "slot": slot(number, count), "documents": whole[number], "kept": inside[number]}
        for number, name in enumerate(corpus.sources)
    ]


def _border(
    corpus: Corpus,
    scores: dict[str, Score],
    limits: dict[str, tuple[float | None, float | None]],
    drops: dict[str, Bools],
    times: npt.NDArray[np.int16],
    state: State,
) -> dict[str, Any] | None:
    """Return the documents nearest to the limit of a score on both sides, of those that no other limit drops."""
    if not limits:
        return None
    name = state.get("by", "")
    if name not in limits:  # the one that matters most, with values on both sides
        name = max(limits, key=lambda one: (len(scores[one].drawing["bars"]) > 0, (drops[one] & (times == 1)).sum()))
    values, (low, high) = scores[name].values, limits[name]
    near = np.full(len(values), np.inf)
    for limit in (low, high):
        if limit is not None:
            near = np.fmin(near, np.abs(values - limit))
    sides = {"dropped": drops[name] & (times == 1), "kept": (times == 0) & np.isfinite(near)}
    data: dict[str, Any] = {"by": name, "label": scores[name].label}
    for side, mask in sides.items():
        numbers = np.flatnonzero(mask)
        if len(numbers) > SHOWN:
            numbers = numbers[np.argpartition(near[numbers], SHOWN)[:SHOWN]]
        numbers = numbers[np.argsort(near[numbers], kind="stable")]
        data[side] = [{**corpus.excerpt(n, EXCERPT), "value": _rounded(values[n])} for n in numbers.tolist()]
    return data


def _rounded(value: Any) -> int | float:
    return int(value) if float(value).is_integer() else float(f"{float(value):.6g}")
