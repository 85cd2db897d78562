"""Parse Dolma's configuration: a YAML or JSON file, options with dotted names that override it, and interpolation.

Each command declares its keys as a `Schema`: dotted name -> kind of value. An unknown key or a value of the wrong kind
is an error with a hint. Interpolation: ``${other.key}``, ``${oc.env:NAME}`` (with ``,default``), ``${d.glob:PATTERN}``,
``${d.processes:N}``, ``${d.cache:PATH}``.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import typer

from feedmill.errors import ConfigError, suggestion
from feedmill.jobs.resources import available_cores
from feedmill.storage import open_store, split_url
from feedmill.storage.limits import check_nesting

TEXT, WHOLE, NUMBER, FLAG, TEXTS, TREE = "a text", "a whole number", "a number", "true or false", "a list", "a tree"
REQUIRED: Any = object()
"""Default of a required key."""

_DEEPEST = 16
_LONGEST = 1 << 20
_PLACE = re.compile(r"\$\{([^${}]*)\}")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True)
class Key:
    """An entry of a schema: the kind of value (one of the above), its default, and its line in the help.

    A `TREE` is used as the file has it, and has no option. `idle` says why an option has no effect.
    """

    kind: str
    default: Any = None
    help: str = ""
    idle: str = ""


def accepted(kind: str, default: Any, why: str) -> Key:
    """Return a key that has no effect; `configured` says so where it is given."""
    return Key(kind, default, f"no effect: {why}", why)


Schema = Mapping[str, Key]


def configure(arguments: Sequence[str], file: str | Mapping[str, Any] | None, schema: Schema) -> dict[str, Any]:
    """Return the value of each key of the schema. Options override the file, and the file overrides defaults.

    Args:
        arguments: the arguments of the command line.
        file: path or URL of the configuration file, its content, or None.
        schema: the keys of the command.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value has the wrong kind, or a required key is
            missing.
    """
    given: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        shown_as = file if isinstance(file, str) else "configuration"
        for name, value in _flattened(_read(file) if isinstance(file, str) else file, schema, shown_as):
            given[name], origins[name] = value, f"{shown_as}: {name}"
    for name, value in _options(arguments, schema):
        given[name], origins[name] = value, f"--{name}"
    values = {}
    for name, key in schema.items():
        if name in given:
            values[name] = _converted(_resolved(given[name], given, schema), key, origins[name])
        elif key.default is REQUIRED:
            raise ConfigError(
                f"{name!r} is missing",
                file=file if isinstance(file, str) else None,
                kind="missing-option",
                fix=f"Set it with --{name} or in a configuration file.",
            )
        else:
            values[name] = list(key.default) if isinstance(key.default, list | tuple) else key.default
    return values


def configured(arguments: Sequence[str], file: str | Mapping[str, Any] | None, schema: Schema) -> dict[str, Any]:
    """Return the options as `configure` does, and print them as Dolma does, with notes on those without effect."""
    values = configure(arguments, file, schema)
    typer.echo(shown(values, file))
    for name, key in schema.items():
        if key.idle and values[name] != key.default:
            typer.echo(f"note: {name!r} has no effect: {key.idle}", err=True)
    return values


def shown(values: Mapping[str, Any], file: str | Mapping[str, Any] | None = None) -> str:
    """Return the configuration as text with sorted keys: JSON if its file is JSON, otherwise YAML."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    if _is_json(file):
        with contextlib.suppress(orjson.JSONEncodeError):  # orjson cannot write integers beyond 64 bits
            return orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
    import yaml

    return yaml.safe_dump(tree, sort_keys=True, allow_unicode=True)


def help_text(schema: Schema) -> str:
    """Return the help, one line per option."""
    lines = []
    for name, key in schema.items():
        if key.kind == TREE:
            continue
        option = f"--{name}, --no-{name}" if key.kind == FLAG else f"--{name}"
        lines.append(f"  {option:<42} {key.help or key.kind}")
    return "\n".join(lines)


def _read(file: str) -> Any:
    folder, name = split_url(file)
    data = open_store(folder).read(name)
    if _is_json(file):
        with contextlib.suppress(orjson.JSONDecodeError):  # fall back to YAML, whose errors have a line
            tree = orjson.loads(data) or {}
            check_nesting(tree, file)
            return tree
    import yaml  # imported here, as it is slow to import

    from feedmill.formats import yamls

    try:
        yamls.compose(data, file)
        return yaml.safe_load(data) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        raise ConfigError(
            f"the file is neither YAML nor JSON ({getattr(error, 'problem', error)})", file=where, fix="Fix this line."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not text ({error.reason})", file=file, fix="Use a YAML or JSON file.") from None
    except yamls.UNREADABLE as error:
        raise ConfigError(f"the file is neither YAML nor JSON ({error})", file=file, fix="Fix the file.") from None


def _is_json(file: str | Mapping[str, Any] | None) -> bool:
    return isinstance(file, str) and file.endswith(".json")


def _flattened(tree: Any, schema: Schema, file: str, path: str = "") -> list[tuple[str, Any]]:
    """Return the entries of a file as pairs of dotted name and value."""
    if path in schema:
        return [(path, tree)]
    parents = {name[:i] for name in schema for i, c in enumerate(name) if c == "."} | {""}
    if path not in parents:
        fix = f"{suggestion(path, schema)} Options are {', '.join(schema)}.".strip()
        raise ConfigError(f"unknown option {path!r}", file=file, kind="unknown-option", fix=fix)
    if tree is None:
        return []
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path or 'the file'} must be a mapping, found {tree!r}", file=file, fix="Fix it.")
    return [
        entry
        for key, value in tree.items()
        for entry in _flattened(value, schema, file, f"{path}.{key}" if path else str(key))
    ]


