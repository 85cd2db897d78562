"""Options of programs that were written with Dolma: dataclasses whose fields have a help, as arguments of a parser.

Dolma's own commands have no such dataclasses here: see `feedmill.compat.dolma.config`.
"""

from __future__ import annotations

import copy
import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib import import_module
from typing import Any, get_type_hints

from feedmill.errors import MissingExtra

MISSING: Any = "???"
"""The value of an option without a default, as of OmegaConf."""


def field(default: Any = MISSING, help: str | None = None, **extra: Any) -> Any:
    """Return a field of a dataclass with a default, a help text and further metadata. Each instance has its default."""
    metadata = {"help": help, **extra}
    if type(default).__hash__ is None:
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def make_parser(parser: ArgumentParser, config: type, prefix: str | None = None) -> ArgumentParser:
    """Add an argument for each field of a dataclass, ``--outer.inner`` for those of nested ones, and return the parser.

    A field of a bool is a flag, ``--x`` and ``--no-x``.
    """
    types = get_type_hints(config)
    for one in dataclasses.fields(config):
        name = f"{prefix}.{one.name}" if prefix else one.name
        kind = types.get(one.name, one.metadata.get("type"))
        text = one.metadata.get("help")
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            make_parser(parser, kind, name)
        elif kind is bool:
            parser.add_argument(f"--{name}", help=text, dest=name, action="store_true", default=MISSING)
            parser.add_argument(f"--no-{name}", dest=name, action="store_false", default=MISSING)
        else:
            parser.add_argument(f"--{name}", help=text, nargs=one.metadata.get("nargs", "?"), default=MISSING)
    return parser


def namespace_to_nested_omegaconf(args: Namespace, structured: type, config: Mapping[str, Any] | None = None) -> Any:
    """Return the values of a dataclass, as an OmegaConf configuration: given arguments, then `config`, then defaults.

    Raises:
        MissingExtra: omegaconf is not installed.
    """
    try:
        OmegaConf: Any = import_module("omegaconf").OmegaConf
    except ImportError:
        fix = "Install it with: pip install omegaconf"
        raise MissingExtra("Dolma's configurations are those of omegaconf, which is not installed", fix=fix) from None
    given: dict[str, Any] = {}
    for name, value in vars(args).items():
        if value == MISSING:
            continue
        *outer, last = name.split(".")
        inner = given
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    found = OmegaConf.merge(
        OmegaConf.structured(structured), OmegaConf.create(dict(config or {})), OmegaConf.create(given)
    )
    OmegaConf.resolve(found)
    return found
