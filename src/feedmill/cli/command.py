"""What all verbs have in common: numbers as people write them, ``--progress``, an example in the help."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperOption

from feedmill.cli.verbs import Verb
from feedmill.jobs.amounts import parse_count

if TYPE_CHECKING:
    from feedmill.jobs.progress import Style

_STYLES: dict[str, Style] = {"bar": "bar", "plain": "plain", "none": "none"}
_NARROW = 70


class VerbCommand(TyperCommand):
    """Command of a verb."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options. In a narrow terminal, long ones get a line of their own, so that texts have room."""
        if formatter.width < _NARROW:
            formatter.write_dl = partial(formatter.write_dl, col_max=16)
        super().format_options(ctx, formatter)


def finish(command: Any, verb: Verb) -> None:
    """Let the options of a command take numbers such as 1B; add ``--progress``, and an example and a page to its help.

    Args:
        command: a command without subcommands.
    """
    for parameter in command.params:
        if getattr(parameter.type, "name", "").startswith("int"):
            parameter.type = _with_units(parameter.type)
    if verb.long:
        names = [parameter.opts[0] for parameter in command.params]
        command.params.insert(names.index("--json") if "--json" in names else len(names), _progress_option())
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
        meant = hint(command, name, ctx.command_path.split()[1:])
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


def _progress_option() -> TyperOption:
    def choose(ctx: Any, parameter: Any, value: str | None) -> str | None:
        from feedmill.jobs import progress

        if value is not None and value not in _STYLES:
            from typer import BadParameter

            raise BadParameter(f"{value!r} is not one of {', '.join(_STYLES)}", ctx, parameter)
        progress.choose(_STYLES[value] if value else progress.usual())
        return value

    return TyperOption(
        param_decls=["--progress"],
        type=str,
        metavar="|".join(_STYLES),
        help="Signs of life: a bar, a line every 10 s, or nothing; default: a bar on a terminal, else lines.",
        expose_value=False,
        callback=choose,
        required=False,
    )
