"""The options of a verb, declared once.

A verb is a dataclass of its options and a function of that class, decorated with `verb`. From the class come the
parameters of the Python function and their documentation, the command line and its help (`feedmill.cli.command`), and
the checks of a pipeline's step. So a new option is one field. The module of the class imports nothing heavy, because
the help of a verb is shown without its work:

    class Stat(AllowEmpty, Processes, WithProgress):
        \"\"\"Count documents and attributes.\"\"\"

        inputs: Annotated[Paths, Arg("INPUT...", "Files or folders of documents.")]
        _: KW_ONLY
        attributes: Annotated[str | None, Opt("REGEX", "Only attributes whose names match.", "-a")] = None


    @verb(Stat)
    def stat(options: Stat) -> StatReport: ...


    stat(["web/documents"], attributes="gopher.*")

The classes at the end of this module have the options that several verbs share. They follow the verb's own.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from functools import wraps
from numbers import Real
from types import MappingProxyType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    ForwardRef,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from feedmill.errors import ConfigError, FeedmillError, did_you_mean, shortened

Path = str | os.PathLike[str]
Paths = Sequence[Path]
P = ParamSpec("P")
R = TypeVar("R")
Declared = TypeVar("Declared", bound="Options")
_WIDTH = 116
_BY_POSITION, _BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, slots=True)
class Opt:
    """An option of the command line with a value.

    Attributes:
        metavar: placeholder of the value.
        help: text of the help, and of the docstring of the function.
        names: its spellings, if they are not that of the field, or more than it, such as ``-a``.
        min, max: limits of a number.
        more: what the docstring of the function says besides.
        text: type of what the command line gives, if the field's is another one, such as ``list[str]``.
        parse: makes a value of the field of it.
    """

    metavar: str
    help: str
    names: str = ""
    min: float | None = None
    max: float | None = None
    more: str = ""
    text: Any = None
    parse: Callable[[Any], Any] | None = None


class Flag(Opt):
    """An option of the command line without a value."""

    def __init__(self, help: str, names: str = "", more: str = "") -> None:
        Opt.__init__(self, "", help, names, more=more)


class Arg(Opt):
    """An argument of the command line."""


class PythonOnly(Opt):
    """A parameter of the function that the command line does not have."""

    def __init__(self, help: str) -> None:
        Opt.__init__(self, "", help)


class Inner(PythonOnly):
    """A field that neither the command line nor the function has: the faces of other tools set it for the job."""


@dataclass_transform(frozen_default=True)
class Options:
    """Base of the options of a verb. Each class of them is a frozen dataclass, without a decorator.

    What `dataclass` would write and compile for each class is here once: a short command has thirty of them.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)

    def __init__(self, *values: Any, **named: Any) -> None:
        what, listed = f"{type(self).__name__}()", fields(self)
        positional = [field.name for field in listed if not field.kw_only]
        if len(values) > len(positional):
            raise TypeError(f"{what} takes {len(positional)} positional arguments, but {len(values)} were given")
        given = dict(zip(positional, values, strict=False))
        if twice := given.keys() & named.keys():
            raise TypeError(f"{what} got multiple values for argument {min(twice)!r}")
        given |= named
        if unknown := given.keys() - {field.name for field in listed}:
            raise TypeError(f"{what} got an unexpected keyword argument {min(unknown)!r}")
        for field in listed:
            value = given.get(field.name, field.default)
            if value is MISSING:
                raise TypeError(f"{what} missing a required argument: {field.name!r}")
            vars(self)[field.name] = value
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the options; classes may."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def deciding(self, *aside: str) -> dict[str, Any]:
        """Return what decides a result: the options that the class itself declares, but for those set `aside`."""
        names = inspect.get_annotations(type(self)).keys() & vars(self).keys()
        return {name: getattr(self, name) for name in sorted(names.difference(aside))}


