"""Commands from declared options, and what all verbs have in common: numbers as people write them, ``--progress``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from feedmill.cli.output import remember_json
from feedmill.cli.verbs import Verb
from feedmill.jobs.amounts import parse_count
from feedmill.jobs.options import Arg, Flag, Option, Options, PythonOnly, options_of

if TYPE_CHECKING:
    from feedmill.jobs.progress import Style


def _choose(ctx: typer.Context, parameter: typer.CallbackParam, value: str | None) -> None:
    from feedmill.jobs import progress

    if value is not None and value not in _STYLES:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(_STYLES)}", ctx, parameter)
    progress.choose(_STYLES[value] if value else progress.usual())


_STYLES: dict[str, Style] = {"bar": "bar", "plain": "plain", "none": "none"}
Progress = Annotated[
    str | None,
    typer.Option(
        "--progress",
        metavar="|".join(_STYLES),
        callback=_choose,
        help="Signs of life: a bar, a line every 10 s, or nothing; default: a bar on a terminal, else lines.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", callback=remember_json, is_eager=True, help="Print one JSON document for programs.")
]

_NARROW = 70


class VerbCommand(TyperCommand):
    """Command of a verb."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options. In a narrow terminal, long ones get a line of their own, so that texts have room."""
        if formatter.width < _NARROW:
            formatter.write_dl = partial(formatter.write_dl, col_max=16)
        super().format_options(ctx, formatter)


def command(
    declared: type[Options], *, engines: bool = False, json: bool = True, optional: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for the function of a verb: it takes its options, and ``--json`` unless there is none.

    Args:
        declared: the options. Fields that the verb's function lacks say how its report is shown.
        engines: whether the verb has the options of engines, and runs on the chosen one.
        optional: fields that the function requires, but not the command; without one its value is ().
    """

    from feedmill.cli.engines import EngineOptions, run_on_engine

    def decorate(show: Callable[..., None]) -> Callable[..., None]:
        options = options_of(declared)
        options |= {name: options[name]._replace(default=()) for name in optional}
        long = "progress" in options and isinstance(options["progress"].opt, PythonOnly)
        shown = [option for option in options.values() if not isinstance(option.opt, PythonOnly)]

        def run(**given: Any) -> None:
            values: dict[str, Any] = dict.fromkeys(optional, ())
            for option in shown:
                value = given.pop(option.name)
                if value is not None and value != []:  # else the default applies
                    values[option.name] = value if option.opt.parse is None else option.opt.parse(value)
            as_json = bool(given.pop("json", False))
            given.pop("progress", None)  # chosen by its callback
            if long:
                values["progress"] = not as_json
            work = partial(show, declared(**values), *([as_json] if json else []))
            if engines:
                run_on_engine(work, EngineOptions(**given), values, as_json=as_json)
            else:
                work()

        parameters = [_parameter(option) for option in shown]
        if long:
            parameters.append(_keyword("progress", Progress, None))
        if json:
            parameters.append(_keyword("json", Json, False))
        if engines:
            parameters += [_parameter(option) for option in options_of(EngineOptions).values()]
        notes = (inspect.cleandoc(text) for text in (declared.__doc__, show.__doc__) if text)
        run.__doc__, run.__name__ = "\n\n".join(notes), show.__name__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _parameter(option: Option) -> inspect.Parameter:
    """Return the parameter from which typer makes an option or an argument."""
    opt, kind = option.opt, option.opt.text or _text_type(option)
    default = inspect.Parameter.empty if option.default is MISSING else option.default
    if default == () or (default is not inspect.Parameter.empty and (get_origin(kind) is list or opt.text)):
        default = None
    if default is None:
        kind = kind | None
    limits: dict[str, Any] = {"min": opt.min, "max": opt.max, "help": opt.help}
    if isinstance(opt, Arg):
        return _keyword(option.name, Annotated[kind, typer.Argument(metavar=opt.metavar, **limits)], default)
    flag = f"--{option.name.replace('_', '-')}"
    flag = f"{flag}/--no-{flag[2:]}" if isinstance(opt, Flag) and option.default is True else flag
    names = opt.names.split() if "--" in opt.names else [flag, *opt.names.split()]
    return _keyword(option.name, Annotated[kind, typer.Option(*names, metavar=opt.metavar or None, **limits)], default)


def _text_type(option: Option) -> Any:
    """Return the type that the command line takes for a field: of several, a list or else a text."""
    if get_origin(option.hint) is Literal and not option.opt.metavar:
        return option.hint  # whose values the help shows
    return _simple(option.hint)


def _simple(hint: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        origin = get_origin(kind)
        if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
            return list[_simple(get_args(kind)[0])]  # type: ignore[misc]
    plain = [kind for kind in kinds if kind is not type(None)]
    if plain in ([bool], [int], [float]):
        return plain[0]
    return str


def finish(command: Any, verb: Verb) -> None:
    """Let the options of a command take numbers such as 1B; add an example and a page to its help.

    Args:
        command: a command without subcommands.
    """
    for parameter in command.params:
        if getattr(parameter.type, "name", "").startswith("int"):
            parameter.type = _with_units(parameter.type)
    example, page = verb.example, verb.page
    lines = [f"Example:  feedmill {example}"] * bool(example) + [f"More:     {page}"] * bool(page)
    if lines:
        command.epilog = "\b\n" + "\n".join(lines)


def with_hints(command: Any) -> None:
    """Let a command and its subcommands say what was meant by an unknown option."""
    for inner in getattr(command, "commands", {}).values():
        with_hints(inner)
    command.parse_args = partial(_parse, command, command.parse_args)


def _parse(command: Any, parse: Any, ctx: Any, args: list[str]) -> Any:
    try:
        return parse(ctx, args)
    except Exception as error:
        if type(error).__name__ != "NoSuchOption":  # the parser is click, or typer's copy of it
            raise
        from feedmill.cli.guesses import hint

        name = str(getattr(error, "option_name", ""))
        meant = hint(command, name, ctx.command_path.split()[1:], ctx.find_root().command)
    ctx.fail(f"No such option: {name}{meant}")


def _with_units(kind: Any) -> Any:
    """Return a copy of an integer type that also takes 10k, 1.5M, 2B, 1e9 and 1_000."""
    whole, convert = copy.copy(kind), kind.convert

    def converted(value: Any, parameter: Any, ctx: Any) -> Any:
        number = parse_count(value) if isinstance(value, str) else value
        if number is None:
            kind.fail(f"{value!r} is not a whole number, such as 500, 10k, 1.5M, 2B or 1e9.", parameter, ctx)
        return convert(number, parameter, ctx)

    whole.convert = converted
    return whole
