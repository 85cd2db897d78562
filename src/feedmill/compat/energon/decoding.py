"""Energon's `SampleDecoder` over Feedmill's decoder."""

from __future__ import annotations

from typing import Any

from feedmill.samples.decode import Decoder

__all__ = ["SampleDecoder"]


class SampleDecoder(Decoder):
    """Decodes parts by their suffixes. Pickles stay bytes unless `trust`.

    Args:
        image_decode: what images become: ``torchrgb`` (float tensor [3, H, W] from 0 to 1), ``pilrgb``, ``rgb8``, ...
        av_decode, video_decode_audio, guess_content: what audio and video become.
        trust: whether pickles are read, which runs code that the data names.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        image_decode: str = "torchrgb",
        av_decode: str = "AVDecoder",  # noqa: ARG002
        video_decode_audio: bool = False,  # noqa: ARG002
        guess_content: bool = False,  # noqa: ARG002
        trust: bool = False,
    ) -> None:
        super().__init__(image_decode, trust=trust)

    def decode(self, fname: str, data: Any) -> Any:
        """One part by its name."""
        return self(fname, data)
