"""Pydantic models of recipe fields: numbers, shuffles, stages, orders, joins, packing, skip lists, stores, the cache.

Imported only when a recipe is read, because importing pydantic is slow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from sys import float_info
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    Tag,
    model_validator,
)

from feedmill.errors import ConfigError, did_you_mean
from feedmill.jobs.amounts import parse_count
from feedmill.planning.mixing.blend import exact_weight
from feedmill.planning.nodes.curriculum import DEFAULT_WINDOW as DEFAULT_CURRICULUM
from feedmill.planning.nodes.shuffle import DEFAULT_PARALLEL, DEFAULT_WINDOW
from feedmill.planning.packing.options import Last, Long, Method, Mismatch, Refused
from feedmill.samples.tokenized import TokenizeOptions
from feedmill.storage import join_url
from feedmill.storage.remote.options import is_secret

_PERCENT = re.compile(r"\d{1,3}(\.\d{1,12})?%")


def _as_number(value: Any) -> Any:
    """Return the number of a text such as 10k or 1e9, as options of the command line take them."""
    number = parse_count(value) if isinstance(value, str) else None
    return value if number is None else number


_Whole = Annotated[int, Field(ge=1, lt=2**63, strict=True)]
Count = Annotated[
    _Whole,
    BeforeValidator(_as_number, json_schema_input_type=_Whole | Annotated[str, Field(pattern=r"^[0-9]")]),
]
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
    raise ValueError("a bound of a subset must be a sample number from 0, 'end', or a percentage such as \"50%\"")


def short(key: str, *kinds: type) -> Callable[[Any], Any]:
    """Return a validator that expands a plain string, or a value of these kinds, to a mapping with this one key."""
    return lambda value: {key: value} if isinstance(value, str) or type(value) in kinds else value


Weight = Annotated[float | int | str, BeforeValidator(_known_weight)]
Epochs = Annotated[float | int | str, BeforeValidator(_known_epochs)]
Bound = Annotated[int | str, BeforeValidator(_known_bound)]


Range = tuple[Bound, Bound]
TAGS = (
    "<range>",
    "<ranges>",
    "<list>",
    "<names>",
    "<file>",
    "<column>",
    "<number>",
    "<mapping>",
)  # never shown: they restrict messages to the matching form
Ranges = Annotated[
    Annotated[Range, Tag("<range>")] | Annotated[tuple[Range, ...], Tag("<ranges>")],
    Discriminator(lambda value: "<ranges>" if value and all_pairs(value) else "<range>"),
]


def all_pairs(value: Any) -> bool:
    """Return whether a subset is a list of ranges rather than a single range."""
    return isinstance(value, list | tuple) and all(isinstance(item, list | tuple) for item in value)


class Strict(BaseModel):
    """Model that rejects unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ShuffleModel(Strict):
    """How samples are shuffled within each epoch."""

    kind: Literal["none", "global", "block", "shards"] = Field(
        description="none, global, block, or shards: see docs/order.md"
    )
    block: Count | None = Field(
        default=None,
        description="consecutive samples that stay together; by default 256, of tokens 256 to 4,096 (2M tokens)",
    )
    window: Count = Field(default=DEFAULT_WINDOW, description="blocks that are shuffled together")
    parallel: Count = Field(default=DEFAULT_PARALLEL, description="shards that are read side by side")
    sequence: Count | None = Field(
        default=None, description="shards are cut into pieces of about this many samples; by default they are whole"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> ShuffleModel:
        for kind, names in (("block", {"block", "window"}), ("shards", {"parallel", "sequence"})):
            if self.kind != kind and self.model_fields_set & names:
                listed = " and ".join(f"{name!r}" for name in sorted(names))
                raise ValueError(f"{listed} need 'kind: {kind}', the kind here is {self.kind}")
        return self


ShuffleField = Annotated[
    ShuffleModel,
    BeforeValidator(short("kind"), json_schema_input_type=ShuffleModel | Literal["none", "global", "block", "shards"]),
]


Repeats = Annotated[
    Annotated[Count, Tag("<number>")] | Annotated[dict[str, Count], Field(min_length=1), Tag("<mapping>")],
    Discriminator(lambda value: "<mapping>" if isinstance(value, dict) else "<number>"),
]


_ByName = Annotated[dict[str, Weight], Field(min_length=1)]
Weights = Annotated[
    Annotated[_ByName, Tag("<mapping>")] | Annotated[str, Field(min_length=1), Tag("<file>")],
    Discriminator(lambda value: "<file>" if isinstance(value, str) else "<mapping>"),
]
"""Weights by name, or path or URL of a CSV file with them."""


class StageModel(Strict):
    """One stage of a blend: its weights and its length."""

    weights: Weights = Field(
        description="weight of each source by name, or a CSV file with them; a source that is omitted, or has weight 0,"
        " pauses",
    )
    samples: Count | None = Field(None, description="its length in samples of the blend")
    tokens: Count | None = Field(None, description="its length in tokens, converted to samples by their mean length")
    steps: Count | None = Field(None, description="its length in steps of 'global_batch' samples")
    ramp: Literal["linear", "cosine"] | None = Field(
        None, description="go from the weights of the stage before to these over its length, instead of at once"
    )
    seq_len: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] | None = Field(
        None, description="with 'pack': tokens in a row of this stage, instead of those of 'pack'"
    )
    max_repeats: Repeats | None = Field(
        None, description="maximum number of passes in this stage: over every source, or by name; more is an error"
    )


