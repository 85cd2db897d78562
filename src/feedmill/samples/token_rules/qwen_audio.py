"""Sound of Qwen2-Audio, Qwen2.5-Omni and Qwen3-Omni: mel frames of Whisper's features, halved by convolutions.

Source: ``WhisperFeatureExtractor``, ``Qwen2AudioProcessor``, ``Qwen2_5OmniProcessor`` and ``Qwen3OmniMoeProcessor`` of
transformers. Qwen3-Omni pads to the longest clip of a batch, where another clip may cost one token more: the rule is
for a clip that is processed alone.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Sizes, TokenRule


class _WhisperAudio(TokenRule):
    kind = "audio"
    classes = ("WhisperFeatureExtractor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.audio
        assert given is not None
        self.rate = given.integer("sampling_rate", 16_000)
        self.hop = given.integer("hop_length", 160)
        self.most = given.integer("chunk_length", 30) * self.rate
        self.padding = given.integer("n_fft", 400) // 2
        self.placeholder = folder.token("audio_token", "<|AUDIO|>")


class QwenAudio(_WhisperAudio):
    """Sound of ``Qwen2AudioProcessor`` and ``Qwen2_5OmniProcessor``; a clip longer than a chunk is cut."""

    def count(self, sizes: Sizes) -> Int64s:
        frames = -(-np.minimum(sizes.samples, self.most) // self.hop)
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1


class Qwen3OmniAudio(_WhisperAudio):
    """Sound of ``Qwen3OmniMoeProcessor``, which cuts nothing."""

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {f"it is not longer than the padding of {self.padding} samples": sizes.samples <= self.padding}

    def count(self, sizes: Sizes) -> Int64s:
        frames = sizes.samples // self.hop
        rest = (frames % 100 - 1) // 2 + 1
        return ((rest - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13
