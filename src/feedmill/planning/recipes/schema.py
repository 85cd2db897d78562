"""What a recipe may say: the pydantic models of Feedmill's own YAML, and their errors in words.

Imported only when a recipe is read, since pydantic takes a while to load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import exact_weight, normalise
from feedmill.planning.nodes.shuffle import DEFAULT_BLOCK, DEFAULT_WINDOW

_PERCENT = re.compile(r"\d{1,3}(\.\d{1,12})?%")

Count = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Position = Annotated[int, Field(ge=0, lt=2**63, strict=True)]


def _known_weight(value: Any) -> Any:
    try:
        exact_weight(value)
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from None
    return value


def _known_epochs(value: Any) -> Any:
    try:
        exact = exact_weight(value)
    except ConfigError:
        exact = Fraction(0)
    if not 0 < exact < 2**63:
        raise ValueError(f"{str(value)[:60]!r} is not a number of epochs: give one above 0, such as 3, 2.5 or 1/3")
    return value


def _known_bound(value: Any) -> Any:
    if isinstance(value, str) and (value == "end" or (_PERCENT.fullmatch(value) and Fraction(value[:-1]) <= 100)):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError("a bound of a subset is a sample number from 0, 'end', or a percentage such as \"50%\"")


def _short(key: str) -> Callable[[Any], Any]:
    """A plain word in place of a mapping stands for that mapping's main key."""
    return lambda value: {key: value} if isinstance(value, str) else value


Weight = Annotated[float | int | str, BeforeValidator(_known_weight)]
Epochs = Annotated[float | int | str, BeforeValidator(_known_epochs)]
Bound = Annotated[int | str, BeforeValidator(_known_bound)]


Range = tuple[Bound, Bound]
_TAGS = ("<range>", "<ranges>", "<list>", "<names>")  # never shown: they only keep messages to the form that was meant
Ranges = Annotated[
    Annotated[Range, Tag("<range>")] | Annotated[tuple[Range, ...], Tag("<ranges>")],
    Discriminator(lambda value: "<ranges>" if value and _all_pairs(value) else "<range>"),
]


def _all_pairs(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, list | tuple) for item in value)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShuffleModel(_Strict):
    """How samples are shuffled within each epoch."""

    kind: Literal["none", "global", "block"] = Field(description="none, global, or block: see docs/order.md")
    block: Count = Field(default=DEFAULT_BLOCK, description="neighbouring samples that stay together")
    window: Count = Field(default=DEFAULT_WINDOW, description="blocks that are mixed with each other")


ShuffleField = Annotated[ShuffleModel, BeforeValidator(_short("kind"))]


class StageModel(_Strict):
    """One stage of a blend: its weights, and how long they hold."""

    weights: dict[str, Weight] = Field(
        min_length=1, description="share of each source by name; a source left out, or with 0, pauses"
    )
    samples: Count | None = Field(None, description="its length in samples of the blend")
    tokens: Count | None = Field(None, description="its length in tokens, converted to samples by their mean length")
    steps: Count | None = Field(None, description="its length in steps of 'global_batch' samples")


Unit = Literal["samples", "tokens"]
Stages = Annotated[list[StageModel], Field(min_length=1)]


class OrderModel(_Strict):
    """The order of another tool instead of Feedmill's own, with the recipe's seed as that tool's."""

    kind: Literal["nanoset", "modalities"] = Field(description="see docs/compatible_orders.md")
    ranks: Count | None = Field(None, description="modalities: num_replicas")
    shuffle: bool = Field(False, strict=True, description="modalities: as in its sampler")
    epoch: int = Field(0, strict=True, description="modalities: the sampler's first epoch")
    drop_last: bool = Field(True, strict=True, description="modalities: cut the end, or fill it up")
    skip: int = Field(0, ge=0, strict=True, description="modalities: skip_num_global_samples")
    batch_size: Count | None = Field(None, description="modalities: samples per rank and step, to keep ranks apart too")

    @model_validator(mode="after")
    def _fits_together(self) -> OrderModel:
        if self.kind == "modalities" and self.ranks is None:
            raise ValueError("the order of Modalities depends on 'ranks': give the run's number of them")
        if self.kind == "nanoset" and len(self.model_fields_set) > 1:
            raise ValueError("a nanoset has no options but the recipe's 'seed', and weights")
        return self