class Option(NamedTuple):
    """A field of a class of options.

    Attributes:
        hint: its type. A name that only type checkers import is a `ForwardRef`.
        default: `dataclasses.MISSING` if it is required.
        positional: whether the function takes it by position, too.
    """

    name: str
    hint: Any
    opt: Opt
    default: Any
    positional: bool

    def outside(self, value: Any) -> tuple[str, str] | None:
        """Return which limit a number exceeds, as ``below 1``, and what to do. The default may be beyond the limits."""
        if isinstance(value, bool) or not isinstance(value, Real) or value == self.default:  # also numpy's
            return None
        number: Any = value
        low, high = self.opt.min, self.opt.max
        if (low is None or number >= low) and (high is None or number <= high):
            return None  # also without limits
        what = f"below {low:,}" if low is not None and number < low else "not a number"
        what = f"above {high:,}" if high is not None and number > high else what
        return what, f"Use {low:,} or more." if high is None else f"Use a number from {low or 0:,} to {high:,}."

    def is_empty(self, value: Any) -> bool:
        """Return whether a value, or one of a list, is an empty text, such as that of an unset variable of a shell.

        As a path it would be the folder of the program, or with a name behind it the root. Only a TEXT may be empty.
        """
        if self.opt.metavar == "TEXT":
            return False
        return any(one == "" for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, str))


class _Names(dict[str, Any]):
    """The names of a module, and of the one that does the work; those that both lack stand for themselves."""

    def __init__(self, module: str, others: Mapping[str, Any]) -> None:
        super().__init__(vars(sys.modules[module]))
        self.others = others

    def __missing__(self, name: str) -> Any:
        return self.others.get(name) or getattr(builtins, name, ForwardRef(name))


def options_of(declared: type[Options], names: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Option]:
    """Return the fields of a class of options by name: the positional ones, its own, and those of its bases.

    Args:
        names: of types that the modules of the classes import for type checkers only.
    """
    known = {field.name: field for field in fields(declared)}
    found: dict[str, Option] = {}
    for base in declared.__mro__:
        every = _Names(base.__module__, names)
        for name, hint in inspect.get_annotations(base, locals=every, eval_str=True).items():
            if name in known and name not in found:
                kind, *facts = get_args(hint)
                opt = next(fact for fact in facts if isinstance(fact, Opt))
                if isinstance(opt, Inner):
                    continue
                found[name] = Option(name, kind, opt, known[name].default, not known[name].kw_only)
    return dict(sorted(found.items(), key=lambda item: not item[1].positional))


def verb(declared: Callable[P, Declared]) -> Callable[[Callable[[Declared], R]], Callable[P, R]]:
    """Return a decorator for the function that does the work of a verb, which then takes the options as parameters.

    With ``dry_run`` it writes nothing, and the report says what would be done; see `feedmill.jobs.dry_run`.
    """
    assert isinstance(declared, type)
    runs_dry = issubclass(declared, DryRunnable)

    def decorate(work: Callable[[Declared], R]) -> Callable[P, R]:
        options = options_of(declared, vars(sys.modules[work.__module__]))
        signature = _signature(options, inspect.signature(work).return_annotation)

        @wraps(work)
        def run(*arguments: P.args, **named: P.kwargs) -> R:
            unknown = next((name for name in named if name not in options), None)
            if unknown is not None:
                hint = did_you_mean(unknown, list(options)) or f": it has {', '.join(options)}."
                raise TypeError(f"{work.__name__} has no parameter {unknown!r}{hint}")
            try:
                bound = signature.bind(*arguments, **named).arguments
                given = declared(**{name: _listed(value, options[name].hint) for name, value in bound.items()})
            except TypeError as error:
                required = [option.name for option in options.values() if option.default is MISSING]
                raise TypeError(f"{work.__name__}({', '.join([*required, '...'])}): {error}") from None
            for name, value in vars(given).items():
                if name in options and (outside := options[name].outside(value)) is not None:
                    what, fix = outside
                    raise ConfigError(f"{work.__name__}: {name}={value} is {what}", kind="bad-option", fix=fix)
                if name in options and options[name].is_empty(value):
                    what, fix = f"{work.__name__}: {name} is empty", "Give a value, or omit the option."
                    raise ConfigError(what, kind="bad-option", fix=fix)
            for name in (option.name for option in options.values() if option.hint in (Path, Paths, Paths | Path)):
                value = getattr(given, name)
                for one in value if isinstance(value, list | tuple) else [value]:
                    opened = getattr(one, "url", None)
                    if opened is not None:  # a dataset or a plan
                        raise TypeError(
                            f"{work.__name__}: {name!r} is a path, not a {type(one).__name__}: pass {opened!r}"
                        )
            try:
                if not runs_dry or not getattr(given, "dry_run", False):
                    return work(given)
                from feedmill.jobs.dry_run import run_dry

                return run_dry(lambda: work(given))
            except FeedmillError as error:
                raise shortened(error)  # noqa: B904 - its own cause stays

        run.__doc__ = _described(declared.__doc__ or "", options, work.__doc__ or "")
        run.options = options  # type: ignore[attr-defined]
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.hint for option in options.values()}
        return run

    return decorate


