"""Recipes: reading, validation, nesting, and compilation to plans.

Text becomes plain data with lines (`feedmill.formats.yamls`), data a checked model (`schema.py`), the model and the
recipes that it names a tree of nodes over opened datasets (`compile.py`).

- `recipe.py`: `Recipe`; `read.py`: its own YAML, and dialects; `simple.py`: recipes of a path and arguments.
- `schema.py`: the model, with the fields of `fields.py`; `writing.py`: as YAML, also for another folder.
- `compile.py`: datasets and nodes; `member.py`: one member of a mixture; `cells.py`: cells and their weights;
  `skip.py`: the skip list; `statistics.py`: statistics of robot episodes, and normalization by them.
"""
