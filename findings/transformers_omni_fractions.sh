#!/usr/bin/env bash
# Positions of Qwen3-Omni are not whole numbers: frames of a video lie at fractions, where Qwen2.5-Omni cuts these off.
#
# Both place a group of frames at its time in seconds, times 25. With 1.5 groups a second, that is 16.67 positions. So
# positions that are kept as integers, as those of Qwen2-VL to Qwen3-VL are, change what Qwen3-Omni computes.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers

TOKENS = {"image_token_id": 90, "video_token_id": 91, "audio_token_id": 92, "vision_start_token_id": 93}
ids = torch.tensor([[1, 2, 93, *[91] * 12, 94, 3]])  # a video of two groups of frames of 4 x 6 patches
grid, seconds = torch.tensor([[2, 4, 6]]), torch.tensor([2 / 3])
for name in ("Qwen2_5Omni", "Qwen3OmniMoe"):
    config = getattr(transformers, f"{name}ThinkerConfig")(audio_start_token_id=95, **TOKENS)
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ThinkerForConditionalGeneration")(config)
    found, _ = model.get_rope_index(ids, None, grid, torch.ones_like(ids), False, None, seconds)
    times = sorted(set(found[0, 0, 3:15].tolist()))
    print(f"transformers {transformers.__version__}, {name}: {found.dtype}, the frames are at {times}")
    assert found.is_floating_point() == (name == "Qwen3OmniMoe"), "changed"
    assert any(time % 1 for time in times) == (name == "Qwen3OmniMoe"), "changed"
PYTHON
