"""Commands from declared options, and what all verbs have in common: numbers as people write them, ``--progress``."""

from __future__ import annotations

import copy
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import partial
from shlex import quote
from string import Formatter
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperOption

from feedmill.cli.output import printable, remember_json
from feedmill.cli.verbs import Verb
from feedmill.jobs.amounts import parse_count
from feedmill.jobs.options import Arg, Flag, Option, Options, PythonOnly, options_of

if TYPE_CHECKING:
    from feedmill.jobs.progress import Style


def _choose(ctx: typer.Context, parameter: typer.CallbackParam, value: str | None) -> None:
    from feedmill.jobs import progress

    if value is not None and value not in _STYLES:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(_STYLES)}", ctx, parameter)
    ctx.meta[_QUIET] = value == "none"
    progress.choose(_STYLES[value] if value else progress.usual())


_STYLES: dict[str, Style] = {"bar": "bar", "plain": "plain", "none": "none"}
Progress = Annotated[
    str | None,
    typer.Option(
        "--progress",
        metavar="|".join(_STYLES),
        callback=_choose,
        help="Show progress as a bar, as a line every 10 s, or not; default: a bar on a terminal, else lines.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", callback=remember_json, is_eager=True, help="Print one JSON document for programs.")
]

_NARROW, _COLUMN = 70, 28
"""Columns of a narrow terminal, and of the names of options."""
_FEW = 10
"""Number of options up to which the help shows all."""
HEADINGS = {
    "Input": "split dataset-config split-config trust include exclude captions encoding id kind attributes allow-stale"
    " fields source status mime max-page-size page-timeout keys-from only-tagged html-tagger tagger-modules key data",
    "Output": "output to export compare check overwrite compression max-shard-size max-shard-samples max-file-size"
    " max-tokens-per-file token-size pattern prefix shard-sequences keep-html wids videos regroup allow-loss"
    " seq-len report allow-empty verify sheet plot plot-to bins name",
    "Text": "text eos bos always-add template template-source specials-as-text tokenizer tokenizer-backend"
    " tokenizer-pattern separator linearizer skip-special",
    "Chat": "chat chat-template chat-mask chat-template-args loss messages",
    "Splits": "split-ratio split-parts shuffle-tars ratio chunks plan",
    "Samples": "sample-type field-map dataset-yaml-name skip-dataset-yaml media-metadata media-metadata-by-extension"
    " media-metadata-by-header media-metadata-by-glob media processor processor-args",
    "Duplicates": "near by threshold ngram stride length every-copy min-length min-words keep-empty against",
    "Near-duplicates": "keep removal keep-case keep-punctuation bands rows signatures",
    "Bloom filter": "bloom items false-positives read-only",
    "Engine": "workers memory engine address max-tasks task-cpus task-memory task-gpus"
    " task-resources node-labels work part finish",
    "Submit": "submit print cancel parts array-limit partition account qos time sbatch cpus mem image volume max-nodes"
    " apply",
    "Common": "on-error error-budget dry-run interactive yes progress json help-all help",
}
"""Heading -> options below it in the help of every verb that has more than a few; others are the verb's own."""
_OWN = "Options"
_HEADING = {name: heading for heading, names in HEADINGS.items() for name in names.split()}
_ALL, _QUIET = "feedmill.all", "feedmill.quiet"


def paint(text: str, color: str | None = None) -> str:
    """Return a text of the help in a color, or bold; `typer.echo` removes that where it cannot be seen."""
    return typer.style(text, fg=color, bold=True if color is None else None)


def _show_all(ctx: typer.Context, parameter: typer.CallbackParam, wanted: bool) -> None:  # noqa: ARG001
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


class Done(NamedTuple):
    """What the function of a verb leaves.

    Attributes:
        options: its options.
        next: the command line that follows, without ``feedmill``; None for that of the row in the table of verbs.
        quiet: whether a program reads the output, or nothing was written.
    """

    options: Options
    next: str | None
    quiet: bool


