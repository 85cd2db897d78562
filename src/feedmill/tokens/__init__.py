"""Tokenize documents, and rewrite, decode and index token files.

Documents -> `job.py` (units of work, encoded on all cores) -> `outputs.py` -> token files; token files ->
`corpus.py` -> `rewrite.py` -> `outputs.py` -> token files.

- `options.py`: the options of all verbs.
- `tokenizer.py`: loads a tokenizer with the fastest engine of `engines.py` whose ids are right, and knows the BOS and
  EOS; `template.py`: what it adds around a text; `preload.py`: loads the engine on a thread.
  `kinds/`: tokenizers in files of other programs. `pieces.py`: ids as text.
- `verbs/`: the verbs; ``tokenize`` has the files that it writes, one per format, or numbered ones. `encode.py` encodes
  a batch; `spill.py`: the files in which tokens of a unit wait. `datatrove_tasks.py`: one file per task;
  `dolma_output.py`: Dolma's folders.
- `chat/`: conversations as text, and what is learned of them; `instruct.py`: instruction tuning as Modalities.
- `outputs.py`: formats, names, numbers and sizes of files, and how they are written. `corpus.py`: documents of
  several files, in any order.
- `realprocessor.py`: tokens of samples by the processor itself.
- `collaterows.py`: packed rows of samples as batches, in the forms of trainers; `encodesample.py` encodes each sample.
- `transform.py`: tokens when samples are read.
- `sentences.py`: splits texts as Megatron-LM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "FillInMiddle": "samples.fim",
    "LossMask": "samples.targets",
    "PackedPlan": "planning.packing.packed",
    "Packing": "planning.packing.options",
    "Targets": "samples.targets",
    "TokenDataset": "formats.tokens.base",
    "TokenizeTransform": "tokens.transform",
    "WindowDataset": "formats.tokens.windows",
    "collate_rows": "tokens.collaterows",
    "decode": "tokens.verbs.decode",
    "index": "tokens.verbs.index",
    "lengths": "tokens.verbs.lengths",
    "merge": "tokens.verbs.merge",
    "numbers": "tokens.verbs.numbers",
    "shuffle": "tokens.verbs.shuffle",
    "split": "tokens.verbs.split",
    "with_targets": "samples.targets",
}
__all__ = [
    "FillInMiddle",
    "LossMask",
    "PackedPlan",
    "Packing",
    "Targets",
    "TokenDataset",
    "TokenizeTransform",
    "WindowDataset",
    "collate_rows",
    "decode",
    "index",
    "lengths",
    "merge",
    "numbers",
    "shuffle",
    "split",
    "with_targets",
]

if TYPE_CHECKING:
    from feedmill.formats.tokens.base import TokenDataset
    from feedmill.formats.tokens.windows import WindowDataset
    from feedmill.planning.packing.options import Packing
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.samples.fim import FillInMiddle
    from feedmill.samples.targets import LossMask, Targets, with_targets
    from feedmill.tokens.collaterows import collate_rows
    from feedmill.tokens.transform import TokenizeTransform
    from feedmill.tokens.verbs.decode import decode
    from feedmill.tokens.verbs.index import index
    from feedmill.tokens.verbs.lengths import lengths
    from feedmill.tokens.verbs.merge import merge
    from feedmill.tokens.verbs.numbers import numbers
    from feedmill.tokens.verbs.shuffle import shuffle
    from feedmill.tokens.verbs.split import split
else:
    __getattr__, __dir__ = lazily("tokens", HOMES)
