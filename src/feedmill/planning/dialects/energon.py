"""Translate Energon's metadatasets, V1 and V2, to recipes.

A split of a metadataset is one node: a reference to a dataset or to another metadataset, a blend, an epochized blend,
or a join. References to metadatasets are resolved, so that settings of an outer file (subset, subflavors, shuffling)
apply to the datasets below it:

- weights are relative within their blend, and multiply with nesting, as in nested blends;
- ranges of a subset are listed from the inside out: sample numbers first, then percentages;
- subflavors are merged; values of outer files override those of inner files;
- ``shuffle_over_epochs_multiplier: null`` at any level disables shuffling. All other values shuffle within each epoch.
  With a number *n*, an epoch of `blend_epochized`, or of a single dataset, has *n* times as many passes, as in Energon,
  where one loop over a dataset is *n* passes. Draws with replacement (-1) become permutations, with a warning.

For validation, all datasets are read one after another, in stored order, once; weights and repetitions are ignored.

Values in Energon's metadatasets: their types and keys, with errors that name the line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any

from feedmill.errors import ConfigError, NotFound, did_you_mean
from feedmill.formats.settings import Fate, Origin, Setting, Table, mapped
from feedmill.formats.yamls import Document
from feedmill.planning.dialects import METADATASET, VALIDATION, Place, Translation, check_chain, check_files, recognize
from feedmill.samples.view import is_ours
from feedmill.storage import join_url

_V1_FILE, _V2_FILE = "megatron/energon/metadataset/metadataset.py", "megatron/energon/metadataset/metadataset_v2.py"
_STRUCTS = "megatron/energon/flavors/webdataset/structs.py"


def _fields(file: str, *names: str) -> tuple[Origin, ...]:
    return tuple(Origin("fields", file, name) for name in names)


_PASSES = mapped(
    "null: stored order. *n*: each sample *n* times in *n* passes, each a permutation; an epoch of `blend_epochized`,"
    " or of a single dataset, has *n* times as many passes. -1 (draws with replacement): 1, with a warning in the log,"
    " and an error in `blend_epochized`. Factors of nested files multiply"
)
_INTERNAL = Setting(Fate.REFUSED, "it is internal")
_REFERENCE = {
    "path": mapped("the dataset or metadataset, relative to the file"),
    "split_part": mapped("name of the split"),
    "subflavors": mapped("data attached to every sample; outer files override inner ones"),
    "shuffle_over_epochs_multiplier": _PASSES,
    "dataset_config": mapped("name of another description of a dataset; an error for a metadataset or a join"),
    "split_config": mapped("name of another split file of a dataset; an error for a metadataset or a join"),
    "_dataset": _INTERNAL,
}

V1 = Table(
    face="metadatasets V1",
    origin=(
        *_fields(_V1_FILE, "DatasetReference", "MetadatasetBlender"),
        Origin("parameters", _V1_FILE, "Metadataset.__init__"),
    ),
    settings={
        **_REFERENCE,
        "splits": mapped("the splits"),
        "datasets": mapped("the datasets of a split, blended by weight"),
        "weight": mapped("share of the samples"),
        "subflavor": mapped("the old name of the subflavor `__subflavor__`"),
    },
)
V2 = Table(
    face="metadatasets V2",
    origin=_fields(
        _V2_FILE,
        "DatasetReference",
        "JoinDatasetReference",
        "MetadatasetJoin",
        "BlendWeightMixin",
        "BlendRepetitionsMixin",
        "MetadatasetBlend",
        "MetadatasetBlendEpochized",
        "SubsetRatioMixin",
        "Subset",
        "MetadatasetV2",
    ),
    settings={
        **_REFERENCE,
        "splits": mapped("the splits"),
        "shuffle_over_epochs_multiplier": mapped(_PASSES.words + ". Energon 7.4.1 ignores that of a join"),
        "aux": mapped("auxiliary data of a dataset; an error for a metadataset"),
        "subset": mapped(
            "a range of the samples, excluded ones included, as in Energon; an error at a dataset of a join"
        ),
        "range": mapped(
            "sample numbers of a dataset or join, or percentages. These are exact here, floats in Energon: 29% of 100"
            " samples are 29 here, and 28 there"
        ),
        "blend": mapped("sources by weight"),
        "weight": mapped("share of the samples"),
        "blend_epochized": mapped("sources by repetitions"),
        "repetitions": mapped("passes in an epoch, also fractional"),
        "join": mapped("datasets whose samples are joined by key"),
        "joiner": mapped("the type or function (only with `trust`) that makes a sample"),
        "nonmatch": mapped("what happens without a partner: `error`, `skip` or `none`"),
    },
)
SPLIT_FILE = Table(
    face="`split.yaml`",
    origin=_fields(_STRUCTS, "WebdatasetSplits"),
    settings={
        "split_parts": mapped("split -> its shards"),
        "exclude": mapped("shards and samples that no split has"),
    },
)

TABLES = (V1, V2, SPLIT_FILE)


logger = logging.getLogger("feedmill")

Load = Callable[[str], Document]
"""Function that reads the YAML file at a URL by Energon's rules."""

