"""Read a pipeline: a list of steps, each a verb with inputs, outputs and options.

Options are checked against the signature of the verb's function: names, types, and what is required.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.yamls import Document, read_config
from feedmill.jobs.options import Option, _Names
from feedmill.jobs.resources import NOTHING, Resources, parse
from feedmill.storage import open_store, split_url
from feedmill.structs import convert_as

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
}


class Verb(NamedTuple):
    """A verb that can be a step.

    Attributes:
        module: module of its function, which has the name of the verb.
        takes_output: whether its second argument is the output.
        takes_many: whether its first argument is a list.
        in_place: whether its output lies beside its input, and is refused if it is there already.
        updates: whether it replaces outdated outputs without ``overwrite``.
        by_file: whether each file of its output needs one file of its input only, and is found again.
        stages: how often the parts of a job array run, for one stage each, by the options of the step. Where the amount
            of data adds stages, the finish does what is left.
    """

    module: str
    takes_output: bool = False
    takes_many: bool = False
    in_place: bool = False
    updates: bool = False
    by_file: bool = False
    stages: Callable[[Mapping[str, Any]], int] = lambda _: 1


VERBS = {
    "extract": Verb("curation.extract.extract", takes_output=True, takes_many=True, updates=True),
    "tag": Verb("curation.tag", takes_many=True, updates=True, by_file=True),
    "embed": Verb("curation.embed", takes_many=True, updates=True, by_file=True),
    "dedupe": Verb(
        "curation.dedupe.job",
        takes_many=True,
        updates=True,
        stages=lambda options: 5 if options.get("near") or options.get("by") == "substrings" else 3,
    ),
    "decontaminate": Verb("curation.decontaminate.job", takes_many=True, updates=True, stages=lambda _: 4),
    "filter": Verb("filtering", updates=True),
    "tokenize": Verb(
        "tokens.verbs.tokenize",
        takes_output=True,
        takes_many=True,
        stages=lambda options: 1 if options.get("max_file_size") is None else 2,
    ),
    "merge": Verb("tokens.verbs.merge", takes_output=True, takes_many=True),
    "shuffle": Verb("tokens.verbs.shuffle", takes_output=True, takes_many=True),
    "split": Verb("tokens.verbs.split", takes_output=True, takes_many=True),
    "index": Verb("tokens.verbs.index", in_place=True),
    "convert": Verb("converting.convert", takes_output=True),
    "prepare": Verb("indexing.prepare"),
    "prepare-media": Verb("indexing.prepare_media"),
    "reshard": Verb("writing.reshard", takes_output=True),
}
_KEYS = ("name", "verb", "inputs", "outputs", "options", "resources")


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: unique in the pipeline; by default the verb.
        verb: a name of `VERBS`.
        inputs, outputs: paths, URLs, patterns, or beginnings of file names.
        options: arguments of the verb's function.
        resources: what a unit of the step needs.
        at: file and line, for errors.
    """

    name: str
    verb: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any]
    at: str
    resources: Resources = NOTHING

    @property
    def function(self) -> Callable[..., Any]:
        """The verb's function."""
        name = self.verb.replace("-", "_")
        found: Callable[..., Any] = getattr(import_module(f"feedmill.{VERBS[self.verb].module}"), name)
        return found

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the function by name: the options, with inputs and outputs where it takes them."""
        verb = VERBS[self.verb]
        names = list(inspect.signature(self.function).parameters)
        given = dict(self.options)
        if names[0] not in given:
            given[names[0]] = list(self.inputs) if verb.takes_many else self.inputs[0]
        if verb.takes_output and names[1] not in given:
            given[names[1]] = self.outputs[0]
        hints = types_of(self.function)
        return {name: converted(value, hints.get(name)) for name, value in given.items()}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps in their order.

    Attributes:
        url: file of the description.
        steps: at least one.
        overlap: whether steps that work file by file begin before all of their inputs are there.
    """

    url: str
    steps: list[Step] = field(default_factory=list)
    overlap: bool = False


