"""Schema of recipes: the pydantic models of Feedmill's own YAML.

Validation errors become messages with the location, the value found, and a suggestion (`problems`). Imported only when
a recipe is read, because importing pydantic is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    model_validator,
)

from feedmill.errors import ConfigError, did_you_mean
from feedmill.planning.dealing.rules import Budget, Deal
from feedmill.planning.mixing.blend import normalize
from feedmill.planning.recipes.fields import (
    TAGS,
    BalanceModel,
    By,
    CacheModel,
    CellColumn,
    Count,
    CurriculumField,
    CurriculumModel,
    DecodeField,
    DecodeModel,
    EpisodesModel,
    Epochs,
    FimModel,
    GroupsField,
    GroupsModel,
    HomogeneousModel,
    JoinPart,
    LanguageModel,
    LengthsModel,
    MarkersModel,
    OrderField,
    OrderModel,
    PackModel,
    Parts,
    PoseModel,
    PriorityModel,
    ProxyField,
    ProxyModel,
    Range,
    Ranges,
    RelativeModel,
    RolloutsModel,
    ShuffleField,
    ShuffleModel,
    SkipModel,
    StageModel,
    Stages,
    StorageModel,
    Strict,
    TargetsModel,
    TokenizeField,
    TokenizeModel,
    Unit,
    Weight,
    Weights,
    Where,
    WhereModel,
    WindowsField,
    WindowsModel,
    all_pairs,
    cells_short,
    check_by,
    check_storage,
    homogeneous_short,
    one_of,
    short,
    skip_short,
)

_OF_A_PATH = (
    *("split", "decode", "dataset_config", "split_config", "windows", "tokens", "tokenize", "episodes"),
    *("lengths", "where", "aux", "subset", "subflavors"),
)


def _check_epochized(members: list[Member]) -> list[Member]:
    _check_names(members)
    for name in ("weight", "epochs"):
        if any(getattr(member, name) is not None for member in members):
            raise ValueError(f"a source of an epochized blend cannot have '{name}': use 'repetitions'")
    return members


def _no_repetitions(members: list[Member]) -> None:
    if any(member.repetitions is not None for member in members):
        raise ValueError("'repetitions' need a 'blend_epochized'; use 'epochs' here")


def _check_blend(members: list[Member]) -> list[Member]:
    _check_names(members)
    _no_repetitions(members)
    weights = [member.weight for member in members]
    missing = weights.count(None)
    if 0 < missing < len(weights):
        raise ValueError(f"{missing} of {len(weights)} sources have no 'weight': give all of them one, or none")
    try:
        normalize([1 if weight is None else weight for weight in weights])
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from None
    return members


def _check_concat(members: list[Member]) -> list[Member]:
    _check_names(members)
    _no_repetitions(members)
    if any(member.weight is not None for member in members):
        raise ValueError("a concatenation has no weights: use 'blend', or remove 'weight'")
    return members


def _check_zip(members: list[Member]) -> list[Member]:
    _check_names(members)
    for name in ("weight", "shuffle", "curriculum", "groups", "repetitions", "epochs", "max_repeats"):
        if any(getattr(member, name) is not None for member in members):
            raise ValueError(f"the samples of a source in a 'zip' stay beside those of the others: remove {name!r}")
    if any(all(each is None for each in (member.path, member.join, member.concat)) for member in members):
        raise ValueError("a 'zip' needs datasets in stored order: 'path', 'join' or 'concat'")
    return members


def _check_names(members: list[Member]) -> None:
    twice = [name for name, times in Counter(member.name for member in members).items() if name and times > 1]
    if twice:
        raise ValueError(f"duplicate name {twice[0]!r}: names must be unique in their list")


def _is_one(mix: Member | RecipeModel) -> bool:
    """Return whether a blend has a single source, whose passes are those of the blend."""
    only = (mix.blend or [])[0] if len(mix.blend or []) == 1 else None
    return only is not None and only.epochs is None and only.cells is None and mix.stages is None


def _check_budget(value: dict[str, int | float]) -> dict[str, int | float]:
    try:
        Budget.of(value)
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from None
    return value


_List = Annotated[list["Member"], Field(min_length=1)]
_Blend = Annotated[
    _List,
    BeforeValidator(cells_short, json_schema_input_type=Union[list["Member"], "CellBlend"]),
    AfterValidator(_check_blend),
]
_Epochized = Annotated[_List, AfterValidator(_check_epochized)]
_Concat = Annotated[_List, AfterValidator(_check_concat)]
_Zip = Annotated[list["Member"], Field(min_length=2), AfterValidator(_check_zip)]


class Member(Strict):
    """One source of a recipe: a dataset, another recipe, or an inline blend, concatenation, zip or join."""

    path: str | None = Field(
        default=None, min_length=1, description="dataset: path relative to the recipe's folder, or URL"
    )
    recipe: str | None = Field(
        default=None, min_length=1, description="another recipe: path relative to this one, or URL"
    )
    blend: _Blend | None = Field(None, description="sources blended by weight")
    blend_epochized: _Epochized | None = Field(
        default=None, description="sources blended so that an epoch holds each 'repetitions' times"
    )
    concat: _Concat | None = Field(None, description="sources one after another")
    zip: _Zip | None = Field(
        None, description="sources of which the first samples are a group, then the second: preference pairs, say"
    )
    join: Parts | None = Field(
        default=None, description="prepared datasets matched by key: a list, or a mapping of names to datasets"
    )
    cells: CellsModel | None = Field(None, description="the documents of a dataset by cell, each a source of the blend")
    joiner: dict[str, str] | None = Field(
        default=None,
        description="builds one sample from a row: {__module__, __class__} or {__module__, __function__}",
    )
    prepared: str | None = Field(None, description="folder of prepared join rows; default RECIPE.cache")
    stages: Stages | None = Field(None, description="stages of its blend, each with its own weights")
    unit: Unit = Field(
        default="samples",
        description="what the weights of its blend count: samples, tokens, loss_tokens, episodes or hours",
    )
    name: str | None = Field(
        default=None, min_length=1, pattern="^[^/]+$", description="name of the source; unique in its list"
    )
    weight: Weight | None = Field(None, description="weight in the blend, relative to the sum: 0.7, 30% or 1/3")
    split: str | None = Field(
        None, description="split of the dataset, '*' for all; default 'train' if the dataset has that split"
    )
    tokens: str | None = Field(
        default=None, min_length=1, description="rows with token ids: the name of their column, such as input_ids"
    )
    windows: WindowsField | None = Field(
        default=None,
        description="token data as windows of this many tokens, instead of documents; or windows of robot episodes",
    )
    episodes: EpisodesModel | None = Field(
        None, description="how frames of robot episodes become samples; its keys override the recipe's 'episodes'"
    )
    tokenize: TokenizeField | None = Field(
        default=None, description="text that is tokenized when it is read: a tokenizer, or a mapping with one"
    )
    lengths: str | None = Field(
        default=None, min_length=1, description="samples of text and media: the name of the recipe's 'lengths' for them"
    )
    dataset_config: str | None = Field(None, description="name of the dataset's description file")
    split_config: str | None = Field(None, description="name of the dataset's split file")
    subset: Ranges | None = Field(
        default=None,
        description='range of its samples: [0, 1000] or ["50%", end]; or several, each applied to the previous result',
    )
    subflavors: dict[str, Any] | None = Field(None, description="data attached to every sample")
    where: dict[str, Where] | None = Field(
        None, min_length=1, description="documents to use: column: value, list of values, or {min, max, not}"
    )
    aux: dict[str, str] | None = Field(None, description="data that its samples refer to, by name: paths or URLs")
    decode: DecodeField | None = Field(None, description="how parts are decoded; overrides the recipe's 'decode'")
    shuffle: ShuffleField | None = Field(None, description="overrides the recipe's 'shuffle'")
    curriculum: CurriculumField | None = Field(
        None, description="order by a column, instead of 'shuffle': see docs/order.md"
    )
    groups: GroupsField | None = Field(
        None,
        description="samples that stay together: a size, or a column; shuffled as units: see docs/order.md",
    )
    repetitions: Epochs | None = Field(
        default=None, description="in 'blend_epochized': repetitions per epoch, default 1"
    )
    epochs: Epochs | None = Field(None, description="passes over it before it ends, may be fractional (2.5)")
    max_repeats: Count | None = Field(None, description="maximum number of passes in any plan; more is an error")

    @model_validator(mode="after")
    def _fits_together(self) -> Member:
        one_of(self, "path", "recipe", "blend", "blend_epochized", "concat", "zip", "join", "cells")
        _check_mix(self)
        if self.path is None:
            for name in _OF_A_PATH if self.join is None else _OF_A_PATH[:10]:
                if getattr(self, name) is not None:
                    raise ValueError(f"'{name}' needs a dataset ('path'); move it to the entry of the dataset")
        frames = None if self.windows is None else self.windows.frames
        if frames is not None and self.episodes is not None and self.episodes.windows is not None:
            raise ValueError("give 'windows' of frames once: at the source, or in its 'episodes'")
        tokens = [name for name in ("windows", "tokens", "tokenize", "episodes") if getattr(self, name) is not None]
        if self.lengths is not None and tokens:
            raise ValueError(f"'lengths' are for samples of text and media, not for a source with {tokens[0]!r}")
        if self.where is not None and self.episodes is not None:
            raise ValueError("frames of episodes are selected by 'where' in 'episodes': move it there")
        if self.join is None and (self.joiner is not None or self.prepared is not None):
            raise ValueError("'joiner' and 'prepared' need a 'join'")
        if self.join is not None:
            first = next(iter(self.join.values() if isinstance(self.join, dict) else self.join))
            if first.nonmatch != "error":
                raise ValueError("the first dataset of a join cannot have 'nonmatch': its samples define the rows")
        if self.blend is not None and self.epochs is not None and not _is_one(self):
            raise ValueError("a blend has no 'epochs': its sources end at different times; use 'max_repeats' on them")
        _check_order(self)
        return self

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Return the ranges of `subset`, outermost last."""
        if self.subset is None:
            return ()
        return self.subset if all_pairs(self.subset) else (self.subset,)  # type: ignore[return-value]


