"""Follow samples and documents between training and raw files.

trace.py       the samples of a step, the steps of a sample; the verb ``trace``
held.py        which rows of which files the samples of a plan are
document.py    what became of a raw document: files, rules that dropped it, positions and steps
forget.py      the same for documents to forget, with skip lists and exclusions; the verb ``forget``
"""
