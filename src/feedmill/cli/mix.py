"""``feedmill mix``: deprecated name of ``feedmill filter`` for documents (release 0.1)."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from feedmill.cli.filter import filter
from feedmill.cli.options import AllowEmpty, AllowStale, DryRun, Ids, Json, Processes

logger = logging.getLogger("feedmill")


def mix(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A configuration (docs/filter.md), in YAML or JSON.")],
    dry_run: DryRun = False,
    allow_stale: AllowStale = False,
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Filter documents by their attributes. Deprecated: use 'feedmill filter CONFIG'."""
    logger.warning("'feedmill mix' is now called 'feedmill filter'; the old name will be removed")
    filter(
        [config],
        dry_run=dry_run,
        allow_stale=allow_stale,
        id_=id_,
        allow_empty=allow_empty,
        workers=workers,
        json=json,
    )
