"""Classes of media: from the column of labels in their metadata, or from their folders.

A label is a number, or a name. Whole numbers are kept as they are, however the table writes them: ``3``, ``"3"``,
``3.0`` or ``-1``. Names are numbered in alphabetical order.
"""

from __future__ import annotations

import re
from typing import Any

from feedmill.errors import ConfigError, DataError
from feedmill.importing.metadata import Metadata
from feedmill.importing.recognition import CLASSIFICATION, Recognized, class_of
from feedmill.importing.scanning import File, Files

_WHOLE = re.compile(r"[+-]?[0-9]{1,17}(\.0*)?", re.ASCII)
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


class Labels:
    """Classes of media.

    Attributes:
        names: of the classes, by number; empty if the labels are numbers.

    Raises:
        ConfigError: the metadata has no column of labels.
        DataError: the labels are of two kinds, or are fractions.
    """

    def __init__(self, files: Files, found: Recognized, metadata: Metadata | None) -> None:
        self._files, self._found = files, found
        self._column = metadata.label if metadata is not None else None
        self.names: list[str] = []
        if found.type != CLASSIFICATION:
            return
        if metadata is None:
            self.names = sorted({name for file, _ in found.media if (name := class_of(files, found, file))})
        elif self._column is None:
            raise ConfigError("the metadata has no column 'label'", kind="no-label", fix="Add it, or change --type.")
        else:
            labels = {where: label_of(row.get(self._column)) for where, row in metadata.rows.items()}
            self._check(labels)
            self.names = sorted({label for label in labels.values() if isinstance(label, str)})
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def of(self, file: File, about: dict[str, Any]) -> tuple[int, str | None] | None:
        """Return number and name of the class; None if there is none. Removes the column from the row."""
        if self._column is None:
            name = class_of(self._files, self._found, file)
            return None if name is None else (self._numbers[name], name)
        label = label_of(about.pop(self._column, None))
        return (
            (self._numbers[label], label) if isinstance(label, str) else None if label is None else (int(label), None)
        )

    def _check(self, labels: dict[str, int | float | str | None]) -> None:
        """Raise if numbers would get other numbers: beside names, or because they are fractions."""
        kinds: dict[str, list[str]] = {}
        for where, label in labels.items():
            if label is not None:
                kind = {int: "whole numbers", float: "fractions", str: "names"}[type(label)]
                kinds.setdefault(kind, []).append(f"{label!r} of {where!r}")
        if len(kinds) > 1 or "fractions" in kinds:
            shown = " and ".join(f"{kind} ({len(of):,}, such as {of[0]})" for kind, of in kinds.items())
            raise DataError(
                f"labels must be either whole numbers or names: column {self._column!r} has {shown}",
                file=self._files.name(self._found.metadata[0]),
                kind="mixed-labels",
                fix="Write all of them as whole numbers, or all as names. If they are not classes, use --type media:"
                " the column becomes a field of the part json.",
            )


def label_of(value: Any) -> int | float | str | None:
    """Return a label as a whole number, a fraction or a name; None if there is none.

    >>> [label_of(value) for value in (3, -1.0, "10", "1.0", " 2", "0.5", "cat", "", True, None)]
    [3, -1, 10, 1, 2, 0.5, 'cat', None, None, None]
    """
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            return int(text.partition(".")[0])
        return float(text) if _FRACTION.fullmatch(text) else value if text else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if value - value == 0 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
