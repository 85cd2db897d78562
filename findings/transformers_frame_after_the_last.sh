#!/usr/bin/env bash
# Sampling a video by frames a second raises IndexError for some lengths: the frame after its last one is taken.
#
# The video processors of Qwen2-VL, InternVL (initial_shift 0) and Molmo 2 take torch.arange(0, total, total / wanted)
# .int(). Where total / (total / wanted) is just above `wanted`, this has one number more, and in float32 it is `total`.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    transformers==5.24.0 torch==2.14.1 torchvision==0.29.1 pillow==13.0.0
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import InternVLVideoProcessor, Molmo2VideoProcessor, Qwen2VLVideoProcessor

numbers = torch.arange(0, 143, 143 / 28).int().tolist()
print(f"of 143 frames, 28 are wanted, and {len(numbers)} taken: the last is number {numbers[-1]}")


def what(videos, frames, rate):
    clip = torch.zeros(frames, 3, 56, 56, dtype=torch.uint8)
    about = [{"total_num_frames": frames, "fps": rate, "duration": frames / rate}]
    try:
        videos([clip], video_metadata=about, return_tensors="pt")
    except IndexError as error:
        return str(error)
    return "no error"


seen = [
    what(Qwen2VLVideoProcessor(do_sample_frames=True, fps=2), 143, 10),
    what(Qwen2VLVideoProcessor(do_sample_frames=True, fps=2), 142, 10),
    what(InternVLVideoProcessor(do_sample_frames=True, fps=2, initial_shift=0), 143, 10),
    what(Molmo2VideoProcessor(), 143, 10),
]
for line in seen:
    print(f"transformers {transformers.__version__}: {line}")
count, bad = 0, 0
for frames in range(4, 600):
    wanted = max(min(frames / 10 * 2, frames), 4) // 2 * 2
    count, bad = count + 1, bad + (len(torch.arange(0, frames, frames / wanted)) > wanted)
print(f"{bad} of {count} lengths at 10 frames a second have a frame too many")
error = "index 143 is out of bounds for dimension 0 with size 143"
assert seen == [error, "no error", error, error] and bad > 0, "changed"
PYTHON
