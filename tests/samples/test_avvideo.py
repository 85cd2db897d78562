"""Clips of video: the frames that decoding from the beginning gives at these times, in every container."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.formats.avvideo import VideoReader, to_ticks
from feedmill.formats.mp4.clips import ClipReader
from feedmill.samples.avdecoder import AVDecoder, get_clips_uniform, get_single_frames_uniform
from feedmill.storage.remote.object_store import RemoteStore
from feedmill.storage.window import Window
from helpers import media_files as clips
from helpers.durations import examples
from helpers.range_server import range_server

pytest.importorskip("av")
INF = float("inf")


@cache
def truth(kind: str, gaps: bool = False) -> tuple[AVDecoder, np.ndarray, np.ndarray]:
    data = clips.movie(kind, gaps=gaps)
    return AVDecoder(data, name=f"x.{kind}"), *clips.all_frames(data)


def shown(frames: np.ndarray, times: np.ndarray, start: float, end: float) -> np.ndarray:
    """The frames on the screen from start to end."""
    first, last = (max(int(np.searchsorted(times, t + 1e-7, side="right")) - 1, 0) for t in (start, end))
    return frames[first : max(last, first) + 1]


# All frames begin at multiples of 20 ms; a time just before one may mean it.
MOMENTS = st.one_of(st.floats(-1, 7), st.integers(-5, 170).map(lambda n: n / 25)).map(
    lambda t: round(t * 50) / 50 if abs(t * 50 - round(t * 50)) < 0.001 else t
)
RANGES = st.lists(st.tuples(MOMENTS, st.sampled_from([0.0, 0.04, 0.5, 1.3, INF])), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("kind", "gaps"),
    [
        *((kind, False) for kind in clips.KINDS),
        ("mp4", True),
        pytest.param("mkv", True, marks=pytest.mark.slow),
        ("webm", True),
    ],
)
def test_clips_are_the_frames_on_the_screen(kind: str, gaps: bool) -> None:
    decoder, frames, times = truth(kind, gaps)

    @settings(max_examples=examples(25), deadline=None)
    @given(RANGES)
    def run(given: list[tuple[float, float]]) -> None:
        ranges = [(start, start + length) for start, length in given]
        found, stamps = decoder.get_video_clips(ranges)
        for (start, end), clip, (begin, stop) in zip(ranges, found, stamps, strict=True):
            wanted = shown(frames, times, start, end)
            assert clip.dtype == np.uint8
            assert np.array_equal(clip.transpose(0, 2, 3, 1), wanted)
            assert begin == pytest.approx(times[max(np.searchsorted(times, start + 1e-7, side="right") - 1, 0)])
            assert stop > begin

    run()


@pytest.mark.parametrize("kind", clips.KINDS)
def test_the_first_clip_of_a_handle_has_all_its_frames(kind: str) -> None:
    """An AV1 decoder once left out every second frame before the first clip, and went on without them."""
    decoder, frames, times = truth(kind)
    for first in (1, 9, 17, 31, 95):
        found, _ = AVDecoder(decoder.source).get_video_clips([(times[first], times[first + 3])])
        assert np.array_equal(found[0].transpose(0, 2, 3, 1), frames[first : first + 4]), (kind, first)


@pytest.mark.parametrize(("kind", "gaps"), [*((kind, False) for kind in clips.KINDS if kind != "avi"), ("mp4", True)])
def test_clips_by_frame_numbers(kind: str, gaps: bool) -> None:
    decoder, frames, _ = truth(kind, gaps)
    ranges = [(3, 5), (0, 0), (90, 200), (47, 52), (99, INF), (500, 600)]
    found, _ = decoder.get_video_clips(ranges, "frames")
    for (start, end), clip in zip(ranges, found, strict=True):
        low, high = min(start, 99), int(min(end, 99))
        assert np.array_equal(clip.transpose(0, 2, 3, 1), frames[low : high + 1])


def test_frames_whose_stated_durations_are_too_short_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(self: VideoReader, packet: Any) -> bool:
        return self._skip_before is not None and packet.pts is not None and packet.pts + 1 <= self._skip_before

    monkeypatch.setattr(VideoReader, "_is_past", tiny)
    _, frames, times = truth("mkv", gaps=True)
    decoder = AVDecoder(clips.movie("mkv", gaps=True))
    for moment in np.arange(0, 4, 0.07).tolist():
        found, _ = decoder.get_video_clips([(moment, moment + 0.1)])
        assert np.array_equal(found[0].transpose(0, 2, 3, 1), shown(frames, times, moment, moment + 0.1))


def test_frames_are_scaled() -> None:
    decoder, _, _ = truth("mp4")
    found, _ = decoder.get_video_clips([(1, 1.2)], video_out_frame_size=(32, 16))
    assert found[0].shape == (6, 3, 16, 32)


def test_near_clips_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    start = ClipReader._start
    monkeypatch.setattr(ClipReader, "_start", lambda self, number: begins.append(number) or start(self, number))
    decoder = AVDecoder(clips.movie("mp4", gop=50))
    for clip in [(0.2, 0.3), (0.35, 0.5), (0.5, 0.9), (1.2, 1.3)]:
        decoder.get_video_clips([clip])
    assert begins == [0]
    decoder.get_video_clips([(3.2, 3.3), (2.2, 2.3)])
    assert begins == [0, 50]  # for 2.2; 3.2 has the same key frame


@pytest.mark.parametrize("kind", [kind for kind, how in clips.KINDS.items() if how.container in ("mp4", "mov")])
@pytest.mark.parametrize("together", [True, False])
def test_each_frame_alone_and_in_clips_without_a_container(
    kind: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, frames, _ = truth(kind)
    decoder, random = AVDecoder(known.source), np.random.default_rng(2)
    monkeypatch.setattr("feedmill.samples.avdecoder.open_av", lambda *_: pytest.fail("a container was opened"))
    clips_of = [(number, number) for number in (*range(100), *random.permutation(100).tolist())]
    clips_of += [(first, first + length) for first, length in random.integers(0, 60, (30, 2)).tolist()]
    for part in [clips_of] if together else [[one] for one in clips_of]:
        found, _ = decoder.get_video_clips(part, "frames")
        for (first, last), clip in zip(part, found, strict=True):
            assert np.array_equal(clip.transpose(0, 2, 3, 1), frames[first : last + 1]), (kind, first, last)
    assert decoder.get_metadata(get_audio=False).video_num_frames == 100


def test_clips_of_a_bucket_read_what_their_frames_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.formats.mp4.table.FIRST_READ", 4096)
    data = clips.movie("mp4", audio=False)
    with range_server() as server:
        server.objects["v.mp4"] = data
        store = RemoteStore("s3://bkt", **server.options)
        decoder = AVDecoder(io.BufferedReader(Window(store, "v.mp4", 0, len(data)), 16))
        assert decoder.video_start == 0.0
        server.forget()
        ranges = [(3.0, 3.1), (1.7, 1.8)]
        found, _ = decoder.get_video_clips(ranges)
        asked = sum(end - begin for begin, end in server.asked)
    wanted, _ = AVDecoder(data).get_video_clips(ranges)
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
    table = ClipReader(io.BytesIO(data), len(data)).table
    numbers = table.order[[75, 76, 77, 42, 43, 44, 45]]
    needed = sum(int(table.size[table.begin[part[0]] : max(part) + 1].sum()) for part in (numbers[:3], numbers[3:]))
    # The decoder shows a frame when it has seen two more; the buffer reads 16 bytes more at once.
    assert needed <= asked <= 1.15 * needed + 4 * int(np.median(table.size)) < len(data) // 2
    assert len(set(server.asked)) <= 8  # one that a busy machine drops is repeated


@pytest.mark.parametrize(("kind", "gaps"), [*((kind, False) for kind in clips.KINDS), ("mp4", True), ("webm", True)])
def test_start_duration_and_number_of_frames(kind: str, gaps: bool) -> None:
    """From the first frame to the end of the last one, whatever the container says of either."""
    decoder, _, times = truth(kind, gaps)
    last = 0.04 if not gaps else 0.05
    about = decoder.get_metadata()
    assert about.video_num_frames == len(times)
    assert about.video_duration == pytest.approx(times[-1] - times[0] + last, abs=0.011)
    assert about.video_fps == pytest.approx(25, rel=0.02)
    assert decoder.video_start == pytest.approx(times[0])
    assert decoder.get_video_duration()[0] == about.video_duration
    only = AVDecoder(decoder.source).get_metadata(get_video_frame_count=False, get_video_frame_size=False)
    assert only.video_duration == about.video_duration and only.video_width is None


def test_a_varying_video_that_states_too_short_a_duration() -> None:
    import av

    out, shown = io.BytesIO(), (0, 100, 150, 1400, 2000, 3100)
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for frame, time in zip(clips.pictures(6, (64, 48)), shown, strict=True):
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(io.BytesIO(out.getvalue())) as container:
        stated = container.streams.video[0]
        assert float(stated.duration * stated.time_base) < 3.1  # what this test is about
    decoder = AVDecoder(out.getvalue())
    about = decoder.get_metadata()
    assert about.video_duration is not None and about.video_duration > 3.1
    assert about.video_fps == pytest.approx(6 / about.video_duration)
    _, times = get_single_frames_uniform(decoder, 40, return_timestamps=True)
    assert times[0] == 0 and times[-1] == pytest.approx(3.1)
    assert {round(1000 * time) for time in times} >= {0, 150, 1400, 2000, 3100}
    data = get_clips_uniform(decoder, 0.5, 3, request_video=True)
    assert data.video_timestamps[-1][1] == pytest.approx(about.video_duration)


@pytest.mark.parametrize(
    "kind", ["mp4", "mkv", "ts", "avi", "av1", "hevc-open", "hevc-open-ts", "late", "late-ts", "late-mkv", "edited"]
)
def test_uniform_clips_and_frames(kind: str) -> None:
    decoder, frames, times = truth(kind)
    duration = decoder.get_video_duration()[0] or 0
    data = get_clips_uniform(decoder, 1.0, 5, request_video=True)
    starts = np.linspace(0, duration - 1, 5) + decoder.video_start
    assert len(data.video_clips) == 5 and data.audio_clips == []
    for start, clip in zip(starts, data.video_clips, strict=True):
        assert np.array_equal(clip.transpose(0, 2, 3, 1), shown(frames, times, start, start + 1.0))
    single, moments = get_single_frames_uniform(decoder, 7, return_timestamps=True)
    assert single.shape == (7, 3, 48, 64) and len(moments) == 7
    assert np.array_equal(single[0].transpose(1, 2, 0), frames[0])
    assert np.array_equal(single[-1].transpose(1, 2, 0), frames[-1])
    assert (moments[0], moments[-1]) == pytest.approx((times[0], times[-1]))
    assert get_single_frames_uniform(decoder, 0).shape == (0, 3, 0, 0)
    both = get_clips_uniform(decoder, 0.5, 3, request_video=True, request_audio=True)
    assert len(both.video_clips) == len(both.audio_clips) == 3
    longer = get_clips_uniform(decoder, 60.0, 2, request_video=True)
    assert all(len(clip) == 100 for clip in longer.video_clips)


def test_ticks_of_rounded_decimals() -> None:
    for number in range(1000):
        assert to_ticks(number * 0.04, Fraction(1, 12800)) == number * 512
        assert to_ticks(number / 30, Fraction(1, 30)) == number
    assert to_ticks(INF, Fraction(1, 25)) is None


@pytest.mark.parametrize("form", ["gray12le", "gray10le", "yuv420p10le"])
def test_gray_of_many_bits_keeps_its_values_and_colors_become_eight_bits(form: str) -> None:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        options = {"x265-params": "lossless=1:keyint=4:log-level=none:pools=1"}
        stream = container.add_stream("libx265", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 66, 48, form
        true = []
        for frame in clips.pictures(12, (66, 48), form if form.startswith("gray") else "rgb24"):
            true.append(frame.to_ndarray())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    decoder = AVDecoder(out.getvalue())
    (clip,), _ = decoder.get_video_clips([(5, 8)], "frames")
    (small,), _ = decoder.get_video_clips([(5, 8)], "frames", (33, 24))
    if form.startswith("gray"):
        assert (clip.dtype, clip.shape, small.dtype, small.shape) == (
            np.uint16,
            (4, 1, 48, 66),
            np.uint16,
            (4, 1, 24, 33),
        )
        assert np.array_equal(clip[:, 0], true[5:9])
    else:
        assert (clip.dtype, clip.shape) == (np.uint8, (4, 3, 48, 66))
    assert get_single_frames_uniform(decoder, 3).dtype == clip.dtype


@pytest.mark.parametrize("kind", ["ts", "hevc-open-ts", "mpeg2-ts", "late-ts"])
def test_a_stream_that_was_cut_anywhere_begins_with_what_decodes(kind: str) -> None:
    data = clips.movie(kind)[188 * 60 :]
    frames, times = clips.all_frames(data)
    decoder = AVDecoder(data)
    assert 50 < len(times) < 100
    about = decoder.get_metadata()
    assert (about.video_num_frames, decoder.video_start) == (len(times), pytest.approx(times[0]))
    assert about.video_duration == pytest.approx(times[-1] - times[0] + 0.04, abs=0.011)
    found, _ = decoder.get_video_clips([(0, 2), (30, 33), (len(times) - 2, INF)], "frames")
    for clip, (first, end) in zip(found, [(0, 3), (30, 34), (len(times) - 2, len(times))], strict=True):
        assert np.array_equal(clip.transpose(0, 2, 3, 1), frames[first:end])
    single = get_single_frames_uniform(decoder, 3)
    assert np.array_equal(single[0].transpose(1, 2, 0), frames[0])
    assert np.array_equal(single[2].transpose(1, 2, 0), frames[-1])
