"""The verb ``report``: datasets and recipes as one HTML file that opens offline and can be attached to a ticket."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from feedmill.errors import ConfigError, FeedmillError, MissingExtra
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.storage import Store, open_store, split_url
from feedmill.web.documents import Documents
from feedmill.web.library import Library, OpenItem
from feedmill.web.options import Report
from feedmill.web.state import State

PICTURES, ROWS, OPENED = 24, 25, 2


@dataclass(slots=True)
class PageReport(VerbReport):
    """Report of `report`.

    Attributes:
        path: the file that was written.
        bytes: its size.
        findings: problems with the datasets, as `check` finds them.
        problems: what could not be shown, and why.
    """

    path: str
    bytes: int = 0
    findings: int = 0
    problems: list[str] = field(default_factory=list)


@verb(Report)
def report(options: Report) -> PageReport:
    """The file has no links to anything else.

    Raises:
        ConfigError: nothing is given, or the file exists, or the paths cannot be compared.
        MissingExtra: the packages of the extra ``web`` are missing.
        NotFound: there is nothing at a path.
        DataError: the loss log has no losses.
    """
    try:
        import feedmill.web.templating  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra(f"report needs {error.name}", extra="web") from None
    given = [options.paths] if isinstance(options.paths, str | os.PathLike) else list(options.paths)
    store, name = _destination(os.fspath(options.output))
    if store.exists(name) and not options.overwrite:
        raise ConfigError("the file exists", file=os.fspath(options.output), kind="exists", fix="Add --overwrite.")
    library = Library(given, loss=options.loss, tokenizer=options.tokenizer, trust=options.trust)
    done = PageReport(os.fspath(options.output))
    compared = _compared(library, done) if options.compare else None
    sections = []
    for thing in library.things.values():
        section, problems, findings = section_of(thing, check=options.check)
        sections.append(section)
        done.problems += problems
        done.findings += findings
    data = page_of(sections, compared).encode("utf-8", "replace")
    store.write_bytes(name, data)
    done.bytes = len(data)
    return done


def _destination(output: str) -> tuple[Store, str]:
    """Return the store and the name of the file to write. Raises `ConfigError` if it is a folder."""
    folder, name = split_url(output)
    if not name or ("://" not in output and os.path.isdir(output)):
        raise ConfigError("this is a folder, a file is written", file=output, kind="bad-option", fix="Name a file.")
    return open_store(folder), name


def _compared(library: Library, done: PageReport) -> dict[str, Any] | None:
    """Return the comparison of the two things that are open, or None if it fails, which is counted."""
    from feedmill.web.compare import compare, refuse_other_kinds

    things = list(library.things.values())
    if len(things) != 2:
        raise ConfigError(f"--compare needs two paths, not {len(things):,}", kind="bad-option", fix="Give A and B.")
    refuse_other_kinds(*things)
    try:
        return compare(things[0], State([("with", things[1].name)]), wait=True)
    except FeedmillError as error:
        done.problems.append(f"comparison: {error}")
        return None


def page_of(sections: Sequence[dict[str, Any]], compared: dict[str, Any] | None = None) -> str:
    """Return one HTML file that holds all that it shows; the sections are those of `section_of`."""
    from feedmill.web.templating import environment, style

    styles = style()
    state = State()
    return (
        environment()
        .get_template("report.html")
        .render(
            sections=sections,
            compared=compared,
            style=styles,
            digest=base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode(),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            state=state,
            link=state.link,
        )
    )


def section_of(thing: OpenItem, *, check: bool) -> tuple[dict[str, Any], list[str], int]:
    """Return what is shown of something that is open, what cannot be shown and why, and the number of findings."""
    section: dict[str, Any] = {"name": thing.name, "path": thing.path, "kind": thing.kind, "problems": []}
    problems: list[str] = []
    findings = 0

    def part(name: str, make: Any) -> None:
        try:
            section[name] = make()
        except FeedmillError as error:
            section[name] = None
            section["problems"].append(str(error))
            problems.append(f"{thing.path}: {error}")

    if thing.kind == "dataset":
        part("samples", lambda: _samples(thing))
        for warning in (section["samples"] or {}).get("skipped", ()):
            hint = "To make a dataset of files of any kind, use 'feedmill import SRC OUT'."
            section["problems"].append(f"{warning}. {hint}")
            problems.append(f"{thing.path}: {section['problems'][-1]}")
        part("tokens", lambda: _tokens(thing))
        part("duplicates", lambda: _duplicates(thing))
        part("health", lambda: _health(thing, check))
        findings = (section["health"] or {}).get("found", 0)
    elif thing.kind == "pipeline":
        from feedmill.web.pipeline import pipeline

        part("pipeline", lambda: pipeline(thing, State()))
    elif thing.kind == "job":
        from feedmill.web.jobs import jobs

        part("jobs", lambda: jobs(thing, State()))
    elif thing.kind == "telemetry":
        from feedmill.web.loader import loader

        part("loader", lambda: loader(thing, State([("over", "all")])))
    else:
        from feedmill.web.mixture import mixture
        from feedmill.web.step import step

        part("mixture", lambda: mixture(thing, State()))
        part("step", lambda: step(thing, State()))
    return section, problems, findings


def _samples(thing: OpenItem) -> dict[str, Any]:
    from feedmill.web.samples import samples

    found = samples(thing, State())
    rows = found["rows"][: ROWS if found["layout"] == "table" else PICTURES]
    for row in rows:
        if row.get("picture"):
            row["data"] = _picture(thing, row["index"], row["picture"], 240)
    count = found["samples"]
    chosen = sorted({count * n // OPENED for n in range(OPENED)}) if count else []
    opened = [samples(thing, State([("at", str(number)), ("page", "1")]))["opened"] for number in chosen]
    for one in opened:
        for part in one["parts"]:
            if part["kind"] == "image":
                part["data"] = _picture(thing, one["index"], part["name"], 480)
    return {**found, "rows": rows, "opened": opened}


def _tokens(thing: OpenItem) -> dict[str, Any] | None:
    """Return lengths and fill; None for what has no tokens, and for documents without a tokenizer."""
    from feedmill.tokens.pieces import has_tokens
    from feedmill.web.tokens import tokens

    if not has_tokens(thing.dataset()) and not (isinstance(thing.dataset(), Documents) and thing.tokenizers):
        return None
    found = tokens(thing, State(), wait=True)
    return found if found.get("chart") else None


def _duplicates(thing: OpenItem) -> list[dict[str, Any]]:
    """Return the clusters of each set that verbs wrote, with the largest one opened."""
    from feedmill.web.duplicates import duplicates, written_sets

    if not isinstance(thing.dataset(), Documents):
        return []
    found = [duplicates(thing, State([("set", name)])) for name in written_sets(thing)]
    return [duplicates(thing, State([("set", one["set"]), ("cluster", "0")])) for one in found if one["clusters"]]


def _picture(thing: OpenItem, index: int, part: str, longest: int) -> str | None:
    from feedmill.web.parts import picture, read_one

    try:
        data, kind = picture(read_one(thing.dataset(), index), part, longest)
    except FeedmillError:
        return None
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _health(thing: OpenItem, check: bool) -> dict[str, Any]:
    from feedmill.web.health import Checking, health

    if check and not isinstance(thing.dataset(), Documents):
        known = thing.__dict__["_checking"] = Checking(thing.path, thing.trust)
        known.wait()
    return health(thing, State(), automatic=False)