class CurriculumModel(Strict):
    """Order of a source by a column."""

    by: str = Field(min_length=1, description="tokens, bytes, pixels, frames, or a numeric field of the index")
    from_: Literal["easy", "hard"] = Field(
        "easy", alias="from", description="easy: begin with the lowest values; hard: with the highest"
    )
    window: Count = Field(
        DEFAULT_CURRICULUM,
        description="each sample is fewer places than this from its place in the order, differently in each epoch",
    )


class GroupsModel(Strict):
    """Samples of a source that come one after another."""

    size: Count | None = Field(None, description="samples of each group")
    by: str | None = Field(None, min_length=1, description="instead: a field of numbers or texts, equal within a group")
    within: Literal["stored", "shuffled"] = Field(
        "stored", description="order of a group's samples; shuffled: a new one in each epoch"
    )

    @model_validator(mode="after")
    def _size_or_column(self) -> GroupsModel:
        one_of(self, "size", "by")
        return self


def _short_groups(value: Any) -> Any:
    """A number, or its text, is a size; another text is a column."""
    number = _as_number(value)
    if type(number) is int:
        return {"size": number}
    return {"by": value} if isinstance(value, str) else value


GroupsField = Annotated[GroupsModel, BeforeValidator(_short_groups, json_schema_input_type=GroupsModel | int | str)]
CurriculumField = Annotated[CurriculumModel, BeforeValidator(short("by"), json_schema_input_type=CurriculumModel | str)]

Unit = Literal["samples", "tokens", "loss_tokens", "episodes", "hours"]
Stages = Annotated[list[StageModel], Field(min_length=1)]


def one_of(model: BaseModel, *names: str) -> None:
    """Raise `ValueError` unless the model has exactly one of these keys."""
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        listed = ", ".join(f"'{name}'" for name in names[:-1]) + f" or '{names[-1]}'"
        raise ValueError(f"give exactly one of {listed} (found: {', '.join(given) or 'none'})")


