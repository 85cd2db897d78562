"""How many tokens an image, a video or a clip of sound becomes in a model's input, from its size alone.

`processor.py` reads the folder of a checkpoint's processor and returns its rules; `rule.py` has what rules share: the
sizes of media, parameters from files, and counts by sample. Each other file is a family of processors:

- Images of any size, in patches: `qwen.py` and `glm4v.py` (also videos), `kimi_k25.py`, `pixtral.py`, `gemma4.py` (also
  videos and sound).
- In tiles: `llava_next.py`, `llava_onevision.py` and `tiles.py` (InternVL; these two also videos), `phi4_multimodal.py`
  (also sound), `idefics3.py` (also SmolVLM), `llama4.py`, `gemma3.py`, `molmo2.py` and `minicpm.py` (also videos).
- One size for all: `fixed.py` (LLaVA 1.5, DeepSeek-VL, Llama 3.2 Vision).
- Sound: `qwen_audio.py`. Which frames of a video are taken: `frames.py`.
"""
