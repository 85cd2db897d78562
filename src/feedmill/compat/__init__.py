"""Drop-in command lines and Python modules of other tools, implemented with Feedmill. No logic of its own.

A call takes one way: a peer's command line or class, its settings by a closed table, and the same function of Feedmill
that our own verb calls; its result goes back in the peer's words and files.

- `energon/`: ``megatron.energon``, to change only the import of a training script; `vla/`: run configurations of
  VLA Foundry.
- `dolma/`, `megatron/`, `modalities/`, `nanotron/`: command lines and the modules that users import; `datatrove/`: its
  reader of tokens.
- `settings.py`: the tables of all peers, each in a `settings.py` of its folder; the pages in docs/migration are made
  from them.
- `modules.py`: modules of a peer that only re-export are rows of a table, its `modules.py`.
"""
