"""On-disk formats, one package each.

- `registry.py`: all of them; `format.py`: what each package says of its formats; `sniff.py`: which one a path has.
- `base.py`: the `Dataset` contract; `tokens/base.py`: that of token files; `rows.py`, `columns.py`: of tables.
- `energon/`, `tar/`, `vla/`, `lerobot/`, `mds/`, `jsonl/`, `tokens/`, `tables/`, `img2dataset/`: the formats.
- `pth/`: values that `torch.save` wrote; `yamls.py`, `bloom.py`, `documents.py`: files beside datasets.
"""
