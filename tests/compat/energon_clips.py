"""Runs in a Python that has Energon: what its `AVDecoder` gives for the files named in a request, as JSON.

Reads ``{"files": [...], "video": [[ranges, unit], ...], "audio": [[ranges, unit], ...]}`` from standard input.
"""

import dataclasses
import hashlib
import io
import json
import sys
import warnings
from pathlib import Path

from megatron.energon.av import AVDecoder, get_clips_uniform, get_single_frames_uniform


def digest(clip):
    return [list(clip.shape), str(clip.dtype), hashlib.sha256(clip.contiguous().numpy().tobytes()).hexdigest()]


def answers(data, request):
    found = {}
    decoder = AVDecoder(io.BytesIO(data))
    known = dataclasses.asdict(decoder.get_metadata(get_audio_num_samples=True))
    found["metadata"] = {name: value for name, value in known.items() if value is not None}
    if decoder.has_video_stream():
        for ranges, unit in request["video"]:
            clips, times = decoder.get_video_clips([tuple(one) for one in ranges], unit)
            found[f"video {ranges} {unit}"] = [[digest(clip) for clip in clips], [list(pair) for pair in times]]
        uniform = get_clips_uniform(decoder, 0.7, 3, request_video=True)
        found["uniform"] = [digest(clip) for clip in uniform.video_clips]
        found["single"] = digest(get_single_frames_uniform(decoder, 5))
    if decoder.has_audio_stream():
        for ranges, unit in request["audio"]:
            clips, times = decoder.get_audio_clips([tuple(one) for one in ranges], unit)
            found[f"audio {ranges} {unit}"] = [[list(clip.shape) for clip in clips], [list(pair) for pair in times]]
    return found


warnings.simplefilter("ignore")
request = json.load(sys.stdin)
print(json.dumps({file: answers(Path(file).read_bytes(), request) for file in request["files"]}))