OrderField = Annotated[OrderModel, BeforeValidator(_short("kind"))]


def _one_of(model: BaseModel, *names: str) -> None:
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        listed = ", ".join(f"'{name}'" for name in names[:-1]) + f" or '{names[-1]}'"
        raise ValueError(f"give exactly one of {listed} (found: {', '.join(given) or 'none'})")


class JoinPart(_Strict):
    """One data set of a join."""

    path: str = Field(min_length=1, description="data set: path as seen from the recipe's folder, or URL")
    split: str | None = Field(None, description="as for a source")
    dataset_config: str | None = Field(None, description="name of the data set's description file")
    split_config: str | None = Field(None, description="name of the data set's split file")
    subflavors: dict[str, Any] | None = Field(None, description="data attached to its samples")
    nonmatch: Literal["error", "skip", "none"] = Field(
        default="error", description="where it lacks a key of the first: refuse, leave the row out, or leave a gap"
    )


_Part = Annotated[JoinPart, BeforeValidator(_short("path"))]
Parts = Annotated[
    Annotated[list[_Part], Tag("<list>"), Field(min_length=2)]
    | Annotated[dict[str, _Part], Tag("<names>"), Field(min_length=2)],
    Discriminator(lambda value: "<names>" if isinstance(value, dict) else "<list>"),
]


