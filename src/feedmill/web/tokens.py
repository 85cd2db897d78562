"""View 8: lengths of documents in tokens, fertility of tokenizers, unknown tokens, and how full packed rows are."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError, NotFound
from feedmill.formats.tokens.base import TokenDataset
from feedmill.kernels.order.binpack import best_fit_decreasing
from feedmill.planning.packing.best_fit import cut
from feedmill.tokens.pieces import files_of, pieces_of
from feedmill.web.charts import ticks
from feedmill.web.content import read_one
from feedmill.web.corpus import NoDocuments
from feedmill.web.fertility import chosen, encoded, measured, texts_of, tokenizers_of
from feedmill.web.library import OpenItem
from feedmill.web.results import behind
from feedmill.web.state import State

SEQ_LEN, MOST_SEQ_LEN = 2048, 1 << 24
MOST_LENGTHS, MOST_PACKED = 4_000_000, 100_000
"""Documents of which lengths are drawn, and of which rows are packed; more are sampled at equal distances."""
BINS, WIDTH, HEIGHT = 48, 1000, 220
_PIECES = 600
_WITHOUT: dict[str, Any] = {"why": None, "texts": 0, "fertility": [], "sides": None}
"""The facts about tokenizers before they are loaded."""
_SHARES = (1, 10, 50, 90, 99)

Int64s = npt.NDArray[np.int64]


def tokens(thing: OpenItem, state: State, *, wait: bool = False) -> dict[str, Any]:
    """Return lengths, fertility and fill as plain data.

    Tokenizers are loaded, and texts encoded, in the background. Until that is done, ``loading`` is set, and the data
    has what needs no tokenizer: the lengths of token files and how full rows are.

    Args:
        wait: whether to wait until that is done.

    Raises:
        ConfigError: the address has an unknown tokenizer, or an invalid number.
        NotFound: there is no such document.
    """
    dataset = files_of(thing.dataset())
    stored = isinstance(dataset, TokenDataset)
    found: dict[str, Any] = {"name": thing.name, "path": thing.path, "loading": False}
    if behind(thing, "_token_facts_loaded", partial(_load, thing)).result(wait=wait) is None:
        found["loading"] = True
        if not stored:
            return found
    try:
        lengths, of = _lengths(thing)
    except NoDocuments as error:
        return found | {"absent": error.as_dict()}
    seq_len = min(state.number("seq_len", SEQ_LEN, least=1) or SEQ_LEN, MOST_SEQ_LEN)
    scale = state.choice("scale", ("log", "linear"), "log" if _long_tail(lengths) else "linear")
    tokenizers, problems = ({}, []) if found["loading"] else tokenizers_of(thing)
    return found | {
        "format": dataset.describe().get("format"),
        "documents": len(dataset) if stored else of,
        "tokens": dataset.tokens if isinstance(dataset, TokenDataset) else None,
        "stored": stored,
        "sampled": len(lengths),
        "scale": scale,
        "chart": lengths_chart(lengths, scale == "log") if len(lengths) else None,
        "figures": _figures(lengths),
        "seq_len": seq_len,
        "packing": _once(thing, ("packing", seq_len), lambda: packing(lengths, seq_len)),
        "packed": min(len(lengths), MOST_PACKED),
        "problems": problems,
        **(_WITHOUT if found["loading"] else _fertility(thing, state)),
        "tokenizers": list(tokenizers),
    }


def _load(thing: OpenItem) -> bool:
    """Load tokenizers and encode texts, which the page needs. What fails is met and shown there."""
    try:
        texts = texts_of(thing)
        for name, tokenizer in tokenizers_of(thing)[0].items():
            _once(thing, ("measured", name), partial(measured, tokenizer, texts))
    except FeedmillError:
        pass
    return True


def _once(thing: OpenItem, key: Any, make: Any) -> Any:
    """Return a result of this view, from the last ones if it is there."""
    kept = thing.__dict__.setdefault("_token_facts", {})
    if key not in kept:
        if len(kept) > 64:
            kept.clear()
        kept[key] = make()
    return kept[key]


def _lengths(thing: OpenItem) -> tuple[Int64s, int]:
    """Return lengths of documents in tokens, all or some at equal distances, and the number of documents.

    Raises:
        NoDocuments: there are neither tokens nor documents and a tokenizer.
    """
    dataset = files_of(thing.dataset())
    if isinstance(dataset, TokenDataset):
        every = dataset.lengths
        return every[:: max(1, -(-len(every) // MOST_LENGTHS))], len(every)
    texts = texts_of(thing)
    tokenizers = tokenizers_of(thing)[0]
    if not tokenizers:
        fix = "Give a tokenizer with --tokenizer, or open token files."
        raise NoDocuments("these are documents, and no tokenizer is open", file=thing.path, kind="no-tokens", fix=fix)
    first = next(iter(tokenizers))
    return _once(thing, ("measured", first), partial(measured, tokenizers[first], texts))["lengths"], texts.of


def _long_tail(lengths: Int64s) -> bool:
    return bool(len(lengths)) and int(lengths.max()) > 20 * max(1.0, float(np.median(lengths)))


def lengths_chart(lengths: Int64s, log: bool) -> dict[str, Any]:
    """Return bars of the share of documents by length, and the line of the share of tokens, in a box.

    Returns:
        ``bars``: place and size, ``low`` and ``high`` length, ``documents`` and ``tokens``; ``line`` is the ``d`` of
        the tokens' steps; ``x`` and ``y`` are marks of the axes, in the box of `WIDTH` and `HEIGHT`.
    """
    low, high = max(1, int(lengths.min())), max(2, int(lengths.max()))
    whole = np.unique(np.geomspace(low, high + 1, BINS + 1).astype(np.int64)) if log else None
    count = min(BINS, max(1, high - int(lengths.min()) + 1))
    edges = np.unique(np.linspace(int(lengths.min()), high + 1, count + 1).astype(np.int64)) if whole is None else whole
    if log and int(lengths.min()) < 1:
        edges = np.concatenate(([0], edges))
    bins = np.clip(np.searchsorted(edges, lengths, side="right") - 1, 0, len(edges) - 2)
    documents = np.bincount(bins, minlength=len(edges) - 1)
    sums = np.bincount(bins, lengths, minlength=len(edges) - 1)
    shares = documents / len(lengths), sums / max(1.0, float(sums.sum()))
    top = max(float(share.max()) for share in shares)
    places = np.log(np.maximum(edges, 0.5)) if log else edges.astype(np.float64)
    x = (places - places[0]) / (places[-1] - places[0]) * WIDTH
    y = [HEIGHT - share / top * (HEIGHT - 8) for share in shares]
    line = f"M0 {HEIGHT}" + "".join(f" V{y[1][n]:.1f} H{x[n + 1]:.1f}" for n in range(len(x) - 1)) + f" V{HEIGHT}"
    marks = (
        np.outer(10.0 ** np.arange(13), (1, 2, 5)).ravel()
        if log
        else np.array(ticks(float(edges[0]), float(edges[-1]), 6))
    )
    inside = [float(mark) for mark in marks if edges[0] <= mark <= edges[-1]]
    at = np.interp([np.log(mark) if log else mark for mark in inside], places, x)
    return {
        "log": log,
        "bars": [
            {
                "x": round(float(x[n]), 1),
                "width": round(max(1.0, float(x[n + 1] - x[n]) - 2), 1),
                "y": round(float(y[0][n]), 1),
                "height": round(HEIGHT - float(y[0][n]), 1),
                "low": int(edges[n]),
                "high": int(edges[n + 1]) - 1,
                "documents": int(documents[n]),
                "tokens": int(sums[n]),
            }
            for n in range(len(edges) - 1)
        ],
        "line": line,
        "x": [{"at": round(float(place), 1), "label": _short(mark)} for mark, place in zip(inside, at, strict=True)],
        "y": [{"at": round(HEIGHT - mark / top * (HEIGHT - 8), 1), "share": mark} for mark in ticks(0, top, 4)],
    }


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _figures(lengths: Int64s) -> list[dict[str, Any]]:
    """Return the least, some percentiles, the mean and the most."""
    if not len(lengths):
        return []
    shares = np.percentile(lengths, _SHARES, method="inverted_cdf").tolist()
    middle = [{"label": "median" if q == 50 else f"{q} %", "value": v} for q, v in zip(_SHARES, shares, strict=True)]
    return [
        {"label": "least", "value": int(lengths.min())},
        *middle,
        {"label": "most", "value": int(lengths.max())},
        {"label": "mean", "value": round(float(lengths.mean()), 1)},
    ]


def packing(lengths: Int64s, seq_len: int) -> list[dict[str, Any]]:
    """Return for each way to make rows of `seq_len` tokens: rows, how full they are, and what is cut or dropped.

    Lengths beyond `MOST_PACKED` are sampled at equal distances.
    """
    some = lengths[:: max(1, -(-len(lengths) // MOST_PACKED))]
    some = some[some > 0]
    if not len(some):
        return []
    total, longer = int(some.sum()), int((some > seq_len).sum())
    kept = int(np.minimum(some, seq_len).sum())
    starts = np.cumsum(some) - some
    crossing = int((starts // seq_len != (starts + some - 1) // seq_len).sum())
    windows = total // seq_len
    found = [
        _way("one document a row, the rest padded", len(some), kept, total, longer, seq_len),
        _way("concatenated and cut", windows, windows * seq_len, total, crossing, seq_len),
    ]
    for name, long in (("best fit, long documents split", "split"), ("best fit, long documents truncated", "truncate")):
        sizes = cut(some, seq_len, long)[2]
        rows = best_fit_decreasing(sizes, min(seq_len, total))[1]
        found.append(_way(name, rows, int(sizes.sum()), total, longer, seq_len))
    return found


def _way(name: str, rows: int, used: int, total: int, cut_: int, seq_len: int) -> dict[str, Any]:
    return {
        "name": name,
        "rows": rows,
        "fill": used / (rows * seq_len) if rows else 0.0,
        "padding": rows * seq_len - used,
        "cut": cut_,
        "dropped": total - used,
        "share_dropped": (total - used) / total,
    }


def _fertility(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return what tokenizers make of the same text, and one document side by side; or why that is unknown."""
    tokenizers = tokenizers_of(thing)[0]
    names = list(tokenizers)
    first = chosen(tokenizers, state.get("a"), names[0] if names else None)
    second = chosen(tokenizers, state.get("b"), next((name for name in names if name != first), None))
    try:
        texts = texts_of(thing)
    except FeedmillError as error:
        return {"why": str(error), "texts": 0, "fertility": [], "sides": None}
    rows = []
    for name, tokenizer in tokenizers.items():
        facts = _once(thing, ("measured", name), partial(measured, tokenizer, texts))
        rows.append({"name": name, **{key: value for key, value in facts.items() if key != "lengths"}})
    return {
        "why": None,
        "texts": len(texts.texts),
        "text_of": texts.of,
        "stored_tokens": texts.stored,
        "fertility": rows,
        "sides": None if first is None else _sides(thing, state, first, second),
        "texts_cut": texts.cut,
    }


def _sides(thing: OpenItem, state: State, first: str, second: str | None) -> dict[str, Any]:
    tokenizers, texts = tokenizers_of(thing)[0], texts_of(thing)
    place = state.number("doc", 0) or 0
    if place >= len(texts.texts):
        raise NotFound(f"there is no text {place:,}: {len(texts.texts):,} are sampled", kind="no-document")
    text, number = texts.texts[place], int(texts.numbers[place])
    sides = []
    for name in [first] if second is None or second == first else [first, second]:
        ids, count = encoded(tokenizers[name], text, _PIECES)
        pieces = pieces_of(tokenizers[name], ids)
        sides.append({"name": name, "tokens": count, "more": count - len(ids), "pieces": pieces})
    return {
        "doc": place,
        "index": number,
        "key": _key(thing, number),
        "words": len(text.split()),
        "bytes": len(text.encode()),
        "sides": sides,
        "a": first,
        "b": second,
        "previous": place - 1 if place else None,
        "next": place + 1 if place + 1 < len(texts.texts) else None,
    }


def _key(thing: OpenItem, number: int) -> str:
    return read_one(thing.dataset(), number).key
