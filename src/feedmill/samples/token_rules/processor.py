"""The rules of a checkpoint's processor, from the files of its folder. Nothing of transformers is imported, or run.

transformers reads the part ``image_processor`` (and so on) of ``processor_config.json`` if it is there, and otherwise
``preprocessor_config.json`` (``video_preprocessor_config.json`` for videos). What a file lacks has the default of the
class, which the rules have too; these are listed, so that they can be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.mediatable import KINDS, MediaTable
from feedmill.samples.token_rules.fixed import DeepseekImages, LlavaImages, MllamaImages
from feedmill.samples.token_rules.gemma import Gemma3Images, Gemma4Audio, Gemma4Images, Gemma4Videos
from feedmill.samples.token_rules.glm4v import Glm4vImages, Glm4vVideos, Glm46vVideos
from feedmill.samples.token_rules.llava_next import LlavaNextImages, LlavaOnevisionImages, LlavaOnevisionVideos
from feedmill.samples.token_rules.minicpm import MiniCpmImages, MiniCpmVideos
from feedmill.samples.token_rules.molmo2 import Molmo2Images, Molmo2Videos
from feedmill.samples.token_rules.patches import KimiImages, PixtralImages
from feedmill.samples.token_rules.phi4_multimodal import Phi4Audio, Phi4Images
from feedmill.samples.token_rules.qwen import (
    Omni2Videos,
    Omni3Videos,
    Qwen2Videos,
    Qwen3OmniAudio,
    Qwen3Videos,
    QwenAudio,
    QwenImages,
)
from feedmill.samples.token_rules.rule import (
    UNKNOWN,
    Count,
    Counted,
    Folder,
    Int64s,
    Parameters,
    Sizes,
    TokenRule,
    Vision,
    too_many,
)
from feedmill.samples.token_rules.tiles import Idefics3Images, InternVLImages, InternVLVideos, Llama4Images
from feedmill.storage import Store, open_store

PROCESSOR, IMAGE, VIDEO = "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"
TOKENIZER, MODEL = "tokenizer_config.json", "config.json"
_FILES = (PROCESSOR, IMAGE, VIDEO, TOKENIZER)
_PARTS = {"image": "image_processor", "video": "video_processor", "audio": "feature_extractor"}

RULES: Mapping[str, tuple[type[TokenRule], ...]] = {
    "Qwen2VLProcessor": (QwenImages, Qwen2Videos),
    "Qwen2_5_VLProcessor": (QwenImages, Qwen2Videos),
    "Qwen3VLProcessor": (QwenImages, Qwen3Videos),
    "Qwen2_5OmniProcessor": (QwenImages, Omni2Videos, QwenAudio),
    "Qwen3OmniMoeProcessor": (QwenImages, Omni3Videos, Qwen3OmniAudio),
    "Qwen2AudioProcessor": (QwenAudio,),
    "Glm4vProcessor": (Glm4vImages, Glm4vVideos),
    "Glm46VProcessor": (Glm4vImages, Glm46vVideos),
    "Kimi_K25Processor": (KimiImages,),
    "LlavaProcessor": (LlavaImages,),
    "LlavaNextProcessor": (LlavaNextImages,),
    "LlavaOnevisionProcessor": (LlavaOnevisionImages, LlavaOnevisionVideos),
    "InternVLProcessor": (InternVLImages, InternVLVideos),
    "PixtralProcessor": (PixtralImages,),
    "Gemma3Processor": (Gemma3Images,),
    "Gemma4Processor": (Gemma4Images, Gemma4Videos, Gemma4Audio),
    "Idefics3Processor": (Idefics3Images,),
    "SmolVLMProcessor": (Idefics3Images,),
    "Phi4MultimodalProcessor": (Phi4Images, Phi4Audio),
    "Llama4Processor": (Llama4Images,),
    "MllamaProcessor": (MllamaImages,),
    "Molmo2Processor": (Molmo2Images, Molmo2Videos),
    "MiniCPMV4_6Processor": (MiniCpmImages, MiniCpmVideos),
    "MiniCPMV4_7Processor": (MiniCpmImages, MiniCpmVideos),
    "DeepseekVLProcessor": (DeepseekImages,),
    "DeepseekVLHybridProcessor": (DeepseekImages,),
}
"""Class of a processor -> its rules, each for a kind of media. Images come first: videos may hold their placeholder."""


class Lengths(NamedTuple):
    """Tokens of whole samples.

    Attributes:
        lengths: int32[samples]; `UNKNOWN` for samples that are refused.
        refused: reason -> int64[n], numbers of samples.
    """

    lengths: npt.NDArray[np.int32]
    refused: dict[str, Int64s]


@dataclass(frozen=True)
class ProcessorRules:
    """The rules of a processor.

    Attributes:
        name: the class of the processor.
        rules: kind of media -> rule. A kind that is missing has no rule, or the processor does not take it.
        digest: hash of the files that were read.
        defaults: parameters that the files lack, such as ``image.size``, with the values that are used.
        missing: kind of media -> why the processor has no rule for it, where its folder says more than that.
    """

    name: str
    rules: Mapping[str, TokenRule]
    digest: str
    defaults: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)

    def tokens(self, table: MediaTable, text: Count = len) -> Counted:
        """Return the tokens of all media of a dataset by sample, and the rows of the table that have no count.

        Sizes are of upright pictures. Kinds of media for which the processor has no rule are refused, and sound with
        another rate than the processor's, which raises an error for it.

        Args:
            table: the media, see `feedmill.formats.base.Dataset.media_table`.
            text: counts tokens of the text that the processor writes, such as timestamps; by default, its characters.

        """
        total = np.zeros(len(table.offsets) - 1, np.int64)
        refused: dict[str, Int64s] = {}
        width, height = table.upright
        for code, kind in enumerate(KINDS):
            chosen = table.kind == code
            if not chosen.any():
                continue
            rule = self.rules.get(kind)
            if rule is None:
                refused[self.missing.get(kind, f"{self.name} has no rule for {kind}")] = np.flatnonzero(chosen)
                continue
            if kind == "audio":
                other = chosen & (table.rate != rule.rate)
                if other.any():
                    refused[f"its rate is unknown or not the {rule.rate:,} a second of {self.name}"] = np.flatnonzero(
                        other
                    )
                    chosen &= ~other
            rows = np.flatnonzero(chosen)
            offsets = table.where(chosen).offsets
            sizes = (
                Sizes(samples=table.samples[rows])
                if kind == "audio"
                else Sizes(height=height[rows], width=width[rows], frames=table.frames[rows], fps=table.fps[rows])
            )
            counted = rule.tokens(sizes, offsets, text)
            total += np.maximum(counted.tokens, 0)
            refused |= {f"{kind}: {reason}": rows[numbers] for reason, numbers in counted.refused.items()}
        for rows in refused.values():
            total[table.sample[rows]] = UNKNOWN
        if len(total) and int(total.max()) > np.iinfo(np.int32).max:
            raise too_many(total)
        return Counted(total.astype(np.int32), refused)

    def prepared(self, text: str, special: Mapping[str, Any]) -> str:
        """Return a text as the processor passes it to its tokenizer: some add a BOS, besides that of the tokenizer.

        Args:
            special: the special tokens of the tokenizer, such as ``bos_token``, by name.

        Raises:
            ConfigError: the tokenizer has no BOS, and the processor needs one.
        """
        if self.name not in ("Molmo2Processor", "MllamaProcessor"):
            return text
        mark = special.get("bos_token") or (special.get("eos_token") if self.name == "Molmo2Processor" else None)
        if not isinstance(mark, str) or not mark:
            raise ConfigError(
                f"the tokenizer has no BOS, with which {self.name} begins each text",
                kind="bad-processor",
                fix="Give the folder of the checkpoint's own processor, with its tokenizer_config.json.",
            )
        if self.name == "Molmo2Processor":
            return text if text.startswith(mark) else mark + text
        rest = text
        while mark not in text and rest.startswith(self.rules["image"].placeholder):
            rest = rest[len(self.rules["image"].placeholder) :]
        return text if mark in text else f"{text[: len(text) - len(rest)]}{mark}{rest}"

    def vision(self, table: MediaTable) -> Vision:
        """Return the patches of a vision tower by sample. Sound has none, and neither have media that are refused.

        Raises:
            ConfigError: the files of the processor do not say into how many patches its tower cuts a picture, and some
                families need the ``config.json`` of the model for it.
        """
        samples = len(table.offsets) - 1
        patches, squares = np.zeros(samples, np.int64), np.zeros(samples, np.int64)
        width, height = table.upright
        bad = np.zeros(len(table), bool)
        for rows in self.tokens(table).refused.values():
            bad[rows] = True
        of = table.sample
        for code, kind in enumerate(KINDS[:2]):
            there = table.kind == code
            rows = np.flatnonzero(there & ~bad)
            if not len(rows):
                continue
            together = np.bincount(of[there], minlength=samples)[of[rows]]
            sizes = Sizes(
                height=height[rows],
                width=width[rows],
                frames=table.frames[rows],
                fps=table.fps[rows],
                together=together,
            )
            found = self.rules[kind].vision(sizes)
            if found is None:
                raise ConfigError(
                    f"the files of {self.name} do not say into how many patches its vision tower cuts {kind}s",
                    kind="unsupported",
                    fix="Copy the model's config.json into their folder if it is missing. Otherwise limit the 'media'"
                    " of a row in place of its 'patches', and balance by tokens or attention.",
                )
            np.add.at(patches, of[rows], found.patches)
            np.add.at(squares, of[rows], found.squares)
        return Vision(patches, squares)

    def expanded(self, text: str, forms: Mapping[str, Sequence[int]]) -> str:
        """Return a text with the smallest text of each medium in place of its placeholder.

        Args:
            text: with placeholders, as a chat template writes it.
            forms: kind -> the form of each medium of the sample, see `TokenRule.form`.

        Raises:
            DataError: there are more or fewer placeholders than media, such as in a text that has one of its own.
        """
        for kind, rule in self.rules.items():
            given, pieces = forms.get(kind, ()), text.split(rule.placeholder)
            if len(pieces) - 1 != len(given):
                raise DataError(
                    f"the text has {len(pieces) - 1} of {rule.placeholder}, and the sample has {len(given)} of {kind}",
                    kind="bad-document",
                    fix="Correct the template, or remove the placeholder from the text itself.",
                )
            # All forms hold the placeholder, so pieces are joined instead of replaced.
            text = "".join(
                part
                for piece, form in zip(pieces, [*given, None], strict=True)
                for part in (piece, "" if form is None else rule.texts[form])
            )
        return text

    def lengths(self, texts: Iterable[str], table: MediaTable, count: Count, text: Count) -> Lengths:
        """Return the tokens of samples as the processor makes them, from their texts and the sizes of their media.

        A text is counted with the smallest text of each medium in place of its placeholder, so that tokens across the
        edges are right; a medium then adds what its size does.

        Args:
            texts: of each sample of the table, as a chat template writes it, with placeholders.
            table: the media; a kind that the processor has no rule for is refused.
            count: counts the tokens of a text as the processor does, with those that the tokenizer adds around it.
            text: counts tokens without these.
        """
        counted = self.tokens(table, text)
        forms = np.zeros(len(table), np.int64)
        own = np.zeros(len(table), np.int64)
        width, height = table.upright
        for code, kind in enumerate(KINDS):
            rows = np.flatnonzero(table.kind == code)
            if kind in self.rules and len(rows):
                rule = self.rules[kind]
                sizes = Sizes(height=np.maximum(height[rows], 1), width=np.maximum(width[rows], 1))
                forms[rows] = rule.form(sizes) if kind != "audio" else 0
                own[rows] = np.array([text(each) for each in rule.texts], np.int64)[forms[rows]]
        kinds = np.asarray(KINDS)[table.kind].tolist()
        out = np.full(len(counted.tokens), UNKNOWN, np.int64)
        refused = {reason: np.unique(table.sample[rows]) for reason, rows in counted.refused.items()}
        bounds = table.offsets.tolist()
        number = 0
        for number, written in enumerate(texts, 1):
            if number > len(out):
                break
            start, stop = bounds[number - 1], bounds[number]
            if counted.tokens[number - 1] == UNKNOWN:
                continue
            named: dict[str, list[int]] = {}
            for row in range(start, stop):
                named.setdefault(kinds[row], []).append(int(forms[row]))
            try:
                length = count(self.expanded(written, named)) - int(own[start:stop].sum())
            except DataError as error:
                refused[error.what] = np.append(refused.get(error.what, np.empty(0, np.int64)), number - 1)
                continue
            out[number - 1] = length + int(counted.tokens[number - 1])
        if number != len(out):
            more = "more" if number > len(out) else str(number)
            raise ConfigError(f"{len(out)} samples need as many texts: found {more}", kind="bad-option")
        if len(out) and int(out.max()) > np.iinfo(np.int32).max:
            raise too_many(out)
        return Lengths(out.astype(np.int32), refused)

    @property
    def identity(self) -> str:
        """Return all that determines counts."""
        return "; ".join(rule.identity for rule in self.rules.values())


def read_rules(url: str, options: Mapping[str, Any] | None = None) -> ProcessorRules:
    """Return the rules of the processor in a folder.

    Args:
        url: the folder; a path or URL.
        options: parameters that the processor is called with, such as ``{"do_pan_and_scan": True}``: they override its
            files.

    Raises:
        NotFound: the folder has no configuration of a processor.
        ConfigError: the family has no rules, or a parameter is invalid or one that the rule does not know.
    """
    store = open_store(url)
    read = {name: store.read_small(name) for name in _FILES if store.exists(name)}
    if PROCESSOR not in read and IMAGE not in read:
        raise NotFound(
            f"the folder has no {IMAGE} and no {PROCESSOR}",
            file=url,
            kind="no-processor",
            fix="Give the folder of the checkpoint on this machine, with the files of its processor. Names of a hub are"
            " not looked up: download its files first.",
        )
    content = {name: _object(store, name, data) for name, data in read.items()}
    name = _class_of(content, url)
    if name not in RULES:
        raise ConfigError(
            f"there is no rule for {name}: rules are for {', '.join(RULES)}",
            file=url,
            kind="unsupported",
            fix="Count the dataset with --measure, which runs the processor itself.",
        )
    parts = {kind: _part(store, content, kind) for kind in _PARTS}
    for made in RULES[name]:
        if (part := parts[made.kind]) is not None:
            part.values = {**part.values, **made.always, **(options or {})}
    folder = Folder(
        name,
        Parameters(content.get(PROCESSOR, {}), store.locate(PROCESSOR)),
        parts["image"],
        parts["video"],
        parts["audio"],
        Parameters(content.get(TOKENIZER, {}), store.locate(TOKENIZER)),
        _tower(store),
    )
    rules: dict[str, TokenRule] = {}
    missing: dict[str, str] = {}
    for made in RULES[name]:
        if (part := parts[made.kind]) is None:
            continue
        if (found := _made_by(part, made.kind)) is not None and found not in made.classes:
            missing[made.kind] = f"{name} has no rule for {made.kind} with {found}: rules are for {made.classes[0]}"
        else:
            rules[made.kind] = made(folder)
    if missing and not rules:
        raise ConfigError(
            "; ".join(missing.values()),
            file=url,
            kind="unsupported",
            fix="Count the dataset with --measure, which runs the processor itself.",
        )
    if not rules:
        raise NotFound(
            f"the folder has no parameters of {' or '.join(made.kind for made in RULES[name])}",
            file=url,
            kind="no-processor",
            fix="Give the folder of the checkpoint, with the files of its processor.",
        )
    known = {key for part in parts.values() if part is not None for key in part.read}
    if unread := sorted(set(options or {}) - known):
        raise ConfigError(
            f"{', '.join(unread)}: no rule of {name} has this option",
            file=url,
            kind="bad-option",
            fix=f"Use options that change sizes ({', '.join(sorted(known))}), or count with --measure.",
        )
    used = {"processor": folder.processor, **parts, "tower": folder.tower}
    defaults = {
        f"{part}.{key}": value
        for part, given in used.items()
        if given is not None
        for key, value in given.defaults.items()
    }
    words = [part for file, data in read.items() for part in (file.encode(), data)]
    digest = xxhash.xxh3_128_hexdigest(b"\0".join((*words, orjson.dumps(options or {}, option=orjson.OPT_SORT_KEYS))))
    return ProcessorRules(name, rules, digest, defaults, missing)


def _class_of(content: Mapping[str, dict[str, Any]], url: str) -> str:
    for name in _FILES:
        found = content.get(name, {}).get("processor_class")
        if isinstance(found, str):
            return found
    raise ConfigError(
        f"the class of the processor is unknown: no 'processor_class' in {', '.join(content)}",
        file=url,
        kind="bad-processor",
        fix="Save the processor again with its save_pretrained.",
    )


_VIDEO_CLASSES = {each for made in RULES.values() for rule in made if rule.kind == "video" for each in rule.classes}


def _made_by(part: Parameters, kind: str) -> str | None:
    """Return the class that transformers makes of a part; None if the checkpoint's model decides."""
    if kind != "video" or "video_processor_type" in part.values:
        return part.made_by
    # The file is that of images, and the class one of the same name, if there is one.
    named = str(part.values.get("image_processor_type", "")).replace("ImageProcessor", "VideoProcessor")
    return named if named in _VIDEO_CLASSES else None


