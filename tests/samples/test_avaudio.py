"""Clips of audio: the samples that decoding from the beginning gives, in every container."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError
from feedmill.samples.avdecoder import AVDecoder, get_clips_uniform
from helpers import media_files as clips
from helpers.durations import examples

av = pytest.importorskip("av")
EXACT = ("wav", "flac", "mov", "mp3", "avi")  # the others have decoders whose noise depends on what came before
RATE = clips.RATE


def data_of(kind: str) -> bytes:
    return clips.sound(kind) if kind in clips.SOUNDS else clips.movie(kind)


# A fragmented file has a gap after the first packet, which this truth does not know.
@pytest.mark.parametrize("kind", [kind for kind in (*clips.SOUNDS, *clips.KINDS) if kind != "fragmented"])
def test_clips_are_pieces_of_the_whole(kind: str) -> None:
    decoder = AVDecoder(data_of(kind), name=f"x.{kind}")
    whole, first = clips.all_samples(data_of(kind))

    @settings(max_examples=examples(25), deadline=None)
    @given(st.lists(st.tuples(st.floats(0, 4), st.floats(0, 1.5)), min_size=1, max_size=3))
    def run(given: list[tuple[float, float]]) -> None:
        ranges = [(start, start + length) for start, length in given]
        found, stamps = decoder.get_audio_clips(ranges)
        for (start, end), clip, (begin, stop) in zip(ranges, found, stamps, strict=True):
            low, high = (max(int(t * RATE + 0.5) - first, 0) for t in (start, end))
            wanted = whole[:, low:high]
            assert (clip.shape, clip.dtype) == (wanted.shape, wanted.dtype)
            assert np.array_equal(clip, wanted) if kind in EXACT else np.allclose(clip, wanted, atol=0.02)
            assert stop - begin == pytest.approx(wanted.shape[1] / RATE)

    run()


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3"])
def test_clips_by_sample_numbers(kind: str) -> None:
    whole, first = clips.all_samples(data_of(kind))
    (clip, rest, none), times = AVDecoder(data_of(kind)).get_audio_clips(
        [(2000, 5000), (100_000, float("inf")), (10**7, 10**7 + 5)], "samples"
    )
    assert np.array_equal(clip, whole[:, 2000 - first : 5000 - first])
    assert np.array_equal(rest, whole[:, 100_000 - first :])
    assert none.shape == (1, 0) and none.dtype == whole.dtype
    assert times[0] == (2000 / RATE, 5000 / RATE)


@pytest.mark.parametrize("kind", ["mp3", "ogg", "mka"])
def test_uniform_clips_begin_with_the_audio(kind: str) -> None:
    """Which MP3 counts behind its padding, and what was cut out of a running stream from anywhere."""
    if kind == "mp3":
        decoder = AVDecoder(data_of("mp3"))
    else:
        out = io.BytesIO()
        with av.open(out, "w", format="matroska" if kind == "mka" else "ogg") as container:
            stream = container.add_stream("libopus", rate=48000, layout="mono")
            for at in range(0, 96000, 960):
                frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), np.float32), "fltp", layout="mono")
                frame.sample_rate, frame.time_base, frame.pts = 48000, Fraction(1, 48000), 480_000 + at
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        decoder = AVDecoder(out.getvalue())
    rate = decoder.get_audio_samples_per_second()
    found = get_clips_uniform(decoder, 0.25, 3, request_audio=True)
    assert [clip.shape[1] for clip in found.audio_clips] == pytest.approx([rate // 4] * 3, abs=0.02 * rate)
    assert found.audio_clips[0].shape[1] == rate // 4


def test_all_audio_and_what_it_is() -> None:
    decoder = AVDecoder(clips.sound("wav"))
    data = decoder.get_audio()
    assert data.video_clips == [] and data.audio_clips[0].shape == (1, 3 * RATE)
    assert data.audio_timestamps == [(0.0, 3.0)]
    assert decoder.get_audio_samples_per_second() == RATE
    assert decoder.get_audio_duration() == 3.0
    assert (decoder.has_audio_stream(), decoder.has_video_stream()) == (True, False)
    assert decoder.get_frames().audio_clips[0].shape == (1, 3 * RATE)
    uniform = get_clips_uniform(decoder, 0.5, 4, request_audio=True)
    assert [clip.shape for clip in uniform.audio_clips] == [(1, RATE // 2)] * 4
    assert [start for start, _ in uniform.audio_timestamps] == pytest.approx([0, 2.5 / 3, 5 / 3, 2.5], abs=1e-4)
    with pytest.raises(DataError, match="no video"):
        get_clips_uniform(decoder, 0.5, 4, request_video=True)
    with pytest.raises(DataError, match="no video stream"):
        decoder.get_video()
    with pytest.raises(DataError, match="no audio stream"):
        AVDecoder(clips.movie("mp4", audio=False)).get_audio()


@pytest.mark.parametrize("kind", [*clips.SOUNDS, "aac", "mka", "late"])
def test_the_duration_is_that_of_the_samples(kind: str) -> None:
    """Not the header's, which may have the encoder's delay, nor less a start that the header's does not have."""
    if kind == "aac":
        out = io.BytesIO()
        with av.open(out, "w", format="adts") as container:
            clips._sing(container, container.add_stream("aac", rate=RATE, layout="mono"), 3.0)
        data = out.getvalue()
    elif kind == "mka":
        out = io.BytesIO()
        with av.open(out, "w", format="matroska") as container:
            clips._sing(container, container.add_stream("libopus", rate=RATE, layout="mono"), 3.0, 7)
        data = out.getvalue()
    else:
        data = clips.sound("mp3", 3.0, 2) if kind == "late" else clips.sound(kind)
    decoder = AVDecoder(data)
    whole, _ = clips.all_samples(data)
    assert decoder.get_audio_duration() == pytest.approx(whole.shape[1] / RATE, abs=0.01)
    counted = decoder.get_metadata(get_audio_num_samples=True)
    assert counted.audio_num_samples == whole.shape[1]
    assert counted.audio_duration == decoder.get_audio_duration()
    found = get_clips_uniform(decoder, 0.5, 3, request_audio=True)
    assert [clip.shape[1] for clip in found.audio_clips] == [RATE // 2] * 3
