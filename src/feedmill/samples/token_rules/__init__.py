"""How many tokens an image, a video or a clip of sound becomes in a model's input, from its size alone.

`processor.py` reads the folder of a checkpoint's processor and returns its rules; `rule.py` has what rules share: the
sizes of media, parameters from files, and counts by sample. Each other file is a family of processors:

- Images of any size, in patches: `qwen.py` (also videos and sound), `glm4v.py` (also videos), `patches.py` (Pixtral,
  Mistral 3, Kimi K2.5), `gemma.py` (Gemma 4, also videos and sound; Gemma 3, in crops).
- In tiles: `llava_next.py` (LLaVA-NeXT and OneVision) and `tiles.py` (InternVL; also videos; Idefics3, SmolVLM, Llama
  4), `phi4_multimodal.py` (also sound), `molmo2.py` and `minicpm.py` (also videos).
- One size for all: `fixed.py` (LLaVA 1.5, DeepSeek-VL, Llama 3.2 Vision).
- Which frames of a video are taken: `frames.py`.
"""