def _check_of(member: Member) -> Member:
    if member.path is None:
        raise ValueError("cells are those of one dataset: give its 'path'")
    for name in ("weight", "shuffle", "curriculum", "groups", "repetitions", "epochs", "max_repeats"):
        if getattr(member, name) is not None:
            raise ValueError(f"{name!r} is for the cells: move it out of 'of', beside 'cells'")
    return member


class CellsModel(Strict):
    """Documents of a dataset by cell: by the values of columns."""

    of: Annotated[
        Member, BeforeValidator(short("path"), json_schema_input_type=Member | str), AfterValidator(_check_of)
    ] = Field(description="the dataset: its path, or a source with a 'path'")
    by: Annotated[list[By], Field(min_length=1), AfterValidator(check_by)] = Field(
        description="columns whose values make cells; a numeric one with 'edges' or 'quantiles' by ranges"
    )
    weights: Weights | None = Field(
        None, description="weight of each cell, or a CSV file with them; by default their natural shares"
    )


class CellBlend(Strict):
    """A blend of cells, as recipes abbreviate it; see `cells_short`."""

    cells: CellsModel = Field(description="the dataset, and the columns whose values make cells")
    weights: Weights | None = Field(None, description="as in 'cells'")
    name: str | None = Field(None, min_length=1, pattern="^[^/]+$", description="name before the brackets of each cell")
    shuffle: ShuffleField | None = Field(None, description="shuffle of each cell; overrides the recipe's 'shuffle'")
    curriculum: CurriculumField | None = Field(
        None, description="order of each cell by a column, in place of 'shuffle'"
    )
    groups: GroupsField | None = Field(None, description="samples of each cell that stay together")
    epochs: Epochs | None = Field(None, description="passes over each cell before it ends, may be fractional (2.5)")
    max_repeats: Count | None = Field(None, description="maximum number of passes over each cell; more is an error")