def _listed(value: Any, hint: Any) -> Any:
    """Return a single text that is given for several as a list of it; it would be taken as its letters."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    several = any(get_origin(kind) in (list, tuple, Sequence) and get_args(kind)[:1] == (str,) for kind in kinds)
    return [value] if several and isinstance(value, str) and str not in kinds else value


def _signature(options: dict[str, Option], returned: Any) -> inspect.Signature:
    parameters = [
        inspect.Parameter(
            option.name,
            _BY_POSITION if option.positional else _BY_NAME,
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
            annotation=option.hint,
        )
        for option in options.values()
    ]
    return inspect.Signature(parameters, return_annotation=returned)


def _described(head: str, options: dict[str, Option], notes: str) -> str:
    """Return the docstring of a verb's function: that of its options and of its work, with the parameters between."""
    prose, raises, errors = inspect.cleandoc(notes).partition("Raises:")
    lines = [f"{inspect.cleandoc(head)}\n\n{prose}".rstrip(), "", "Args:"]
    for option in options.values():
        text = f"{option.name}: {option.opt.help} {option.opt.more}".rstrip()
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join([*lines, "", raises + errors]).rstrip() + "\n"


def call(function: Callable[..., R], options: Options, **others: Any) -> R:
    """Call the function of a verb with options; those that it does not have are left to the caller."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in vars(options).items() if name in names} | others)


class Ids(Options, kw_only=True):
    """Documents with ids."""

    id: Annotated[str | None, Opt("FIELD|auto", "Field of the ids; auto: file and row for documents without one.")] = (
        None
    )


class AllowStale(Options, kw_only=True):
    """Attributes of documents."""

    allow_stale: Annotated[bool, Flag("Use attributes that were computed from other documents.")] = False


class AllowEmpty(Options, kw_only=True):
    """A result that is usually not empty."""

    allow_empty: Annotated[bool, Flag("Accept a result without documents or samples.")] = False


class DryRunnable(Options, kw_only=True):
    """A verb that can say what it would write."""

    dry_run: Annotated[
        bool,
        Flag(
            "Write nothing; show what would be read and written.",
            more="The report has it; the first documents of each file are read.",
        ),
    ] = False


class Processes(Options, kw_only=True):
    """Work of processes."""

    workers: Annotated[int | None, Opt("N", "Processes; default: one per core.", min=1)] = None


class Budget(Options, kw_only=True):
    """Memory of global steps, which write what exceeds it to the work folder."""

    memory: Annotated[
        int | str | None,
        Opt("SIZE", "Memory of all processes, such as 2GB; default: up to a quarter of the machine's.", text=str),
    ] = None


class Threads(Options, kw_only=True):
    """Work of threads that wait for the disk."""

    workers: Annotated[int | None, Opt("N", "Threads; default: four per core.", min=1)] = None


class WithProgress(Options, kw_only=True):
    """Work that takes long."""

    progress: Annotated[
        bool | None, PythonOnly("Whether to show progress. None: lines or a bar on stderr, as the terminal allows.")
    ] = None


class TokenFiles(Options, kw_only=True):
    """Token files of one tokenizer."""

    token_size: Annotated[int | None, Opt("1|2|4", "Bytes per token; required if the inputs differ.")] = None
    mixed_tokenizers: Annotated[bool, Flag("Allow inputs of different tokenizers.")] = False
    drop_loss: Annotated[bool, Flag("Drop the loss masks of the inputs.")] = False