class Member(_Strict):
    """One source of a recipe: a data set, another recipe, or a blend, concatenation or join written in place."""

    path: str | None = Field(
        default=None, min_length=1, description="data set: path as seen from the recipe's folder, or URL"
    )
    recipe: str | None = Field(
        default=None, min_length=1, description="another recipe: path as seen from this one, or URL"
    )
    blend: list[Member] | None = Field(None, min_length=1, description="sources mixed by weight")
    blend_epochized: list[Member] | None = Field(
        default=None, min_length=1, description="sources mixed so that an epoch holds each 'repetitions' times"
    )
    concat: list[Member] | None = Field(None, min_length=1, description="sources one after another")
    join: Parts | None = Field(
        default=None, description="prepared data sets side by side, matched by key: a list, or names for them"
    )
    joiner: dict[str, str] | None = Field(
        default=None,
        description="what makes one sample of a row: {__module__, __class__} or {__module__, __function__}",
    )
    prepared: str | None = Field(None, description="folder of prepared join rows; RECIPE.cache where absent")
    stages: Stages | None = Field(None, description="weights of its blend that change")
    unit: Unit = Field(default="samples", description="what the weights of its blend count: samples or tokens")
    name: str | None = Field(
        default=None, min_length=1, pattern="^[^/]+$", description="what to call it; unique in its list"
    )
    weight: Weight | None = Field(None, description="share in the blend, relative to the sum: 0.7, 30% or 1/3")
    split: str | None = Field(
        None, description="split of the data set; 'train' where it has one and none is named, '*' for all"
    )
    dataset_config: str | None = Field(None, description="name of the data set's description file")
    split_config: str | None = Field(None, description="name of the data set's split file")
    subset: Ranges | None = Field(
        default=None,
        description='range of its samples: [0, 1000] or ["50%", end]; several: each of what the one before leaves',
    )
    subflavors: dict[str, Any] | None = Field(None, description="data attached to every sample")
    aux: dict[str, str] | None = Field(None, description="data that its samples refer to, by name: paths or URLs")
    shuffle: ShuffleField | None = Field(None, description="instead of the recipe's own")
    repetitions: Epochs | None = Field(
        default=None, description="in 'blend_epochized': how often it is given per epoch, 1 where absent"
    )
    epochs: Epochs | None = Field(None, description="give it this many times, 2.5 as well, then end")
    max_repeats: Count | None = Field(None, description="refuse any plan that repeats it more often")

    @model_validator(mode="after")
    def _fits_together(self) -> Member:
        _one_of(self, "path", "recipe", "blend", "blend_epochized", "concat", "join")
        _check_mix(self)
        if self.path is None:
            for name in _OF_A_PATH if self.join is None else _OF_A_PATH[:4]:
                if getattr(self, name) is not None:
                    raise ValueError(f"'{name}' belongs to a data set ('path'); write it where the data set stands")
        if self.join is None and (self.joiner is not None or self.prepared is not None):
            raise ValueError("'joiner' and 'prepared' belong to a 'join'")
        if self.join is not None:
            first = next(iter(self.join.values() if isinstance(self.join, dict) else self.join))
            if first.nonmatch != "error":
                raise ValueError("the first data set of a join has no 'nonmatch': the rows are made of its samples")
        if self.blend is not None and self.epochs is not None:
            raise ValueError("a blend has no 'epochs': its sources end at different times; use 'max_repeats' on them")
        return self

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges of `subset`, outermost last."""
        if self.subset is None:
            return ()
        return self.subset if _all_pairs(self.subset) else (self.subset,)  # type: ignore[return-value]

    @field_validator("blend")
    @classmethod
    def _weights_fit(cls, members: list[Member] | None) -> list[Member] | None:
        return _check_blend(members)

    @field_validator("blend_epochized")
    @classmethod
    def _repetitions_fit(cls, members: list[Member] | None) -> list[Member] | None:
        return _check_epochized(members)

    @field_validator("concat")
    @classmethod
    def _row_fits(cls, members: list[Member] | None) -> list[Member] | None:
        return _check_concat(members)


_OF_A_PATH = ("split", "dataset_config", "split_config", "aux", "subset", "subflavors")


def _skip_short(value: Any) -> Any:
    """A position or a range in place of the mapping."""
    if isinstance(value, dict | SkipModel):
        return value
    bounds = value if isinstance(value, list | tuple) else [value, value + 1] if type(value) is int else []
    if len(bounds) == 2 and all(type(bound) is int and bound >= 0 for bound in bounds):
        return {"positions": tuple(bounds)}
    raise ValueError("skip takes positions from 0, ranges [first, end), and mappings with 'source' and 'keys'")


def _key_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SkipModel(_Strict):
    """One entry of a skip list: a range of positions, or samples of one source."""

    positions: tuple[Position, Position] | None = Field(
        default=None, description="[first, end) in the stream without a skip list; a single number, or the list alone"
    )
    source: str | None = Field(default=None, min_length=1, description="name of the source that the samples are of")
    keys: list[Annotated[str, BeforeValidator(_key_text)]] | None = Field(
        default=None, min_length=1, description="keys of samples"
    )
    indices: list[Position] | None = Field(default=None, min_length=1, description="numbers of samples in the source")
    since: Position | None = Field(
        default=None, description="leave the samples where they come before this position (without a skip list)"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> SkipModel:
        if (self.positions is None) == (self.source is None):
            raise ValueError("give a position, a range [first, end), or a 'source' with 'keys' or 'indices'")
        if self.positions is not None and self.positions[0] >= self.positions[1]:
            raise ValueError(f"the range [{self.positions[0]}, {self.positions[1]}) is empty; give [first, end)")
        if (self.source is None) != (self.keys is None and self.indices is None):
            raise ValueError("'keys' or 'indices' belong to a 'source', and a 'source' needs one of them")
        if self.source is None and self.since is not None:
            raise ValueError("'since' belongs to a 'source': positions say themselves where they are")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Positions and ranges may stand without the mapping."""
        number = {"type": "integer", "minimum": 0}
        both = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        return {"anyOf": [number, both, handler(core)]}

    def __str__(self) -> str:
        if self.positions is not None:
            first, stop = self.positions
            return str(first) if stop == first + 1 else f"[{first}, {stop})"
        words = [*sorted(set(self.keys or ())), *(f"#{index}" for index in sorted(set(self.indices or ())))]
        return f"{self.source}: {' '.join(words)}" + (f" since {self.since}" if self.since else "")


