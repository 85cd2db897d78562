"""On-disk formats, one package each.

- `registry.py`: all formats; `format.py`: the facts that each package declares; `sniff.py`: detection by path.
- `base.py`: the `Dataset` contract; `tokens/base.py`: that of token files; `rows.py`, `columns.py`: of tables.
- `energon/`, `tar/`, `vla/`, `lerobot/`, `mds/`, `jsonl/`, `tokens/`, `tables/`, `img2dataset/`: the formats.
- `arrowtypes/`: the values of columns of Arrow, by one closed table of all types.
- `pth/`: values that `torch.save` wrote; `yamls.py`, `objects.py`, `bloom.py`, `documents.py`: files beside datasets;
  `arrays.py`: named arrays in a file of ours.
- `line_ranges.py`: the lines of a large file, found by ranges of bytes on an engine.
"""