class ProxyModel(Strict):
    """A small run, whose sources repeat as often as in the run that it stands for."""

    tokens: Count | None = Field(None, description="its length in tokens")
    samples: Count | None = Field(None, description="its length in samples, instead of tokens")
    of: Count | None = Field(
        None, description="length of the run that it stands for, in the same unit; default: where the recipe ends"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> ProxyModel:
        one_of(self, "tokens", "samples")
        if self.of is not None and self.of < self.amount:
            raise ValueError(
                f"a proxy of {self.amount:,} {self.unit} is larger than the run of {self.of:,} that it stands for"
            )
        return self

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        """What it is measured in."""
        return "samples" if self.tokens is None else "tokens"

    @property
    def amount(self) -> int:
        """Its length."""
        return self.tokens or self.samples or 0


def _proxy_short(value: Any) -> Any:
    """Expand tokens, or tokens of others as in 1B/200B, to the mapping they abbreviate."""
    if type(value) is int:
        return {"tokens": value}
    if not isinstance(value, str):
        return value
    amount, slash, of = value.partition("/")
    return {"tokens": amount.strip(), **({"of": of.strip()} if slash else {})}


ProxyField = Annotated[
    ProxyModel,
    BeforeValidator(_proxy_short, json_schema_input_type=ProxyModel | int | Annotated[str, Field(pattern=r"^[0-9]")]),
]


class DecodeModel(Strict):
    """How the parts of samples are decoded; see `feedmill.samples.Decoder`."""

    image: str = Field(default="rgb8", description="image spec, such as rgb8 or torchrgb: see docs/samples.md")
    av: str = Field(default="AVDecoder", description="audio and video: AVDecoder, numpy, torch, pyav or bytes")
    video_decode_audio: StrictBool = Field(default=False, description="numpy, torch: decode a video's audio too")
    guess_content: StrictBool = Field(default=False, description="detect media by content instead of by name")
    orientation: Literal["apply", "stored"] = Field(
        default="apply", description="apply: turn images and frames upright; stored: as they are stored"
    )
    undecoded: StrictBool = Field(default=False, description="keep all parts as bytes")

    @model_validator(mode="after")
    def _known(self) -> DecodeModel:
        if self.undecoded and self.model_fields_set != {"undecoded"}:
            raise ValueError("'undecoded' cannot be combined with other options")
        try:
            self.decoder(trust=False)
        except ConfigError as error:
            raise ValueError(f"{error.what}. {error.fix}") from None
        return self

    def decoder(self, *, trust: bool) -> Any:
        """Return the `feedmill.samples.Decoder`, or None for undecoded bytes."""
        from feedmill.samples.decode import decoder_of

        return decoder_of("bytes" if self.undecoded else self.model_dump(exclude={"undecoded"}), trust=trust)


def _decode_short(value: Any) -> Any:
    """Expand an image spec, or 'bytes', to the mapping it abbreviates."""
    if value == "bytes":
        return {"undecoded": True}
    return {"image": value} if isinstance(value, str) else value


DecodeField = Annotated[DecodeModel, BeforeValidator(_decode_short, json_schema_input_type=DecodeModel | str)]


class JoinPart(Strict):
    """One dataset of a join."""

    path: str = Field(min_length=1, description="dataset: path relative to the recipe's folder, or URL")
    split: str | None = Field(None, description="as for a source")
    dataset_config: str | None = Field(None, description="name of the dataset's description file")
    split_config: str | None = Field(None, description="name of the dataset's split file")
    subflavors: dict[str, Any] | None = Field(None, description="data attached to its samples")
    decode: DecodeField | None = Field(None, description="how its parts are decoded; overrides the recipe's 'decode'")
    nonmatch: Literal["error", "skip", "none"] = Field(
        default="error", description="if it lacks a key of the first dataset: fail, skip the row, or use None"
    )


_Part = Annotated[JoinPart, BeforeValidator(short("path"), json_schema_input_type=JoinPart | str)]
Parts = Annotated[
    Annotated[list[_Part], Tag("<list>"), Field(min_length=2)]
    | Annotated[dict[str, _Part], Tag("<names>"), Field(min_length=2)],
    Discriminator(lambda value: "<names>" if isinstance(value, dict) else "<list>"),
]


def _listed_windows(value: Any) -> Any:
    for name, window in value.items() if isinstance(value, dict) else ():
        if not isinstance(window, list | tuple):
            raise ValueError(
                f"{name}: {window!r} is not a window: expected a list, the first and the last frame, such as [0, 15],"
                " or seconds, [-0.2, -0.1, 0.0]"
            )
    return value


Frames = Annotated[
    dict[str, list[StrictInt] | list[StrictInt | StrictFloat]],
    Field(min_length=1),
    BeforeValidator(_listed_windows, json_schema_input_type=dict[str, list[float]]),
]


class WindowsModel(Strict):
    """How token data is opened as windows instead of whole documents, or robot episodes with frames around each."""

    frames: Frames | None = Field(
        None,
        description="robot episodes: by column or camera, the first and the last frame, or offsets in seconds",
    )
    steps: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="MCAP recordings, beside frames: the topic whose messages are the steps"
    )
    seq_len: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] | None = Field(
        None, description="tokens in a sample"
    )
    block_size: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] | None = Field(
        None, description="instead of seq_len: tokens in a block, each of which begins with a document"
    )
    reuse_last_target: StrictBool | None = Field(
        None, description="as Modalities: samples of seq_len + 1 tokens that share one token with the next"
    )
    positions: StrictBool | None = Field(None, description="also return each token's position in its document")
    boundaries: StrictBool | None = Field(None, description="also return where documents begin")
    eos: Position | None = Field(None, description="id of the end-of-document token, for positions without an index")
    files: Annotated[str, Field(pattern=r"^(sorted|flat|nanotron(:\d{1,10})?)$")] | None = Field(
        None, description="order of a folder's .ds files: sorted, flat (no subfolders), nanotron or nanotron:SEED"
    )
    token_size: Literal[1, 2, 4, 8] | None = Field(
        default=None, description=".ds without metadata, and flat files without a header: bytes per token"
    )

    @model_validator(mode="after")
    def _one_length(self) -> WindowsModel:
        one_of(self, "seq_len", "block_size", "frames")
        if self.frames is None and self.steps is not None:
            raise ValueError("steps is given beside frames: {steps: /topic, frames: {...}}")
        if self.frames is not None and (others := sorted(self.model_fields_set - {"frames", "steps"})):
            raise ValueError(f"windows of frames take no {', '.join(others)}")
        return self

    def options(self) -> dict[str, Any]:
        """Return the options for `feedmill.open`."""
        given = self.model_dump(exclude_none=True)
        steps = {} if self.steps is None else {"steps": self.steps}
        return {"windows": given["frames"], **steps} if self.frames is not None else given


def _short_windows(value: Any) -> Any:
    """A number is a length in tokens; a mapping with lists has windows of frames by column."""
    if type(value) is int:
        return {"seq_len": value}
    others = isinstance(value, dict) and any(name not in WindowsModel.model_fields for name in value)
    lists = others and (
        any(isinstance(one, list) for one in value.values())
        or not any(did_you_mean(str(name), list(WindowsModel.model_fields)) for name in value)
    )
    return {"frames": value} if lists else value


WindowsField = Annotated[
    WindowsModel,
    BeforeValidator(_short_windows, json_schema_input_type=WindowsModel | int | dict[str, list[float]]),
]


