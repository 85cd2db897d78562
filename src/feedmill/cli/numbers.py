"""``feedmill tokens numbers``: convert between numbers of tokens, samples and steps."""

from __future__ import annotations

from feedmill.cli.command import command
from feedmill.cli.output import emit, facts
from feedmill.jobs.options import call
from feedmill.tokens.options import Numbers


@command(Numbers)
def numbers(options: Numbers, json: bool) -> None:
    from feedmill.tokens.verbs.numbers import numbers as run

    found = call(run, options).as_dict()
    emit(found, json, lambda: facts((name.replace("_", " "), value) for name, value in found.items()))
