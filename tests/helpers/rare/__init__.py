"""Whole files of rare but valid kinds, made by rule: what tests/contracts/test_reasons.py reads and damages.

Each module yields `Whole` cases: ``archives`` (npz, tar), ``rows`` (JSON lines, documents, MDS), ``tokens`` (every file
of tokens) and ``parts`` (what a sample's parts hold: images, audio, video, checkpoints, arrays).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Whole:
    """A valid file or folder.

    Attributes:
        name: unique, ``format/what``.
        write: writes it into an empty folder, and returns what is opened.
        rows: what the format's own reader, or its writer, says it holds.
        refused: kinds of errors with which it may be refused instead: it is whole, so none of them is of damage.
        read: how it is read: ``open``, ``documents`` (texts), or ``part`` (one part, by its decoder).
    """

    name: str
    write: Callable[[Path], Path]
    rows: Rows | None = None
    refused: tuple[str, ...] = ()
    read: str = "open"
    check: bool = True
