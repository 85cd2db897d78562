"""Mean tokens, loss tokens, hours or episodes per sample from the indexes; weights per unit as weights per sample.

A source with weight `w` per token and a mean of `m` tokens per sample gets weight ``w / m`` per sample. After any
number of samples its count is within the blend's bound `b` of its share. Its tokens are therefore within ``b * m`` of
their share in expectation over the shuffle, and exactly so at the end of each of its epochs, whose sum is exact.

The loss tokens of a sample are those that contribute to the loss, by the mask stored beside its tokens; without a mask,
all of them. The means count every sample whole, also those that the packing of rows cuts or drops.

The tokenizers of token data are known by the manifests next to its files, or by the names in ``.ds.metadata``.

A frame of robot episodes is ``1 / (3600 * fps)`` hours. The episodes per sample are those that have samples, divided by
their samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.base import Dataset, Episodic
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.tokens import ds
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.levanter_ledger import LEDGER
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.planning.mixing.blend import Shares, apportion, exact_sum, normalize
from feedmill.planning.mixing.lines import LINES_LIMIT
from feedmill.planning.nodes import Interleaved, Leaf, Node, StagedBlend, Subset
from feedmill.planning.nodes.base import Junction
from feedmill.storage import open_store, split_url

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset


_AT_ONCE = 1 << 20
_BITS, _EXACT = 256, 4096
_MOST_STEPS, _SHOWN, _MOST_KEYS = 16, 3, 1024
_FINEST = 1_000_000
"""Largest denominator of a rate in frames a second."""


class Tokens:
    """Mean tokens per sample of any node over these sources, or mean `unit`: ``samples``, ``loss_tokens``,
    ``hours`` or ``episodes``.

    Attributes:
        unit: what they count.
        used: whether a mean was asked for.
    """

    def __init__(self, sources: Sequence[Dataset], unit: str = "tokens") -> None:
        self._sources, self.unit, self.used = sources, unit, False
        self._totals: dict[tuple[int, int, int], Fraction] = {}
        self._means: dict[Node, Fraction] = {}

    def mean(self, node: Node) -> Fraction:
        """Return the exact mean of tokens per sample over an epoch of the node; for an endless node, the limit.

        Raises:
            ConfigError: the lengths of a source are unknown, or the node has no tokens at all.
        """
        self.used = True
        mean = self._means.get(node)
        if mean is None:
            mean = self._means[node] = self._mean(node)
        if not mean:
            none = "no tokens in the loss: their masks exclude all" if self.unit == LOSS_TOKENS else "no tokens"
            raise ConfigError(
                f"the samples of {self._sources[node.leaves[0]].url} have {none}",
                kind="no-tokens",
                fix="Remove the source, or use 'unit: samples'.",
            )
        return mean

    def at_hand(self, node: Node) -> Fraction:
        """Return the units in the sources below a node, each cut to its subset, once: what its first pass would read.

        Raises:
            ConfigError: as `mean`.
        """
        if isinstance(node, Leaf | Subset):
            inner, start, stop = _range(node)
            if isinstance(inner, Leaf):
                return self._total(inner.number, start, stop)
        return sum((self.at_hand(child) for child in node.children), Fraction(0))

    def mean_where_known(self, node: Node) -> Fraction | None:
        """Return `mean`, or None if the lengths of a source are unknown."""
        known = all(self._sources[leaf].total(self.unit, 0, 0) is not None for leaf in node.leaves)
        return self._mean(node) if known else None

    def shares(self, nodes: Sequence[Node], of_samples: Sequence[Fraction]) -> tuple[Fraction, ...]:
        """Return shares of the units in a mix of nodes, from shares of its samples that add up to 1.

        The inverse of `per_sample`: exact, or to 2^-256 where the exact fractions are longer. Without a unit in any of
        them, the shares of samples.
        """
        exact = [share * self._mean(node) if share else share for node, share in zip(nodes, of_samples, strict=True)]
        whole = _denominator(exact, _BITS) or 1 << _BITS
        counts = [each.numerator * whole // each.denominator for each in exact]
        total = sum(counts)
        return tuple(Fraction(count, total) for count in counts) if total else tuple(of_samples)

    def _mean(self, node: Node) -> Fraction:
        if isinstance(node, Leaf | Subset):
            inner, start, stop = _range(node)
            if isinstance(inner, Leaf):
                part = inner.number, start, stop
                if part not in self._totals:
                    self._totals[part] = self._total(*part)
                return self._totals[part] / (stop - start)
        if isinstance(node, Interleaved):
            shares = node.shares(None)
            if shares is None:
                assert isinstance(node, StagedBlend)  # no other node's shares change; its last stage is open-ended
                return self._mixed(node, node.stages.schedules[-1].realized)
            return self._mixed(node, shares[1])
        if isinstance(node, Junction):
            return self._mixed(node, epoch_shares(node))
        return self._mean(node.children[0])

    def _mixed(self, node: Node, shares: Sequence[Fraction]) -> Fraction:
        means = [
            self._mean(child) if share else Fraction(0) for child, share in zip(node.children, shares, strict=True)
        ]
        return exact_sum([share * mean for share, mean in zip(shares, means, strict=True)])

    def _total(self, source: int, start: int, stop: int) -> Fraction:
        """Return the units in samples of a source."""
        if self.unit == "samples":
            return Fraction(stop - start)
        dataset = self._sources[source]
        if self.unit in ("tokens", LOSS_TOKENS):
            total = dataset.total(self.unit, start, stop)
            if total is None:
                raise self._unknown(dataset)
            return Fraction(total)
        if not isinstance(dataset, Episodic):
            raise ConfigError(
                f"{dataset.url} has no robot episodes, so its {self.unit} are unknown",
                kind="no-costs",
                fix="Use 'unit: samples', or sources of robot episodes alone.",
            )
        if self.unit == "hours":
            if dataset.fps is None:  # as recordings say it; steps of `EpisodeSamples` raise the same
                from feedmill.formats.episodes import no_rate

                raise no_rate(dataset.url)
            return (stop - start) / Fraction(dataset.fps).limit_denominator(_FINEST) / 3600
        count = last = 0
        for first in range(start, stop, _AT_ONCE):  # episodes lie one after another
            found = dataset.episodes_of(np.arange(first, min(first + _AT_ONCE, stop)))
            count += len(np.unique(found)) - (first > start and int(found[0]) == last)
            last = int(found[-1])
        return Fraction(count)

    def _unknown(self, dataset: Dataset) -> ConfigError:
        """Return the error for a source whose tokens are not known."""
        if self.unit == LOSS_TOKENS:
            return ConfigError(
                f"the number of tokens that contribute to the loss is unknown for {dataset.url}",
                kind="no-costs",
                fix=f"{dataset.costs_advice(LOSS_TOKENS)} Or use 'unit: tokens' or 'unit: samples'.",
            )
        return ConfigError(
            f"the number of tokens per sample is unknown for {dataset.url}",
            kind="no-costs",
            fix="Use 'unit: samples', or use a tokenized dataset.",
        )


def per_sample(weights: Sequence[Any], mean: Callable[[int], Fraction]) -> tuple[Fraction, ...]:
    """Return weights per sample for weights per token.

    `mean` returns a source's tokens per sample; it is called only for sources with a positive weight. The weights are
    exact up to denominators of 4,096 bits. Those of a thousand means would be more digits than Python writes, and a
    state would have megabytes of them: they are in units of 2^-50, as in `per_sample_of_many`.

    >>> per_sample([0.5, 0.5], lambda source: Fraction(100 if source else 300))
    (Fraction(1, 4), Fraction(3, 4))
    """
    shares = normalize(weights)
    exact = [share / mean(i) if share else share for i, share in enumerate(shares)]
    return _in_lines(exact) if _denominator(exact, _EXACT) is None else normalize(exact)


def per_sample_of_many(weights: Sequence[Any], mean: Callable[[int], Fraction]) -> tuple[Fraction, ...]:
    """Return `per_sample`, but in units of 2^-50 if the exact fractions have a larger common denominator.

    Those of hundreds of different means have thousands of digits, and an order can realize no finer shares.
    """
    shares = normalize(weights)
    exact = [share / mean(i) if share else share for i, share in enumerate(shares)]
    drawn = [each for each in exact if each]
    if all(map(_short_ratio, drawn, drawn[1:])):
        period = lcm(*(each.denominator for each in exact))
        counts = [each.numerator * (period // each.denominator) for each in exact]
        shared = gcd(*counts)
        if sum(counts) // shared <= LINES_LIMIT:
            return Shares(Fraction(count, sum(counts)) for count in counts)
    return _in_lines(exact)


def _in_lines(weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return weights as shares in units of 2^-50."""
    fine = [max((each.numerator << _BITS) // each.denominator, 1) if each else 0 for each in weights]
    whole = sum(fine)
    return Shares(Fraction(n, LINES_LIMIT) for n in apportion([Fraction(each, whole) for each in fine], LINES_LIMIT))


def _denominator(fractions: Sequence[Fraction], bits: int) -> int | None:
    """Return the common denominator of fractions; None if it has more bits."""
    whole = 1
    for each in fractions:
        whole = lcm(whole, each.denominator)
        if whole.bit_length() > bits:
            return None
    return whole


def _short_ratio(one: Fraction, other: Fraction) -> bool:
    """Return whether integers up to 2^50 have the ratio of two shares; otherwise no order realizes both."""
    a, b = one.numerator * other.denominator, other.numerator * one.denominator
    return max(a, b) // gcd(a, b) <= LINES_LIMIT


def epoch_shares(node: Junction) -> list[Fraction]:
    """Return each child's share of one epoch of a finite node."""
    length = node.finite("counting shares")
    return [Fraction(count, length) for count in node.draws(length)]


def _range(node: Leaf | Subset) -> tuple[Node, int, int]:
    """Return the node below all subsets, and the range of it that they select."""
    start, stop = 0, node.length
    inner: Node = node
    while isinstance(inner, Subset):
        start, stop = start + inner.start, stop + inner.start
        inner = inner.child
    return inner, start, stop


class Identity(NamedTuple):
    """A tokenizer: its name as given, the hash of its model ("" if unknown), and a file that it made."""

    name: str
    hash: str
    file: str

    def differs(self, other: Identity) -> bool:
        """Return whether the two are known to be different: by hash if both have one, otherwise by name."""
        if self.hash and other.hash:
            return self.hash != other.hash
        mine, others = _steps(self.name), _steps(other.name)
        shared = min(len(mine), len(others))
        return mine[-shared:] != others[-shared:]

    def __str__(self) -> str:
        return f"{self.name!r} (hash {self.hash[:8]})" if self.hash else repr(self.name)


def identities(dataset: Dataset) -> list[Identity]:
    """Return the different tokenizers of a dataset; empty if they are unknown or it is not token data."""
    made_with = getattr(dataset, "made_with", None)  # text that is tokenized when it is read
    if made_with is not None:
        name, hash = made_with
        return [Identity(name, hash, dataset.url)]
    documents = dataset.tokens if isinstance(dataset, WindowDataset) else dataset
    if not isinstance(documents, TokenDataset):
        return []
    known_by: list[Identity] = []
    for shard in documents.shards:
        identity = _identity(documents, shard.path)
        if identity is not None and all(identity[:2] != each[:2] for each in known_by):
            known_by.append(identity)
    return known_by


def refuse_apart(datasets: Sequence[Dataset], names: Sequence[str]) -> None:
    """Raise `ConfigError` if sample i of a dataset does not belong to sample i of the first one.

    Manifests of token files tell: different documents were left out, or they were shuffled with different seeds. Others
    have keys: the key of one sample, of up to `_MOST_KEYS` of them, is that of another sample there.
    """
    _refuse_other_keys(datasets, names)
    pasts = [_past(each) for each in datasets]
    for name, past in zip(names[1:], pasts[1:], strict=True):
        for one, other in zip(pasts[0], past, strict=False):
            if one.order == other.order and one.verbs != other.verbs:
                break  # of files in other numbers: lines of the one are not those of the other
            if (one.order, one.lost) != (other.order, other.lost):
                raise ConfigError(
                    f"document i of {name!r} does not belong to document i of {names[0]!r}: the former are"
                    f" {other.said()}, the latter {one.said()}",
                    kind="bad-recipe",
                    fix="Make both sides in one run, from the same lines, and shuffle both with the same seed.",
                )


def _refuse_other_keys(datasets: Sequence[Dataset], names: Sequence[str]) -> None:
    one = datasets[0]
    count = min(len(each) for each in datasets)
    for other, name in zip(datasets[1:], names[1:], strict=True):
        for number in np.unique(np.linspace(0, count - 1, min(count, _MOST_KEYS)).astype(np.int64)).tolist():
            key = one.locate(number).key
            if other.locate(number).key == key:
                continue
            with suppress(NotFound):
                raise ConfigError(
                    f"the samples of {name!r} are in another order than those of {names[0]!r}: {key!r} is sample"
                    f" {other.find(key):,} there, and {number:,} here",
                    kind="bad-recipe",
                    fix="Join datasets by their keys with 'join', or write them in one order.",
                )


class _Step(NamedTuple):
    """What one verb did to the documents of token files: what it read, the seeds, and the lines that it left out."""

    verbs: frozenset[str]
    order: frozenset[str]
    lost: frozenset[tuple[int, int, int]]
    texts: tuple[str, ...]

    def said(self) -> str:
        """Return it in words, for a message."""
        more = f" and {len(self.texts) - _SHOWN} more" if len(self.texts) > _SHOWN else ""
        return ", ".join(self.texts[:_SHOWN]) + more if self.texts else "as they were"


def _past(dataset: Dataset) -> list[_Step]:
    """Return the verbs behind token files, the last one first, as far as their manifests exist."""
    documents = dataset.tokens if isinstance(dataset, WindowDataset) else dataset
    out: list[_Step] = []
    files = [(documents.store, each.path) for each in documents.shards] if isinstance(documents, TokenDataset) else []
    while files and len(out) < _MOST_STEPS:
        found = [read_manifest(store, path) for store, path in files]
        made = [each for each in found if each is not None]
        if len(made) < len(found):
            break
        verbs = {str(each.options.get("verb", "")) for each in made}
        order, lost, texts = set[str](), set[tuple[int, int, int]](), dict[str, None]()
        inputs = dict[str, int]()
        for each in made:
            for given in each.inputs:
                inputs.setdefault(str(given.get("path")), len(inputs))
            if each.options.get("verb") == "shuffle":
                order.add(f"{each.options.get('order')} {each.options.get('seed')}")
                texts[f"shuffled with seed {each.options.get('seed')}"] = None
            for one in each.skipped_examples:
                lost.add((each.skipped, inputs.get(one.file, -1), one.line))
                texts[f"without line {one.line} of {one.file} ({one.reason})"] = None
        out.append(_Step(frozenset({*verbs, str(len(inputs))}), frozenset(order), frozenset(lost), tuple(texts)))
        files = []
        if "" not in verbs:  # else they are raw documents
            files = [(open_store(folder), name) for folder, name in map(split_url, inputs)]
    return out


def _identity(dataset: TokenDataset, path: str) -> Identity | None:
    store = dataset.store
    manifest = read_manifest(store, path)
    if manifest is not None and manifest.tokenizer is not None:
        return Identity(manifest.tokenizer.name, manifest.tokenizer.hash, store.locate(path))
    if path == LEDGER:
        name = dataset.about.get("tokenizer")
        return Identity(name, "", store.locate(path)) if name else None
    if not path.endswith(ds.SUFFIX):
        return None
    try:
        metadata = ds.read_metadata(store, path)
    except DataError:
        return None  # invalid metadata was reported at opening
    return Identity(metadata.tokenizer, "", store.locate(path)) if metadata and metadata.tokenizer else None


def _steps(name: str) -> list[str]:
    """Return the components of a name or path: one tokenizer can have several paths, with and without a file."""
    parts = [part for part in name.replace(os.sep, "/").split("/") if part not in ("", ".")]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "tokenizer.json" else parts
