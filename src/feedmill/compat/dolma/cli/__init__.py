"""Implement ``feedmill compat dolma ...``: the commands, configuration files and options of Dolma 1.2.

Decompressed outputs equal Dolma's byte for byte. Its known defects are fixed unless ``--exact`` is given.
docs/migration/dolma.md lists the differences.

Each entry of `COMMANDS` names a module of this folder with a `Schema`, and a function that takes the arguments, the
configuration file, and whether ``--exact`` was given.

`field`, `make_parser` and `namespace_to_nested_omegaconf` are for the options of programs that were written with Dolma:
dataclasses whose fields have a help. Dolma's own commands have no such dataclasses here, see
`feedmill.compat.dolma.config`.
"""

from __future__ import annotations

import copy
import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

import typer

from feedmill.cli.app import new_app
from feedmill.compat.dolma.config import Schema, help_text
from feedmill.errors import ConfigError, MissingExtra

__all__ = ["COMMANDS", "MISSING", "app", "field", "make_parser", "namespace_to_nested_omegaconf", "run"]

MISSING: Any = "???"
"""The value of an option without a default, as of OmegaConf."""


class Command(NamedTuple):
    """A command: its module, the names of its function and schema there, and its line in the help."""

    module: str
    function: str
    schema: str
    help: str


COMMANDS = {
    "tag": Command("feedmill.compat.dolma.tag", "tag", "SCHEMA", "Write attributes of documents."),
    "list": Command("feedmill.compat.dolma.tag", "list_", "LIST_SCHEMA", "Show the taggers."),
    "tokens": Command("feedmill.compat.dolma.tokens", "tokens", "SCHEMA", "Write token files."),
    "reshard": Command("feedmill.compat.dolma.reshard", "reshard", "SCHEMA", "Sample token files by source and rate."),
    "stat": Command("feedmill.compat.dolma.stat", "stat", "SCHEMA", "Show the distributions of attributes."),
    "dedupe": Command("feedmill.compat.dolma.dedupe", "dedupe", "SCHEMA", "Mark duplicates in attributes."),
    "mix": Command("feedmill.compat.dolma.mix", "mix", "SCHEMA", "Filter documents by their attributes."),
    "warc": Command("feedmill.compat.dolma.warc", "warc", "SCHEMA", "Write documents of web archives."),
}

app = new_app()


@app.command(
    "dolma",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def dolma(context: typer.Context) -> None:
    """Dolma's command line: the same configuration and the same output files."""
    run(context.args)


def run(arguments: Sequence[str]) -> None:
    """Run a command. Raises the errors of the command, and `ConfigError` for unknown options and commands."""
    words = list(arguments)
    file, exact = None, False
    while words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--exact":
            exact = True
        elif name in ("-c", "--config") and (equals or words):
            file = value if equals else words.pop(0)
        else:
            raise ConfigError(
                f"unknown option {word!r} before the command",
                kind="unknown-option",
                fix="Options before the command are --config FILE and --exact.",
            )
    if not words or words[0] in ("-h", "--help"):
        _help()
        return
    name = words.pop(0)
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name!r}", kind="unknown-option", fix=f"Use {', '.join(COMMANDS)}.")
    command = COMMANDS[name]
    # Dolma accepts these options only before the command; accepting them after it is harmless.
    while words and words[0] in ("-c", "--config", "--exact"):
        word = words.pop(0)
        exact, file = (True, file) if word == "--exact" else (exact, words.pop(0) if words else file)
    module: Any = import_module(command.module)
    if "-h" in words or "--help" in words:
        schema: Schema = getattr(module, command.schema)
        typer.echo(f"feedmill compat dolma {name}: {command.help}\n\nOptions, also keys of the configuration file:")
        typer.echo(help_text(schema))
        return
    getattr(module, command.function)(words, file, exact)


def _help() -> None:
    typer.echo("Usage: feedmill compat dolma [--config FILE] [--exact] COMMAND [--OPTION VALUE]\n\nCommands:")
    for name, command in COMMANDS.items():
        typer.echo(f"  {name:<8} {command.help}")
    typer.echo("\n--exact keeps Dolma's known defects.\nOptions of a command:  feedmill compat dolma COMMAND --help")


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
