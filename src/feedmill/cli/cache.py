"""``feedmill cache``: list, fill and empty the cache of remote data."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import Json, Samples, Trust
from feedmill.cli.output import emit, facts, human_size, table

if TYPE_CHECKING:
    from feedmill.loading.caching import CacheReport


def cache(
    action: Annotated[str, typer.Argument(metavar="list|warm|clear", help="What to do.")],
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET...]",
            help="For warm: recipes, paths or URLs. For list and clear: beginnings of URLs; default: everything.",
        ),
    ] = None,
    dir: Annotated[
        str | None,
        typer.Option("--dir", metavar="FOLDER", help="Folder of the cache; default: as in the recipe or environment."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="For warm: bytes that the cache may hold, such as 200GB."),
    ] = None,
    samples: Samples = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """List what the cache of remote data holds, fetch the data of recipes before a run, or delete it.

    A loader keeps remote data on this machine's disk if FEEDMILL_CACHE_SIZE is set, or 'cache' in its recipe. Copies of
    remote indices are always kept.
    """
    from feedmill.loading.caching import cache as run

    report = run(action, targets or (), dir=dir, size=size, samples=samples, trust=trust, progress=not json)
    emit(report.as_dict(), json, lambda: _show(report))


_KINDS = ("data", "index", "derived")


def _show(report: CacheReport) -> None:
    if report.objects and report.action == "list":
        rows = [
            (one.url, one.kind, human_size(one.present), f"{one.present / max(one.size, 1):.0%}", _time(one.last_use))
            for one in report.objects
        ]
        table(("object", "kind", "cached", "of it", "last used"), rows)
    facts(
        [
            ("folder", report.dir),
            ("objects", len(report.objects)),
            *((kind, human_size(sum(one.present for one in report.of_kind(kind)))) for kind in _KINDS),
            ("fetched", human_size(report.fetched) if report.action == "warm" else None),
            ("freed", human_size(report.freed) if report.action == "clear" else None),
            ("seconds", f"{report.seconds:.1f}" if report.action == "warm" else None),
        ]
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else "never"
