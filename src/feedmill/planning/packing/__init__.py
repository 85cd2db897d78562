"""Packing of documents into rows of tokens, planned from lengths alone: windows, and best-fit packing.

- `packed.py`: `PackedPlan`, whose positions are rows; `options.py`: ways of packing.
- `documents.py`: the stream of documents and their lengths; `windows.py` cuts it, `best_fit.py` fills rows with whole
  documents, and `segments.py` stores that plan in files.
- `phases.py`: rows whose width changes, from a plan for each width.
- `whole.py`: samples with media, which are not cut, and which of them no row can hold.
- `spans.py`: the documents of a row, and the rows of a document.
"""
