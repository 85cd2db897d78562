"""What token rules share: sizes of media in columns, parameters of a processor's files, and counts by sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Kind = Literal["image", "video", "audio"]

UNKNOWN = -1
"""A size that is not known, and the tokens of a medium or sample that a processor refuses."""

Count = Callable[[str], int]
"""Return the number of tokens of a text, without those that the tokenizer adds around every text."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of media of one kind, as the processor gets them: turned upright. A column of another kind is empty.

    Attributes:
        height, width: int64[n], pixels, of images and videos.
        frames: int64[n], frames of the stored video.
        fps: float64[n], frames per second of the stored video; NaN if unknown.
        samples: int64[n], samples of a clip at the rate of the processor.
        together: int64[n], media of this kind in the sample of each; filled by `TokenRule.tokens`, as `number`.
        number: int64[n], which of them each is, from 0.
    """

    height: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    width: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    frames: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    fps: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    samples: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    together: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    number: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, **columns: npt.ArrayLike) -> Sizes:
        """Return sizes of arrays or lists."""
        made: dict[str, Any] = {
            name: np.asarray(column, np.float64 if name == "fps" else np.int64) for name, column in columns.items()
        }
        return cls(**made)

    def __len__(self) -> int:
        return max(len(self.height), len(self.samples))

    def replaced(self, where: Bools) -> Sizes:
        """Return the sizes with harmless ones at some places, so that counting these raises nothing."""
        harmless = {
            "height": 512,
            "width": 512,
            "frames": 16,
            "fps": 2.0,
            "samples": 160_000,
            "together": 1,
            "number": 0,
        }
        columns = {name: getattr(self, name) for name in self.__slots__}
        return Sizes(
            **{
                name: np.where(where, harmless[name], column) if name in harmless and len(column) else column
                for name, column in columns.items()
            }
        )


class Counted(NamedTuple):
    """Tokens of media by sample.

    Attributes:
        tokens: int32[samples], tokens of all media of a sample; `UNKNOWN` where one of them is refused.
        refused: reason -> int64[n], the numbers of the media that have no count.
    """

    tokens: npt.NDArray[np.int32]
    refused: dict[str, Int64s]


class Vision(NamedTuple):
    """What a vision tower works on.

    Attributes:
        patches: int64[n], patches.
        squares: int64[n], the sum of the squared patches of each picture that attends to itself: a tile, or a group of
            frames of a video.
    """

    patches: Int64s
    squares: Int64s


class TokenRule(ABC):
    """Rule of one kind of media of one family of processors.

    Attributes:
        kind: the kind of media.
        classes: the classes of image processors, video processors or feature extractors that the rule is for.
        version: grows when a count changes.
        tested: releases of transformers whose processors gave the same counts.
        always: parameters that the processor passes in each call: they override its files, and options override them
            (findings/transformers_defaults_override_files.sh).
        placeholder: what stands for a medium in the text.
        rate: samples a second of the sound that the processor takes; 0 for images and videos.
    """

    kind: ClassVar[Kind]
    classes: ClassVar[tuple[str, ...]]
    version: ClassVar[int] = 1
    tested: ClassVar[tuple[str, ...]] = ("5.24.0",)
    always: ClassVar[Mapping[str, Any]] = {}
    placeholder: str
    rate: int = 0

    @abstractmethod
    def __init__(self, folder: Folder) -> None:
        """Read the parameters. Raises `ConfigError` if one is invalid, or one that the rule does not know."""

    @property
    def identity(self) -> str:
        """Return all that determines counts: the rule, its version, and its parameters but those of `vision` alone."""
        values = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()) if name[0] != "_")
        return f"{type(self).__name__} {self.version}: {values}"

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the smallest text that the processor puts in place of a placeholder, by `form`."""
        return (self.placeholder,)

    def form(self, sizes: Sizes) -> Int64s:
        """Return which of `texts` each medium becomes, but for its size, int64[n]."""
        return np.zeros(len(sizes), np.int64)

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:  # noqa: ARG002 - most processors take all sizes
        """Return reason -> bool[n]: media for which the processor raises an error."""
        return {}

    @abstractmethod
    def count(self, sizes: Sizes) -> Int64s:
        """Return the tokens that each medium becomes, with the marks around it but without other text, int64[n].

        Args:
            sizes: known sizes, none of them refused.
        """

    def written(self, sizes: Sizes, text: Count) -> Int64s:  # noqa: ARG002 - most processors write no text
        """Return the tokens of the text that the processor writes for each medium, such as timestamps, int64[n]."""
        return np.zeros(len(sizes), np.int64)

    def vision(self, sizes: Sizes) -> Vision | None:  # noqa: ARG002 - not all processors know it
        """Return the patches of the vision tower for each medium; None if the files do not say them.

        Args:
            sizes: as for `count`, with `together`.
        """
        return None

    def tokens(self, sizes: Sizes, offsets: Int64s, text: Count = len) -> Counted:
        """Return the tokens of media by sample.

        Args:
            sizes: of `n` media, in order of their samples.
            offsets: int64[samples + 1], the media of sample `i` are ``offsets[i]`` to ``offsets[i + 1]``.
            text: counts tokens of the text that the processor writes, such as timestamps; by default, its characters.

        Raises:
            ConfigError: the offsets do not fit the sizes.
        """
        offsets = np.asarray(offsets, np.int64)
        each = np.diff(offsets)
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(sizes) or (each < 0).any():
            raise ConfigError(
                f"offsets of samples must ascend from 0 to the {len(sizes)} media: found {offsets.tolist()[:3]} to"
                f" {offsets.tolist()[-1:]}",
                kind="bad-option",
            )
        number = np.arange(len(sizes)) - np.repeat(offsets[:-1], each)
        sizes = replace(sizes, together=np.repeat(each, each), number=number)
        unknown = self._unknown(sizes)
        known = sizes.replaced(np.logical_or.reduce([*unknown.values()]))
        refused: dict[str, Int64s] = {}
        bad = np.zeros(len(sizes), bool)
        for reason, where in {**unknown, **self.refusals(known)}.items():
            numbers = np.flatnonzero(where & ~bad)
            if len(numbers):
                refused[reason] = numbers
                bad[numbers] = True
        known = sizes.replaced(bad)
        counts = self.count(known) + self.written(known, text)
        sums = np.concatenate([[0], np.cumsum(np.where(bad, 0, counts))])
        out = sums[offsets[1:]] - sums[offsets[:-1]]
        wrong = np.concatenate([[0], np.cumsum(bad)])
        out[wrong[offsets[1:]] > wrong[offsets[:-1]]] = UNKNOWN
        if len(out) and int(out.max()) > np.iinfo(np.int32).max:
            raise too_many(out)
        return Counted(out.astype(np.int32), refused)

    def _unknown(self, sizes: Sizes) -> dict[str, Bools]:
        if self.kind == "audio":
            return {"its number of samples is unknown": sizes.samples < 1}
        out = {"its width and height are unknown": (sizes.height < 1) | (sizes.width < 1)}
        if self.kind == "video":
            out["its number of frames is unknown"] = sizes.frames < 1
        return out


