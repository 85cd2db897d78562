"""Cells of a recipe: the rules that its sources need, their sidecars, and weights by cell from mappings and CSV files.

A weight belongs to a cell by its label, such as ``topic=code,source=wiki``, or by the name of the source that the cell
is, ``NAME[topic=code,source=wiki]``. A CSV file has a row for each cell: the columns of `by` and ``weight``; or the
columns ``cell`` (or ``source``, for stages of other blends) and ``weight``. Other columns are an error.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError, EmptyResult, suggestion
from feedmill.formats.cells import CellTable, Rule, cells_of, label_of
from feedmill.formats.csv_rows import csv_rows
from feedmill.planning.dialects import Place
from feedmill.planning.mixing.blend import exact_weight
from feedmill.planning.recipes.member import recipe_line
from feedmill.planning.recipes.read import members
from feedmill.samples.cells import CellDataset, cell_datasets, check_divisible
from feedmill.samples.tokenized import TokenizedDataset
from feedmill.storage import join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.planning.recipes.fields import StageModel
    from feedmill.planning.recipes.read import Parsed
    from feedmill.planning.recipes.schema import CellsModel, Member

logger = logging.getLogger("feedmill")

_NAMED = 5
_LONGEST = 1 << 20
WEIGHT, KEYS = "weight", ("cell", "source")


def rule_of(member: Member, cells: CellsModel | None = None) -> Rule:
    """Return the rule of the cells of a source: by its `where`, and for cells of a blend by their columns."""
    by = () if cells is None else tuple(each if isinstance(each, str) else each.plain() for each in cells.by)
    where = {
        name: value.model_dump(by_alias=True, exclude_unset=True) if hasattr(value, "model_dump") else value
        for name, value in (member.where or {}).items()
    }
    return Rule(by, where)


def rules(recipe: Parsed) -> Iterator[tuple[Parsed, Place, Member, Rule]]:
    """Yield each source of a recipe, and of those nested in it, whose documents must be in cells.

    Yields:
        The recipe that has it, its place there, the source (with a `path`), and the rule.
    """
    for place, member in members(recipe.model):
        if member.cells is not None:
            yield recipe, (*place, "cells", "of"), member.cells.of, rule_of(member.cells.of, member.cells)
        elif member.where:
            yield recipe, place, member, rule_of(member)
    for nested in recipe.nested.values():
        yield from rules(nested)


def table_of(dataset: Dataset, rule: Rule, recipe: Parsed, asked: str) -> CellTable:
    """Return the cells of a source. Raises `ConfigError` if its samples have none, or they are of other data."""
    check_divisible(dataset, asked)
    stored = dataset
    while isinstance(stored, TokenizedDataset):  # the cells are those of the texts
        stored = stored.dataset
    return cells_of(stored, rule, recipe.file)


def selected(dataset: Dataset, rule: Rule, recipe: Parsed, place: Place) -> CellDataset:
    """Return the documents of a dataset for which the `where` of a source holds.

    Raises:
        ConfigError: see `table_of`.
        EmptyResult: it holds for none.
    """
    with recipe_line(recipe, (*place, "where")):
        table = table_of(dataset, rule, recipe, "where")
    if not table.cells or not table.cells[0].documents:
        raise EmptyResult(
            f"'where' selects none of the {table.documents:,} documents of {dataset.url} ({rule})",
            file=recipe.where((*place, "where")),
            fix="Correct the condition: 'feedmill mixture cells' shows the values of each column.",
        )
    return cell_datasets(dataset, table, [0])[0]


@dataclass(frozen=True)
class Drawn:
    """The cells of a blend that are sources.

    Attributes:
        name: name of the dataset, before the brackets of each cell.
        columns: the columns whose values make cells.
        labels: the label of each cell, see `Cell.label`.
        datasets: the cells.
        weights: weight of each, None for natural shares.
    """

    name: str
    columns: Sequence[str]
    labels: Sequence[str]
    datasets: Sequence[CellDataset]
    weights: Sequence[Any] | None

    @property
    def names(self) -> list[str]:
        """The names of the sources."""
        return [f"{self.name}[{label}]" for label in self.labels]


def drawn_cells(dataset: Dataset, cells: CellsModel, name: str, recipe: Parsed, place: Place, staged: bool) -> Drawn:
    """Return the cells of a blend with their weights. Cells without documents are left out.

    Args:
        dataset: the dataset, opened.
        cells: the value of ``cells``.
        name: its name.
        recipe, place: where the blend is, for errors.
        staged: whether stages have the weights.

    Raises:
        ConfigError: see `table_of`; weights are of other cells than there are, or the file is invalid.
        EmptyResult: no document is in a cell.
    """
    rule = rule_of(cells.of, cells)
    with recipe_line(recipe, (*place, "cells")):
        table = table_of(dataset, rule, recipe, "cells")
    if table.outside:
        missing = {name: column["missing"] for name, column in (table.facts.get("columns") or {}).items()}
        why = ", ".join(f"{count:,} without {column!r}" for column, count in missing.items() if count)
        logger.warning(
            "%s: %s of %s documents are in no cell and are never drawn%s",
            recipe.where(place),
            f"{table.outside:,}",
            f"{table.documents:,}",
            f" ({why})" if why else "",
        )
    there = [number for number, cell in enumerate(table.cells) if cell.documents]
    if not there:
        raise EmptyResult(
            f"no document of {dataset.url} is in a cell by {rule}",
            file=recipe.where((*place, "cells")),
            fix="Choose other columns.",
        )
    every = table.names()
    labels = [every[number] for number in there]
    weights = None
    if cells.weights is not None and not staged:
        here = (*place, "cells", "weights")
        with recipe_line(recipe, here):
            given = weights_of(cells.weights, recipe.base, rule.columns)
            found = by_label(given, name, labels, set(every) - set(labels), recipe.where(here))
        weights = [found[label] for label in labels]
    return Drawn(name, rule.columns, labels, cell_datasets(dataset, table, there), weights)


def by_label(
    given: Mapping[str, Any], name: str, labels: Sequence[str], empty: set[str], where: str, *, all: bool = True
) -> dict[str, Any]:
    """Return weights by the labels of cells.

    Args:
        given: weights by label, or by the name of the source.
        name: the name before the brackets.
        labels: the cells with documents.
        empty: cells without documents; they may have the weight 0.
        where: ``file:line`` of the weights.
        all: whether each cell must have one.

    Raises:
        ConfigError: a weight belongs to no cell, or a cell has none.
    """
    found: dict[str, Any] = {}
    known, unknown, bare = set(labels), [], []
    for key, weight in given.items():
        label = key.strip(" \t")
        label = label.removeprefix(f"{name}[").removesuffix("]") if label.startswith(f"{name}[") else label
        if label in found:
            what = f"two weights are of the cell {label!r}"
            raise ConfigError(what, file=where, kind="bad-recipe", fix="Remove one.")
        if label in known:
            found[label] = weight
        elif label not in empty:
            unknown.append(label)
        elif exact_weight(weight):
            bare.append(label)
    if unknown:
        raise ConfigError(
            _listed(unknown, "weight is of a cell that is not there", "weights are of cells that are not there"),
            file=where,
            kind="no-such-source",
            fix=suggestion(unknown[0], labels, f"The cells are: {_shown(labels)}."),
        )
    if bare:
        raise ConfigError(
            _listed(bare, "weight is of a cell without documents", "weights are of cells without documents"),
            file=where,
            kind="empty-source",
            fix="Set them to 0, or remove them.",
        )
    lacking = [label for label in labels if label not in found]
    if lacking and all:
        raise ConfigError(
            _listed(lacking, "cell has no weight", "cells have no weight"),
            file=where,
            kind="bad-recipe",
            fix="Give it a weight; 0 leaves it out.",
        )
    return found


def _listed(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else many}: {_shown(list(map(repr, names)))}"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def staged(
    stages: Sequence[StageModel], recipe: Parsed, place: Place, columns: Sequence[str], drawn: Drawn | None
) -> Sequence[StageModel]:
    """Return the stages of a blend with mappings of names to weights: files are read, and labels become names.

    Args:
        stages: the stages of the recipe.
        recipe, place: where the stages are.
        columns: columns of the cells.
        drawn: the cells, if the blend is of cells.

    Raises:
        ConfigError: a file is invalid, or a weight is of no cell.
    """
    out = []
    for number, stage in enumerate(stages):
        here = (*place, number, "weights")
        changes: dict[str, Any] = {}
        with recipe_line(recipe, here):
            given = weights_of(stage.weights, recipe.base, columns)
            if drawn is not None:
                found = by_label(given, drawn.name, drawn.labels, set(), recipe.where(here), all=False)
                given = {f"{drawn.name}[{label}]": weight for label, weight in found.items()}
                caps = stage.max_repeats
                if isinstance(caps, dict):
                    kept = by_label(caps, drawn.name, drawn.labels, set(), recipe.where(here), all=False)
                    changes["max_repeats"] = {f"{drawn.name}[{label}]": cap for label, cap in kept.items()}
        out.append(stage.model_copy(update={**changes, "weights": given}))
    return out


def weights_of(given: Mapping[str, Any] | str, base: str, columns: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return weights by name: as given, or from a CSV file.

    Args:
        given: the mapping, or path or URL of the file.
        base: what a path is relative to.
        columns: columns whose values make a cell.

    Raises:
        NotFound: there is no such file.
        ConfigError: the file is invalid; the message names file and line.
    """
    if not isinstance(given, str):
        return given
    url = join_url(base, given)
    folder, name = split_url(url)
    try:
        text = open_store(folder).read(name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(url, 1, f"the file is not UTF-8 ({error})") from None
    try:
        # Not `splitlines`, which also ends lines at characters that are parts of values.
        rows = [row for row in enumerate(csv_rows(StringIO(text, newline=""), _LONGEST), 1) if any(row[1])]
    except csv.Error as error:
        raise _bad(url, 1, f"this is not valid CSV: {error}") from None
    if not rows:
        raise _bad(url, 1, "the file is empty")
    head = [cell.strip() for cell in rows[0][1]]
    by_column = bool(columns) and sorted(head) == sorted([*columns, WEIGHT])  # one of them may be named `source`
    keys = [] if by_column else [key for key in KEYS if key in head]
    wanted = [*(keys[:1] or columns or KEYS[-1:]), WEIGHT]
    if sorted(head) != sorted(wanted):
        own = f"{', '.join(columns)}, {WEIGHT}; or cell" if columns else KEYS[-1]
        raise _bad(url, rows[0][0], f"the columns are {', '.join(head)}, expected {own}, {WEIGHT}")
    found: dict[str, Any] = {}
    for line, row in rows[1:]:
        if len(row) != len(head):
            raise _bad(
                url,
                line,
                f"the row has {len(row)} values, expected {len(head)}: names with commas need quotation marks",
            )
        values = dict(zip(head, (cell.strip(" \t") for cell in row), strict=True))
        label = values[keys[0]] if keys else label_of(columns, [values[column] for column in columns])
        if label in found:
            raise _bad(url, line, f"{label!r} has a second weight")
        try:
            exact_weight(values[WEIGHT])
        except ConfigError as error:
            raise _bad(url, line, error.what) from None
        found[label] = values[WEIGHT]
    if not found:
        raise _bad(url, rows[0][0], "the file has no weights")
    return found


def _bad(url: str, line: int, what: str) -> ConfigError:
    return ConfigError(what, file=f"{url}:{line}", kind="bad-recipe", fix="Correct the file of weights.")