class PackModel(_Strict):
    """How documents become rows of tokens."""

    seq_len: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] = Field(description="tokens in a row")
    method: Literal["best_fit", "concat"] = Field(
        default="best_fit", description="whole documents packed into rows, or windows over all laid end to end"
    )
    overlap: StrictBool | None = Field(
        None, description="concat: windows hold one token more, the first of the next window"
    )
    last: Literal["drop", "keep", "pad"] | None = Field(None, description="concat: the end that fills no window")
    long: Literal["split", "truncate", "drop"] | None = Field(
        None, description="best_fit: documents longer than seq_len"
    )
    buffer: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] | None = Field(
        None, description="best_fit: documents that are packed together"
    )
    pad: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = Field(default=0, description="token that fills rows up")
    rows: Count | None = Field(None, description="where the plan ends")

    @model_validator(mode="after")
    def _fits_together(self) -> PackModel:
        other = ("long", "buffer") if self.method == "concat" else ("overlap", "last")
        for name in other:
            if getattr(self, name) is not None:
                meant = "best_fit" if self.method == "concat" else "concat"
                raise ValueError(f"'{name}' belongs to 'method: {meant}', the method here is {self.method}")
        return self


class RecipeModel(_Strict):
    """A recipe: what is mixed, and how."""

    seed: int | None = Field(
        default=None, strict=True, description="any whole number; another seed gives another order"
    )
    samples: Count | None = Field(None, description="where the plan ends")
    epochs: Epochs | None = Field(None, description="passes over the data, 2.5 as well; not for a blend")
    global_batch: Count | None = Field(None, description="samples per step over all ranks, for stages in steps")
    shuffle: ShuffleField = Field(
        default=ShuffleModel(kind="block"),
        description="of each source of a blend; of a single source or a row as a whole",
    )
    order: OrderField | None = Field(None, description="the order of another tool: nanoset or modalities")
    source: Annotated[Member, BeforeValidator(_short("path"))] | None = Field(
        default=None, description="a single source"
    )
    blend: list[Member] | None = Field(None, min_length=1, description="sources mixed by weight")
    blend_epochized: list[Member] | None = Field(
        default=None, min_length=1, description="sources mixed so that an epoch holds each 'repetitions' times"
    )
    concat: list[Member] | None = Field(None, min_length=1, description="sources one after another")
    stages: Stages | None = Field(None, description="weights of the blend that change")
    unit: Unit = Field(default="samples", description="what the weights of the blend count: samples or tokens")
    skip: list[Annotated[SkipModel, BeforeValidator(_skip_short)]] | None = Field(
        default=None, description="positions, ranges and samples to leave out: see docs/ledger.md"
    )

    pack: PackModel | None = Field(None, description="give rows of tokens instead of documents: see docs/packing.md")

    @model_validator(mode="after")
    def _fits_together(self) -> RecipeModel:
        _one_of(self, "source", "blend", "blend_epochized", "concat")
        _check_mix(self)
        if self.samples is not None and self.epochs is not None:
            raise ValueError("give 'samples' or 'epochs', not both")
        if self.blend is not None and self.epochs is not None:
            raise ValueError("a blend has no 'epochs': its sources end at different times; use 'samples'")
        if self.source is not None and self.source.weight is not None:
            raise ValueError("a single source has no 'weight'")
        if self.source is not None and self.source.epochs is not None:
            raise ValueError("write 'epochs' at the top of the recipe, not on its single source")
        if self.source is not None and self.source.repetitions is not None:
            raise ValueError("a single source has no 'repetitions'; write 'epochs' at the top of the recipe")
        return self

    @model_validator(mode="after")
    def _order_fits(self) -> RecipeModel:
        if self.order is None:
            return self
        if self.seed is None:
            raise ValueError("'order' needs the 'seed' of the run that it continues")
        if (self.order.kind == "nanoset") != (self.blend is not None):
            raise ValueError("the order 'nanoset' belongs to a 'blend', 'modalities' to a 'source' or 'concat'")
        if self.blend_epochized is not None or self.stages is not None or self.unit != "samples":
            raise ValueError("an 'order' of another tool knows no 'blend_epochized', 'stages' or 'unit'")
        members = self.blend or self.concat or ([self.source] if self.source else [])
        own = [member for member in members if (member.shuffle or member.epochs or member.max_repeats)]
        if own or "shuffle" in self.model_fields_set:
            raise ValueError("an 'order' says it all: leave out 'shuffle', and 'epochs' and 'max_repeats' of sources")
        return self

    @field_validator("blend")
    @classmethod
    def _weights_fit(cls, members: list[Member] | None) -> list[Member] | None:
        return _check_blend(members)

    @field_validator("blend_epochized")
    @classmethod
    def _repetitions_fit(cls, members: list[Member] | None) -> list[Member] | None:
        return _check_epochized(members)

    @field_validator("concat")
    @classmethod
    def _row_fits(cls, members: list[Member] | None) -> list[Member] | None:
        return _check_concat(members)


