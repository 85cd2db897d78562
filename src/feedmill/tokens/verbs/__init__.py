"""Verbs of tokens, each in the module of its name: `feedmill.tokens` has their functions under the same names.

- `tokenize.py`; `merge.py`, `shuffle.py`, `split.py`, `filter.py` and `resample.py`: rewrite token files in an order.
- `decode.py`: documents as text; `index.py`: the index of a file; `numbers.py`: tokens, samples and steps.
- `lengths.py`: tokens of samples of text and media, by rules.
"""
