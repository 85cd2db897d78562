"""On-disk formats, one package each, and what several of them share.

A path becomes a dataset: `sniff.py` asks the formats of `registry.py` which of them it is, the format's package opens
it, and `read` returns samples whose parts are bytes until someone asks for their values.

- `registry.py`: all formats; `format.py`: the facts that each package declares; `base.py`: the `Dataset` contract;
  `sample.py`: the `Sample`; `batches.py`: many samples without an object each.
- Formats: `energon/`, `tar/`, `vla/`, `img2dataset/`, `mds/`, `npz/`, `jsonl/`, `tables/`, `lerobot/`,
  `recorders/`, and `tokens/` with one module for each of its own. `episodes.py`: those whose samples are time steps.
  `rollouts/`: Parquet files that processes append while others read.
- Rows and columns: `rows.py`, `columns.py`, `arrowtypes/` (every type of Arrow), `columnar.py` (writing),
  `csv_rows.py`.
- Where samples lie: `offsets.py`, `line_ranges.py`; compressed files as plain ones: `unpacked.py`; what samples cost:
  `costs.py`, `kept.py` (arrays in the cache folder); sizes of their media: `mediatable.py`; what they contain:
  `content.py`.
- Values: `pth/` (``torch.save``), `avfile.py`, `avvideo.py`, `mp4/`, `videocut.py`,
  `orientation.py`.
- Names and settings: `hub_splits.py` (splits by names, as Hugging Face finds them), `yamls.py`,
  `objects.py`, `settings.py` (closed tables of other tools).
- Files beside datasets: `documents.py`, `bloom.py`, `signatures.py`, `arrays.py`, `converted.py`, `cells.py`.
- Not what was expected: `unread_files.py` names it, and counts what no reader reads.
"""
