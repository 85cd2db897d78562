"""The verb ``report``: datasets and recipes as one HTML file that opens offline and can be attached to a ticket."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError, FeedmillError, MissingExtra
from feedmill.storage import open_store, split_url
from feedmill.web.documents import Documents
from feedmill.web.library import Library, Thing
from feedmill.web.state import State

PICTURES, ROWS, OPENED = 24, 25, 2
_STYLES = ("tokens.css", "base.css")


@dataclass(slots=True)
class PageReport:
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {"path": self.path, "bytes": self.bytes, "findings": self.findings, "problems": self.problems}


def report(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    check: bool = True,
    loss: str | None = None,
    tokenizer: str | Sequence[str] | None = None,
    trust: bool = False,
    overwrite: bool = False,
) -> PageReport:
    """Write what the pages of `serve` show of datasets and recipes to one HTML file without links to anything else.

    Args:
        paths: datasets of any format, and recipes.
        output: the file; a path or URL.
        check: check the datasets, which reads all of their bytes.
        loss: loss log of the recipes' run: CSV, JSON lines or TensorBoard.
        tokenizer: tokenizer of token files whose manifest names none, and tokenizers to compare.
        trust: allow code that the data names to run.
        overwrite: replace an existing file.

    Raises:
        ConfigError: nothing is given, or the file exists.
        MissingExtra: the packages of the extra ``web`` are missing.
        NotFound: there is nothing at a path.
        DataError: the loss log has no losses.
    """
    try:
        from feedmill.web.templating import environment
    except ModuleNotFoundError as error:
        raise MissingExtra(f"report needs {error.name}", extra="web") from None
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    folder, name = split_url(os.fspath(output))
    store = open_store(folder)
    if store.exists(name) and not overwrite:
        raise ConfigError("the file exists", file=os.fspath(output), kind="exists", fix="Add --overwrite.")
    library = Library(given, loss=loss, tokenizer=tokenizer, trust=trust)
    done = PageReport(os.fspath(output))
    sections = [_section(thing, check, done) for thing in library.things.values()]
    style = "\n".join((Path(__file__).parent / "static" / name).read_text() for name in _STYLES)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    state = State()
    text = (
        environment()
        .get_template("report.html")
        .render(
            sections=sections,
            style=style,
            digest=digest,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            state=state,
            link=state.link,
        )
    )
    data = text.encode("utf-8", "replace")
    store.write_bytes(name, data)
    done.bytes = len(data)
    return done


def _section(thing: Thing, check: bool, done: PageReport) -> dict[str, Any]:
    """Return what is shown of a dataset or recipe. A part that cannot be shown says why, and is counted."""
    section: dict[str, Any] = {"name": thing.name, "path": thing.path, "kind": thing.kind, "problems": []}

    def part(name: str, make: Any) -> None:
        try:
            section[name] = make()
        except FeedmillError as error:
            section[name] = None
            section["problems"].append(str(error))
            done.problems.append(f"{thing.path}: {error}")

    if thing.kind == "dataset":
        part("samples", lambda: _samples(thing))
        part("tokens", lambda: _tokens(thing))
        part("duplicates", lambda: _duplicates(thing))
        part("health", lambda: _health(thing, check and not isinstance(thing.dataset(), Documents)))
        done.findings += len((section["health"] or {}).get("findings", ()))
    else:
        from feedmill.web.mixture import mixture
        from feedmill.web.step import step

        part("mixture", lambda: mixture(thing, State()))
        part("step", lambda: step(thing, State()))
    return section


def _samples(thing: Thing) -> dict[str, Any]:
    from feedmill.web.samples import samples

    found = samples(thing, State())
    rows = found["rows"][: PICTURES if found["layout"] == "grid" else ROWS]
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


def _tokens(thing: Thing) -> dict[str, Any] | None:
    """Return lengths, fill and fertility; None for what has no tokens, and for documents without a tokenizer."""
    from feedmill.web.tokens import tokens
    from feedmill.web.words import has_tokens

    if not has_tokens(thing.dataset()) and not (isinstance(thing.dataset(), Documents) and thing.tokenizers):
        return None
    found = tokens(thing, State())
    return found if found.get("chart") else None


def _duplicates(thing: Thing) -> dict[str, Any] | None:
    """Return the clusters that verbs wrote, with the largest one opened; None if none did."""
    from feedmill.web.duplicates import duplicates

    if not isinstance(thing.dataset(), Documents):
        return None
    found = duplicates(thing, State())
    if not found["written"] or not found["clusters"]:
        return None
    return duplicates(thing, State([("cluster", "0")]))


def _picture(thing: Thing, index: int, part: str, longest: int) -> str | None:
    from feedmill.web.content import read_one
    from feedmill.web.pictures import picture

    try:
        data, kind = picture(read_one(thing.dataset(), index), part, longest)
    except FeedmillError:
        return None
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _health(thing: Thing, check: bool) -> dict[str, Any]:
    from feedmill.web.health import Checking, health

    if check:
        known = thing.__dict__["_checking"] = Checking(thing.path, thing.trust)
        known.wait()
    return health(thing, State(), automatic=False)