def read_pipeline(url: str | os.PathLike[str]) -> Pipeline:
    """Read a pipeline. Relative paths in it are relative to the working directory.

    Raises:
        NotFound: there is no such file.
        ConfigError: it is not valid; the error names the line.
    """
    path = os.fspath(url)
    folder, name = split_url(path)
    document = read_config(open_store(folder).read(name), path)
    tree = document.value
    rest = dict(tree) if isinstance(tree, dict) else {}
    listed, overlap = rest.pop("steps", None), rest.pop("overlap", False)
    if rest or not isinstance(listed, list) or not listed or not isinstance(overlap, bool):
        raise ConfigError(
            "expected a list of steps under the key 'steps', and nothing else but 'overlap: true' or 'false'",
            file=path,
            kind="bad-config",
            fix="See docs/pipelines.md.",
        )
    steps: list[Step] = []
    for number, item in enumerate(listed):
        step = _step(document, number, item)
        if any(step.name == other.name for other in steps):
            raise _bad(f"two steps are called {step.name!r}", step.at, "Give each a 'name' of its own.")
        steps.append(step)
    return Pipeline(path, steps, overlap)


def _step(document: Document, number: int, item: Any) -> Step:
    at = document.at(("steps", number))
    if not isinstance(item, dict):
        raise _bad(f"step {number + 1} is not a mapping", at, f"Give it the keys {', '.join(_KEYS)}.")
    for key in item:
        if key not in _KEYS:
            hint = did_you_mean(str(key), list(_KEYS))
            raise _bad(
                f"unknown key {key!r}{hint}", document.at(("steps", number, key)), "Options are below 'options'."
            )
    verb = item.get("verb")
    if verb not in VERBS:
        hint = did_you_mean(str(verb), list(VERBS))
        raise _bad(f"unknown verb {verb!r}{hint}", at, f"Use one of {', '.join(VERBS)}.")
    options = item.get("options") or {}
    if not isinstance(options, dict):
        raise _bad("'options' is not a mapping", document.at(("steps", number, "options")), "Give names and values.")
    step = Step(
        str(item.get("name", verb)),
        verb,
        tuple(_texts(item.get("inputs"), "inputs", at)),
        tuple(_texts(item.get("outputs"), "outputs", at)),
        options,
        at,
        _resources(document, number, item),
    )
    _check_options(document, number, step)
    return step


def _resources(document: Document, number: int, item: dict[str, Any]) -> Resources:
    if "resources" not in item:
        return NOTHING
    try:
        return parse(item["resources"])
    except ConfigError as error:
        error.file = document.at(("steps", number, "resources"))
        raise


def _texts(value: Any, key: str, at: str) -> Iterator[str]:
    values = value if isinstance(value, list) else [value]
    if value is None or not values or not all(isinstance(item, str) and item for item in values):
        raise _bad(f"{key!r} is missing or is not a list of paths", at, "Name what the step reads and writes.")
    yield from values


_OF_RUNS = ("progress", "dry_run")
"""Parameters of verbs that the run of a pipeline decides: a step that runs dry would never have its outputs."""


def _check_options(document: Document, number: int, step: Step) -> None:
    known = inspect.signature(step.function).parameters
    named = [name for name, parameter in known.items() if parameter.kind is not parameter.VAR_KEYWORD]
    names = [name for name in named if name not in _OF_RUNS]
    for option in step.options:
        if option not in names:
            hint = did_you_mean(str(option), names)
            where = document.at(("steps", number, "options", option))
            raise _bad(
                f"the verb {step.verb!r} has no option {option!r}{hint}",
                where,
                f"Use names of fm.{step.verb.replace('-', '_')}: {', '.join(names)}.",
            )
    verb = VERBS[step.verb]
    first, second = names[0], names[1] if len(names) > 1 else ""
    if first not in step.options and not verb.takes_many and len(step.inputs) > 1:
        fix = f"Name one, or give the option {first!r} and list all that it reads as inputs."
        raise _bad(f"the verb {step.verb!r} takes one input", step.at, fix)
    if verb.takes_output and second not in step.options and len(step.outputs) > 1:
        fix = f"Name one, or give the option {second!r} and list all that it writes as outputs."
        raise _bad(f"the verb {step.verb!r} takes one output", step.at, fix)
    for name, problem in problems(step.function, step.options, [first, *([second] if verb.takes_output else [])]):
        where = document.at(("steps", number, "options", name)) if name in step.options else step.at
        what, _, fix = problem.partition(". ")
        fix = fix or f"See fm.{step.verb.replace('-', '_')}."
        raise _bad(f"the option {name!r} of the step {step.name!r} {what.removesuffix('.')}", where, fix)


