"""What a decoder makes of audio and video, in samples too."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import DataError
from feedmill.formats.energon.media import AMBIGUOUS_EXTENSIONS, AV_EXTENSIONS
from feedmill.loading.collate import collate
from feedmill.samples.avdecoder import AVData, AVDecoder
from feedmill.samples.decode import Decoder, SampleDecoder
from feedmill.samples.open import open as open_dataset
from feedmill.samples.types import VidQASample
from helpers import media_files as clips
from helpers.tars import write_tar

pytest.importorskip("av")


def test_audio_and_video_are_handles_that_open_nothing() -> None:
    for suffix in sorted(AV_EXTENSIONS - AMBIGUOUS_EXTENSIONS):
        for name in (suffix, f"cam.{suffix.upper()}"):
            handle = Decoder()(name, b"not looked at")
            assert type(handle) is AVDecoder and (handle.source, handle.name) == (b"not looked at", name)
    assert Decoder("torchrgb8")("mp4", b"").arrays == "torch"
    assert Decoder("pil")("mp4", b"").arrays == "numpy"
    assert Decoder(av="bytes")("mp4", b"x") == b"x"


def test_everything_at_once() -> None:
    data, audio = clips.movie("mp4"), clips.sound("wav")
    video = Decoder(av="numpy")("mp4", data)
    assert isinstance(video, AVData) and video.video_clips[0].shape == (100, 3, 48, 64) and video.audio_clips == []
    both = Decoder(av="numpy", video_decode_audio=True)("mp4", data)
    assert both.video_clips[0].shape == (100, 3, 48, 64) and both.audio_clips[0].shape[0] == 1
    assert Decoder(av="numpy")("wav", audio).audio_clips[0].shape == (1, 3 * clips.RATE)
    silent = Decoder(av="numpy", video_decode_audio=True)("mp4", clips.movie("mp4", audio=False))
    assert len(silent.video_clips) == 1 and silent.audio_clips == []
    with Decoder(av="pyav")("mp4", data) as container:
        assert container.streams.video[0].frames == 100
    for how in ("numpy", "pyav"):
        with pytest.raises(DataError, match=r"'x\.mp4'"):
            Decoder(av=how)("x.mp4", b"damaged")


def test_energons_options() -> None:
    torch = pytest.importorskip("torch")
    data = clips.movie("mp4")
    handle = SampleDecoder()("mp4", data)
    assert handle.get_video_clips([(0, 0.2)])[0][0].dtype == torch.uint8
    everything = SampleDecoder(image_decode="rgb8", av_decode="torch", video_decode_audio=True).decode("mp4", data)
    assert everything.video_clips[0].shape == (100, 3, 48, 64) and everything.audio_clips[0].dtype == torch.float32
    assert SampleDecoder()("m4a", b"x") == b"x"  # not among Energon's suffixes
    assert SampleDecoder()("txt", b"x") == "x"


def test_content_may_say_what_a_part_is() -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("RGB", (3, 2)).save(stream, "PNG")
    guess, plain = Decoder(guess_content=True), Decoder()
    assert guess("img", stream.getvalue()).shape == guess("mp4", stream.getvalue()).shape == (2, 3, 3)
    assert isinstance(guess("data.bin", clips.sound("wav")), AVDecoder)
    assert guess("json", b"[1]") == [1] and guess("mp4", b"").source == b""
    assert plain("img", stream.getvalue()) == stream.getvalue()


def dataset_with_video(root: Path, bad: bool = False) -> Path:
    data = clips.movie("mp4")
    files = [
        ("a.mp4", data[: len(data) // 2] if bad else data),
        ("a.json", b'{"question": "What moves?", "answers": ["all"]}'),
        ("b.mp4", data),
        ("b.json", b'{"question": "Which way?"}'),
    ]
    root.mkdir()
    write_tar(root / "0.tar", files)
    return root


def test_a_sample_s_video_names_file_and_sample_when_it_fails(tmp_path: Path) -> None:
    sample = open_dataset(dataset_with_video(tmp_path / "ds", bad=True))[0]
    video = sample["mp4"]
    with pytest.raises(DataError) as caught:
        video.get_video_clips([(0, 1)])
    assert (caught.value.file or "").endswith("ds/0.tar")
    assert (caught.value.record, caught.value.offset) == ("a.mp4", 0)


def test_a_sample_s_pickle_carries_a_video_once(tmp_path: Path) -> None:
    sample = open_dataset(dataset_with_video(tmp_path / "ds"))[0]
    before = len(pickle.dumps(sample))
    wanted = sample["mp4"].get_video_clips([(1, 1.2)])[0][0]
    question = sample["json"]["question"]
    again = pickle.loads(pickle.dumps(sample))
    assert len(pickle.dumps(sample)) < before + 500
    assert np.array_equal(again["mp4"].get_video_clips([(1, 1.2)])[0][0], wanted)
    assert again["json"]["question"] == question
    assert sample["mp4"] is sample["mp4"]


def test_typed_samples_and_batches_have_handles(tmp_path: Path) -> None:
    root = dataset_with_video(tmp_path / "ds")
    from feedmill.indexing.prepare import prepare

    fields = {"video": "mp4", "context": "json[question]"}
    prepare(str(root), split_ratio="1,0,0", sample_type="VidQASample", field_map=fields, progress=False)
    samples = open_dataset(root)[0:2]
    assert all(isinstance(sample, VidQASample) and isinstance(sample.video, AVDecoder) for sample in samples)
    batch = collate(samples)
    assert [video.get_metadata().video_num_frames for video in batch["video"]] == [100, 100]
    frames = open_dataset(root, decode=Decoder(av="numpy"))[0].video.video_clips[0]
    assert frames.shape == (100, 3, 48, 64)


def test_checking_samples_decodes_their_videos(tmp_path: Path) -> None:
    from feedmill.indexing.check import check

    assert check(str(dataset_with_video(tmp_path / "good")), read_samples=True, progress=False).findings == []
    (finding,) = check(str(dataset_with_video(tmp_path / "bad", bad=True)), read_samples=True, progress=False).findings
    assert (finding.kind, finding.record) == ("bad-media", "a.mp4") and (finding.file or "").endswith("0.tar")
    with pytest.raises(DataError, match=r"neither video nor audio|cannot be decoded"):
        AVDecoder(b"1\n00:00:00,000 --> 00:00:01,000\nwords\n\n").check()
