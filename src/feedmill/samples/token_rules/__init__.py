"""How many tokens an image, a video or a clip of sound becomes in a model's input, from its size alone.

`processor.py` reads the folder of a checkpoint's processor and returns its rules; `rule.py` has what rules share: the
sizes of media, parameters from files, and counts by sample. Each other file is a family of processors:

- Images of any size, in patches: `qwen.py` (also video), `glm4v.py`, `kimi_k25.py`, `pixtral.py`, `gemma4.py` (also
  sound).
- In tiles: `llava_next.py` and `llava_onevision.py`, `tiles.py` (InternVL), `phi4_multimodal.py` (also sound),
  `idefics3.py` (also SmolVLM), `llama4.py`, `gemma3.py`. One size for all: `llava.py`.
- Sound: `qwen_audio.py`.
"""
