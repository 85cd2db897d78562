"""``feedmill cache``: list, fill and empty the cache of remote data."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from feedmill.cli.command import command
from feedmill.cli.output import emit, facts, human_size, table
from feedmill.jobs.options import call
from feedmill.loading.options import Cache

if TYPE_CHECKING:
    from feedmill.loading.caching import CacheReport


@command(Cache)
def cache(options: Cache, json: bool) -> None:
    from feedmill.loading.caching import cache as run

    report = call(run, options)
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
