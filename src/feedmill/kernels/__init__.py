"""Byte-level loops, compiled when the package is built; each is in one file with the functions that call it.

- `native.py` declares and calls them; `interface.py`: what the library says of each; `machine.py`: what kernels can
  call besides each other. Their plain forms, for tests, are in ``tests/oracles``.
- `files/`: tars, indices and files of tokens; `jsonl/`: lines of JSON; `text/`: words, paragraphs, signals of quality;
  `hashing/`: hashes and signatures; `order/`: packing and orders.
- `rows.py`: rows of tokens; `bos_eos.py`: tokens around documents; `tokenmarks.py`: tokens of ranges;
  `bounds.py`: offsets; `pixels.py`: pictures.
"""
