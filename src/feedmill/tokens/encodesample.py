"""Encode samples of text and media with the processor of a model, each alone: ids, loss, positions and media.

A sample alone, because what some processors make of a medium depends on the others of its batch. Conversations are
rendered, and their loss is found, as in `feedmill.tokens.chat`; the processor then gets the text, and says where it put
the media, so that the characters of answers become tokens.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.documents.batch import BadDocument
from feedmill.documents.textpath import load_json
from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra
from feedmill.formats.sample import Sample
from feedmill.samples.avdecoder import AVDecoder
from feedmill.samples.media import kind_of_header, kind_of_name
from feedmill.samples.types import named_fields
from feedmill.tokens.chat.checks import HEADER, NO_STOP, NOTHING
from feedmill.tokens.chat.forms import EACH
from feedmill.tokens.chat.reader import ChatReader, ChatSpec, special_tokens
from feedmill.tokens.realprocessor import RealProcessor, tokenizer_of, upright_image

logger = logging.getLogger("feedmill")

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Positions = npt.NDArray[Any]
"""int64, or float32 of a model whose positions may be fractions (findings/transformers_omni_fractions.sh)."""
Spans = tuple[tuple[int, int], ...]
_NAMES = {"image": "images", "video": "videos", "audio": "audio"}
"""Kind of media -> the parameter of processors."""
_CHECKED = {
    NOTHING: "no token contributes to the loss: check the roles and weights of its messages, and chat_mask",
    NO_STOP: "the model does not learn to end such an answer: use a template that has a stop token after each",
    HEADER: "the template ignores add_generation_prompt, and writes another header before another answer: use one that"
    " asks for an answer, or generation blocks",
}
"""What a check of a conversation means for the loss."""
_BY_TOKEN = ("token_type_ids", "mm_token_type_ids")
"""Values with one for each token, by name: those of media may have as many by chance, such as masks of sound."""
_NOT_KEPT = ("input_ids", "attention_mask", "offset_mapping", "text_replacement_offsets", "video_metadata")
_MESSAGES = ("messages", "conversations", "conversation", "prompt", "completion")
_FILES = ("path", "url", "file")
"""Keys under which a conversation names the file of a medium, besides that of its kind."""
_NUMBERS = re.compile(r"(\d+)")


class EncodedSample(NamedTuple):
    """A sample as the processor of a model makes it.

    Attributes:
        ids: int64[n], tokens.
        learned: bool[n], which of them contribute to the loss. Tokens of media do not.
        rope: int64[3, n], positions of time, height and width of a model with M-RoPE, from 0; None for others.
            float32 if the model has fractions, as Qwen3-Omni has for the frames of videos.
        by_token: further values of the processor with one for each token, such as ``mm_token_type_ids``: tensors[n].
        media: values with one for each medium, patch or frame: tensors or lists, along their first axis.
    """

    ids: Int64s
    learned: Bools
    rope: Positions | None
    by_token: Mapping[str, Any]
    media: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.ids)


class Rendered(NamedTuple):
    """A text as the processor gets it, and the ranges of its characters that contribute to the loss; None for all.

    `named` are the files that the conversation names for its media, in their order, by kind.
    """

    text: str
    spans: Spans | None
    named: Mapping[str, Sequence[str]] = {}


class SampleEncoder:
    """Encodes samples. Pickling keeps the options and the processor; one thread at a time uses these.

    Args:
        processor: a processor of transformers, or the folder of its checkpoint.
        messages: part with the conversation, as JSON, or a field with it.
        text: part with a plain text that has the placeholders, instead of a conversation.
        chat_template: a file, or the name of one of the tokenizer's templates; default: that of the processor.
        chat_template_args: variables of the template.
        chat_mask: rule of the loss, see `feedmill.tokens.chat.answers`.
        processor_args: parameters with which the processor is called.
        media: parts with media, in the order of their placeholders; default: all, by the numbers in their names. What
            a conversation names comes first.

    Attributes:
        real: the processor.
        positions: makes positions of M-RoPE; None, unless it is set, for models without.
        pad: the padding token.

    Raises:
        MissingExtra: transformers, torch, tokenizers or jinja2 is not installed.
        NotFound: the folder has no tokenizer.
        ConfigError: the processor cannot be loaded, the template is invalid, or an option contradicts another.
    """

    def __init__(
        self,
        processor: Any,
        *,
        messages: str = "json",
        text: str | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        chat_mask: str = "auto",
        processor_args: Mapping[str, Any] | None = None,
        media: Sequence[str] | None = None,
    ) -> None:
        if text is not None and (chat_template is not None or chat_template_args):
            raise ConfigError(
                "chat_template is for conversations, and text names a part of plain text",
                kind="bad-option",
                fix="Pass one of them.",
            )
        if isinstance(media, str):
            raise ConfigError(
                f"media is the text {media!r}: expected names of parts, such as ['jpg', 'png']",
                kind="bad-option",
                fix="Pass a list.",
            )
        try:
            import torch  # noqa: F401
        except ImportError:
            raise MissingExtra("rows of samples need torch", "torch") from None
        self.real = RealProcessor(processor, processor_args)
        self._part = messages if text is None else text
        self._media = None if media is None else tuple(media)
        self.positions: RopePositions | None = None
        self._options = dict(processor_args or {})
        own = self.real.tokenizer_folder()
        try:
            folder = self.real.folder if own is None else own.name
            assert folder is not None
            tokenizer = tokenizer_of(folder)
            bos = special_tokens(tokenizer.path.parent).get("bos_token")
            self._bos = bos if text is None and isinstance(bos, str) and bos else None
            name = None if chat_template is None else os.fspath(chat_template)
            self._spec = (
                None
                if text is not None
                else ChatSpec.of(tokenizer, EACH, name, chat_mask, chat_template_args, media=True)
            )
        finally:
            if own is not None:
                own.cleanup()
        pad = getattr(self.real.processor.tokenizer, "pad_token_id", None)
        self.pad = int(pad) if isinstance(pad, int) else 0
        self._start()

    def _start(self) -> None:
        self._reader = None if self._spec is None else ChatReader(self._spec)
        self._lock = threading.RLock()
        self._said: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_reader", "_lock", "_said")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __call__(self, samples: Sequence[Any]) -> list[EncodedSample | DataError]:
        """Return each sample, or the error of one that cannot be encoded. Raises errors that are not of a sample."""
        with self._lock:
            return [
                text if isinstance(text, DataError) else self._encoded(sample, text)
                for sample, text in zip(samples, self._texts(samples), strict=True)
            ]

    def _texts(self, samples: Sequence[Any]) -> list[Rendered | DataError]:
        out: list[Rendered | DataError] = []
        rows: list[tuple[int, Any]] = []
        for number, sample in enumerate(samples):
            value = _field(sample, self._part)
            if value is None:
                out.append(_no_part(sample, self._part))
                continue
            out.append(_bad(""))
            if self._reader is None:
                out[number] = _plain(value)
                continue
            try:
                rows.append((number, _conversation(value)))
            except BadDocument as error:
                out[number] = _bad(str(error))
        records = self._reader.records([row for _, row in rows]) if self._reader is not None else ()
        for (number, row), record in zip(rows, records, strict=True):
            if record.text is None:
                out[number] = _bad(record.reason)
            else:
                out[number] = Rendered(record.text, _spans(record.fields[0]), _named_media(row))
                self._note(record.fields[2], samples[number])
        return out

    def _note(self, said: Sequence[str], sample: Any) -> None:
        """Log what the checks of a conversation found for the first time, as `feedmill tokenize` reports it."""
        for name in said:
            if name in _CHECKED and name not in self._said:
                self._said.add(name)
                key = sample.key if isinstance(sample, Sample) else _field(sample, "__key__")
                logger.warning("sample %s: %s: %s. Further ones are not named.", key, name, _CHECKED[name])

    def close(self) -> None:
        """End the process that renders; the next sample starts another."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    def _encoded(self, sample: Any, rendered: Rendered) -> EncodedSample | DataError:
        text = rendered.text
        try:
            given = self._media_of(sample, rendered.named)
            media: dict[str, list[Any]] = {}
            more: dict[str, Any] = {}
            for kind, values in given.items():
                media[_NAMES[kind]], further = getattr(self, f"_{kind}")(values)
                more |= further
            special = self._bos is None or not text.startswith(self._bos)
            made = self.real.run(
                text,
                media,
                special=special,
                return_tensors="pt",
                return_offsets_mapping=True,
                return_text_replacement_offsets=True,
                **more,
            )
            return self._sorted(made, rendered, {kind: len(values) for kind, values in given.items()})
        except DataError as error:
            return error

    def _media_of(self, sample: Any, named: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
        """Return kind -> the media of a sample, encoded or decoded, in the order of their placeholders."""
        names = _names(sample, self._part) if self._media is None else self._media
        out: dict[str, list[tuple[str, Any]]] = {}
        for name in names:
            value = _field(sample, name)
            for each in value if isinstance(value, list | tuple) else () if value is None else (value,):
                kind = _kind(each, name)
                if kind is not None:
                    out.setdefault(kind, []).append((name, each))
                elif self._media is not None:
                    raise _bad(f"the part {name!r} is not an image, video or sound", "bad-media")
        key = sample.key if isinstance(sample, Sample) else _field(sample, "__key__")
        return {kind: _as_named(given, named.get(kind, ()), str(key)) for kind, given in out.items()}

    def _image(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        return [upright_image(bytes(value)) if _is_bytes(value) else value for value in values], {}

    def _video(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return frames of each video as its processor samples them: only these are decoded."""
        processor = getattr(self.real.processor, "video_processor", None)
        if processor is None:
            raise _bad(f"{self.real.name} takes no video", "bad-media")
        # As `preprocess` does: options of the call, of the class of the processor, of its files.
        calls = {**(getattr(self.real.processor, "videos_kwargs", None) or {}), **self._options}
        names = [*inspect.get_annotations(processor.valid_kwargs), *processor.valid_kwargs.__annotations__]
        settings = {name: calls.get(name, getattr(processor, name, None)) for name in names}
        clips, about = [], []
        for value in values:
            decoder = value if isinstance(value, AVDecoder) else AVDecoder(bytes(value))
            facts = decoder.get_metadata(get_audio_duration=False)
            frames, fps = facts.video_num_frames, facts.video_fps
            if not frames or not fps:
                raise _bad("its number of frames, or their rate, is unknown", "bad-media")
            metadata = _video_metadata(frames, fps, facts)
            numbers = list(range(frames))
            if settings.get("do_sample_frames"):
                drop = ("do_sample_frames", "input_data_format", "do_convert_rgb", "device", "video_metadata")
                sampled = processor.sample_frames(
                    metadata=metadata, **{name: each for name, each in settings.items() if name not in drop}
                )
                numbers = [int(number) for number in sampled]
            found, _ = decoder.get_video_clips([(number, number) for number in numbers], video_unit="frames")
            clips.append(np.concatenate([np.asarray(clip)[:1] for clip in found]))
            metadata.frames_indices = numbers
            about.append(metadata)
        return clips, {"video_metadata": about, "do_sample_frames": False}

    def _audio(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the sound of each clip: float32[samples], the mean of its channels."""
        extractor = getattr(self.real.processor, "feature_extractor", None)
        extractor = extractor or getattr(self.real.processor, "audio_processor", None)
        rate = getattr(extractor, "sampling_rate", None)
        if rate is None:
            raise _bad(f"{self.real.name} takes no sound", "bad-media")
        clips = []
        for value in values:
            decoder = value if isinstance(value, AVDecoder) else AVDecoder(bytes(value))
            if (found := decoder.get_audio_samples_per_second()) != rate:
                raise _bad(f"its rate is {found:,} a second, and {self.real.name} takes {rate:,}", "bad-media")
            sound = np.asarray(decoder.get_audio().audio_clips[0])
            if sound.dtype.kind == "i":
                sound = sound / np.float32(-float(np.iinfo(sound.dtype).min))
            clips.append(sound.astype(np.float32).mean(axis=0))
        return clips, {"sampling_rate": rate}

    def _sorted(self, made: Mapping[str, Any], rendered: Rendered, given: Mapping[str, int]) -> EncodedSample:
        """Return what the processor made as values by token and by medium."""
        ids = np.asarray(made["input_ids"][0], np.int64)
        if "offset_mapping" not in made:
            raise ConfigError(
                f"the tokenizer of {self.real.name} does not say which characters a token has",
                kind="unsupported-tokenizer",
                fix="Load the processor with a fast tokenizer, from a tokenizer.json.",
            )
        places = made.get("text_replacement_offsets")
        if places is None and given:
            raise ConfigError(
                f"{self.real.name} of transformers {self.real.version} does not say where media are in a text",
                kind="unsupported",
                fix="Update transformers, or use a processor of a class that has return_text_replacement_offsets.",
            )
        chars = np.asarray(made["offset_mapping"][0], np.int64).reshape(-1, 2)
        replaced = [] if places is None or not len(places) else list(places[0])
        self._refuse_other_counts(rendered.text, replaced, given)
        learned = np.ones(len(ids), bool)
        if rendered.spans is not None:
            ends = [place["span"][1] for place in replaced]
            gained = [0, *(place["new_span"][1] - place["span"][1] for place in replaced)]
            learned[:] = False
            for span in rendered.spans:
                first, last = (at + gained[bisect_right(ends, at)] for at in span)
                learned |= (chars[:, 0] < last) & (chars[:, 1] > first)
        for place in replaced:
            first, last = place["new_span"]
            learned &= ~((chars[:, 0] < last) & (chars[:, 1] > first))
        by_token: dict[str, Any] = {}
        media: dict[str, Any] = {}
        for name, value in made.items():
            if name in _NOT_KEPT:
                continue
            if name in _BY_TOKEN:
                by_token[name] = value[0]
            else:
                media[name] = value
        rope = None if self.positions is None else self.positions(made)
        return EncodedSample(ids, learned, rope, by_token, media)

    def _refuse_other_counts(self, text: str, replaced: Sequence[Mapping[str, Any]], given: Mapping[str, int]) -> None:
        """Raise `DataError` if a text has more or fewer places for media than the sample has media.

        A processor puts the media in the order of the places. It ignores places if there are no media of their kind,
        and media without a place.
        """
        for kind in _NAMES:
            token = getattr(self.real.processor, f"{kind}_token", None)
            there = sum(place.get("type", kind) == kind for place in replaced)
            if not given.get(kind) and isinstance(token, str) and token:
                there = text.count(token)
            if there != given.get(kind, 0):
                raise DataError(
                    f"the text has {there} of {token}, and the sample has {given.get(kind, 0)} of {kind}",
                    kind="bad-document",
                    fix="Correct the template, or remove the placeholder from the text itself.",
                )


@dataclass
class RopePositions:
    """Makes the positions of a model with M-RoPE, by the function of its class; no weights are needed.

    Args:
        config: the configuration of the model.
        model: the class with ``get_rope_index``.
    """

    config: Any
    model: type[Any]

    @classmethod
    def of(cls, config: Any) -> RopePositions | None:
        """Return the positions of a model; None for one without M-RoPE.

        Args:
            config: a folder with a ``config.json``, or a configuration of transformers.

        Raises:
            ConfigError: the configuration cannot be loaded.
        """
        import transformers

        if isinstance(config, str | os.PathLike):
            where = os.fspath(config)
            try:
                config = transformers.AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False)
            except Exception as error:  # it may raise anything
                raise ConfigError(
                    f"transformers cannot load the configuration of the model ({type(error).__name__}:"
                    f" {' '.join(str(error).split())[:200]})",
                    file=where,
                    kind="bad-config",
                    fix="Pass config=, the folder with the config.json of the model.",
                ) from None
        config = getattr(config, "thinker_config", config)
        model = rope_class(type(config))
        return None if model is None else cls(config, model)

    def __call__(self, made: Mapping[str, Any]) -> Positions:
        """Return the positions of one sample, [3, n], from what the processor made. Raises `DataError`."""
        model: Any = object.__new__(self.model)
        vision = getattr(self.config, "vision_config", None)
        for name, value in {
            "config": self.config,
            "spatial_merge_size": getattr(vision, "spatial_merge_size", None),
        }.items():
            object.__setattr__(model, name, value)
        known = dict(made)
        if "feature_attention_mask" in known:
            known["audio_seqlens"] = known["feature_attention_mask"].sum(-1)
        if "video_second_per_grid" in known:
            known["second_per_grids"] = known["second_per_grid_ts"] = known["video_second_per_grid"]
        wanted = set(inspect.signature(self.model.get_rope_index).parameters)
        try:
            found, _ = model.get_rope_index(**{name: value for name, value in known.items() if name in wanted})
        except Exception as error:  # such as for media with nothing between them
            raise DataError(
                f"{self.model.__name__}.get_rope_index finds no positions ({type(error).__name__}:"
                f" {' '.join(str(error).split())[:200]})",
                kind="bad-document",
            ) from None
        return np.asarray(found[:, 0], np.float32 if found.is_floating_point() else np.int64)


def rope_class(config: type[Any]) -> type[Any] | None:
    """Return the class with ``get_rope_index`` in the package of a class of transformers; None if it has none."""
    package = config.__module__.rpartition(".")[0]
    if not package.startswith("transformers.models."):
        return None
    name = f"{package}.modeling_{package.rpartition('.')[2]}"
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    found = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and "get_rope_index" in vars(each) and each.__module__ == name
    ]
    return found[0] if found else None


def _video_metadata(frames: int, fps: float, facts: Any) -> Any:
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=frames,
        fps=fps,
        width=facts.video_width,
        height=facts.video_height,
        duration=facts.video_duration,
    )