def in_pictures(pictures: npt.ArrayLike, each: npt.ArrayLike) -> Vision:
    """Return the vision of media that are some pictures of equally many patches, int64[n] both."""
    patches = np.asarray(pictures, np.int64) * np.asarray(each, np.int64)
    return Vision(patches, patches * np.asarray(each, np.int64))


def too_many(tokens: Int64s) -> ConfigError:
    """Return the error for a sample whose tokens do not fit into an int32."""
    return ConfigError(
        f"sample {int(tokens.argmax())} has {int(tokens.max()):,} tokens of media: expected at most 2,147,483,647",
        kind="bad-costs",
        fix="Check the sizes of its media in the index.",
    )


class Parameters:
    """Parameters of a processor from one of its files. A missing one has the default of its class in transformers.

    Args:
        values: content of the file, or of a part of it.
        where: the file, for messages.

    Attributes:
        defaults: parameters that were missing, with the values that are used; filled as parameters are read.
        read: the names of all that were read.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = dict(values), where
        self.defaults: dict[str, Any] = {}
        self.read: set[str] = set()

    @property
    def made_by(self) -> str | None:
        """Return the class that reads these parameters, without what says how it computes; None if it is not named."""
        for kind in ("image_processor", "video_processor", "feature_extractor"):
            named = self.values.get(f"{kind}_type")
            if isinstance(named, str):
                return named.removesuffix("Fast").removesuffix("Pil")
        return None

    def get(self, name: str, default: Any) -> Any:
        """Return a parameter as it is. Null counts as missing."""
        self.read.add(name)
        value = self.values.get(name)
        if value is None:
            self.defaults[name] = default
            return default
        return value

    def integer(self, name: str, default: int | None, low: int = 1) -> int:
        """Return a whole number of at least `low`. Raises `ConfigError` if it has no default and is missing."""
        return self._whole(self.get(name, default), name, low)

    def number(self, name: str, default: float | None) -> float:
        """Return a number above 0."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.wrong(name, "a number above 0", value)
        return value

    def maybe(self, name: str, read: Callable[[str, Any], Any], default: Any = None) -> Any:
        """Return a parameter as `read` (such as `integer`) returns it; None if it is missing and has no default."""
        if self.values.get(name) is None and default is None:
            self.read.add(name)
            return None
        return read(name, default)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None) -> str:
        value = self.get(name, default)
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text", value)
        return value

    def choice(self, name: str, default: str | None, known: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in known:
            raise self.wrong(name, " or ".join(known), value)
        return value

    def numbers(self, name: str, default: list[int], count: int, low: int = 1) -> tuple[int, ...]:
        """Return a list of whole numbers of at least `low`."""
        value = self.get(name, default)
        if not isinstance(value, list | tuple) or len(value) != count:
            raise self.wrong(name, f"{count} whole numbers", value)
        return tuple(self._whole(each, name, low) for each in value)

    def edges(self, name: str, default: Mapping[str, int], *keys: str) -> tuple[int, ...]:
        """Return numbers of an object such as ``{"height": 448, "width": 448}``; a number stands for all of them."""
        value = self.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            value = dict.fromkeys(keys, value)
        if not isinstance(value, Mapping) or any(value.get(key) is None for key in keys):
            raise self.wrong(name, f"an object with {' and '.join(keys)}", value)
        return tuple(self._whole(value[key], f"{name}.{key}", 1) for key in keys)

    def must(self, name: str, default: Any, needed: Any, why: str) -> None:
        """Raise `ConfigError` unless a parameter has the only value that the rule knows."""
        value = self.get(name, default)
        if value != needed:
            raise ConfigError(
                f"{name} is {value!r}: {why}",
                file=self.where,
                kind="unsupported",
                fix="Count this dataset with --measure.",
            )

    def _whole(self, value: Any, name: str, low: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.wrong(name, f"a whole number of at least {low}", value)
        return value

    def wrong(self, name: str, expected: str, value: Any) -> ConfigError:
        """Return the error for a parameter that is not what it must be."""
        found = "nothing" if value is None else repr(value)[:80]
        return ConfigError(
            f"{name} must be {expected}: found {found}",
            file=self.where,
            kind="bad-processor",
            fix="Give the folder of the checkpoint's own processor.",
        )


@dataclass(frozen=True)
class Folder:
    """The files of a processor: parameters of its parts.

    Attributes:
        name: the class of the processor.
        processor, image, video, audio, tokenizer: parameters; None for a part that has no file.
        tower: ``vision_config`` of the model's ``config.json``; None if it is not there.
    """

    name: str
    processor: Parameters
    image: Parameters | None
    video: Parameters | None
    audio: Parameters | None
    tokenizer: Parameters
    tower: Parameters | None = None

    def patches(self, default: int, height: int, width: int) -> int | None:
        """Return into how many patches the vision tower cuts a picture; None if its configuration is not there.

        Args:
            default: side of a patch if the configuration does not have it, as transformers leaves out its own defaults.
            height, width: pixels that the tower gets.
        """
        if self.tower is None:
            return None
        if isinstance(self.tower.get("patch_size", default), list):  # of InternVL
            tall, wide = self.tower.numbers("patch_size", [default] * 2, 2)
        else:
            tall = wide = self.tower.integer("patch_size", default)
        return (height // tall) * (width // wide)

    def of(self, kind: str) -> Parameters:
        """Return the parameters of ``image``, ``video`` or ``audio``, for a rule, which only a part with a file has."""
        found: Parameters | None = getattr(self, kind)
        assert found is not None
        return found

    def token(self, name: str, default: str | None) -> str:
        """Return a special token: the tokenizer's if it names one, or that of the processor."""
        for key in ("extra_special_tokens", "model_specific_special_tokens"):
            named = self.tokenizer.values.get(key)
            if isinstance(named, Mapping) and name in named:
                return Parameters(named, self.tokenizer.where).text(name, default)
        if name in self.tokenizer.values:
            return self.tokenizer.text(name, default)
        return self.processor.text(name, default)


def ratio_above(sizes: Sizes, limit: float) -> Bools:
    """Return which sizes are longer than `limit` times their other side."""
    high, low = np.maximum(sizes.height, sizes.width), np.minimum(sizes.height, sizes.width)
    return np.asarray(high / low > limit)
