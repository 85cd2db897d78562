"""Statistics of what a recipe of robot episodes trains on, and the normalization by them.

``RECIPE.stats/`` beside a recipe has a summary for each feature of each source (``KEY.npz``, named by a hash of the
data and of all settings that change its values), so another source costs its own size, and other weights nothing.
``stats.json`` and ``info.json`` are the statistics of the mixture in LeRobot's form, for people and other tools; plans
read the summaries.

A source counts by its share of the samples that the plan draws, see `shares_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import orjson

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.episodes import Episodic
from feedmill.jobs.progress import Progress
from feedmill.planning.nodes import Interleaved, Leaf, Node, StagedBlend, Subset
from feedmill.planning.nodes.base import Junction
from feedmill.planning.tokens import epoch_shares
from feedmill.samples.robotics.episodes import EpisodeOptions, EpisodeSamples, dimension_names
from feedmill.samples.robotics.summary import Scaling, Summary, mixed
from feedmill.storage import Store, join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.planning.recipes.read import Parsed

STATS, INFO = "stats.json", "info.json"
MIXTURE, SOURCE, DATASET = "mixture", "source", "dataset"
_NO_VALUES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns of numbers that are no measurements."""


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """What `collect` found and wrote.

    Attributes:
        folder: where it lies; None if the recipe has no file.
        features: feature -> name of a statistic -> its values, by LeRobot's names.
        shares: source -> its share of the samples.
        sources: feature -> the sources that have it.
        computed, known: summaries that were computed now, and that were there.
        notes: what may be unwanted, such as sources whose dimensions have other names.
    """

    folder: str | None
    features: dict[str, dict[str, Any]]
    shares: dict[str, Fraction]
    sources: dict[str, list[str]]
    computed: int
    known: int
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "shares": {name: float(share) for name, share in self.shares.items()}}


def shares_of(node: Node) -> dict[int, Fraction]:
    """Return the share of each leaf in the samples of a node: of all of them, or in the limit for an endless one.

    A blend in stages without an end has the shares of its last stage.
    """
    if isinstance(node, Leaf):
        return {node.number: Fraction(1)}
    if isinstance(node, Interleaved):
        known = node.shares(None)
        if known is None:
            assert isinstance(node, StagedBlend)
            parts: Sequence[Fraction] = node.stages.schedules[-1].realized
        else:
            parts = known[1]
    elif isinstance(node, Junction):
        parts = epoch_shares(node)
    else:
        parts = [Fraction(1)]
    out: dict[int, Fraction] = {}
    for child, part in zip(node.children, parts, strict=True):
        for leaf, share in shares_of(child).items():
            out[leaf] = out.get(leaf, Fraction(0)) + part * share
    return out


def ranges_of(node: Node) -> dict[int, range]:
    """Return the samples that each leaf of a node may give."""
    if isinstance(node, Leaf):
        return {node.number: range(node.length)}
    found: dict[int, range] = {}
    for child in node.children:
        found |= ranges_of(child)
    if isinstance(node, Subset) and len(found) == 1:
        ((leaf, span),) = found.items()
        return {leaf: span[node.start : node.start + node.length]}
    return found


class _Source:
    """One source of a recipe with its samples as features."""

    def __init__(self, number: int, name: str, samples: EpisodeSamples, span: range, share: Fraction) -> None:
        self.number, self.name, self.samples, self.span, self.share = number, name, samples, span, share

    def key(self, feature: str) -> str:
        return self.samples.summary_key(feature, self.span)


def _sources(sources: Sequence[Dataset], names: Sequence[str], root: Node) -> list[_Source]:
    shares, ranges = shares_of(root), ranges_of(root)
    out = []
    for number, (dataset, name) in enumerate(zip(sources, names, strict=True)):
        if isinstance(dataset, Episodic):
            dataset = EpisodeSamples(dataset, EpisodeOptions())
        if isinstance(dataset, EpisodeSamples):
            out.append(_Source(number, name, dataset, ranges[number], shares[number]))
    return out


def folder_of(recipe: Parsed) -> str | None:
    """Return the folder of a recipe's statistics; None for a recipe that was not read from a file."""
    return None if recipe.file is None else f"{recipe.file}.stats"