def _bad(what: str, kind: str = "bad-document") -> DataError:
    return DataError(what, kind=kind)


def _no_part(sample: Any, name: str) -> DataError:
    """Return the error of a sample without its text; a sample type gives its own fields alone."""
    fields = list(sample) if isinstance(sample, Sample | Mapping) else list(named_fields(sample) or ())
    shown = ", ".join(each for each in fields if not each.startswith("__")) or "none"
    if isinstance(sample, Sample | Mapping):
        return _bad(f"the sample has no part {name!r} (it has: {shown})", "missing-field")
    return DataError(
        f"the sample is {type(sample).__name__} with the fields {shown}, without the part {name!r}",
        kind="missing-field",
        fix="Import the data again, or open its parts as they are: 'feedmill prepare DATASET --sample-type"
        " CrudeWebdataset'.",
    )


def _spans(found: Any) -> Spans | None:
    return None if found is None else tuple(found)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _field(sample: Any, name: str) -> Any:
    """Return a part of a sample: its bytes, or the value of a field; None if it is not there."""
    if isinstance(sample, Sample):
        return bytes(sample.raw(name)) if name in sample else None
    fields = sample if isinstance(sample, Mapping) else named_fields(sample) or {}
    return fields.get(name)


def _names(sample: Any, text: str) -> list[str]:
    """Return the fields of a sample that may hold media, by their names: ``2.jpg`` comes before ``10.jpg``."""
    fields = sample if isinstance(sample, Mapping) else named_fields(sample) or {}
    return sorted((name for name in fields if name != text), key=_natural)


