"""`feedmill.show`: a dataset, plan or report as one self-contained frame, which notebooks display."""

from __future__ import annotations

from html import escape
from typing import Any

from feedmill.errors import FeedmillError, MissingExtra
from feedmill.formats.base import Dataset
from feedmill.pipelines.history import read_manifest
from feedmill.planning.overview import PlanReport
from feedmill.planning.plan import Plan

_LEAST, _MOST = 100, 5000  # pixels


class Frame:
    """A page that a notebook displays; as text, what it is of. It loads nothing, and runs no scripts.

    Attributes:
        html: the page as one HTML file.
    """

    def __init__(self, html: str, text: str, height: int) -> None:
        self.html, self._text, self._height = html, text, min(max(int(height), _LEAST), _MOST)

    def _repr_html_(self) -> str:
        size = f'width="100%" height="{self._height}"'
        return f'<iframe sandbox srcdoc="{escape(self.html)}" {size} frameborder="0" title="Feedmill"></iframe>'

    def __repr__(self) -> str:
        return self._text


def show(thing: Any, *, height: int = 560) -> Frame:
    """Return a dataset, a plan or a report as a notebook displays it; the method `show` of each does the same.

    Args:
        thing: what `open`, `Recipe.plan` and the verbs return, or a path, as for `report`.
        height: of the frame in pixels.

    Raises:
        MissingExtra: the packages of the extra ``web`` are missing.
        TypeError: it is none of these.
        FeedmillError: it cannot be read.
    """
    try:
        import feedmill.web.templating  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jinja2", "markupsafe", "starlette"):
            raise
        raise MissingExtra(f"show needs {error.name}", extra="web") from None
    from feedmill.web.library import Library
    from feedmill.web.report import page_of, section_of

    if isinstance(thing, str) or hasattr(thing, "__fspath__"):
        sections = [section_of(one, check=False)[0] for one in Library([thing]).things.values()]
    else:
        sections = [_section(thing)]
    return Frame(page_of(sections), _text(thing), height)


def _section(thing: Any) -> dict[str, Any]:
    """Return what a report has of an object that is open."""
    from feedmill.web.library import OpenItem
    from feedmill.web.mixture import of_plan
    from feedmill.web.report import section_of

    if isinstance(thing, Dataset):
        return section_of(OpenItem.of(thing), check=False)[0]
    if isinstance(thing, Plan | PlanReport):
        plan = thing if isinstance(thing, Plan) else thing.plan
        budget = None if isinstance(thing, Plan) else thing.facts["budget"]
        name = (None if isinstance(thing, Plan) else thing.facts["recipe"]) or "plan"
        return {
            "name": name,
            "path": "",
            "kind": "recipe",
            "problems": [],
            "step": None,
            "mixture": of_plan(plan, budget),
        }
    if hasattr(thing, "as_dict"):
        return _report(thing)
    raise TypeError(f"a {type(thing).__name__} cannot be shown: expected a dataset, a plan, a report or a path")


def _report(report: Any) -> dict[str, Any]:
    """Return a verb's report: its findings if it has some, the steps of a pipeline, and all else as a tree."""
    from feedmill.web.health import severity
    from feedmill.web.library import Library
    from feedmill.web.parts import tree
    from feedmill.web.report import section_of

    data = dict(report.as_dict())
    name = type(report).__name__
    if name == "RunReport":
        try:
            (opened,) = Library([read_manifest(data["manifest"]).pipeline]).things.values()
            return section_of(opened, check=False)[0]
        except FeedmillError:  # nothing has run, or the pipeline is elsewhere
            pass
    findings = data.pop("findings", None)
    rows = (
        [{**finding, "severity": severity(finding["kind"])} for finding in findings]
        if isinstance(findings, list)
        else None
    )
    path = data.get("path")
    return {
        "name": name,
        "path": path if isinstance(path, str) else "",
        "kind": "report",
        "problems": [],
        "findings": rows,
        "tree": tree(data),
    }


def _text(thing: Any) -> str:
    """Return an object as text, in a line or a few."""
    if isinstance(thing, Dataset):
        try:
            facts = thing.describe()
        except FeedmillError:
            facts = {}
        return f"{facts.get('format') or 'dataset'} {thing.url}: {len(thing):,} samples"
    return str(thing.plan) if isinstance(thing, PlanReport) else str(thing)