class TokenizeModel(Strict):
    """How text is tokenized when it is read."""

    tokenizer: str = Field(min_length=1, description="path of a tokenizer, or its name in the Hugging Face cache")
    text: str = Field("text", min_length=1, description="part or column with the text, or its path in the JSON")
    eos: str | Literal[False] | None = Field(
        "auto", description="token after each document; auto: that of the tokenizer; none, null or false: no token"
    )
    bos: str | Literal[False] | None = Field(None, description="token before each document, as eos")
    rule: Literal["missing", "always"] = Field("missing", description="always: add them even if they are there")
    template: StrictBool = Field(True, description="apply the tokenizer's own template")
    template_source: Literal["auto", "flags", "file", "transformers4", "transformers5"] = Field(
        "auto", description="what decides the template and the added tokens, as in 'tokenize'"
    )
    specials_as_text: StrictBool = Field(False, description="special tokens in a text are plain text")
    pattern: str | None = Field(None, description="how a tiktoken file splits texts: a name, or a regular expression")
    on_error: Literal["raise", "skip"] = Field("raise", description="skip: a sample without text has no tokens")

    def options(self, base: str) -> TokenizeOptions:
        """Return the options for `feedmill.open`; a path is relative to `base`, if it exists there."""
        near = join_url(base, self.tokenizer)
        there = "://" not in near and os.path.exists(near)
        return TokenizeOptions(**{**self.model_dump(), "tokenizer": near if there else self.tokenizer})


class LengthsModel(Strict):
    """How the tokens of samples of text and media are counted: the options of ``feedmill tokens lengths``."""

    processor: str = Field(min_length=1, description="folder of the checkpoint: its processor and its tokenizer.json")
    messages: str | None = Field(None, min_length=1, description="part with the conversation, as JSON; default json")
    text: str | None = Field(None, min_length=1, description="part with a plain text, instead of a conversation")
    chat_template: str | None = Field(
        None, min_length=1, description="file of the chat template; default: that of the processor's folder"
    )
    chat_template_args: dict[str, Any] | None = Field(None, description="variables of the chat template")
    processor_args: dict[str, Any] | None = Field(None, description="parameters with which the processor is called")
    media: list[str] | None = Field(None, min_length=1, description="parts whose media the model gets; default: all")
    measure: StrictBool | None = Field(None, description="run the processor itself: slow, for those without a rule")

    def options(self, base: str) -> dict[str, Any]:
        """Return the arguments of `Dataset.lengths_by`; paths are relative to `base`, a template if it exists there."""
        given = self.model_dump(exclude_none=True)
        given["processor"] = join_url(base, self.processor)
        if self.chat_template is not None and os.path.exists(join_url(base, self.chat_template)):
            given["chat_template"] = join_url(base, self.chat_template)
        return given


class PoseModel(Strict):
    """Where a rotation, and the position of the same body, lie in a feature."""

    rotation: Position = Field(description="first dimension of the rotation, which becomes six numbers")
    form: Literal["euler", "quaternion", "axis_angle", "6d"] = Field(
        description="euler: roll, pitch, yaw in radians; quaternion: x, y, z, w; axis_angle: axis times angle"
    )
    position: Position | None = Field(None, description="first dimension of the position x, y, z")


class RelativeModel(Strict):
    """What a feature is seen from."""

    to: str = Field(min_length=1, description="feature of the same dimensions, at the sample's own frame")
    keep: list[Position] = Field(default=[], description="dimensions that stay absolute, such as a gripper's")


class LanguageModel(Strict):
    """Which text of the language columns a part is."""

    style: str = Field(min_length=1, description="subtask, plan, memory, vqa, ...")
    role: str | None = Field(None, description="only texts of this role")
    camera: str | None = Field(None, description="only texts about this camera")


def _by_style(value: Any) -> Any:
    return {style: {"style": style} for style in value} if isinstance(value, list) else value


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, dict | PoseModel) else value


_Value = StrictBool | StrictInt | StrictFloat | str


class WhereModel(Strict):
    """A condition on a column."""

    min: StrictInt | StrictFloat | None = Field(None, description="at least this number")
    max: StrictInt | StrictFloat | None = Field(None, description="at most this number")
    not_: list[_Value] | _Value | None = Field(None, alias="not", description="none of these values")

    @model_validator(mode="after")
    def _something(self) -> WhereModel:
        if not self.model_fields_set:
            raise ValueError("give a value, a list of values, or a mapping of min, max and not")
        return self