def _natural(name: str) -> tuple[Any, ...]:
    return tuple((1, int(piece), "") if piece.isdigit() else (0, 0, piece) for piece in _NUMBERS.split(name))


def _kind(value: Any, name: str) -> str | None:
    """Return the kind of a medium, by its name, its type or its first bytes; None if it is none."""
    if isinstance(value, AVDecoder):
        return _kind_of_clip(value)
    if _is_bytes(value):
        kind = kind_of_name(f"x.{name}") or kind_of_header(bytes(value[:256]))
        return kind if kind != "av" else _kind_of_clip(AVDecoder(bytes(value)))
    shape = getattr(value, "shape", None)
    pixels = shape is not None and len(shape) == 3 and str(getattr(value, "dtype", "")).endswith("uint8")
    return "image" if pixels or type(value).__module__.startswith("PIL.") else None


def _kind_of_clip(decoder: AVDecoder) -> str:
    try:
        return "video" if decoder.has_video_stream() else "audio"
    except FeedmillError as error:
        raise _bad(f"a clip does not decode: {error.what}", "bad-media") from None


def _plain(value: Any) -> Rendered | DataError:
    if isinstance(value, str):
        return Rendered(value, None)
    try:
        return Rendered(bytes(value).decode(), None)
    except (TypeError, UnicodeDecodeError):
        return _bad("its text is not UTF-8")