def _bad(what: str, at: str, fix: str) -> ConfigError:
    return ConfigError(what, file=at, kind="bad-config", fix=fix)


def types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each parameter of a function; `Any` without annotation."""
    hints = {name: parameter.annotation for name, parameter in inspect.signature(function).parameters.items()}
    if any(isinstance(hint, str) for hint in hints.values()):  # not a verb's
        inner = inspect.unwrap(function)
        hints = get_type_hints(inner, localns=_Names(inner.__module__, {})) | {"return": Any}
        del hints["return"]
    return {name: Any if hint is inspect.Parameter.empty else hint for name, hint in hints.items()}


def accepts(value: Any, hint: Any) -> bool:
    """Return whether a value of YAML or JSON is of a type. A text is accepted where a list of paths is."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(accepts(value, one) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return isinstance(value, list) and len(value) == len(arguments) and all(map(accepts, value, arguments))
    if _is_of(origin, Mapping):
        key, item = arguments
        return isinstance(value, dict) and all(accepts(k, key) and accepts(v, item) for k, v in value.items())
    if _is_of(origin, Iterable):
        if isinstance(value, str):
            return any("PathLike" in str(one) for one in arguments)
        return isinstance(value, list) and all(accepts(item, arguments[0]) for item in value)
    if dataclasses.is_dataclass(hint):
        return isinstance(value, dict) and not isinstance(converted(value, hint), dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint in (str, bool, type(None)) and isinstance(value, hint)


def converted(value: Any, hint: Any) -> Any:
    """Return a value with a mapping as the dataclass that a parameter has, such as a `MediaFilter`; else unchanged."""
    for one in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if isinstance(value, dict) and isinstance(one, type) and dataclasses.is_dataclass(one):
            try:
                return convert_as(value, one)
            except msgspec.ValidationError:
                continue
    return value


def described(hint: Any) -> str:
    """Return words for a type: ``a list of texts, or nothing``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = dict.fromkeys(described(one) for one in arguments if "PathLike" not in str(one) or get_origin(one))
        return ", or ".join(word for word in words if word)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} values"
    if _is_of(origin, Mapping):
        return "a mapping"
    if _is_of(origin, Iterable):
        item = described(arguments[0]).split(", or ")[0]
        return f"a list of {item.removeprefix('a ')}s" if item.startswith("a ") else "a list"
    if dataclasses.is_dataclass(hint):
        return "a mapping with the keys " + ", ".join(field.name for field in dataclasses.fields(hint))
    return _WORDS.get(hint, "")


def _is_of(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def problems(function: Callable[..., Any], options: Mapping[Any, Any], given: Sequence[str]) -> list[tuple[str, str]]:
    """Return what is wrong with options: the name of each, and the problem with it.

    Args:
        function: the function of the verb.
        options: values from YAML or JSON, all with names of parameters.
        given: names of parameters that are given otherwise.
    """
    hints = types_of(function)
    declared: Mapping[str, Option] = getattr(function, "options", {})
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in options:
            value, hint = options[name], hints[name]
            if name in declared and (outside := declared[name].outside(value)) is not None:
                found.append((name, f"is {value}, which is {outside[0]}. {outside[1]}"))
            if not accepts(value, hint):
                is_text = not isinstance(value, str | list | dict | None) and accepts(str(value), hint)
                quotes = f' Write it in quotes: "{str(value)[:40]}".' if is_text else ""
                found.append((name, f"is {_short(value)}: expected {described(hint) or 'another value'}.{quotes}"))
        elif (
            parameter.default is parameter.empty
            and name not in given
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ):
            words = described(hints[name])
            found.append((name, f"is missing, and the verb requires it{f': {words}' if words else ''}."))
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
