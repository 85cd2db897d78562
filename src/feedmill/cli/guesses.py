"""Advice about an option that a verb does not have: the one that was meant, or the verbs that have it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from feedmill.errors import suggestion

MEANT = {
    "--overwrite": ("--force", "-f", "--redo", "--replace", "--clobber", "--exist-ok", "--force-overwrite"),
    "--output": ("-o", "--out", "--out-dir", "--output-dir", "--dest", "--destination"),
    "--workers": ("-j", "-p", "-w", "--jobs", "--num-workers", "--processes", "--threads", "--nproc", "--num-proc"),
    "--dry-run": ("--dry", "--dryrun", "--plan", "--simulate", "--check-only"),
    "--on-error": ("--skip-errors", "--ignore-errors", "--skip-bad", "--keep-going", "--errors", "--max-bad"),
    "--progress": ("-q", "--quiet", "--silent", "--no-progress"),
    "--to": ("--format", "--output-format"),
    "--samples": ("-n", "--limit", "--head", "--num-samples", "--max-samples", "--count"),
    "--split-ratio": ("--split", "--splits", "--train-split"),
    "--seq-len": ("--seq-length", "--sequence-length", "--max-length", "--block-size", "--context-length"),
    "--json": ("--as-json", "--json-output"),
    "--exclude": ("--ignore", "--skip"),
    "--encoding": ("--charset",),
    "--seed": ("--random-seed",),
    "--name": ("-n", "--experiment"),
    "--tokenizer": ("--tok", "--model"),
}
"""Option -> what people type for it."""
_VALUES = {"--on-error": " skip", "--progress": " none"}
_OTHERWISE = {
    **dict.fromkeys(("-v", "--verbose", "--debug"), "set FEEDMILL_DEBUG=1 for tracebacks"),
    **dict.fromkeys(("-r", "-R", "--recursive"), "folders are always read with their subfolders"),
}
_OUTPUTS = ("OUT", "OUTPUT", "DST", "DESTINATION")
_SHOWN = 8


def hint(command: Any, name: str, verb: list[str], group: Any) -> str:
    """Return the text that follows the name of an unknown option.

    Args:
        verb: words of the command.
        group: the command that has all verbs.
    """
    options = set(_options(command))
    meant = [option for option, guesses in MEANT.items() if name in guesses or name == option]
    for option in meant:
        for known in (option, *MEANT[option]):
            if known in options:
                return f": did you mean '{known}{_VALUES.get(known, '')}'?"
    if "--output" in meant:
        outputs = [word for word in _arguments(command) if word in _OUTPUTS]
        if outputs:
            usage = " ".join(_arguments(command))
            return f": the output is an argument. Write 'feedmill {' '.join(verb)} {usage}'."
    if name in _OTHERWISE:
        return f": {_OTHERWISE[name]}"
    near = suggestion(name, sorted(option for option in options if option.startswith("--")), cutoff=0.75)
    if near:
        return f": {near[0].lower()}{near[1:]}"
    others = list(_verbs_with({name, *meant}, group, " ".join(verb)))
    if not others:
        return f". See 'feedmill {' '.join(verb)} --help'."
    shown = f"{', '.join(others[:_SHOWN])}{', ...' if len(others) > _SHOWN else ''}"
    return f": '{' '.join(verb)}' has none; {shown} {'has' if len(others) == 1 else 'have'} it"


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield from (*parameter.opts, *parameter.secondary_opts)


def _arguments(command: Any) -> list[str]:
    metavars = (parameter.metavar or "" for parameter in command.params if parameter.param_type_name == "argument")
    return [word for metavar in metavars for word in metavar.split()]


def _verbs_with(options: Collection[str], group: Any, but: str) -> Iterator[str]:
    """Yield the verbs that have one of these options."""
    from feedmill.cli.verbs import VERBS

    for verb in VERBS:
        if verb == but:
            continue
        command = group
        for word in verb.split():
            command = command.get_command(None, word)
        if not set(options).isdisjoint(_options(command)):
            yield verb
