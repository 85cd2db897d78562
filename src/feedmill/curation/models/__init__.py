"""Models in local files for ``feedmill tag -t model:PATH`` and ``documents embed``: they score texts, or make vectors.

A model is recognized by its files. Nothing is downloaded, and no file of a model is code: weights are safetensors, ONNX
or fastText's own format, never pickles.

- `files.py`: what a path is, which files decide its results, and its settings (``model:PATH,tokens=256``).
- `static.py`: static embeddings in model2vec's layout, with its heads. `networks.py`: ONNX and transformers, in batches
  sorted by length. `texts.py`: what both have in common: the tokenizer, windows of long texts, and scores of a head.
- `images.py`: networks over images, whose pixels are prepared as transformers does it.
- `tagger.py`: a model as a tagger.
"""
