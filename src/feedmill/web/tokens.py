"""View 8: lengths of documents in tokens, and how full rows of a given length are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.formats.tokens.base import TokenDataset
from feedmill.kernels.order.binpack import best_fit_decreasing
from feedmill.planning.packing.best_fit import cut
from feedmill.tokens.pieces import files_of, tokenizer_of
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer
from feedmill.web.charts import ticks
from feedmill.web.corpus import NoDocuments, corpus_of
from feedmill.web.library import OpenItem
from feedmill.web.parts import next_step
from feedmill.web.results import behind
from feedmill.web.state import State

SEQ_LEN, MOST_SEQ_LEN = 2048, 1 << 24
MOST_LENGTHS, MOST_PACKED = 4_000_000, 100_000
"""Documents of which lengths are drawn, and of which rows are packed; more are sampled at equal distances."""
MOST_TEXTS, MOST_CHARACTERS, MOST_TEXT = 256, 1_000_000, 100_000
"""Documents without tokens that are encoded, the characters of all of them, and those of each."""
BINS, WIDTH, HEIGHT = 48, 1000, 220
_KEPT = 64
_SHARES = (1, 10, 50, 90, 99)

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens, all or some at equal distances.

    Attributes:
        values: int64[n].
        of: documents of the dataset; `cut`: those of which only the beginning was encoded.
        tokenizer: name of the tokenizer of documents that are text.
    """

    values: Int64s
    of: int
    cut: int = 0
    tokenizer: str | None = None


def tokens(thing: OpenItem, state: State, *, wait: bool = False) -> dict[str, Any]:
    """Return lengths and fill as plain data.

    Documents that are text are encoded in the background. Until that is done, ``loading`` is set.

    Args:
        wait: whether to wait until that is done.

    Raises:
        ConfigError: the address has an invalid number.
    """
    dataset = files_of(thing.dataset())
    data: dict[str, Any] = {"name": thing.name, "path": thing.path, "loading": False}
    try:
        if isinstance(dataset, TokenDataset):
            known: Lengths | None = _stored(dataset)
        else:
            known = behind(thing, "_lengths", partial(_encoded, thing)).result(wait=wait)
    except NoDocuments as error:
        return data | {"absent": error.as_dict()}
    if known is None:
        return data | {"loading": True}
    lengths = known.values
    seq_len = min(state.number("seq_len", SEQ_LEN, least=1) or SEQ_LEN, MOST_SEQ_LEN)
    scale = state.choice("scale", ("log", "linear"), "log" if _long_tail(lengths) else "linear")
    packing = _packed(thing, lengths, seq_len)
    return data | {
        "next": _next(thing, isinstance(dataset, TokenDataset), packing, seq_len),
        "format": dataset.describe().get("format"),
        "documents": known.of,
        "tokens": dataset.tokens if isinstance(dataset, TokenDataset) else None,
        "stored": isinstance(dataset, TokenDataset),
        "sampled": len(lengths),
        "texts_cut": known.cut,
        "tokenizer": known.tokenizer,
        "scale": scale,
        "chart": lengths_chart(lengths, scale == "log") if len(lengths) else None,
        "figures": _figures(lengths),
        "seq_len": seq_len,
        "packing": packing,
        "packed": min(len(lengths), MOST_PACKED),
    }


def _next(thing: OpenItem, stored: bool, packing: list[dict[str, Any]], seq_len: int) -> dict[str, Any] | None:
    if not stored:
        return next_step(
            "Make a token file of all documents:",
            code=f"feedmill tokenize {thing.path} -o tokens.pbin -t tokenizer.json",
        )
    best = next((row for row in packing if row["name"].startswith("best fit")), None)
    if best is None:
        return None
    text = f"Best-fit packing fills {best['fill']:.1%} of rows of {seq_len:,} tokens. In a recipe:"
    return next_step(text, code=f"pack: {{seq_len: {seq_len}}}")


def _stored(dataset: TokenDataset) -> Lengths:
    every = dataset.lengths
    return Lengths(every[:: max(1, -(-len(every) // MOST_LENGTHS))], len(every))


def _encoded(thing: OpenItem) -> Lengths:
    """Return the lengths of documents that are text, without special tokens.

    Raises:
        NoDocuments: the dataset has no documents, or there is no tokenizer.
    """
    corpus = corpus_of(thing)
    tokenizer = _tokenizer(thing)
    count = len(corpus)
    numbers = np.unique(np.linspace(0, max(0, count - 1), min(count, MOST_TEXTS)).astype(np.int64))
    texts = [corpus.documents.text(n) for n in numbers.tolist()]
    texts = texts[:: max(1, -(-sum(min(len(text), MOST_TEXT) for text in texts) // MOST_CHARACTERS))]
    whole = [text[:MOST_TEXT].encode("utf-8", "replace").decode() for text in texts]  # no lone surrogates
    ids, lengths = tokenizer.encode(whole)
    # The unknown token is no special one here: there is one for a piece of the text.
    special = [number for number in tokenizer.special_tokens().values() if number != tokenizer.unknown]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    values = np.bincount(owner[~np.isin(ids, special)], minlength=len(lengths))
    return Lengths(values, count, sum(len(text) > MOST_TEXT for text in texts), _name(tokenizer))


def _tokenizer(thing: OpenItem) -> Tokenizer:
    """Return the first tokenizer that was given, else that of token files that are open. Raises `NoDocuments`."""
    makers = [partial(load_tokenizer, path, template_source="file") for path in thing.tokenizers]
    for other in thing.others.values():
        if other.kind == "dataset" and isinstance(files_of(other.dataset()), TokenDataset):
            makers.append(partial(tokenizer_of, other.dataset(), other.tokenizers))
    why = "these are documents, and no tokenizer is open"
    for number, make in enumerate(makers):
        try:
            return make()
        except FeedmillError as error:
            why = why if number else str(error)
    fix = "Give a tokenizer with --tokenizer, or open token files."
    raise NoDocuments(why, file=thing.path, kind="no-tokens", fix=fix)


def _name(tokenizer: Tokenizer) -> str:
    """Return the name of the folder of a ``tokenizer.json``, and of other models their file's."""
    path = tokenizer.path.absolute()
    return path.parent.name or path.name if path.name == "tokenizer.json" else path.stem


def _packed(thing: OpenItem, lengths: Int64s, seq_len: int) -> list[dict[str, Any]]:
    """Return `packing`, from the last results if it is there."""
    kept = thing.__dict__.setdefault("_packing", {})
    if seq_len not in kept:
        if len(kept) > _KEPT:
            kept.clear()
        kept[seq_len] = packing(lengths, seq_len)
    rows: list[dict[str, Any]] = kept[seq_len]
    return rows


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