def _options(arguments: Sequence[str], schema: Schema) -> list[tuple[str, Any]]:
    """Return the options in order: ``--name VALUE``, ``--name=VALUE``, ``--list A B``, ``--flag`` and ``--no-flag``."""
    found: list[tuple[str, Any]] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(
                f"unexpected argument {word!r}: an option must begin with --",
                kind="unknown-option",
                fix="See --help for the options.",
            )
        if name.startswith("no-") and schema.get(name[3:], Key(TEXT)).kind == FLAG:
            found.append((name[3:], False))
            continue
        kind = schema[name].kind if name in schema else TREE
        if kind == TREE:
            hint = suggestion(f"--{name}", [f"--{known}" for known in schema])
            raise ConfigError(
                f"unknown option --{name}", kind="unknown-option", fix=f"{hint} See --help for the options.".strip()
            )
        if equals:
            found.append((name, [value] if kind == TEXTS else value))
        elif kind == FLAG:
            found.append((name, True))
        elif kind == TEXTS:
            values = []
            while rest and not rest[0].startswith("--"):
                values.append(rest.pop(0))
            found.append((name, values))
        elif not rest or rest[0].startswith("--"):
            raise ConfigError(f"--{name} requires {kind}", kind="missing-option", fix="Write it after the option.")
        else:
            found.append((name, rest.pop(0)))
    return found


def _resolved(value: Any, given: Mapping[str, Any], schema: Schema, depth: int = 0) -> Any:
    """Return the value with each ``${}`` replaced by what it refers to."""
    if isinstance(value, dict):
        return {key: _resolved(inner, given, schema, depth) for key, inner in value.items()}
    if isinstance(value, list):
        flat: list[Any] = []
        for inner in value:
            new = _resolved(inner, given, schema, depth)
            flat.extend(new if isinstance(new, list) and isinstance(inner, str) else [new])
        return flat
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > _DEEPEST or len(value) > _LONGEST:  # each step may double it
        raise ConfigError(f"circular interpolation in {value[:200]!r}", kind="bad-config", fix="Remove the cycle.")
    whole = _PLACE.fullmatch(value)
    if whole:
        return _resolved(_looked_up(whole[1], given, schema), given, schema, depth + 1)
    new = _PLACE.sub(lambda match: str(_looked_up(match[1], given, schema)), value)
    if new == value:
        raise ConfigError(f"{value!r} has a ${{ without a closing brace", kind="bad-config", fix="Add it.")
    return _resolved(new, given, schema, depth + 1)


def _looked_up(text: str, given: Mapping[str, Any], schema: Schema) -> Any:
    name, colon, argument = text.strip().partition(":")
    if not colon:
        return _referred(name, given, schema)
    if name == "oc.env":
        variable, comma, default = argument.partition(",")
        if variable.strip() not in os.environ and not comma:
            raise ConfigError(f"environment variable {variable} is not set", kind="bad-config", fix="Set it.")
        return os.environ.get(variable.strip(), default.strip())
    if name == "d.glob":
        found = sorted(glob.glob(argument, recursive=True))
        if not found:
            raise ConfigError("no files match this pattern", file=argument, kind="not-found", fix="Check the path.")
        return found
    if name == "d.processes":
        return max(1, available_cores() - int(_converted(argument or "0", Key(WHOLE), text)))
    if name == "d.cache":
        if "://" in argument:
            raise ConfigError("files are not downloaded", file=argument, fix="Download the file, and use its path.")
        return argument
    raise ConfigError(
        f"unknown interpolation ${{{text}}}",
        kind="bad-config",
        fix="Use another key, oc.env, d.glob, d.processes or d.cache.",
    )


def _referred(name: str, given: Mapping[str, Any], schema: Schema) -> Any:
    if name in given:
        return given[name]
    if name in schema and schema[name].default is not REQUIRED:
        return schema[name].default
    below = {key[len(name) + 1 :]: value for key, value in given.items() if key.startswith(f"{name}.")}
    if below:
        return below
    raise ConfigError(f"${{{name}}} refers to an unknown key", kind="bad-config", fix="Use a key of the configuration.")


def _converted(value: Any, key: Key, where: str) -> Any:
    """Return the value as the key's kind. None is valid if it is the default, or for a text or tree with a default.

    Raises:
        ConfigError: the value is of another kind.
    """
    kind = key.kind
    nothing = key.default is None or (kind in (TEXT, TREE) and key.default is not REQUIRED)
    try:
        if (value is None and nothing) or kind == TREE:
            return value
        if kind == TEXTS and value is not None:
            return [str(item) for item in (value if isinstance(value, list) else [value])]
        if kind == TEXT and not isinstance(value, list | dict | None):
            return str(value)
        if kind == FLAG:
            return value if isinstance(value, bool) else _WORDS[str(value).lower()]
        if kind == WHOLE and not isinstance(value, bool) and int(value) == float(value):
            return int(value)
        if kind == NUMBER and not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, KeyError, OverflowError):
        pass
    raise ConfigError(f"expected {kind}, found {value!r}", file=where, kind="bad-option", fix="Change the value.")
