"""Preparing a metadataset: compute the rows of its joins once, so that opening it need not.

Each join is written twice: under Feedmill's name, which no other join can have, and under Energon's, so that Energon
reads it as well. Where Energon's name is ambiguous (two joins that differ in the split only, or excludes whose order
Energon leaves to chance) a warning says so, and of two joins with one name neither is written under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.energon.join import energon_name, prepare_join, write_join_index
from feedmill.formats.offsets import Int64s
from feedmill.planning import dialects
from feedmill.planning.dialects import energon
from feedmill.planning.recipes import read
from feedmill.planning.recipes.compile import joins
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from feedmill.storage import open_store, split_url


def prepare_joins(url: str) -> tuple[dict[str, int], int, list[str]]:
    """Write the join indices of every split of a metadataset, or of a recipe.

    Returns:
        Rows of each join by where it stands, their sum, and warnings.

    Raises:
        ConfigError: a key is missing where it must not be, a join has no rows, or the file is invalid.
        NotFound: a dataset or split that a join names is missing.
    """
    rows: dict[str, int] = {}
    theirs: dict[tuple[str, str], Int64s] = {}
    ambiguous: set[tuple[str, str]] = set()
    warnings: list[str] = []
    for label, recipe in _recipes(url):
        for where, folder, parts in joins(recipe, partial(open_dataset, raw=True)):
            assert folder is not None  # it was read from a file
            try:
                join = prepare_join(parts, open_store(folder)).places
            except ConfigError as error:
                error.file = error.file or where
                raise
            rows[f"{label}{where}"] = len(join)
            name = (folder, energon_name(parts))
            if name in theirs and not np.array_equal(theirs[name], join):
                ambiguous.add(name)
                warnings.append(f"{where}: Energon would read another join's rows here (the same name, another split)")
            theirs.setdefault(name, join)
            if any(len(part.table.excludes) > 1 for part in parts):
                warnings.append(f"{where}: with several excludes Energon finds this only under some hash seeds")
    for (place, file), join in theirs.items():
        cache = open_store(place)
        if (place, file) not in ambiguous:
            write_join_index(cache, file, join)
        elif cache.exists(file):
            cache.delete(file)
    return rows, sum(rows.values()), warnings


def _recipes(url: str) -> Iterator[tuple[str, Recipe]]:
    """Yield a metadataset's splits one by one, each with a label; any other recipe as it is."""
    folder, name = split_url(url)
    if dialects.recognise(open_store(folder).read(name)) != dialects.METADATASET:
        yield "", Recipe.load(url)
        return
    for split in energon.split_names(read.load_document(url)):
        yield f"{split} ", Recipe.load(url, split=split, mode=dialects.VALIDATION)