class RecipeModel(Strict):
    """A recipe: sources, how they are mixed, and the order."""

    seed: int | None = Field(
        default=None, strict=True, description="any integer; a different seed gives a different order"
    )
    samples: Count | None = Field(None, description="length of the plan in samples")
    epochs: Epochs | None = Field(
        default=None, description="passes over the data, may be fractional (2.5); not for a blend of several sources"
    )
    global_batch: Count | None = Field(None, description="samples per step over all ranks, for stages in steps")
    shuffle: ShuffleField = Field(
        default=ShuffleModel(kind="block"),
        description="shuffle of each source of a blend; of a single source or a concatenation as a whole",
    )
    order: OrderField | None = Field(
        default=None, description="the order of another tool: nanoset, blendable, modalities or megatron"
    )
    source: Annotated[Member, BeforeValidator(short("path"), json_schema_input_type=Member | str)] | None = Field(
        default=None, description="a single source"
    )
    blend: _Blend | None = Field(None, description="sources blended by weight")
    blend_epochized: _Epochized | None = Field(
        default=None, description="sources blended so that an epoch holds each 'repetitions' times"
    )
    concat: _Concat | None = Field(None, description="sources one after another")
    rollouts: RolloutsModel | None = Field(
        None, description="groups of answers, in place of sources: see docs/order.md"
    )
    stages: Stages | None = Field(None, description="stages of the blend, each with its own weights")
    unit: Unit = Field(
        default="samples",
        description="what the weights of the blend count: samples, tokens, loss_tokens, episodes or hours",
    )
    proxy: ProxyField | None = Field(
        None, description="a small run whose sources repeat as in the one it stands for: 1B/200B, for 1B of 200B tokens"
    )
    skip: list[Annotated[SkipModel, BeforeValidator(skip_short)]] | None = Field(
        default=None, description="positions, ranges and samples to skip: see docs/ledger.md"
    )

    mixed_tokenizers: StrictBool = Field(
        default=False, description="allow token data of different tokenizers, or of one tokenizer with several names"
    )
    decode: DecodeField | None = Field(
        default=None, description="how parts of samples are decoded: an image spec, or options; see docs/samples.md"
    )
    episodes: EpisodesModel | None = Field(
        None, description="how frames of robot episodes become samples, for all sources: see docs/formats/lerobot.md"
    )
    lengths: dict[str, LengthsModel] | None = Field(
        None, min_length=1, description="by name, how sources of text and media are counted: see docs/packing.md"
    )
    pack: PackModel | None = Field(None, description="yield rows of tokens instead of documents: see docs/packing.md")
    targets: TargetsModel | None = Field(None, description="inputs and targets of batches: see docs/targets.md")
    deal: Deal | None = Field(
        default=None, description="how positions of a global batch are dealt to ranks; default shuffled"
    )
    balance: Annotated[BalanceModel, BeforeValidator(short("by"), json_schema_input_type=BalanceModel | str)] | None = (
        Field(None, description="deal equal costs to all ranks: see docs/balancing.md")
    )
    batch: Annotated[dict[str, StrictInt | StrictFloat], AfterValidator(_check_budget)] | None = Field(
        None, description="a budget for each rank's batch, such as {tokens: 65536, max_samples: 64}"
    )
    homogeneous: (
        Annotated[HomogeneousModel, BeforeValidator(homogeneous_short, json_schema_input_type=HomogeneousModel | int)]
        | None
    ) = Field(None, description="yield batches from a single source of the blend: see docs/balancing.md")

    cache: (
        Annotated[CacheModel, BeforeValidator(short("size", int), json_schema_input_type=CacheModel | int | str)] | None
    ) = Field(None, description="cache of remote data on the local disk: see docs/storage.md")
    storage: Annotated[dict[str, StorageModel], AfterValidator(check_storage)] | None = Field(
        default=None, description="options of object stores by the beginning of URLs: see docs/storage.md"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> RecipeModel:
        one_of(self, "source", "blend", "blend_epochized", "concat", "rollouts")
        _check_mix(self)
        if self.rollouts is not None and (others := self.model_fields_set - {"rollouts", "seed"}):
            raise ValueError(f"'rollouts' has only a 'seed' beside it: remove {min(others)!r}")
        if self.samples is not None and self.epochs is not None:
            raise ValueError("give 'samples' or 'epochs', not both")
        if self.blend is not None and self.epochs is not None and not _is_one(self):
            raise ValueError(
                "a blend has no 'epochs': its sources end at different times; use 'samples', or 'blend_epochized' with"
                " 'repetitions'"
            )
        if self.source is not None and self.source.weight is not None:
            raise ValueError("a single source has no 'weight'")
        if self.source is not None and self.source.epochs is not None:
            raise ValueError("write 'epochs' at the top of the recipe, not on its single source")
        if self.source is not None and self.source.repetitions is not None:
            raise ValueError("a single source has no 'repetitions'; write 'epochs' at the top of the recipe")
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> RecipeModel:
        known = self.lengths or {}
        named = set(_lengths_named(self))
        if unknown := sorted(named - known.keys()):
            hint = did_you_mean(unknown[0], list(known)) or ": declare it under 'lengths' at the top of the recipe"
            raise ValueError(f"a source names the lengths {unknown[0]!r}, which the recipe does not declare{hint}")
        if unused := sorted(known.keys() - named):
            raise ValueError(f"no source names the lengths {unused[0]!r}: add 'lengths: {unused[0]}' to a source")
        return self

    @model_validator(mode="after")
    def _homogeneous_fits(self) -> RecipeModel:
        if self.homogeneous is None:
            return self
        if self.blend is None:
            raise ValueError("'homogeneous' needs a 'blend', whose sources alternate in whole batches")
        if self.batch is not None:
            raise ValueError("'homogeneous' and 'batch' cannot be combined: batches by budget hold several sources")
        if self.pack is not None:
            raise ValueError("'homogeneous' and 'pack' cannot be combined: a row holds documents of several sources")
        if self.order is not None:
            raise ValueError("'homogeneous' and 'order' cannot be combined")
        if self.homogeneous.by == "source":
            return self
        if self.epochs is not None:
            raise ValueError("'homogeneous' by a field and 'epochs' cannot be combined: remove one of them")
        if self.stages is not None:
            raise ValueError("'homogeneous' by a field and 'stages' cannot be combined: remove one of them")
        if any(member.path is None and member.join is None for member in self.blend):
            raise ValueError("'homogeneous' by a field needs datasets as sources ('path' or 'join')")
        for name in ("curriculum", "groups"):
            if any(getattr(member, name) is not None for member in self.blend):
                raise ValueError(f"'homogeneous' by a field and {name!r} cannot be combined: use 'by: source'")
        return self

    @model_validator(mode="after")
    def _order_fits(self) -> RecipeModel:
        if self.order is None:
            return self
        if any(member.cells is not None for member in self.blend or ()):
            raise ValueError("'order' and a blend of 'cells' cannot be combined")
        if self.seed is None:
            raise ValueError("'order' needs the 'seed' of the run that it continues")
        if self.order.kind != "megatron" and (self.order.kind != "modalities") != (self.blend is not None):
            mixed = "nanoset" if self.order.kind == "modalities" else self.order.kind
            raise ValueError(f"the order {mixed!r} needs a 'blend', 'modalities' a 'source' or 'concat'")
        if self.order.kind == "blendable" and self.samples is None:
            raise ValueError("the order 'blendable' needs 'samples': the number of samples of the run")
        if self.blend_epochized is not None or self.stages is not None or self.unit != "samples":
            raise ValueError("'order' cannot be combined with 'blend_epochized', 'stages' or 'unit'")
        if self.proxy is not None:
            raise ValueError("'order' cannot be combined with 'proxy': another tool decides what its order draws")
        members = self.blend or self.concat or ([self.source] if self.source else [])
        names = ("shuffle", "curriculum", "groups", "epochs", "max_repeats")
        own = [name for member in members for name in names if getattr(member, name)]
        if own or "shuffle" in self.model_fields_set:
            raise ValueError(
                f"'order' replaces 'shuffle', and 'curriculum', 'groups', 'epochs' and 'max_repeats' of sources: remove"
                f" {own[0] if own else 'shuffle'!r}"
            )
        if self.order.kind == "megatron":
            self._megatron_fits(members)
        return self

    def _megatron_fits(self, members: list[Member]) -> None:
        if self.concat is not None:
            raise ValueError("the order 'megatron' needs a 'source' or a 'blend'")
        if any(member.path is None or member.windows or member.subset or member.where for member in members):
            raise ValueError(
                "the sources of the order 'megatron' are token files ('path'), without 'windows', 'subset' and 'where':"
                " they are cut by the order's 'seq_len' and 'split'"
            )
        if self.epochs is not None:
            raise ValueError("the order 'megatron' has no 'epochs': give the 'samples' of the run, or neither")
        if self.samples is None and any(member.weight is not None for member in members):
            raise ValueError("weights of the order 'megatron' need the 'samples' of the run")


def _check_order(member: Member) -> None:
    """Raise `ValueError` for an order of a source that has no samples in stored order, or has two orders."""
    if member.groups is not None and member.zip is not None:
        raise ValueError("the samples of a 'zip' are groups of one of each source: remove 'groups'")
    sorted_samples = (member.path, member.join, member.concat, member.cells, member.zip)
    for name in ("curriculum", "groups"):
        if getattr(member, name) is not None and all(each is None for each in sorted_samples):
            raise ValueError(
                f"{name!r} needs a dataset ('path', 'join', 'cells') or a 'concat': move it to the datasets"
            )
    if member.groups is not None and member.cells is not None:
        raise ValueError("'groups' stay whole, and cells divide them: remove 'groups', or use 'where' in their place")
    if member.curriculum is not None and member.shuffle is not None:
        raise ValueError("'curriculum' replaces 'shuffle': remove one of them; its 'window' says how much is shuffled")
    grouped = member.groups is not None or member.zip is not None
    if grouped and member.shuffle is not None and member.shuffle.kind == "shards":
        raise ValueError("'groups' are shuffled as units: use 'shuffle' block, global or none")


def _lengths_named(mix: Member | RecipeModel) -> Iterator[str]:
    """Yield the names of the lengths of all sources below."""
    if isinstance(mix, Member) and mix.lengths is not None:
        yield mix.lengths
    inner = [mix.source] if isinstance(mix, RecipeModel) and mix.source is not None else []
    inner += [mix.cells.of] if isinstance(mix, Member) and mix.cells is not None else []
    zipped = (mix.zip or ()) if isinstance(mix, Member) else ()
    for member in (*inner, *(mix.blend or ()), *(mix.blend_epochized or ()), *(mix.concat or ()), *zipped):
        yield from _lengths_named(member)


def _check_mix(mix: Member | RecipeModel) -> None:
    """Raise `ValueError` unless weights are given either for the sources or in the stages, and only for a blend."""
    if mix.blend is None and (mix.stages is not None or mix.unit != "samples"):
        raise ValueError(f"'{'stages' if mix.stages else 'unit'}' needs a 'blend', and there is none")
    if mix.blend is None or mix.stages is None:
        return
    if any(member.weight is not None for member in mix.blend):
        raise ValueError("give each source a 'weight', or the blend 'stages' with weights, not both")
    if any(member.cells is not None and member.cells.weights is not None for member in mix.blend):
        raise ValueError("give the cells 'weights', or the blend 'stages' with weights, not both")
    for number, stage in enumerate(mix.stages):
        given = [name for name in ("samples", "tokens", "steps") if getattr(stage, name) is not None]
        if len(given) > 1:
            raise ValueError(f"stage {number + 1} has a length in {' and '.join(given)}: give one of them")
        if not given and number < len(mix.stages) - 1:
            raise ValueError(f"stage {number + 1} has no length: only the last stage may be open-ended")
        if stage.ramp is not None and (not given or not number):
            missing = "no length" if number else "no stage before it, from whose weights it could begin"
            raise ValueError(f"stage {number + 1} is a ramp and has {missing}")


_MODELS: dict[str, type[BaseModel]] = {
    "shuffle": ShuffleModel,
    "curriculum": CurriculumModel,
    "groups": GroupsModel,
    "order": OrderModel,
    "pack": PackModel,
    "stages": StageModel,
    "windows": WindowsModel,
    "tokenize": TokenizeModel,
    "decode": DecodeModel,
    "skip": SkipModel,
    "proxy": ProxyModel,
    "balance": BalanceModel,
    "targets": TargetsModel,
    "mask": MarkersModel,
    "fim": FimModel,
    "cache": CacheModel,
    "rollouts": RolloutsModel,
    "priority": PriorityModel,
    "episodes": EpisodesModel,
    "cells": CellsModel,
    "by": CellColumn,
}
"""Models of the mappings that are not sources, by key."""

_FOR_RECIPES = {
    **dict.fromkeys(("datasets", "sources", "mixture", "mix", "blends", "dataset_mixer", "data_sources"), "blend"),
    **dict.fromkeys(("dataset", "path", "train", "train_data"), "source"),
    **dict.fromkeys(("num_samples", "max_samples", "total_samples", "train_samples", "size", "length"), "samples"),
    **dict.fromkeys(("num_epochs", "num_train_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("packing", "sequence_length", "seq_length", "seq_len", "max_seq_length"), "pack"),
    **dict.fromkeys(("batch_size", "micro_batch_size"), "batch"),
    **dict.fromkeys(("schedule", "phases", "data_stages"), "stages"),
    **dict.fromkeys(("concatenate", "interleave"), "concat"),
    "random_seed": "seed",
}
_FOR_SOURCES = {
    **dict.fromkeys(
        ("proportion", "ratio", "probability", "prob", "share", "fraction", "percent", "weights"), "weight"
    ),
    **dict.fromkeys(("file", "files", "url", "data_files", "data_path", "dataset", "dataset_path", "folder"), "path"),
    **dict.fromkeys(("repeat", "repeats", "times"), "epochs"),
    **dict.fromkeys(("sort", "sort_by", "order_by", "difficulty"), "curriculum"),
    **dict.fromkeys(("limit", "max_samples", "num_samples", "range", "slice"), "subset"),
    **dict.fromkeys(("datasets", "sources"), "blend"),
}
"""Keys of other tools, and which key here has their meaning."""


def problems(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Return each problem of a recipe: the place of the value and a message."""
    messages = []
    for item in error.errors(include_url=False):
        place = tuple(step for step in item["loc"] if step not in TAGS)
        messages.append((place, _in_words(place, item["type"], item["msg"], item["input"])))
    return messages


def _in_words(place: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(place[:-1])
        key = str(place[-1])
        here = _FOR_SOURCES if "path" in known else _FOR_RECIPES
        ours = here.get(key.lower())
        meant = f" (did you mean {ours!r}?)" if ours in known else did_you_mean(key, known)
        hint = _elsewhere(place, key) or meant or f"; known keys: {', '.join(known)}"
        return f"unknown key {key!r}{hint}"
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    text = message.removeprefix("Value error, ")
    if kind == "value_error":
        return f"{dotted}: {text}" if dotted else text
    if kind == "model_type":
        text = "expected a mapping, such as {path: my-data/}" if _is_member(place) else "expected a mapping"
    shown = repr(value)
    return f"{dotted or 'the recipe'}: {text[:1].lower()}{text[1:]}, found {shown[:60]}"


def _elsewhere(place: tuple[int | str, ...], key: str) -> str:
    """Return where a key belongs that is valid at another place of a recipe, or nothing."""
    if len(place) > 1:
        return ": it belongs at the top of the recipe" if key in RecipeModel.model_fields else ""
    owners = [owner for owner, model in _MODELS.items() if key in model.model_fields]
    return f": it belongs in {owners[0]!r}" if len(owners) == 1 else ""


def _keys_at(place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are valid for a mapping at this place."""
    if not place:
        return list(RecipeModel.model_fields)
    if place[-2:-1] == ("join",):
        return list(JoinPart.model_fields)
    if "episodes" in place:  # by feature
        for key, model in (("poses", PoseModel), ("relative", RelativeModel), ("language", LanguageModel)):
            if key in place:
                return list(model.model_fields)
    if place[-2:-1] == ("where",):
        return [field.alias or name for name, field in WhereModel.model_fields.items()]
    if place[0] == "lengths":  # by name
        return list(LengthsModel.model_fields)
    if place[0] == "storage":  # by URL
        return list(StorageModel.model_fields)
    return [field.alias or name for name, field in _MODELS.get(_owner(place), Member).model_fields.items()]


def _is_member(place: tuple[int | str, ...]) -> bool:
    return bool(place) and place[-2:-1] != ("join",) and _owner(place) not in _MODELS


def _owner(place: tuple[int | str, ...]) -> str:
    """Return the key of a mapping, or of the list that contains it."""
    return str(place[-2] if isinstance(place[-1], int) and len(place) > 1 else place[-1])