def _part(store: Store, content: Mapping[str, dict[str, Any]], kind: str) -> Parameters | None:
    """Return the parameters of one part of the processor, from the file that transformers reads."""
    whole = content.get(PROCESSOR, {})
    nested = whole.get(_PARTS[kind], whole.get("audio_processor") if kind == "audio" else None)
    if isinstance(nested, dict):
        return Parameters(nested, store.locate(PROCESSOR))
    if kind == "video" and VIDEO in content:
        return Parameters(content[VIDEO], store.locate(VIDEO))
    found = content.get(IMAGE)
    if found is None:
        return None
    sound = "feature_extractor_type" in found and "image_processor_type" not in found
    if kind == "audio":
        # Omni checkpoints have the parameters of images and sound in one file.
        return Parameters(found, store.locate(IMAGE)) if "feature_extractor_type" in found else None
    return None if sound else Parameters(found, store.locate(IMAGE))


def _tower(store: Store) -> Parameters | None:
    """Return ``vision_config`` of the model, which determines no tokens; None if the folder does not have it."""
    found = _object(store, MODEL, store.read_small(MODEL)).get("vision_config") if store.exists(MODEL) else None
    return Parameters(found, store.locate(MODEL)) if isinstance(found, dict) else None


def _object(store: Store, name: str, data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"the file is not JSON ({error})", file=store.locate(name), kind="bad-processor") from None
    if not isinstance(found, dict):
        raise ConfigError("the file is not a JSON object", file=store.locate(name), kind="bad-processor")
    return found
