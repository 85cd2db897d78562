"""Tokenize documents, and rewrite, decode and index token files.

Documents -> `job.py` (units of work, encoded on all cores) -> `writer.py` -> token files; token files -> `corpus.py` ->
`rewrite.py` -> `writer.py` -> token files.

- `options.py`: the options of all verbs.
- `tokenizer.py`: loads a tokenizer with the fastest engine of `engines.py` whose ids are right, by `selfcheck.py`;
  `template.py`: what it adds around a text; `ends.py`: BOS and EOS; `preload.py`: loads the engine on a thread.
  `kinds/`: tokenizers in files of other programs. `pieces.py`: ids as text.
- `tokenize.py`: the verb. `encode.py` encodes a batch, `segments.py` paragraph by paragraph; `spill.py`: the files in
  which tokens of a unit wait. `token_files.py`: one file per format, or numbered ones; `datatrove_tasks.py`: one per
  task; `dolma_output.py`: Dolma's folders.
- `chat/`: conversations as text, and what is learned of them; `instruct.py`: instruction tuning as Modalities.
- `outputs.py`: formats, names, numbers and sizes of files. `corpus.py`: documents of several files, in any order.
- `merge.py`, `shuffle.py`, `split.py`, `filter.py`, `resample.py`: verbs over `rewrite.py`, with their orders.
- `lengths.py`: tokens of samples of text and media, by rules; `realprocessor.py`: by the processor itself.
- `collaterows.py`: packed rows of samples as batches: `encodesample.py` encodes each sample, `rowlayouts.py` has the
  forms of trainers.
- `decode.py`, `index.py`, `numbers.py`: further verbs. `transform.py`: tokens when samples are read.
- `sentences.py`: splits texts as Megatron-LM.
"""
