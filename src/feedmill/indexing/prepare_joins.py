"""Prepare a metadataset: compute the rows of its joins once, so that opening it is fast.

Each join is written twice: under Feedmill's name, which is unique, and under Energon's, so that Energon can read it.
Energon's name is ambiguous for two joins that differ only in the split, and for joins with several excludes, whose
order Energon does not define. Both cases cause a warning. If two joins share a name, neither is written under it.
Joins of an earlier state of the file are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.energon.join import compute, energon_name, join_files, own_name, write_join_index
from feedmill.formats.offsets import Int64s
from feedmill.jobs.dry_run import DryRun, perform
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
        Number of rows of each join by its place in the file, their sum, and warnings.

    Raises:
        ConfigError: a required key is missing, a join has no rows, or the file is invalid.
        NotFound: a dataset or split that a join names is missing.
    """
    rows: dict[str, int] = {}
    theirs: dict[tuple[str, str], Int64s] = {}
    ambiguous: set[tuple[str, str]] = set()
    warnings: list[str] = []
    writes: dict[tuple[str, str], Int64s] = {}
    mine: set[str] = set()  # caches of nested files also have joins of splits that are not read here
    for label, recipe in _recipes(url):
        mine.add(f"{recipe.file}.cache")
        for where, folder, parts in joins(recipe, partial(open_dataset, raw=True)):
            assert folder is not None  # the recipe was read from a file
            try:
                join = compute(parts).places
            except ConfigError as error:
                error.file = error.file or where
                raise
            rows[f"{label}{where}"] = len(join)
            writes[folder, own_name(parts)] = join
            name = (folder, energon_name(parts))
            if name in theirs and not np.array_equal(theirs[name], join):
                ambiguous.add(name)
                warnings.append(f"{where}: Energon would read the rows of another join (same name, different split)")
            theirs.setdefault(name, join)
            if any(len(part.table.excludes) > 1 for part in parts):
                warnings.append(f"{where}: Energon finds a join with several excludes only under some hash seeds")
    folders = mine | {folder for folder, _ in writes}
    writes |= {name: join for name, join in theirs.items() if name not in ambiguous}
    stale: dict[str, list[str]] = {}
    for folder in folders:
        there = join_files(open_store(folder)) if folder in mine else [file for at, file in ambiguous if at == folder]
        stale[folder] = [path for path in there if (folder, path) not in writes]

    def plan(dry: DryRun) -> None:
        for (folder, file), join in writes.items():
            dry.writes(open_store(folder), file, 16 + 8 * join.size)
        for folder, paths in stale.items():
            dry.deletes_all(open_store(folder), paths)
        dry.counts |= {"joins": len(rows), "rows": sum(rows.values())}

    def execute() -> None:
        for (folder, file), join in writes.items():
            write_join_index(open_store(folder), file, join)
        for folder, paths in stale.items():
            cache = open_store(folder)
            for path in filter(cache.exists, paths):
                cache.delete(path)

    perform(plan, execute)
    return rows, sum(rows.values()), warnings


def _recipes(url: str) -> Iterator[tuple[str, Recipe]]:
    """Yield one labeled recipe per split of a metadataset; yield any other recipe unchanged, with an empty label."""
    folder, name = split_url(url)
    if dialects.recognize(open_store(folder).read(name)) != dialects.METADATASET:
        yield "", Recipe.load(url)
        return
    for split in energon.split_names(read.load_document(url)):
        yield f"{split} ", Recipe.load(url, split=split, mode=dialects.VALIDATION)
