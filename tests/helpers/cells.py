"""Datasets in cells, and the same cells as datasets of their own, for tests of mixtures over cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.formats.cells import OUTSIDE, CellTable, Rule, cells_path, write_cells
from helpers.token_dataset import Tokenized

BY = ("quality", "topic")


class Members(Tokenized):
    """Some documents of another dataset, as copies."""

    def __init__(self, base: Tokenized, numbers: np.ndarray) -> None:
        super().__init__(base.url, base.lengths[numbers])
        self.begins = base.begins[numbers]
        self.numbers = numbers


def codes_of(seed: int, documents: int, cells: int, outside: float = 0.05) -> np.ndarray:
    """Codes of cells of different sizes, none of them empty, with documents in no cell."""
    draw = np.random.default_rng(seed)
    codes = draw.choice(cells, documents, p=draw.dirichlet(np.full(cells, 2.0))).astype(np.uint16)
    codes[draw.random(documents) < outside] = OUTSIDE
    codes[:cells] = np.arange(cells)
    return codes


def values_of(cells: int) -> list[list[Any]]:
    """The values of each cell in the columns of `BY`."""
    return [[number % 3, f"t{number // 3}"] for number in range(cells)]


def labels_of(cells: int) -> list[str]:
    """The label of each cell."""
    return [f"quality={quality},topic={topic}" for quality, topic in values_of(cells)]


def put_in_cells(
    folder: Path, base: Any, codes: np.ndarray, values: Sequence[Sequence[Any]], rule: Rule = Rule(BY)
) -> CellTable:
    """Write the sidecar of a dataset in a folder."""
    Path(base.url).mkdir(exist_ok=True, parents=True)
    store, path = cells_path(base.url, rule, base.split)
    lengths = None if base.lengths is None else [base.lengths]
    assert str(folder) in store.url
    return write_cells(store, path, rule, base.fingerprint(), len(base), values, [codes], lengths)


def tokens_in_cells(folder: Path, documents: int, cells: int, seed: int = 0, longest: int = 60) -> tuple[Any, Any]:
    """Return a dataset of tokens named ``tok`` in a folder, whose documents are in cells, and their codes."""
    lengths = np.random.default_rng(seed + 1).integers(0, longest, documents)
    base, codes = Tokenized(str(folder / "tok"), lengths), codes_of(seed, documents, cells)
    put_in_cells(folder, base, codes, values_of(cells))
    return base, codes
