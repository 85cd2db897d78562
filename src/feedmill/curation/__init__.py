"""Curate documents: taggers, deduplication, filters, statistics.

Documents stay as they are: steps write attributes, rows beside them in the same order, until `mix/` writes filtered
documents. `extract/` -> documents -> `tag.py`, `dedupe/`, `near/` -> attributes -> `mix/` (the verb ``filter``).

- `options.py`: the options of all verbs.
- `tag.py`: the verb ``tag``. `registry.py` finds taggers by name: those of `taggers/`, and those in modules of the
  user, which `plugins.py` runs on the data of `plugin_types.py`. `fasttexts.py` is a base of taggers with a model;
  `data/` has word lists. `models/`: any local model.
- `documents.py`: rows as batches of texts; `spans.py`: what a tagger finds in them.
- `dedupe/`: exact duplicates; `near/`: near-duplicates; `decontaminate/`: questions of benchmarks; `mix/`: filter;
  `extract/`: web archives to documents; `embed.py`: vectors of documents, and of the images of `image_files.py`.
- `stat.py`: the verb ``stat``, on the arrays of `measure.py` and the distributions of `series.py`; `dolma_stat.py`:
  Dolma's summaries.
- `attribute_set.py` and `records.py`: what a run
  wrote, so that a second one skips it; `provenance.py`: whether documents have changed since.
- `dry_run.py`: what a verb would write.
"""
