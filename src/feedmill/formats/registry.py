"""The registry of all formats, one row per package, in the order of detection.

A package's ``FORMATS`` are `feedmill.formats.format.Format`: plain data and names of functions. Other code (opening,
checking, repairing, converting, tokenizing) looks up formats here, by name or by property. Listing the formats does not
import their readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Literal

from feedmill.formats.format import Family, Format, TargetFormat

PACKAGES = ("energon", "tar", "vla", "lerobot", "mds", "jsonl", "tokens", "tables", "npz", "img2dataset", "recorders")


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats.

    >>> [format.name for format in formats()][:3]
    ['energon', 'webdataset', 'tar']
    """
    return tuple(format for package in PACKAGES for format in import_module(f"feedmill.formats.{package}").FORMATS)


@cache
def targets() -> dict[str, TargetFormat]:
    """Return all targets for writing, by their names for ``--to``."""
    return {target.name: target for format in formats() for target in format.targets}


@cache
def by_name() -> dict[str, Format]:
    """Return the formats by their names."""
    return {format.name: format for format in formats()}


def families(*wanted: Family) -> Iterator[Format]:
    """Return the formats of these families."""
    return (format for format in formats() if format.family in wanted)


@cache
def ends(attribute: Literal["files", "listed"]) -> dict[str, Format]:
    """Return file name suffix -> the first format that has it in this attribute.

    >>> ends("listed")[".parquet"].name
    'parquet'
    """
    found: dict[str, Format] = {}
    for format in formats():
        for end in getattr(format, attribute):
            found.setdefault(end, format)
    return found
