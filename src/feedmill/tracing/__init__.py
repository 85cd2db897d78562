"""Follow samples and documents between training and raw files.

Backwards: a step's samples, by the ledger of the plan, are rows of files, and by their lineage lines of raw documents.
Forwards: a raw document is looked for in each output that was made from it, up to the steps that see it.

- `trace.py`: the samples of a step, the steps of a sample; the verb ``trace``.
- `losses.py`: the loss of each source and cell, from a log of losses by rank and step.
- `held.py`: which rows of which files the samples of a plan are.
- `document.py`: what became of a raw document: files, rules that dropped it, positions and steps; `copies.py`: other
  documents with its text, or nearly so.
- `forget.py`: the same for documents to forget, with skip lists and exclusions; the verb ``forget``. It also has the
  documents that a set of attributes marks, with the leaked questions that they have.
- `options.py`: the options of both verbs.
"""
