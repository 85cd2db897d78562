"""The processor of transformers itself, run on single samples: for rows, and to compare predicted lengths with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, NotFound
from feedmill.formats.mediatable import KINDS
from feedmill.samples.avdecoder import AVDecoder
from feedmill.samples.images import decode_image
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer


class RealProcessor:
    """A processor of transformers: a loaded one, or that of a local folder; no code of the folder is run.

    Args:
        processor: the processor, or the folder of its checkpoint.
        options: parameters of each call.

    Attributes:
        name: its class.
        folder: the folder of the checkpoint; None for a loaded processor.
        processor: the processor itself.

    Raises:
        MissingExtra: transformers is not installed.
        ConfigError: the processor cannot be loaded.
    """

    def __init__(self, processor: Any, options: Mapping[str, Any] | None = None) -> None:
        try:
            import transformers
        except ImportError:
            raise MissingExtra(
                "running the processor needs transformers",
                fix="Install it, with torch and torchvision: pip install transformers torch torchvision",
            ) from None
        self._options = dict(options or {})
        self.folder = os.fspath(processor) if isinstance(processor, str | os.PathLike) else None
        self.version: str = transformers.__version__
        self.processor: Any = processor if self.folder is None else self._loaded(transformers, self.folder)
        self.name = type(self.processor).__name__
        if not hasattr(self.processor, "tokenizer"):
            raise ConfigError(
                f"{self.name} is not a processor of text and media",
                file=self.folder,
                kind="bad-processor",
                fix="Give the folder of a checkpoint with a processor_config.json or preprocessor_config.json.",
            )

    @staticmethod
    def _loaded(transformers: Any, folder: str) -> Any:
        try:
            return transformers.AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # it may raise anything
            raise ConfigError(
                f"transformers cannot load the processor ({_short(error)})",
                file=folder,
                kind="bad-processor",
                fix="Give the folder of a checkpoint with its processor, and install what this asks for, such as"
                " torchvision: pip install transformers torch torchvision.",
            ) from None

    @property
    def identity(self) -> str:
        """Return all that determines the counts of the processor of a folder."""
        assert self.folder is not None
        files = sorted(
            path for path in Path(self.folder).iterdir() if path.suffix in (".json", ".jinja", ".model", ".txt")
        )
        digest = xxhash.xxh3_128()
        for path in files:
            if path.is_file() and not path.name.endswith(".index.json"):
                digest.update(f"{path.name}\0".encode() + path.read_bytes())
        return f"{self.name} {self.version} {digest.hexdigest()} {sorted(self._options.items())}"

    def tokenizer_folder(self) -> tempfile.TemporaryDirectory[str] | None:
        """Return a new folder with the tokenizer and the template of a loaded processor; None for that of a folder.

        Raises:
            ConfigError: the tokenizer cannot be saved.
        """
        if self.folder is not None:
            return None
        made = tempfile.TemporaryDirectory(prefix="feedmill-processor-")
        try:
            self.processor.tokenizer.save_pretrained(made.name)
        except Exception as error:  # it may raise anything
            made.cleanup()
            raise ConfigError(
                f"the tokenizer of the processor cannot be saved ({_short(error)})",
                kind="bad-processor",
                fix="Give the folder of the checkpoint.",
            ) from None
        template = getattr(self.processor, "chat_template", None)
        if isinstance(template, str):
            Path(made.name, "chat_template.jinja").write_text(template, "utf-8")
        return made

    def run(self, text: str, media: Mapping[str, Sequence[Any]], *, special: bool, **more: Any) -> Mapping[str, Any]:
        """Return what the processor makes of a text and its media.

        Args:
            text: with placeholders.
            media: ``images``, ``videos`` or ``audio`` -> decoded media of the sample; kinds without any are missing.
            special: whether the tokenizer adds its special tokens around the text.
            more: further parameters of the call.

        Raises:
            DataError: the processor raises an error.
        """
        given = {kind: [list(values)] if kind == "images" else list(values) for kind, values in media.items()}
        try:
            found: Mapping[str, Any] = self.processor(
                text=[text], **given, add_special_tokens=special, **{**self._options, **more}
            )
            return found
        except Exception as error:  # a processor may raise anything
            raise DataError(f"the processor refuses it ({_short(error)})", kind="bad-media") from None

    def count(self, text: str, media: Sequence[tuple[str, bytes]], *, special: bool) -> int:
        """Return the tokens that the processor makes of a text and its media.

        Images and clips are decoded; the processor gets images upright, in RGB, and clips in mono. The frames of videos
        are counted, and it gets as many black ones of their size: no processor counts tokens by what they show.

        Args:
            text: with placeholders.
            media: kind (one of `KINDS`) and content of each.
            special: whether the tokenizer adds its special tokens around the text.

        Raises:
            DataError: a medium does not decode, the text has another number of placeholders than there are media, or
                the processor raises an error.
        """
        self._refuse_other_placeholders(text, media)
        given: dict[str, list[Any]] = {}
        more: dict[str, Any] = {}
        for kind, data in media:
            try:
                if kind == "image":
                    given.setdefault("images", []).append(upright_image(data))
                elif kind == "video":
                    clip, about = _black(data)
                    given.setdefault("videos", []).append(clip)
                    more.setdefault("video_metadata", []).append(about)
                else:
                    samples, more["sampling_rate"] = _mono(data)
                    given.setdefault("audio", []).append(samples)
            except MissingExtra:
                raise
            except FeedmillError as error:
                if kind == "image":
                    raise
                noun = "a video" if kind == "video" else "a clip of sound"
                raise DataError(f"{noun} does not decode: {error.what}", kind="bad-media") from None
        return len(self.run(text, given, special=special, **more)["input_ids"][0])

    def _refuse_other_placeholders(self, text: str, media: Sequence[tuple[str, bytes]]) -> None:
        """Raise `DataError` for a text of which some processors would leave a placeholder, or a medium, silently."""
        for kind in KINDS:
            mark, count = getattr(self.processor, f"{kind}_token", None), sum(each == kind for each, _ in media)
            if isinstance(mark, str) and mark and text.count(mark) != count:
                raise DataError(
                    f"the text has {text.count(mark)} of {mark}, and the sample has {count} of {kind}",
                    kind="bad-document",
                )


def _black(data: bytes) -> tuple[Any, dict[str, Any]]:
    """Return black frames, uint8[frames, 3, height, width] in the memory of one pixel, and what transformers asks for.

    Raises `DataError` if the file is damaged, or has no video.
    """
    import torch

    known = AVDecoder(data).get_metadata(get_audio=False)
    frames, fps = known.video_num_frames, known.video_fps
    if not frames or not known.video_height or not known.video_width:
        raise DataError("it has no frames", kind="bad-media")
    clip = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(frames, 3, known.video_height, known.video_width)
    return clip, {"total_num_frames": frames, "fps": fps, "duration": None if fps is None else frames / fps}


def _mono(data: bytes) -> tuple[npt.NDArray[np.float32], int]:
    """Return the mean of the channels, float32[samples], and samples a second. Raises `DataError`."""
    decoder = AVDecoder(data)
    clip = np.asarray(decoder.get_audio().audio_clips[0], np.float32)
    return clip.mean(axis=0) if clip.ndim == 2 else clip, decoder.get_audio_samples_per_second()


def upright_image(data: bytes) -> Any:
    """Return an image as processors get it: a PIL image, upright, in RGB. Raises `DataError` if it does not decode."""
    try:
        return decode_image(data, "pilrgb")
    except MissingExtra:
        raise
    except FeedmillError as error:
        raise DataError(f"an image does not decode: {error.what}", kind="bad-media") from None
    except Exception as error:  # each codec raises its own errors
        raise DataError(f"an image does not decode ({_short(error)})", kind="bad-media") from None


def tokenizer_of(folder: str) -> Tokenizer:
    """Return the tokenizer of a processor's folder. Raises `NotFound` if it has none that can be counted with."""
    if not os.path.isfile(os.path.join(folder, "tokenizer.json")):
        raise NotFound(
            "the folder has no tokenizer.json, with which the processor's texts are counted",
            file=folder,
            kind="no-tokenizer",
            fix="Give the folder of the checkpoint, or save the processor again with its save_pretrained.",
        )
    try:
        return load_tokenizer(os.path.join(folder, "tokenizer.json"), "hf")
    except ConfigError as error:
        if "--template-source" in (error.fix or ""):  # of `tokenize`; a processor is loaded by transformers, as it is
            error.fix = (
                "Load the processor with the release of transformers that you train with, and save it with its"
                " save_pretrained: then its tokenizer.json has what this release reads."
            )
        raise


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
