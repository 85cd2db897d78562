"""Find weights of a mixture by experiment: cells of documents, mixtures to try, fits of their losses, comparisons.

A recipe -> `verbs/propose.py` -> a swarm, which is a folder of recipes -> training runs -> a table of losses ->
`verbs/fit.py` -> a recipe with the best weights found.

- `options.py`: the options of all verbs. `verbs/`: the verbs.
- `base.py`: the recipe whose weights vary: its sources, what is at hand of each, its stages.
- `limits.py`: which weights are allowed: minimum and maximum shares, repeats at the size of the target run.
- `swarm.py`: the folder of a swarm: its recipes, the table of weights, and the facts about it.

Documents -> `verbs/cells.py` -> sidecars that say which cell each document is in; a recipe blends cells like sources.

- `columns.py`: where a column of documents is: in the index, a field, an attribute, through lineage.
- `columnfiles.py`: reads the columns of a file once, and keeps them. `coding.py`: from values to cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "cells": "mixture.verbs.cells",
    "propose": "mixture.verbs.propose",
}
__all__ = ["cells", "propose"]

if TYPE_CHECKING:
    from feedmill.mixture.verbs.cells import cells
    from feedmill.mixture.verbs.propose import propose
else:
    __getattr__, __dir__ = lazily("mixture", HOMES)