_V1, _V2 = "Metadataset", "MetadatasetV2"
_SHARED = ("split_part", "subflavors", "shuffle_over_epochs_multiplier", "dataset_config", "split_config")
_V1_KEYS = tuple(name for name in V1.names(Fate.MAPPED) if name not in ("splits", "datasets"))
_REFERENCE_KEYS = ("path", *_SHARED, "aux", "subset")
_JOIN_KEYS = ("join", "joiner", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "subset")
_PART_KEYS = ("path", *_SHARED, "nonmatch")
_KINDS = {"blend": "weight", "blend_epochized": "repetitions"}
_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Asked:
    """Settings of a call for all datasets of a split, as an enclosing file would have them.

    Attributes:
        ranges: ranges of each dataset; sample numbers only for a V1 metadataset.
        subflavors: values that override those of the files.
        passes: the factor of ``shuffle_over_epochs_multiplier``; None for the stored order.
        fold: whether the recipe has the passes of `Translation.passes`: they multiply repetitions.
    """

    ranges: tuple[tuple[int | str, int | str], ...] = ()
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    passes: int | None = 1
    fold: bool = True


@dataclass(frozen=True, slots=True)
class _Outer:
    """Settings inherited from enclosing files and nodes.

    Attributes:
        document: the current file.
        url: its URL.
        prefix: prepended to its relative paths, to make them relative to the outermost file.
        split: the requested split.
        ranges: percentages of a dataset, innermost first.
        subflavors: values that override those of inner nodes.
        passes: passes of a loop over a dataset; -1 for draws with replacement, None for the stored order.
        chain: (URL, split) of the enclosing files.
    """

    document: Document
    url: str
    prefix: str
    split: str
    ranges: tuple[Any, ...] = ()
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    passes: int | None = 1
    chain: tuple[tuple[str, str], ...] = ()


def translate(
    document: Document,
    url: str,
    load: Load,
    *,
    split: str,
    mode: str,
    asked: Asked = Asked(),
) -> Translation:
    """Return the recipe of one split of a metadataset.

    Args:
        document: the file.
        url: its path or URL; for a metadataset that is not a file, the folder followed by any name.
        load: reads the metadatasets that it refers to.
        split: name of the split.
        mode: ``train`` or ``validation``.
        asked: what the caller asks of all datasets.

    Raises:
        NotFound: no such split, or a referenced metadataset is missing.
        ConfigError: it is not a valid metadataset, or metadatasets contain each other.
    """
    translator = _Translator(load, mode, url)
    outer = _Outer(document, url, "", split, asked.ranges, asked.subflavors, asked.passes, ((url, split),))
    result = translator.run(outer)
    if asked.fold and not translator.validation:
        fold_passes(result)
    return result


def split_names(document: Document) -> list[str]:
    """Return the splits of a metadataset. Raises `ConfigError` if it is not a metadataset."""
    return list(_splits(document))


def _splits(document: Document) -> Mapping[str, Any]:
    value = document.value
    if not isinstance(value, Mapping) or not isinstance(value.get("splits"), Mapping):
        raise ConfigError(
            "a metadataset needs 'splits'", file=document.at(("splits",)), fix="Add 'splits:' with 'train:' below it."
        )
    name, module = value.get("__class__", _V1), value.get("__module__")
    if name not in (_V1, _V2) or not is_ours(module):
        raise ConfigError(
            f"the metadataset class {module}.{name} is unsupported",
            file=document.at(("__class__",)),
            kind="unsupported",
            fix=f"Use {_V1} or {_V2} of megatron.energon.",
        )
    for key in value:
        if key not in ("splits", "__class__", "__module__"):
            raise unknown_key(document, (key,), key, ("splits",), "a metadataset")
    splits: Mapping[str, Any] = value["splits"]
    return splits


