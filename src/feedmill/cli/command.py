"""What all verbs have in common: numbers as people write them, ``--progress``, an example in the help, old options."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperOption

from feedmill.cli.verbs import Verb
from feedmill.jobs.amounts import parse_count

if TYPE_CHECKING:
    from feedmill.jobs.progress import Style

logger = logging.getLogger("feedmill")

_PROCESSES = {"--processes": "--workers", "-p": "--workers"}
_SHARDS = {"--samples": "--max-shard-samples", "--size": "--max-shard-size"}
OLD: dict[str, dict[str, str]] = {
    "tag": {**_PROCESSES, "--to": "--output", "--out": "--output", "--redo": "--overwrite"},
    "dedupe": _PROCESSES,
    "neardedupe": _PROCESSES,
    "filter": _PROCESSES,
    "mix": _PROCESSES,
    "stat": _PROCESSES,
    "convert": {
        "--max-bad": "--error-budget",
        "--keep": "--fields",
        "--plan": "--dry-run",
        "--samples-per-shard": "--max-shard-samples",
        "--shard-size": "--max-shard-size",
    },
    "prepare": {"--skip-bad-shards": "--on-error=skip", "--force-overwrite": "--overwrite"},
    "run": {"--plan": "--dry-run", "--force": "--overwrite", "--steps": "--only"},
    "reshard": _SHARDS,
    "append": _SHARDS,
    "add-parts": {"--replace": "--overwrite", "--missing": "--on-error", "--part": "--part-name"},
    "delete": {"--ignore-missing": "--on-error=skip", "--list": "--keys-from"},
    "check": {"--samples": "--read-samples"},
    "plan": {"--plot": "--plot-to", "--batch": "--batch-size"},
    "bench": {"--output": "--arrays"},
    "demo": {"--out": "--output"},
    "numbers": {"--sequence-length": "--seq-len"},
    "serve": {"--loss": "--loss-log"},
    "report": {"--loss": "--loss-log"},
}
"""Verb -> deprecated option of release 0.1 -> current option."""
_STYLES: dict[str, Style] = {"bar": "bar", "plain": "plain", "none": "none"}
_NARROW = 70


class VerbCommand(TyperCommand):
    """Command of a verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `ConfigError` if an option is given under both names."""
        return super().parse_args(ctx, list(translated(self.name or "", args)))

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


def translated(verb: str, words: list[str]) -> Iterator[str]:
    """Yield the words of a command line, with deprecated options replaced by current ones.

    >>> list(translated("stat", ["web", "--processes", "2"]))
    ['web', '--workers', '2']
    """
    from feedmill.jobs.policy import both_given

    old = OLD.get(verb, {})
    end = words.index("--") if "--" in words else len(words)
    given = {word.partition("=")[0] for word in words[:end]}
    warned = set()
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in old and name[:2] in old and name[2:].isdigit():  # -p4
            name, equals, value = name[:2], "=", name[2:]
        if number >= end or (name not in old and not _was_flag(words, number)):
            yield word
            continue
        new = old.get(name) or ("--progress=none" if name == "--no-progress" else "")
        if new.partition("=")[0] in given:
            raise both_given(name, new.partition("=")[0])
        if new and name not in warned:
            logger.warning("%s is now called %s; the old name will be removed", name, new.replace("=", " "))
            warned.add(name)
        if new:
            yield new + equals + value


def _was_flag(words: list[str], number: int) -> bool:
    """Return whether a word is ``--no-progress``, or ``--progress`` as the flag that it was."""
    following = words[number + 1] if number + 1 < len(words) else ""
    return words[number] == "--no-progress" or (words[number] == "--progress" and following[:1] in ("", "-"))
