"""The processor of transformers itself, run on single samples: what predicted lengths are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra
from feedmill.samples.images import decode_image


class RealProcessor:
    """A processor of transformers from a local folder; no code of the folder is run.

    Args:
        folder: the folder of the checkpoint.
        options: parameters of each call.

    Attributes:
        name: its class.
        identity: all that determines its counts.

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
        files = sorted(path for path in Path(folder).iterdir() if path.suffix in (".json", ".jinja", ".model", ".txt"))
        digest = xxhash.xxh3_128()
        for path in files:
            if path.is_file() and not path.name.endswith(".index.json"):
                digest.update(f"{path.name}\0".encode() + path.read_bytes())
        self.identity = f"{self.name} {transformers.__version__} {digest.hexdigest()} {sorted(self._options.items())}"

    def count(self, text: str, images: Sequence[bytes], *, special: bool) -> int:
        """Return the tokens that the processor makes of a text and its images, which it gets upright, in RGB.

        Args:
            text: with placeholders.
            images: content of the images.
            special: whether the tokenizer adds its special tokens around the text.

        Raises:
            DataError: an image does not decode, or the processor raises an error.
        """
        try:
            decoded = [decode_image(data, "pilrgb") for data in images]
            media = {"images": [decoded]} if decoded else {}
            found = self._processor(text=[text], **media, add_special_tokens=special, **self._options)
            return len(found["input_ids"][0])
        except FeedmillError as error:
            raise DataError(f"an image does not decode: {error.what}", kind="bad-media") from None
        except Exception as error:  # a processor may raise anything
            raise DataError(f"the processor refuses it ({_short(error)})", kind="bad-media") from None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