def collect(
    recipe: Parsed, sources: Sequence[Dataset], names: Sequence[str], root: Node, *, progress: bool | None = True
) -> StatisticsReport:
    """Compute the statistics of the features of a recipe and write them beside it.

    The features are those of ``normalize``; without it, all columns of floats.

    Args:
        recipe: the recipe.
        sources, names: the opened datasets and their names.
        root: the plan's node.
        progress: show a progress bar.

    Raises:
        ConfigError: no source has robot episodes with such features.
        DataError: a value is missing or not finite.
    """
    found = _sources(sources, names, root)
    wanted: dict[str, list[_Source]] = {}
    for one in found:
        for feature in one.samples.options.normalize or measured(one.samples):
            # A source that is never drawn has no part in the mixture, but is normalized by its own.
            if feature in one.samples.stored_names and (one.share or one.samples.options.normalize):
                wanted.setdefault(feature, []).append(one)
    if not wanted:
        raise ConfigError(
            f"none of the {len(sources)} sources has robot episodes with columns of floats",
            file=recipe.file or recipe.where(),
            kind="no-parts",
            fix="Statistics of documents need their files: feedmill documents stat FILE.",
        )
    folder = folder_of(recipe)
    store = None if folder is None else open_store(folder)
    summaries: dict[str, list[Summary]] = {}
    computed = known = 0
    with Progress("statistics", sum(map(len, wanted.values())), "features", enabled=progress) as bar:
        for feature, having in wanted.items():
            for one in having:
                path = f"{one.key(feature)}.npz"
                summary = None if store is None else _stored(store, path)
                if summary is None:
                    computed += 1
                    summary = one.samples.summary(feature, one.span)
                    if store is not None:
                        store.write_bytes(path, summary.to_bytes())
                else:
                    known += 1
                summaries.setdefault(feature, []).append(summary)
                bar.advance(1)
    features, info = {}, {}
    notes = [
        f"{one.name} has no {', '.join(lacking)}: all padding; if it has them under other names, use 'rename'"
        for one in found
        if (lacking := one.samples.lacking)
    ]
    drawn = {feature: [one for one in having if one.share] for feature, having in wanted.items()}
    for feature, having in drawn.items():
        if not having:
            continue
        weights = [float(one.share) for one in wanted[feature]]
        features[feature] = {n: v.tolist() for n, v in mixed(summaries[feature], weights, feature).items()}
        info[feature], more = _described(feature, having)
        notes += more
    if store is not None:
        store.write_bytes(STATS, orjson.dumps(features, option=orjson.OPT_INDENT_2))
        store.write_bytes(INFO, orjson.dumps({"features": info}, option=orjson.OPT_INDENT_2))
    return StatisticsReport(
        folder=folder,
        features=features,
        shares={one.name: one.share for one in found},
        sources={feature: [one.name for one in having] for feature, having in drawn.items() if having},
        computed=computed,
        known=known,
        notes=notes,
    )


def measured(samples: EpisodeSamples) -> list[str]:
    """Return the columns of floats that are measurements."""
    said = samples.dataset.features
    kinds = {name: str(said.get(stored, {}).get("dtype")) for name, stored in samples.stored_names.items()}
    return [name for name, kind in kinds.items() if name not in _NO_VALUES and kind.startswith("float")]


def _described(feature: str, having: Sequence[_Source]) -> tuple[dict[str, Any], list[str]]:
    """Return what `INFO` says of a feature, and notes on sources that differ in it."""
    widest = max(having, key=lambda one: one.samples.feature(feature).out_width)
    made = _form(widest.samples, feature)
    notes = []
    for one in having:
        mine = _form(one.samples, feature)
        for key in ("names", "relative", "poses"):
            if mine[key] != made[key]:
                notes.append(f"{feature}: {one.name} has other {key} than {widest.name}: {mine[key]}, {made[key]}")
    return {"dtype": "float32", "shape": [widest.samples.feature(feature).out_width], **made}, notes


def _form(samples: EpisodeSamples, feature: str) -> dict[str, Any]:
    """Return what the numbers of a feature mean."""
    one = samples.feature(feature)
    return {
        "names": dimension_names(samples.dataset.features[one.stored]),
        "relative": None if one.relative is None else {"to": one.relative.to, "keep": list(one.relative.keep)},
        "poses": [asdict(pose) for pose in one.poses],
    }


def _stored(store: Store, path: str) -> Summary | None:
    """Return a stored summary; None if it is not there or damaged, so that it is computed again."""
    if not store.exists(path):
        return None
    try:
        return Summary.from_bytes(store.read(path))
    except (ValueError, OSError, KeyError, EOFError, IndexError, NotImplementedError):
        return None
    except Exception as error:  # zipfile and zlib have errors of their own
        if type(error).__module__ in ("zipfile", "zlib"):
            return None
        raise


