"""The processor of transformers itself, run on single samples: what predicted lengths are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra
from feedmill.formats.mediatable import KINDS
from feedmill.samples.avdecoder import AVDecoder
from feedmill.samples.images import decode_image


class RealProcessor:
    """A processor of transformers from a local folder; no code of the folder is run.

    Args:
        folder: the folder of the checkpoint.
        options: parameters of each call.

    Attributes:
        name: its class.
        identity: all that determines its counts.
        placeholders: what stands for each kind of media in texts, as far as the processor says.

    Raises:
        MissingExtra: transformers is not installed.
        ConfigError: the processor cannot be loaded.
    """

    def __init__(self, folder: str, options: Mapping[str, Any] | None = None) -> None:
        try:
            import transformers
        except ImportError:
            raise MissingExtra(
                "running the processor needs transformers",
                fix="Install it, with torch and torchvision: pip install transformers torch torchvision",
            ) from None
        self._options = dict(options or {})
        try:
            self._processor: Any = transformers.AutoProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # it may raise anything
            raise ConfigError(
                f"transformers cannot load the processor ({_short(error)})",
                file=folder,
                kind="bad-processor",
                fix="Install what it asks for, such as torchvision, or count without --check and --measure.",
            ) from None
        self.name = type(self._processor).__name__
        if not hasattr(self._processor, "tokenizer"):
            raise ConfigError(
                f"{self.name} is no processor of text and media",
                file=folder,
                kind="bad-processor",
                fix="Give the folder of a checkpoint with a processor_config.json or preprocessor_config.json.",
            )
        tokens = {kind: getattr(self._processor, f"{kind}_token", None) for kind in KINDS}
        self.placeholders = {kind: token for kind, token in tokens.items() if isinstance(token, str) and token}
        files = sorted(path for path in Path(folder).iterdir() if path.suffix in (".json", ".jinja", ".model", ".txt"))
        digest = xxhash.xxh3_128()
        for path in files:
            if path.is_file() and not path.name.endswith(".index.json"):
                digest.update(f"{path.name}\0".encode() + path.read_bytes())
        self.identity = f"{self.name} {transformers.__version__} {digest.hexdigest()} {sorted(self._options.items())}"

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
        given: dict[str, Any] = {}
        for kind, data in media:
            try:
                if kind == "image":
                    given.setdefault("images", [[]])[0].append(decode_image(data, "pilrgb"))
                elif kind == "video":
                    clip, about = _black(data)
                    given.setdefault("videos", []).append(clip)
                    given.setdefault("video_metadata", []).append(about)
                else:
                    samples, rate = _mono(data)
                    given.setdefault("audio", []).append(samples)
                    given["sampling_rate"] = rate
            except MissingExtra:
                raise
            except FeedmillError as error:
                noun = {"image": "an image", "video": "a video", "audio": "a clip of sound"}[kind]
                raise DataError(f"{noun} does not decode: {error.what}", kind="bad-media") from None
        try:
            found = self._processor(text=[text], **given, add_special_tokens=special, **self._options)
            return len(found["input_ids"][0])
        except Exception as error:  # a processor may raise anything
            raise DataError(f"the processor refuses it ({_short(error)})", kind="bad-media") from None

    def _refuse_other_placeholders(self, text: str, media: Sequence[tuple[str, bytes]]) -> None:
        """Raise `DataError` for a text of which some processors would leave a placeholder, or a medium, silently."""
        for kind in KINDS:
            mark, count = self.placeholders.get(kind), sum(each == kind for each, _ in media)
            if mark is not None and text.count(mark) != count:
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


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