def _named_media(row: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return kind -> the files that a conversation names for its media: in its messages, or in lists beside these."""
    named: dict[str, list[str]] = {}
    lists = [row[name] for name in _MESSAGES if isinstance(row.get(name), list)]
    for message in chain(*(lists if "prompt" in row else lists[:1])):
        content = message.get("content") if isinstance(message, dict) else None
        for piece in content if isinstance(content, list) else ():
            for kind in _NAMES if isinstance(piece, dict) else ():
                if str(piece.get("type", "")).removesuffix("_url") == kind:
                    file = next((piece[each] for each in (kind, f"{kind}_url", *_FILES) if each in piece), None)
                    named.setdefault(kind, []).append(_file(file))
    for kind in _NAMES:
        beside = next((row[each] for each in (kind, f"{kind}s") if each in row), None)
        if not any(named.get(kind, ())) and beside is not None:
            named[kind] = [_file(each) for each in (beside if isinstance(beside, list) else [beside])]
    return named


def _file(value: Any) -> str:
    if isinstance(value, dict):
        value = next((value[name] for name in _FILES if name in value), None)
    return value if isinstance(value, str) else ""


def _as_named(given: Sequence[tuple[str, Any]], named: Sequence[str], key: str) -> list[Any]:
    """Return media in the order in which a conversation names their parts, if it names each; otherwise as given."""
    files = [name.rpartition("/")[2] for name in named]
    order = [[n for n, (part, _) in enumerate(given) if file in (part, f"{key}.{part}")] for file in files]
    if sorted(order) == [[n] for n in range(len(given))]:
        return [given[n][1] for (n,) in order]
    return [value for _, value in given]


def _conversation(value: Any) -> dict[str, Any]:
    """Return the row of a conversation; a part may be the list of messages itself. Raises `BadDocument`."""
    row = load_json(bytes(value)) if _is_bytes(value) else value
    row = {"messages": row} if isinstance(row, list) else row
    if not isinstance(row, dict):
        raise BadDocument("it is not an object with a conversation")
    return row


def document(sample: Any) -> EncodedSample | None:
    """Return a document of token files as an encoded sample; None for any other sample."""
    if type(sample) is not dict or not isinstance(tokens := sample.get("input_ids"), np.ndarray):
        return None
    loss = sample.get("loss_mask")
    learned = np.ones(len(tokens), bool) if loss is None else np.asarray(loss) != 0
    return EncodedSample(tokens.astype(np.int64, copy=False), learned, None, {}, {})
