"""All formats: one row for each package, in the order in which a folder is looked at.

A package's ``FORMATS`` are `feedmill.formats.format.Format`: plain data and names of functions. What is done with a
format elsewhere (opening, checking, repairing, converting, tokenizing) is asked here, by name or by a property.
Listing all of them imports none of their readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Literal

from feedmill.formats.format import Family, Format, TargetFormat

PACKAGES = ("energon", "tar", "vla", "lerobot", "mds", "jsonl", "tokens", "tables", "npz", "img2dataset")


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats.

    >>> [format.name for format in formats()][:3]
    ['energon', 'webdataset', 'tar']
    """
    return tuple(format for package in PACKAGES for format in import_module(f"feedmill.formats.{package}").FORMATS)


@cache
def targets() -> dict[str, TargetFormat]:
    """Everything that can be written, by the name for ``--to``."""
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
    """Ends of names of files -> the first format that has them in this attribute.

    >>> ends("listed")[".parquet"].name
    'parquet'
    """
    found: dict[str, Format] = {}
    for format in formats():
        for end in getattr(format, attribute):
            found.setdefault(end, format)
    return found