Where = Annotated[
    Annotated[WhereModel, Tag("<mapping>")]
    | Annotated[list[_Value], Tag("<list>")]
    | Annotated[_Value, Tag("<number>")],
    Discriminator(
        lambda value: (
            "<mapping>" if isinstance(value, dict | WhereModel) else "<list>" if isinstance(value, list) else "<number>"
        )
    ),
]
Rate = Annotated[float, Field(gt=0, le=1_000_000, strict=True)]
Size = Annotated[int, Field(ge=1, le=1 << 16, strict=True)]
Sizes = Annotated[
    Annotated[Size, Tag("<number>")] | Annotated[tuple[Size, Size], Tag("<list>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list | tuple) else "<number>"),
]
Poses = Annotated[
    list[PoseModel],
    Field(min_length=1),
    BeforeValidator(_one_or_more, json_schema_input_type=PoseModel | list[PoseModel]),
]


class CellColumn(Strict):
    """A column whose values make cells, by ranges of numbers, or with a value for documents without one."""

    column: str = Field(min_length=1, description="name of the column")
    edges: list[StrictInt | StrictFloat] | None = Field(
        None, min_length=1, description="ascending bounds between ranges; a value on a bound is in the higher range"
    )
    quantiles: Annotated[int, Field(ge=2, le=1000, strict=True)] | None = Field(
        None, description="number of ranges with equally many documents"
    )
    missing: _Value | None = Field(None, description="value of documents without one; by default, they are in no cell")

    @model_validator(mode="after")
    def _fits_together(self) -> CellColumn:
        if self.missing is None or (self.edges is not None and self.quantiles is not None):
            one_of(self, "edges", "quantiles")
        if self.edges is not None and not all(abs(edge) <= float_info.max for edge in self.edges):
            raise ValueError(f"the edges {self.edges} are not finite")
        if self.edges is not None and any(not a < b for a, b in pairwise(self.edges)):
            raise ValueError(f"the edges {self.edges} do not ascend")
        return self

    def plain(self) -> dict[str, Any]:
        """Return the column as a rule of cells has it."""
        return self.model_dump(exclude_none=True)


By = Annotated[
    Annotated[str, Field(min_length=1), Tag("<column>")] | Annotated[CellColumn, Tag("<mapping>")],
    Discriminator(lambda value: "<column>" if isinstance(value, str) else "<mapping>"),
]


def check_by(by: list[str | CellColumn]) -> list[str | CellColumn]:
    """Return the columns of cells. Raises `ValueError` if one is named twice."""
    names = [each if isinstance(each, str) else each.column for each in by]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the column {twice!r} is named twice")
    return by


def cells_short(value: Any) -> Any:
    """Expand a blend of cells, ``{cells: {of, by}, weights, ...}``, to the list with this one source."""
    if not isinstance(value, dict):
        return value
    if "cells" not in value:
        raise ValueError("a blend is a list of sources, or a mapping with 'cells'")
    rest = {key: given for key, given in value.items() if key != "weights"}
    if "weights" in value and isinstance(rest["cells"], dict):
        rest["cells"] = {**rest["cells"], "weights": value["weights"]}
    return [rest]


class EpisodesModel(Strict):
    """How frames of robot episodes become samples of a common shape."""

    fps: Rate | None = Field(None, description="steps a second of windows; default: the rate of each source")
    rate: Rate | None = Field(None, description="steps a second of the data, if they do not say it")
    interpolate: Literal["nearest", "linear"] = Field(
        "nearest", description="steps between frames: the nearest frame, or for columns of floats on a line"
    )
    windows: Frames | None = Field(
        None, description="by column or camera, the first and the last step, or offsets in seconds"
    )
    rename: dict[str, str] | None = Field(None, description="stored name: name; all other keys use the new names")
    parts: list[str] | None = Field(None, min_length=1, description="parts of samples; the others are not read")
    where: dict[str, Where] | None = Field(
        None, description="frames to keep: column: value, list of values, or {min, max, not}"
    )
    poses: dict[str, Poses] | None = Field(None, description="rotations in a feature, which become six numbers")
    relative: (
        dict[str, Annotated[RelativeModel, BeforeValidator(short("to"), json_schema_input_type=RelativeModel | str)]]
        | None
    ) = Field(None, description="feature: the feature that it is seen from, or {to, keep}")
    language: (
        Annotated[
            dict[str, LanguageModel],
            BeforeValidator(_by_style, json_schema_input_type=dict[str, LanguageModel] | list[str]),
        ]
        | None
    ) = Field(None, description="texts of the language columns at the frame: a list of styles, or part: {style, role}")
    sizes: dict[str, Sizes] | None = Field(
        None, description="feature: dimensions, camera: [height, width]; shorter ones are padded, missing ones too"
    )
    normalize: dict[str, Literal["mean_std", "min_max", "quantile", "quantile10"]] | None = Field(
        None, description="feature: method"
    )
    statistics: str = Field(
        "mixture",
        min_length=1,
        description="of normalize: mixture, source (each alone), dataset (meta/stats.json of each), or a stats.json",
    )


def _plain_tokenizer(value: Any) -> Any:
    return {"tokenizer": value} if isinstance(value, str) else value


TokenizeField = Annotated[TokenizeModel, BeforeValidator(_plain_tokenizer, json_schema_input_type=TokenizeModel | str)]


class BalanceModel(Strict):
    """The cost that is balanced over ranks."""

    by: str = Field(min_length=1, description="tokens, attention, pixels, frames, bytes, or a numeric field")
    linear: float = Field(default=0.0, ge=0, description="with attention: cost per token, added to the squares")
    media: float = Field(
        default=0.0, ge=0, description="with attention, of rows of samples: cost per patch of the vision tower"
    )
    media_squares: float = Field(
        default=0.0, ge=0, description="with attention, of rows of samples: cost per squared patches of a picture"
    )
    within: Literal["batch"] = Field("batch", description="samples are exchanged inside one global batch")


class HomogeneousModel(Strict):
    """Batches of one source, or of one value of a field."""

    samples: Count = Field(description="samples of one kind at a time: a multiple of the batch size per rank")
    by: str = Field("source", min_length=1, description="what the samples of a batch share: source, or a numeric field")


def homogeneous_short(value: Any) -> Any:
    """Expand a number of samples to the mapping it abbreviates."""
    return {"samples": value} if type(value) is int else value


TokenId = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Probability = Annotated[StrictInt | StrictFloat, Field(ge=0, le=1)]


class MarkersModel(Strict):
    """Markers between which tokens contribute to the loss."""

    begin: TokenId = Field(description="id of the marker before an answer")
    end: TokenId = Field(description="id of the marker after an answer")
    scope: Literal["document", "row"] = Field(default="document", description="row: Modalities' rule, each row alone")


class FimModel(Strict):
    """Fill in the middle: documents that are rearranged at random."""

    prefix: TokenId = Field(description="id of the sentinel before the prefix")
    middle: TokenId = Field(description="id of the sentinel before the middle")
    suffix: TokenId = Field(description="id of the sentinel before the suffix")
    rate: Probability = Field(default=0.5, description="probability that a document is rearranged")
    spm: Probability = Field(default=0.5, description="probability of the order suffix, prefix, middle")
    bos: TokenId | None = Field(default=None, description="id that stays the first token of a document")
    eos: TokenId | None = Field(default=None, description="id that stays the last token of a document")


class TargetsModel(Strict):
    """How a loader makes inputs and targets of rows of tokens."""

    inputs: str = Field(default="inputs", min_length=1, description="name of the inputs in a batch")
    targets: str = Field(default="targets", min_length=1, description="name of the targets in a batch")
    ignore_index: Annotated[int, Field(strict=True)] = Field(default=-100, description="value of ignored targets")
    across_documents: StrictBool | None = Field(
        default=None, description="whether the first token of a document is a target of the previous one"
    )
    document_ids: StrictBool = Field(default=False, description="add the number of each input's document in its row")
    max_seqlen: StrictBool = Field(default=False, description="add the length of the longest document of the batch")
    mask: MarkersModel | None = Field(default=None, description="markers between which targets count")
    fim: FimModel | None = Field(default=None, description="fill in the middle")


_Places = Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)]