def scaled(recipe: Parsed, sources: list[Dataset], names: Sequence[str], root: Node, kinds: Mapping[int, str]) -> None:
    """Replace the sources that ``normalize`` features by normalized ones.

    Args:
        recipe: the recipe.
        sources, names, root: see `collect`.
        kinds: source -> the statistics that it asks for.

    Raises:
        ConfigError: the statistics are not there, or are of another robot.
    """
    found = [one for one in _sources(sources, names, root) if one.samples.options.normalize]
    mixture = [one for one in found if kinds.get(one.number, MIXTURE) == MIXTURE and one.share]
    summaries: dict[str, Summary] = {}
    entries: dict[str, dict[str, Any]] = {}
    for feature in dict.fromkeys(name for one in mixture for name in one.samples.options.normalize):
        having = [one for one in mixture if _has(one, feature)]
        if having:
            parts = [_known(recipe, one, feature, summaries) for one in having]
            entries[feature] = mixed(parts, [float(one.share) for one in having], feature)
    for one in found:
        kind = kinds.get(one.number, MIXTURE)
        methods = {name: how for name, how in one.samples.options.normalize.items() if _has(one, name)}
        widths = {name: one.samples.feature(name).out_width for name in methods}
        if kind == MIXTURE and one.share:
            scaling = Scaling(entries, methods, widths, folder_of(recipe) or "", wider=True)
        elif kind in (SOURCE, MIXTURE):  # a source that is never drawn has no part in the mixture
            own = {name: mixed([_known(recipe, one, name, summaries)], [1.0], name) for name in methods}
            scaling = Scaling(own, methods, widths, folder_of(recipe) or "")
        else:
            url = one.samples.dataset.store.locate(f"meta/{STATS}") if kind == DATASET else join_url(recipe.base, kind)
            scaling = Scaling(_read(url, one, methods, kind), methods, widths, url)
        sources[one.number] = one.samples.normalized(scaling)


def _has(one: _Source, feature: str) -> bool:
    return feature in one.samples.stored_names and feature in one.samples.options.normalize


def _known(recipe: Parsed, one: _Source, feature: str, summaries: dict[str, Summary]) -> Summary:
    key = one.key(feature)
    if key not in summaries:
        folder = folder_of(recipe)
        found = None if folder is None else _stored(open_store(folder), f"{key}.npz")
        if found is None:
            raise ConfigError(
                f"normalize: there are no statistics of {feature!r} of the source {one.name!r} with these settings",
                file=recipe.file or recipe.where(),
                kind="bad-statistics",
                fix=f"Run 'feedmill documents stat {recipe.file}'."
                if folder
                else "Write the recipe to a file and run 'feedmill documents stat FILE', or name a stats.json in"
                " 'statistics'.",
            )
        summaries[key] = found
    return summaries[key]


def _read(url: str, one: _Source, methods: Mapping[str, str], kind: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a ``stats.json`` for a source. Raises `ConfigError` if they are of something else."""
    folder, name = split_url(url)
    store = open_store(folder)
    if not store.exists(name):
        what = f"there is no such file with statistics for the source {one.name!r}"
        fix = "Set 'statistics' to mixture, source, dataset or the path of a stats.json."
        raise NotFound(what, file=url, kind="bad-statistics", fix=fix)
    try:
        entries = orjson.loads(store.read_small(name))
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError("expected a mapping of features to statistics")
        info = orjson.loads(store.read_small(INFO))["features"] if store.exists(INFO) else {}
        about = info if isinstance(info, dict) else {}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the file is not a stats.json: {error}", file=url, kind="bad-statistics") from None
    renamed = {one.samples.stored_names[name]: name for name in methods}
    if kind == DATASET:  # under the names of the dataset
        entries = {renamed.get(name, name): entry for name, entry in entries.items()}
        about = {renamed.get(name, name): entry for name, entry in about.items()}
    for feature in methods:
        mine, theirs = _form(one.samples, feature), about.get(feature) or {}
        named = dimension_names(theirs)
        if mine["names"] and named and mine["names"] != named:
            raise ConfigError(
                f"the statistics of {feature!r} are of another robot: its dimensions are {named}, here {mine['names']}",
                file=url,
                kind="bad-statistics",
                fix="Use statistics of this robot: 'statistics: source' uses those of each source alone.",
            )
        for key in ("relative", "poses"):
            if (mine[key] or None) != (theirs.get(key) or None):
                raise ConfigError(
                    f"the statistics of {feature!r} are of other values: {key} is {theirs.get(key)} there, {mine[key]}"
                    " here",
                    file=url,
                    kind="bad-statistics",
                    fix="Use 'statistics: mixture', which are of what is trained.",
                )
    return entries