def _check_mix(mix: Member | RecipeModel) -> None:
    """Weights stand in one place: beside the sources, or in the stages of their blend."""
    if mix.blend is None and (mix.stages is not None or mix.unit != "samples"):
        raise ValueError(f"'{'stages' if mix.stages else 'unit'}' belongs to a 'blend', and there is none")
    if mix.blend is None or mix.stages is None:
        return
    if any(member.weight is not None for member in mix.blend):
        raise ValueError("give each source a 'weight', or the blend 'stages' with weights, not both")
    for number, stage in enumerate(mix.stages):
        given = [name for name in ("samples", "tokens", "steps") if getattr(stage, name) is not None]
        if len(given) > 1:
            raise ValueError(f"stage {number + 1} has a length in {' and '.join(given)}: give one of them")
        if not given and number < len(mix.stages) - 1:
            raise ValueError(f"stage {number + 1} has no length: only the last stage may go on without end")


def _check_epochized(members: list[Member] | None) -> list[Member] | None:
    if members is None:
        return None
    _check_names(members)
    for name in ("weight", "epochs"):
        if any(getattr(member, name) is not None for member in members):
            raise ValueError(f"a source of an epochized blend has 'repetitions', no '{name}'")
    return members


def _no_repetitions(members: list[Member]) -> None:
    if any(member.repetitions is not None for member in members):
        raise ValueError("'repetitions' belong to a 'blend_epochized'; use 'epochs' here")


def _check_blend(members: list[Member] | None) -> list[Member] | None:
    if members is None:
        return None
    _check_names(members)
    _no_repetitions(members)
    weights = [member.weight for member in members]
    missing = weights.count(None)
    if 0 < missing < len(weights):
        raise ValueError(f"{missing} of {len(weights)} sources have no 'weight': give all of them one, or none")
    try:
        normalise([1 if weight is None else weight for weight in weights])
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from None
    return members


def _check_concat(members: list[Member] | None) -> list[Member] | None:
    if members is None:
        return None
    _check_names(members)
    _no_repetitions(members)
    if any(member.weight is not None for member in members):
        raise ValueError("a concatenation has no weights: use 'blend', or leave 'weight' out")
    return members


def _check_names(members: list[Member]) -> None:
    twice = [name for name, times in Counter(member.name for member in members).items() if name and times > 1]
    if twice:
        raise ValueError(f"the name {twice[0]!r} is given twice: names are unique in their list")


def problems(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Each problem of a recipe: the place of the value, and what is wrong with it."""
    found = []
    for item in error.errors(include_url=False):
        place = tuple(step for step in item["loc"] if step not in _TAGS)
        found.append((place, _in_words(place, item["type"], item["msg"], item["input"])))
    return found


def _in_words(place: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    if kind == "extra_forbidden":
        known = _keys_at(place[:-1])
        near = get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key {str(place[-1])!r}; {hint}"
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    text = message.removeprefix("Value error, ")
    if kind == "value_error":
        return f"{dotted}: {text}" if dotted else text
    shown = repr(value)
    return f"{dotted or 'the recipe'}: {text[:1].lower()}{text[1:]}, found {shown[:60]}"


def _keys_at(place: tuple[int | str, ...]) -> list[str]:
    """The keys that a mapping at this place may have."""
    if not place:
        return list(RecipeModel.model_fields)
    if place[-2:-1] == ("join",):
        return list(JoinPart.model_fields)
    if place[0] == "skip":
        return list(SkipModel.model_fields)
    models: dict[str, type[BaseModel]] = {
        "shuffle": ShuffleModel,
        "order": OrderModel,
        "pack": PackModel,
        "stages": StageModel,
    }
    owner = place[-2] if isinstance(place[-1], int) and len(place) > 1 else place[-1]
    return list(models.get(str(owner), Member).model_fields)