class PackModel(Strict):
    """How documents are packed into rows of tokens."""

    seq_len: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] = Field(description="tokens in a row")
    method: Method = Field(
        default="best_fit", description="pack whole documents into rows, or cut windows from concatenated documents"
    )
    overlap: StrictBool | None = Field(
        None, description="concat: windows hold one more token, the first of the next window"
    )
    last: Last | None = Field(None, description="concat: handling of an incomplete window")
    long: Long | None = Field(None, description="best_fit: handling of documents longer than seq_len")
    buffer: Annotated[int, Field(ge=1, lt=2**31 - 1, strict=True)] | None = Field(
        None, description="best_fit: documents that are packed together, across passes; default: one pass of a source"
    )
    pad: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = Field(default=0, description="id of the padding token")
    rows: Count | None = Field(None, description="length of the plan in rows")
    multiple: _Places | None = Field(None, description="samples with lengths: each takes a multiple of N slots")
    media: _Places | None = Field(None, description="samples with lengths: at most N media in a row")
    patches: _Places | None = Field(
        None, description="samples with lengths: at most N patches of the vision tower in a row"
    )
    headroom: Annotated[int, Field(ge=0, lt=2**31 - 1, strict=True)] | None = Field(
        None, description="samples with lengths: tokens of a row that stay free"
    )
    values: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, description="numeric columns, such as rewards, that rows have for each token"
    )
    refused: Refused | None = Field(
        None, description="samples without a length: error (the default), or drop, which counts them"
    )
    mismatch: Mismatch | None = Field(
        None,
        description="samples that turn out longer than their row has room for, or that the processor refuses: error"
        " (the default), or drop, which makes their place padding and counts them",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> PackModel:
        of_samples = ("multiple", "media", "patches", "headroom", "refused", "mismatch")
        other = ("long", "buffer", *of_samples) if self.method == "concat" else ("overlap", "last")
        for name in other:
            if getattr(self, name) is not None:
                meant = "best_fit" if self.method == "concat" else "concat"
                raise ValueError(f"'{name}' needs 'method: {meant}', the method here is {self.method}")
        return self


_ALLOWED = {
    "nanoset": (),
    "blendable": (),
    "modalities": ("ranks", "shuffle", "epoch", "drop_last", "skip", "batch_size"),
    "megatron": (
        "seq_len",
        "split",
        "part",
        "extra_token",
        "drop_last_partial",
        "pad",
        "surplus",
        "cache",
        "positions",
        "boundaries",
    ),
}
"""The options of each order."""


class OrderModel(Strict):
    """The order of another tool instead of Feedmill's own, with the recipe's seed as that tool's seed."""

    kind: Literal["nanoset", "blendable", "modalities", "megatron"] = Field(
        description="see docs/internals/compatible_orders.md"
    )
    ranks: Count | None = Field(None, description="modalities: num_replicas")
    shuffle: bool = Field(False, strict=True, description="modalities: as in its sampler")
    epoch: int = Field(0, strict=True, description="modalities: the sampler's first epoch")
    drop_last: bool = Field(True, strict=True, description="modalities: drop the incomplete end instead of padding it")
    skip: int = Field(0, ge=0, strict=True, description="modalities: skip_num_global_samples")
    batch_size: Count | None = Field(None, description="modalities: samples per rank and step, to match ranks too")
    seq_len: Annotated[int, Field(ge=2, lt=2**31 - 1, strict=True)] | None = Field(
        default=None, description="megatron: --seq-length"
    )
    split: str | None = Field(
        default=None, description="megatron: --split, such as 969,30,1; omit it for data files of one split"
    )
    part: Literal["train", "valid", "test"] = Field("train", description="megatron: the split to read")
    extra_token: StrictBool = Field(True, description="megatron: add_extra_token_to_sequence")
    drop_last_partial: StrictBool = Field(
        default=True, description="megatron: drop_last_partial_validation_sequence, for the part 'valid'"
    )
    pad: Position = Field(default=0, description="megatron: id of the padding of an incomplete sample")
    surplus: Annotated[StrictFloat | StrictInt, Field(ge=0, le=100)] = Field(
        default=0.005, description="megatron: mid_level_dataset_surplus"
    )
    cache: str | None = Field(
        default=None, min_length=1, description="megatron: --data-cache-path, whose indices are read if they are there"
    )
    positions: StrictBool = Field(False, description="megatron: also return each token's position in its document")
    boundaries: StrictBool = Field(False, description="megatron: also return the bounds of documents in a sample")

    @model_validator(mode="after")
    def _fits_together(self) -> OrderModel:
        wrong = sorted(self.model_fields_set - {"kind", *_ALLOWED[self.kind]})
        if wrong and not _ALLOWED[self.kind]:
            raise ValueError(f"the order {self.kind!r} has no options other than the recipe's 'seed' and weights")
        if wrong:
            raise ValueError(
                f"the order {self.kind!r} has no option {wrong[0]!r}: its options are {', '.join(_ALLOWED[self.kind])}"
            )
        if self.kind == "modalities" and self.ranks is None:
            raise ValueError("the order 'modalities' needs 'ranks': give the number of ranks of the run")
        if self.kind == "megatron" and self.seq_len is None:
            raise ValueError("the order 'megatron' needs 'seq_len': give the run's --seq-length")
        return self


OrderField = Annotated[
    OrderModel, BeforeValidator(short("kind"), json_schema_input_type=OrderModel | Literal["nanoset", "blendable"])
]


def skip_short(value: Any) -> Any:
    """Expand a position or a range to the mapping it abbreviates."""
    if isinstance(value, dict | SkipModel):
        return value
    bounds = value if isinstance(value, list | tuple) else [value, value + 1] if type(value) is int else []
    if len(bounds) == 2 and all(type(bound) is int and bound >= 0 for bound in bounds):
        return {"positions": tuple(bounds)}
    raise ValueError(
        "skip takes positions from 0, ranges [first, end), and mappings with 'source' and 'keys', or 'quarantine'"
    )


def _key_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SkipModel(Strict):
    """One entry of a skip list: a range of positions, or samples of one source."""

    positions: tuple[Position, Position] | None = Field(
        default=None, description="[first, end) in the stream without a skip list; a single number, or the list alone"
    )
    source: str | None = Field(default=None, min_length=1, description="name of the samples' source")
    keys: list[Annotated[str, BeforeValidator(_key_text, json_schema_input_type=str | int)]] | None = Field(
        default=None, min_length=1, description="keys of samples"
    )
    indices: list[Position] | None = Field(default=None, min_length=1, description="numbers of samples in the source")
    quarantine: str | None = Field(default=None, min_length=1, description="file to which a loader wrote bad samples")
    since: Position | None = Field(
        default=None, description="keep the samples before this position (counted without a skip list)"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> SkipModel:
        if sum(given is not None for given in (self.positions, self.source, self.quarantine)) != 1:
            raise ValueError(
                "give a position, a range [first, end), a 'source' with 'keys' or 'indices', or a 'quarantine' file"
            )
        if self.positions is not None and self.positions[0] >= self.positions[1]:
            raise ValueError(f"the range [{self.positions[0]}, {self.positions[1]}) is empty; give [first, end)")
        if (self.source is None) != (self.keys is None and self.indices is None):
            raise ValueError("'keys' and 'indices' need a 'source', and a 'source' needs one of them")
        if self.positions is not None and self.since is not None:
            raise ValueError("'since' applies to samples only: remove it, or shorten the range of positions")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Return the JSON schema, which also allows a bare position or range."""
        number = {"type": "integer", "minimum": 0}
        both = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        return {"anyOf": [number, both, handler(core)]}

    def __str__(self) -> str:
        if self.positions is not None:
            first, stop = self.positions
            return str(first) if stop == first + 1 else f"[{first}, {stop})"
        words = [*sorted(set(self.keys or ())), *(f"#{index}" for index in sorted(set(self.indices or ())))]
        return f"{self.source}: {' '.join(words)}" + (f" since {self.since}" if self.since else "")


class CacheModel(Strict):
    """The cache of remote data on the local disk."""

    size: StrictInt | str | None = Field(
        default=None, description="bytes, or a size such as 200GB; 0 for none; default $FEEDMILL_CACHE_SIZE"
    )
    dir: str | None = Field(None, min_length=1, description="folder; default 'data' in $FEEDMILL_CACHE_DIR")
    unit: Literal["auto", "block", "shard"] | None = Field(
        default=None, description="fetch the bytes that are needed (block), whole shards, or what is better (auto)"
    )


Seconds = Annotated[StrictInt | StrictFloat, Field(gt=0, le=86_400)]


class PriorityModel(Strict):
    """The weights by which groups of rollouts are drawn."""

    by: str = Field(min_length=1, description="a column of numbers, such as reward or advantage")
    of: Literal["mean", "spread"] = Field("mean", description="its mean over a group, or its standard deviation")
    power: StrictInt | StrictFloat = Field(1, gt=0, le=100, description="exponent: 2 draws high values more often")


class RolloutsModel(Strict):
    """Groups of answers that samplers append while a trainer draws from them."""

    path: str = Field(min_length=1, description="their folder or URL")
    groups: Count = Field(description="groups of a step over all ranks; a group is never divided between steps")
    run: str = Field(
        "main", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$", description="name of the run, which draws on its own"
    )
    steps: str | None = Field(None, min_length=1, description="folder for the records of steps; default 'path'")
    max_age: Position | None = Field(None, description="versions by which the policy may be newer than a group")
    reuse: Count = Field(1, description="how often a group may be drawn")
    priority: (
        Annotated[PriorityModel, BeforeValidator(short("by"), json_schema_input_type=PriorityModel | str)] | None
    ) = Field(None, description="draw by weight; the oldest groups come first without it")
    wait: Seconds = Field(600, description="seconds to wait for enough groups")


class StorageModel(Strict):
    """Options of an object store. Keys and tokens must be set in the environment or in a profile."""

    endpoint: str | None = Field(None, pattern="^https?://[^@]+$", description="address of the server")
    region: str | None = Field(None, min_length=1, description="region of the bucket")
    profile: str | None = Field(None, min_length=1, description="profile in ~/.aws with keys, a role or single sign-on")
    skip_signature: StrictBool | None = Field(None, description="read without keys: public buckets")
    virtual_hosted_style_request: StrictBool | None = Field(None, description="bucket in the host name, not the path")
    request_payer: StrictBool | None = Field(None, description="requests are paid by the requester")
    account_name: str | None = Field(None, min_length=1, description="account of Azure Blob Storage")
    revision: str | None = Field(None, min_length=1, description="branch, tag or commit on the Hugging Face Hub")
    connect_timeout: Seconds | None = Field(None, description="seconds to connect")
    read_timeout: Seconds | None = Field(None, description="seconds without data after which a request fails")
    timeout: Seconds | None = Field(None, description="seconds for a whole request")
    retry_timeout: Seconds | None = Field(None, description="seconds during which a failed request is retried")

    @model_validator(mode="before")
    @classmethod
    def _without_secrets(cls, options: Any) -> Any:
        for name in options if isinstance(options, dict) else ():
            if name not in cls.model_fields and is_secret(str(name)):
                raise ValueError(
                    f"{name!r} is a secret, which a recipe must not contain: set it in the environment or in a profile"
                )
        return options


_TIMES = {"connect_timeout", "read_timeout", "timeout", "retry_timeout"}
_S3 = {"endpoint", "region", "profile", "skip_signature", "virtual_hosted_style_request", "request_payer", *_TIMES}
_OPTIONS = {
    "s3": _S3,
    "s3a": _S3,
    "gs": {"endpoint", "skip_signature", *_TIMES},
    "az": {"endpoint", "account_name", "skip_signature", *_TIMES},
    "http": _TIMES,
    "https": _TIMES,
    "hf": {"endpoint", "revision", "retry_timeout"},
    "msc": _TIMES,  # the profile says the rest
}
"""The options of each scheme."""


def check_storage(storage: dict[str, StorageModel]) -> dict[str, StorageModel]:
    """Return options of stores by URL. Raises `ValueError` for a URL or an option that its scheme does not have."""
    for url, options in storage.items():
        scheme = urlsplit(url).scheme
        if scheme not in _OPTIONS or ("@" in url and scheme != "hf"):
            raise ValueError(
                f"{url!r} is not the URL of a bucket or of a folder in one: expected a URL such as s3://bucket, with"
                f" one of the schemes {', '.join(_OPTIONS)}"
            )
        unknown = sorted(options.model_fields_set - _OPTIONS[scheme])
        if unknown:
            raise ValueError(
                f"{url!r}: {scheme}:// has no option {unknown[0]!r}, only {', '.join(sorted(_OPTIONS[scheme]))}"
            )
    return storage
