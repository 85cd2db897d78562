"""`TorchAVDecoder`: ranges after the end have no clip, and uniform clips are complete whatever the file states."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import pytest

from feedmill.samples.avdecoder import AVDecoder, get_clips_uniform
from helpers import media_files as clips

torch = pytest.importorskip("torch")
pytest.importorskip("av")

from feedmill.samples.avdecoder import TorchAVDecoder  # noqa: E402


def test_ranges_after_the_end_have_no_clip(caplog: pytest.LogCaptureFixture) -> None:
    data = clips.movie("mp4")
    decoder = TorchAVDecoder(data, name="talk.mp4")
    ranges = [(99, 100), (1, 1), (4, 5), (3.99, 7)]
    with caplog.at_level(logging.WARNING):
        found, times = decoder.get_video_clips(ranges)
    assert [len(clip) for clip in found] == [1, 1] and times == [(1.0, 1.04), (3.96, 4.0)]
    assert "2 of 4 ranges begin after the end of talk.mp4" in caplog.text
    assert len(AVDecoder(data).get_video_clips(ranges)[0]) == 4
    assert [len(clip) for clip in decoder.get_video_clips([(100, 101), (99, 200)], "frames")[0]] == [1]


def test_sound_after_the_end_has_no_clip() -> None:
    decoder = TorchAVDecoder(clips.movie("mp4"))
    found, times = decoder.get_audio_clips([(1, 1.5), (99, 100), (2, 2)])
    assert [clip.shape[1] for clip in found] == [clips.RATE // 2, 0] and len(times) == 2  # an empty range is not after
    rate = clips.RATE
    assert len(decoder.get_audio_clips([(0, rate), (99 * rate, 100 * rate)], "samples")[0]) == 1
    data = decoder.get_clips([(1, 1), (99, 99)], [(1, 2), (99, 100)])
    assert len(data.video_clips) == len(data.video_timestamps) == len(data.audio_clips) == 1


def test_warnings_can_be_suppressed_and_a_pickled_decoder_keeps_that(caplog: pytest.LogCaptureFixture) -> None:
    decoder = pickle.loads(pickle.dumps(TorchAVDecoder(clips.movie("mp4"), suppress_warnings=True)))
    assert decoder.get_video_clips([(99, 100)]) == ([], []) and not caplog.records


def test_uniform_clips_are_as_many_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = TorchAVDecoder(clips.movie("mp4"))
    stated = replace(decoder.get_metadata(), video_duration=40.0)  # a file of 4 seconds that states another duration
    monkeypatch.setattr(TorchAVDecoder, "get_metadata", lambda *_, **__: stated)
    data = get_clips_uniform(decoder, 0.5, 5, request_video=True)
    assert len(data.video_clips) == len(data.video_timestamps) == 5 and isinstance(data.video_clips[0], torch.Tensor)
