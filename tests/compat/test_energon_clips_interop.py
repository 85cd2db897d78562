"""Clips and metadata of audio and video, beside Energon's own `AVDecoder`, where both are right."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from feedmill.samples.avdecoder import AVDecoder, get_clips_uniform, get_single_frames_uniform
from helpers import media_files as clips

PEER = "FEEDMILL_ENERGON_PYTHON"
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not os.environ.get(PEER), reason=f"{PEER} names no Python with megatron-energon 7.4 and PyAV"),
]
pytest.importorskip("av")
pytest.importorskip("torch")

VIDEO = [([[0, 1]], "seconds"), ([[1, 2], [2.5, 3.2], [0.2, 0.3]], "seconds"), ([[0.5, 0.5]], "seconds")]
FRAMES = ([[3, 9], [40, 40]], "frames")
AUDIO = [([[0.5, 1.5], [2.0, 2.25]], "seconds"), ([[24000, 36000]], "samples")]


def digest(clip: Any) -> list[Any]:
    raw = clip.contiguous().numpy().tobytes()
    return [list(clip.shape), str(clip.dtype), hashlib.sha256(raw).hexdigest()]


def ours(data: bytes, video: list[Any], audio: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    decoder = AVDecoder(data, arrays="torch")
    known = dataclasses.asdict(decoder.get_metadata(get_audio_num_samples=True))
    found["metadata"] = {name: value for name, value in known.items() if value is not None}
    if decoder.has_video_stream():
        for ranges, unit in video:
            got, times = decoder.get_video_clips(ranges, unit)
            found[f"video {ranges} {unit}"] = [[digest(clip) for clip in got], [list(pair) for pair in times]]
        uniform = get_clips_uniform(decoder, 0.7, 3, request_video=True)
        found["uniform"] = [digest(clip) for clip in uniform.video_clips]
        found["single"] = digest(get_single_frames_uniform(decoder, 5))
    if decoder.has_audio_stream():
        for ranges, unit in audio:
            got, times = decoder.get_audio_clips(ranges, unit)
            found[f"audio {ranges} {unit}"] = [[list(clip.shape) for clip in got], [list(pair) for pair in times]]
    return found


@pytest.mark.parametrize(
    ("kinds", "video", "audio"),
    [
        (("mp4", "mov"), [*VIDEO, FRAMES], AUDIO),
        (("mkv", "webm", "avi"), VIDEO, []),  # Matroska's audio times are rounded there
        (("wav", "flac", "mp3", "m4a", "ogg"), [], AUDIO),
    ],
)
def test_the_same_clips(kinds: tuple[str, ...], video: list[Any], audio: list[Any], tmp_path: Path) -> None:
    files = {}
    for kind in kinds:
        data = clips.sound(kind) if kind in clips.SOUNDS else clips.movie(kind)
        (tmp_path / f"x.{kind}").write_bytes(data)
        files[str(tmp_path / f"x.{kind}")] = data
    request = {"files": list(files), "video": video, "audio": audio}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [os.environ[PEER], str(Path(__file__).with_name("energon_clips.py"))],
        input=json.dumps(request), capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for file, wanted in json.loads(done.stdout).items():
        found = ours(files[file], video, audio)
        assert found.keys() == wanted.keys()
        for what, value in wanted.items():
            if what == "metadata":
                assert found[what] == pytest.approx(value)
            elif what.startswith("audio"):
                assert found[what][0] == value[0], (file, what)
                assert [*chain(*found[what][1])] == pytest.approx([*chain(*value[1])])
            else:
                assert found[what] == value, (file, what)