class _Translator:
    def __init__(self, load: Load, mode: str, url: str) -> None:
        self.load, self.validation = load, mode == VALIDATION
        self.base = url.rpartition("/")[0] or ("/" if url.startswith("/") else ".")
        self.result = Translation(url, counts_excluded=True)
        self.files = 1
        self.kind: tuple[str, str] | None = None  # the first kind of blend met, and where

    def run(self, outer: _Outer) -> Translation:
        root = self.split(outer, ("source",))
        kind = next((kind for kind in ("concat", *_KINDS) if kind in root), None)
        if kind is None:
            root = {"source": root}
        else:  # a recipe has its mixture at the top level, not in 'source'
            for name in ("origins", "passes"):
                found = getattr(self.result, name)
                setattr(self.result, name, {place[place[:1] == ("source",) :]: known for place, known in found.items()})
        if self.validation:
            root |= {"shuffle": "none", "epochs": 1}
        self.result.data = root
        return self.result

    def split(self, outer: _Outer, place: Place) -> dict[str, Any]:
        """Return a split of a file as the source at `place` of the recipe."""
        document = outer.document
        splits = _splits(document)
        path: Place = ("splits", outer.split)
        if outer.split not in splits:
            raise NotFound(
                f"there is no split {outer.split!r}",
                file=document.at(("splits",)),
                kind="no-such-split",
                fix=f"The metadataset has: {', '.join(splits)}.",
            )
        node = mapping_of(document, path, splits[outer.split])
        if document.value.get("__class__", _V1) == _V2:
            if any(isinstance(bound, int) for bounds in outer.ranges for bound in bounds):
                raise ConfigError(
                    "an absolute range cannot be given for a metadataset",
                    file=document.at(path),
                    kind="bad-recipe",
                    fix="Give a relative range, or write the subset at the datasets.",
                )
            return self.node(outer, path, node, place)
        check_known(document, path, node, ("datasets",), "a split")
        return self.mixture(outer, (*path, "datasets"), node.get("datasets"), place, "blend", _V1_KEYS)

    def node(self, outer: _Outer, path: Place, node: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return a reference, a join, or one of the two kinds of blends."""
        keys = [key for key in ("path", "join", *_KINDS) if key in node]
        if len(keys) != 1:
            raise ConfigError(
                f"expected one of 'path', 'join', 'blend' or 'blend_epochized', found {' and '.join(keys) or 'none'}",
                file=outer.document.at(path),
                fix="Give exactly one; blends are nested by the path of another metadataset.",
            )
        kind = keys[0]
        if kind == "path":
            check_known(outer.document, path, node, _REFERENCE_KEYS, "a reference")
            return self.reference(outer, path, node, place)
        if kind == "join":
            return self.join(outer, path, node, place)
        check_known(outer.document, path, node, (kind, "subset"), f"a '{kind}'")
        inner = replace(outer, ranges=self.ranges(outer, path, node, leaf=False))
        return self.mixture(inner, (*path, kind), node[kind], place, kind, _REFERENCE_KEYS)

    def mixture(
        self, outer: _Outer, path: Place, items: Any, place: Place, kind: str, keys: Sequence[str]
    ) -> dict[str, Any]:
        """Return sources by weight or repetitions; a concatenation for validation."""
        document = outer.document
        if not isinstance(items, list) or not items:
            raise ConfigError(
                f"expected a list of datasets, found {items!r:.60}", file=document.at(path), fix="List at least one."
            )
        if self.kind is not None and self.kind[0] != kind:
            raise ConfigError(
                f"'blend' and 'blend_epochized' cannot be combined (the other one: {self.kind[1]})",
                file=document.at(path),
                kind="bad-recipe",
                fix="Use one kind everywhere.",
            )
        self.kind = self.kind or (kind, document.at(path))
        ours, share = "concat" if self.validation else kind, _KINDS[kind]
        found = []
        for number, item in enumerate(items):
            own, here = (*path, number), (*place, ours, number)
            node = dict(mapping_of(document, own, item))
            given = node.pop(share, 1)
            self.mark(here, outer, own)
            if "join" in node:
                member = self.join(outer, own, node, here)
            else:
                check_known(document, own, node, [*keys, share], f"an entry of '{kind}'")
                member = self.reference(outer, own, node, here)
            if not self.validation:
                member[share] = given
                self.mark((*here, share), outer, (*own, share))
            found.append(member)
        self.mark((*place, ours), outer, path)
        return {ours: found}

    def reference(self, outer: _Outer, path: Place, node: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return a dataset, or a split of another metadataset."""
        document = outer.document
        name = text_of(document, (*path, "path"), node.get("path"))
        part = node.get("split_part")
        split = outer.split if part is None else text_of(document, (*path, "split_part"), part)
        nested = name.endswith(_YAML)
        inner = replace(
            outer,
            split=split,
            ranges=self.ranges(outer, path, node, leaf=not nested),
            subflavors={**self.subflavors(outer, path, node), **outer.subflavors},
            passes=self.passes(outer, path, node),
        )
        if nested:
            return self.nested(inner, path, name, node, place)
        self.note_passes(inner, path, place)
        self.mark(place, outer, path)
        for key in ("path", "subset"):
            self.mark((*place, key), outer, (*path, key))
        member: dict[str, Any] = {"path": _seen(outer.prefix, name), "split": split, **self.common(inner)}
        for key in ("dataset_config", "split_config"):
            if node.get(key) is not None:
                if name.endswith(".jsonl"):
                    raise ConfigError(f"a JSONL file has no '{key}'", file=document.at((*path, key)), fix="Remove it.")
                member[key] = text_of(document, (*path, key), node[key])
        if node.get("aux") is not None:
            member["aux"] = self.aux(outer, (*path, "aux"), node["aux"])
        return member

    def nested(self, outer: _Outer, path: Place, name: str, node: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return a split of another metadataset, in place of the reference to it."""
        at = outer.document.at((*path, "path"))
        for key in ("aux", "dataset_config", "split_config"):
            if node.get(key) is not None:
                raise ConfigError(
                    f"'{key}' cannot be given for a metadataset",
                    file=outer.document.at((*path, key)),
                    fix="Set it in the entry of the dataset.",
                )
        seen = _seen(outer.prefix, name)
        url = join_url(self.base, seen)
        step = (url, outer.split)
        if step in outer.chain:
            loop = " -> ".join(each.rpartition("/")[2] for each, _ in (*outer.chain[outer.chain.index(step) :], step))
            raise ConfigError(
                f"the metadatasets contain each other: {loop}",
                file=at,
                kind="bad-recipe",
                fix="Remove one of them from the other.",
            )
        check_chain(len(outer.chain), at)
        self.files += 1
        check_files(self.files, at)
        try:
            document = self.load(url)
        except NotFound as error:
            raise NotFound(
                f"the metadataset {url} cannot be read: {error.what}", file=at, fix="Check the path."
            ) from None
        if not isinstance(document.value, Mapping) or recognize(document.value) != METADATASET:
            raise ConfigError(f"{name} is not a metadataset", file=at, fix="Give a file with 'splits', or a dataset.")
        prefix = seen.rpartition("/")[0]
        prefix = f"{prefix}/" if "/" in seen else ""
        inner = replace(outer, document=document, url=url, prefix=prefix, chain=(*outer.chain, step))
        return self.split(inner, place)

    def join(self, outer: _Outer, path: Place, node: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return a join of prepared datasets."""
        document = outer.document
        for key in ("split_config", "dataset_config"):
            if key in node:
                raise ConfigError(
                    f"a join has no '{key}'",
                    file=document.at((*path, key)),
                    fix="Set it on the datasets of the join.",
                )
        check_known(document, path, node, [*_JOIN_KEYS, *_KINDS.values()], "a join")
        joiner = mapping_of(document, (*path, "joiner"), node.get("joiner"))
        listed = node["join"]
        if not isinstance(listed, list | Mapping):
            raise ConfigError("a join must be a list or a mapping of datasets", file=document.at((*path, "join")))
        inner = replace(
            outer,
            split=outer.split if node.get("split_part") is None else str(node["split_part"]),
            ranges=self.ranges(outer, path, node, leaf=True),
            subflavors={**self.subflavors(outer, path, node), **outer.subflavors},
            passes=self.passes(outer, path, node),
        )
        self.note_passes(inner, path, place)
        self.mark(place, outer, path)
        for key in ("join", "joiner", "subset"):
            self.mark((*place, key), outer, (*path, key))
        parts: list[dict[str, Any]] = []
        names = list(listed) if isinstance(listed, Mapping) else list(range(len(listed)))
        for name in names:
            own = (*path, "join", name)
            parts.append(self.part(inner, own, mapping_of(document, own, listed[name])))
            self.mark((*place, "join", name), outer, own)
        folder, _, file = outer.url.rpartition("/")
        return {
            "join": parts if isinstance(listed, list) else dict(zip(names, parts, strict=True)),
            "joiner": dict(joiner),
            "prepared": f"{outer.prefix}{file}.cache" if folder or file else None,
            **self.common(inner),
        }

    def part(self, outer: _Outer, path: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return one dataset of a join."""
        document = outer.document
        if "subset" in node:
            raise ConfigError(
                "a dataset of a join has no 'subset'", file=document.at((*path, "subset")), fix="Set it on the join."
            )
        check_known(document, path, node, _PART_KEYS, "a dataset of a join")
        name = text_of(document, (*path, "path"), node.get("path"))
        if name.endswith((*_YAML, ".jsonl")):
            raise ConfigError(
                f"{name} cannot be joined",
                file=document.at((*path, "path")),
                fix="Join prepared folders of tar shards.",
            )
        part = {"path": _seen(outer.prefix, name), "split": node.get("split_part") or outer.split}
        kept = {key: node[key] for key in ("dataset_config", "split_config", "nonmatch") if node.get(key) is not None}
        own = self.subflavors(outer, path, node)
        return {**part, **kept, **({"subflavors": own} if own else {})}

    def common(self, outer: _Outer) -> dict[str, Any]:
        """Return the settings that datasets and joins inherit."""
        found: dict[str, Any] = {}
        if outer.ranges:
            found["subset"] = [list(each) for each in outer.ranges]
        if outer.subflavors:
            found["subflavors"] = dict(outer.subflavors)
        if outer.passes is None and not self.validation:
            found["shuffle"] = "none"
        return found

    def ranges(self, outer: _Outer, path: Place, node: Mapping[str, Any], *, leaf: bool) -> tuple[Any, ...]:
        """Return the node's own range followed by the inherited ones."""
        if node.get("subset") is None:
            return outer.ranges
        at = outer.document.at((*path, "subset"))
        own = node["subset"]
        bounds = own.get("range") if isinstance(own, Mapping) and set(own) == {"range"} else None
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise ConfigError(
                f"expected 'subset: {{range: [first, end]}}', found {own!r:.60}", file=at, kind="bad-recipe"
            )
        percent = all(isinstance(bound, str) and bound.endswith("%") for bound in bounds)
        if not percent and not leaf:
            raise ConfigError(
                f"the range {bounds} of a mixture must be in percent: numbers of samples are only allowed for a leaf"
                " dataset",
                file=at,
                kind="bad-recipe",
                fix="Use for example ['0%', '50%'], or set sample numbers on a dataset.",
            )
        return ((bounds[0], bounds[1]), *outer.ranges)

    def subflavors(self, outer: _Outer, path: Place, node: Mapping[str, Any]) -> dict[str, Any]:
        old = {} if node.get("subflavor") is None else {"__subflavor__": node["subflavor"]}
        given = node.get("subflavors")
        return {**old, **({} if given is None else mapping_of(outer.document, (*path, "subflavors"), given))}

    def passes(self, outer: _Outer, path: Place, node: Mapping[str, Any]) -> int | None:
        """Return the passes of a loop: the product of all factors, by Energon's rules for None and -1."""
        value = node.get("shuffle_over_epochs_multiplier", 1)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < -1 or value == 0):
            raise ConfigError(
                f"'shuffle_over_epochs_multiplier' must be a number from 1, -1, or null, found {value!r}",
                file=outer.document.at((*path, "shuffle_over_epochs_multiplier")),
            )
        if value is None or outer.passes is None:
            return None
        return -1 if -1 in (value, outer.passes) else value * outer.passes

    def note_passes(self, outer: _Outer, path: Place, place: Place) -> None:
        """Remember the passes of a dataset, and warn of draws with replacement."""
        if outer.passes in (None, 1) or self.validation:
            return
        self.result.passes[place] = outer.passes
        if outer.passes < 0:
            logger.warning(
                "%s: shuffle_over_epochs_multiplier -1 has no effect: each epoch is a permutation of the samples",
                outer.document.at(path),
            )

    def aux(self, outer: _Outer, path: Place, given: Any) -> dict[str, str]:
        found = {}
        for name, url in mapping_of(outer.document, path, given).items():
            text = text_of(outer.document, (*path, name), url)
            if text.endswith(_YAML):
                raise ConfigError(
                    f"{text} cannot be an auxiliary source",
                    file=outer.document.at((*path, name)),
                    fix="Give a dataset, or a folder of files as 'filesystem://PATH'.",
                )
            scheme, mark, rest = text.rpartition("filesystem://")
            found[name] = f"{mark}{_seen(outer.prefix, rest)}" if mark and not scheme else _seen(outer.prefix, text)
        return found

    def mark(self, place: Place, outer: _Outer, path: Place) -> None:
        self.result.origins[place] = outer.document.at(path)


def _seen(prefix: str, path: str) -> str:
    """Return a path of a nested file relative to the outermost file."""
    return path if "://" in path or path.startswith("/") else prefix + path.removeprefix("./")


def fold_passes(result: Translation) -> None:
    """Let the recipe's repetitions count all passes of its datasets.

    A last fraction of a loop is that fraction of a single pass, also where a loop is *n* passes.
    """
    data, passes = result.data, result.passes
    only = passes.get(("source",), 1)
    if only > 1:  # an epoch of a single source has all its passes
        data["blend_epochized"] = [{**data.pop("source"), "repetitions": only}]
        of_source = [(place[1:], at) for place, at in result.origins.items() if place[:1] == ("source",)]
        result.origins |= {("blend_epochized", 0, *inner): at for inner, at in of_source}
    elif "blend_epochized" in data:
        _fold_members(result, data["blend_epochized"], ("blend_epochized",), whole=True, nested=False)


def _fold_members(result: Translation, members: list[Any], place: Place, *, whole: bool, nested: bool) -> None:
    for number, member in enumerate(members):
        here, given = (*place, number), member.get("repetitions", 1)
        if isinstance(given, bool) or not isinstance(given, int | float):
            continue  # an error of the schema
        own = whole and given == floor(given)
        if "blend_epochized" in member:
            _fold_members(result, member["blend_epochized"], (*here, "blend_epochized"), whole=own, nested=True)
        times = result.passes.get(here, 1)
        if times == 1:
            continue
        if times < 0 or (nested and not own):
            raise ConfigError(
                "draws with replacement (-1) never end, so that 'blend_epochized' has no epochs"
                if times < 0
                else "'shuffle_over_epochs_multiplier' cannot be combined with nested fractions of 'repetitions'",
                file=result.where(here),
                kind="unsupported",
                fix="Remove 'shuffle_over_epochs_multiplier'.",
            )
        member["repetitions"] = floor(given) * times + (given - floor(given))


def mapping_of(document: Document, path: Place, value: Any) -> Mapping[str, Any]:
    """Return a value that must be a mapping. Raises `ConfigError`, which names its place."""
    if not isinstance(value, Mapping):
        shown = "nothing" if value is None else repr(value)[:60]
        raise ConfigError(f"{path[-1]!r}: expected a mapping, found {shown}", file=document.at(path), kind="bad-recipe")
    return value


def text_of(document: Document, path: Place, value: Any) -> str:
    """Return a value that must be text. Raises `ConfigError`, which names its place."""
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{path[-1]!r}: expected text, found {value!r:.60}", file=document.at(path), kind="bad-recipe"
        )
    return value


def check_known(document: Document, path: Place, node: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    """Raise `ConfigError` for a key that is not one of `keys`."""
    for key in node:
        if key not in keys:
            raise unknown_key(document, (*path, key), key, keys, what)


def unknown_key(document: Document, path: Place, key: str, keys: Sequence[str], what: str) -> ConfigError:
    """Return the error for an unknown key, with the one that may be meant."""
    guess = did_you_mean(str(key), list(keys))
    return ConfigError(
        f"unknown key {key!r} of {what}{guess}",
        file=document.at(path),
        kind="bad-recipe",
        fix=f"Its keys: {', '.join(dict.fromkeys(keys))}.",
    )