class VerbCommand(TyperCommand):
    """Command of a verb.

    Attributes:
        verb: its row in the table of verbs.
    """

    verb: Verb | None = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, and ``--help-all``."""
        *own, help_option = super().get_params(ctx)
        every = TyperOption(
            param_decls=["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        )
        return [*own, every, help_option]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options that are used most; with ``--help-all`` all, below headings.

        In a narrow terminal, long ones get a line of their own, so that texts have room.
        """
        most = _COLUMN if formatter.width >= _NARROW else 16
        arguments, options = [], {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.param_type_name == "argument":
                arguments.append(record)
            elif record is not None:
                options[option_name(parameter)] = record
        first = (self.verb.first.split() if self.verb else []) or [name for name in options if name not in _HELP]
        few, everything = set(options) - set(first) <= set(_HELP), bool(ctx.meta.get(_ALL))
        few |= len(options) - len(_HELP) <= _FEW
        sections: dict[str, list[tuple[str, str]]] = {}
        if few:
            shown = [*(name for name in first if name in options), *(name for name in options if name not in first)]
            sections[_OWN] = [options[name] for name in shown if name != "help-all"]
        else:
            sections["Most used" if everything else _OWN] = [options.pop(name) for name in first]
            if everything:
                sections |= {heading: [] for heading in (_OWN, *HEADINGS)}
                for name, record in options.items():
                    sections[_HEADING.get(name, _OWN)].append(record)
            else:
                rest = len(options) - len(_HELP)
                sections[_OWN].append((options["help-all"][0], f"Show {rest} more options and exit."))
        shown_records = {"Arguments": arguments, **sections}
        names = [len(name) for records in shown_records.values() for name, _ in records]
        width = min(max(names), most)  # of all sections
        for title, records in shown_records.items():
            if records:
                with formatter.section(paint(title)):
                    rows = [(_painted(name) + " " * (width - len(name)), text) for name, text in records]
                    formatter.write_dl(rows, col_max=most)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb, and print which command people run next."""
        done = super().invoke(ctx)
        if isinstance(done, Done) and not done.quiet and not ctx.meta.get(_QUIET):
            line = filled(self.verb.next if self.verb else "", done.options) if done.next is None else done.next
            if line:
                line = line.replace(os.path.join(os.getcwd(), ""), "")  # as the user would write it
                typer.echo(f"{typer.style('next:', bold=True)} feedmill {printable(line)}", err=True)
        return None


_HELP = ("help-all", "help")


def option_name(parameter: Any) -> str:
    """Return the name of an option: the longest spelling, without dashes."""
    return str(max(parameter.opts, key=len)).lstrip("-")


def _painted(spelling: str) -> str:
    """Return the spelling of an option or argument with its words in color, and its placeholder without."""
    if not spelling.startswith("-"):
        return paint(spelling, "cyan")
    return " ".join(paint(word, "cyan") if word.startswith("-") else word for word in spelling.split(" "))


_WILDCARD = re.compile(r"[^/]*[*?\[].*")


def filled(template: str, options: Options) -> str:
    """Return a command line with the values of options in the place of their names; empty if one has no value.

    Of a pattern of files it has the folder.
    """
    values = {}
    for _, name, _, _ in Formatter().parse(template):
        if name:
            value = getattr(options, name)
            value = next(iter(value), None) if isinstance(value, list | tuple) else value
            place = _WILDCARD.sub("", str(value or "")).rstrip("/") or "{"
            if "{" in place:  # no value, or numbered files
                return ""
            values[name] = quote(place)
    return template.format(**values)


def command(
    declared: type[Options],
    *,
    engines: bool = False,
    json: bool = True,
    optional: Sequence[str] = (),
    begin: Callable[[Any], None] | None = None,
) -> Callable[[Callable[..., str | None]], Callable[..., Done | None]]:
    """Return a decorator for the function of a verb: it takes its options, and ``--json`` unless there is none.

    It may return the command line that people run next, without ``feedmill``: empty for none, None for that of the
    table of verbs.

    Args:
        declared: the options. Fields that the verb's function lacks say how its report is shown.
        engines: whether the verb has the options of engines, and runs on the chosen one.
        optional: fields that the function requires, but not the command; without one its value is ().
        begin: is called with the options before modules are imported: it starts what takes long meanwhile.
    """

    from feedmill.cli.engines import EngineOptions, run_on_engine

    def decorate(show: Callable[..., str | None]) -> Callable[..., Done | None]:
        options = options_of(declared)
        options |= {name: options[name]._replace(default=()) for name in optional}
        long = "progress" in options and isinstance(options["progress"].opt, PythonOnly)
        shown = [option for option in options.values() if not isinstance(option.opt, PythonOnly)]

        def run(**given: Any) -> Done | None:
            values: dict[str, Any] = dict.fromkeys(optional, ())
            for option in shown:
                value = given.pop(option.name)
                if value is not None and value != []:  # else the default applies
                    values[option.name] = value if option.opt.parse is None else option.opt.parse(value)
            as_json = bool(given.pop("json", False))
            given.pop("progress", None)  # chosen by its callback
            if long:
                values["progress"] = not as_json
            made, following = declared(**values), list[str | None]()
            if begin is not None:
                begin(made)

            def work() -> None:
                following.append(show(made, *([as_json] if json else [])))

            if engines:
                run_on_engine(work, show.__name__.rstrip("_"), EngineOptions(**given), values, as_json=as_json)
            else:
                work()
            quiet = as_json or bool(values.get("dry_run"))
            return Done(made, following[0], quiet) if following else None  # a part of a job array has not

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
    """Let the options of a command take numbers such as 1B; give it its row: options, example and page for its help.

    Args:
        command: a command without subcommands.
    """
    for parameter in command.params:
        if getattr(parameter.type, "name", "").startswith("int"):
            parameter.type = _with_units(parameter.type)
    command.verb = verb
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
