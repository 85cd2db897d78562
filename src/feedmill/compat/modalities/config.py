"""Load Modalities' YAML configurations: scalars, references and resolvers, without OmegaConf.

    ${a.b}, ${a[0]}, ${.c}                        another value of the file, absolute or relative to this value
    ${node_env:num_cpus}                          number of cores of this machine
    ${cuda_env:RANK}                              an environment variable; RANK, LOCAL_RANK and WORLD_SIZE are integers
    ${modalities_env:config_file_path}            a value from the caller: config_file_path or config_folder_path
    \\${                                           a literal ${

A value that is a single reference becomes the referenced value, of any type. Within other text, a reference is replaced
by the value's text. References can be nested. Other resolvers are an error.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import yaml

from feedmill.errors import ConfigError
from feedmill.formats import yamls
from feedmill.formats.settings import Table, not_used
from feedmill.jobs.resources import available_cores
from feedmill.storage import open_store, split_url

logger = logging.getLogger("feedmill")
_INNERMOST = re.compile(r"(?<!\\)\$\{([^{}$]*)\}")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MOST_FOLLOWED = 10_000
_NUMBERS = ("LOCAL_RANK", "RANK", "WORLD_SIZE")
_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)|[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)$"
    r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, except that ``1e3`` is a number, dates are text, and duplicate keys are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                what = f"duplicate key {key.value!r}"
                raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in rules
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def load_config(path: str, text: bytes | None = None) -> dict[str, Any]:
    """Return a configuration file with all references replaced.

    Args:
        path: path or URL of the file.
        text: content of the file, if it was already read.

    Raises:
        NotFound: the file does not exist.
        ConfigError: the file is not valid YAML, or a reference cannot be resolved.
    """
    folder, name = split_url(path)
    data = open_store(folder).read(name) if text is None else text
    try:
        yamls.compose(data, path)
        value = yaml.load(data, _Loader)  # noqa: S506 - a safe loader  # nosec B506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(
            f"not valid YAML: {error.problem or error.context}", file=where, fix="Fix the line."
        ) from None
    except yamls.UNREADABLE as error:
        raise ConfigError(f"not valid YAML: {error}", file=path, fix="Fix the file.") from None
    if not isinstance(value, dict):
        raise ConfigError("not a configuration: its top level is not a mapping", file=path, fix="Check the path.")
    known = {"config_file_path": path, "config_folder_path": folder}
    return _Resolver(value, path, known).all()


class _Resolver:
    """Resolver of the references of one file."""

    def __init__(self, top: dict[str, Any], where: str, known: Mapping[str, str]) -> None:
        self.top, self.where, self.known = top, where, known
        self._active: list[tuple[str | int, ...]] = []
        self._followed = 0

    def all(self) -> dict[str, Any]:
        found: dict[str, Any] = self._value(self.top, ())
        return found

    def _value(self, value: Any, at: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            return {key: self._value(entry, (*at, key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._value(entry, (*at, number)) for number, entry in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if at in self._active or len(self._active) > 50:
            self._fail(value, "it refers to itself")
        self._active.append(at)
        try:
            return self._text(value, at)
        finally:
            self._active.pop()

    def _text(self, text: str, at: tuple[str | int, ...]) -> Any:
        while True:
            match = _INNERMOST.search(text)
            if match is None:
                break
            found = self._reference(match[1].strip(), at)
            if match.span() == (0, len(text)):
                return found
            # Escape "${" in the inserted value: it is already resolved, and could otherwise loop forever.
            text = text[: match.start()] + str(found).replace("${", "\\${") + text[match.end() :]
        if re.search(r"(?<!\\)\$\{", text):
            self._fail(text, "a brace is not closed")
        return text.replace("\\${", "${")

    def _reference(self, words: str, at: tuple[str | int, ...]) -> Any:
        self._followed += 1
        if self._followed > _MOST_FOLLOWED:  # nested references can double at each level
            self._fail(words, f"resolving it takes more than {_MOST_FOLLOWED:,} lookups")
        resolver, colon, argument = words.partition(":")
        if not colon:
            return self._lookup(words, at)
        argument = argument.strip()
        if resolver == "node_env" and argument == "num_cpus":
            return available_cores()
        if resolver == "cuda_env":
            return self._environment(argument)
        if resolver == "modalities_env" and argument in self.known:
            return self.known[argument]
        self._fail(
            f"${{{words}}}",
            "unknown resolver",
            "Use node_env:num_cpus, cuda_env:NAME, " + ", ".join(f"modalities_env:{name}" for name in self.known),
        )

    def _environment(self, name: str) -> Any:
        value = os.environ.get(name)
        if name not in _NUMBERS:
            return value
        if value is None or not value.strip().lstrip("-").isdigit():
            self._fail(f"${{cuda_env:{name}}}", f"{name} is not set to an integer", "E.g. use torchrun.")
        return int(value)

    def _lookup(self, words: str, at: tuple[str | int, ...]) -> Any:
        dots = len(words) - len(words.lstrip("."))
        path: list[str | int] = list(at[: max(0, len(at) - dots)]) if dots else []
        path += [int(number) if number else name for name, number in _STEP.findall(words.lstrip("."))]
        value: Any = self.top
        for step in path:
            if isinstance(value, str) and "${" in value:
                break
            try:
                value = value[int(step) if isinstance(value, list) else step]
            except (KeyError, IndexError, TypeError, ValueError):
                self._fail(f"${{{words}}}", f"{step!r} does not exist", "Check the reference.")
        return self._value(value, tuple(path))

    def _fail(self, text: str, why: str, fix: str = "Fix it.") -> NoReturn:
        raise ConfigError(
            f"cannot resolve the reference in {text!r}: {why}", file=self.where, kind="bad-config", fix=fix
        )


def section(config: Mapping[str, Any], path: str, where: str) -> dict[str, Any]:
    """Return a mapping inside a configuration by its dotted path. Raises `ConfigError` if it is missing."""
    value: Any = config
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if not isinstance(value, dict):
        raise ConfigError(f"section {path!r} is missing", file=where, kind="bad-config", fix="Add it.")
    return value


def tell_notes(table: Table, values: Mapping[str, Any], where: str) -> None:
    """Log what is not used: settings without effect as information, for Modalities requires some; others as a warning.

    Others are legitimate if the table is open, because references may use them.

    Raises:
        ConfigError: a setting is refused or unknown.
    """
    for note in table.take(values, where).notes:
        if note.startswith("not used"):
            _warn(where, note)
        else:
            logger.info("%s: %s", where, note)


def tell_others(values: Mapping[str, Any], known: Collection[str], where: str, prefix: str = "") -> None:
    """Log as a warning what a section holds beside its own keys, which is not used."""
    for note in not_used(f"{prefix}{name}" for name in values if name not in known):
        _warn(where, note)


def _warn(where: str, note: str) -> None:
    logger.warning("%s: %s (references may use them)", where, note)


def text_of(values: Mapping[str, Any], key: str, where: str) -> str:
    """Return a required text of a section. Raises `ConfigError` if it is missing or empty."""
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key!r} must be a text, found {value!r}", file=where, fix=f"Set {key!r}.")
    return value


def count_of(values: Mapping[str, Any], key: str, where: str, *, default: int | None = None) -> int:
    """Return a positive integer of a section, or the default. Raises `ConfigError` for another value."""
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{key!r} must be a positive whole number, found {value!r}", file=where, fix=f"Set {key!r}, e.g. to 10."
        )
    return value
