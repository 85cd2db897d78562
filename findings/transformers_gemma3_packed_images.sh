#!/usr/bin/env bash
# In a packed row, the sliding layers of Gemma 3 look for each sample's images where the first sample has its own.
#
# Tokens of an image attend to each other in both directions. For sliding layers, the mask of images is looked up by
# positions in a row whose positions begin again, which are indices of the first sample. So later samples get its images
# instead of theirs, and other logits than alone. Full layers, and rows without images, are right.
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
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

IMAGE = 90
torch.manual_seed(0)


def sample(length, at):
    ids = torch.randint(0, 80, (length,))
    ids[at : at + 4] = IMAGE
    return ids


samples = [sample(40, 13), sample(45, 20)]
pixels = torch.randn(2, 3, 56, 56)
for kind in ("sliding_attention", "full_attention"):
    text = {
        "vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16, "layer_types": [kind] * 2,
    }
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 56}
    config = Gemma3Config(
        text_config=text, vision_config={**vision, "patch_size": 14}, mm_tokens_per_image=4, image_token_index=IMAGE,
        image_token_id=IMAGE,
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():

        def logits(ids, positions, pictures):
            types = (ids == IMAGE).long()[None]
            return model(
                input_ids=ids[None], position_ids=positions[None], pixel_values=pictures, token_type_ids=types,
                use_cache=False,
            ).logits[0]

        places = [torch.arange(len(ids)) for ids in samples]
        row = logits(torch.cat(samples), torch.cat(places), pixels)
        off = [
            float((part - logits(ids, place, pixels[number : number + 1])).abs().max())
            for number, (ids, place, part) in enumerate(zip(samples, places, row.split([40, 45])))
        ]
    print(f"transformers {transformers.__version__}, {kind}: first sample off by {off[0]:.1e}, second by {off[1]:.1e}")
    assert off[0] < 1e-4 and (off[1] > 1e-3) == (kind == "sliding_attention"), "changed"
PYTHON
