"""Implement ``feedmill compat dolma mix``: Dolma's configuration and the same outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.compat.dolma.config import FLAG, TEXT, TREE, WHOLE, Key, accepted, configured

SCHEMA = {
    "streams": Key(TREE, [], "streams to mix; in the configuration file only"),
    "processes": Key(WHOLE, 1, "number of processes; each writes one output at a time"),
    "shuffle": Key(FLAG, True, "merge inputs to outputs of limited size; else one output per input. No shuffling"),
    "work_dir.input": accepted(TEXT, None, "unused"),
    "work_dir.output": accepted(TEXT, None, "outputs are always complete"),
    "allow_stale": Key(FLAG, False, "use attributes that were computed from other documents (new)"),
    "allow_missing": Key(FLAG, False, "allow attributes that no row has, and missing attribute files (new)"),
    "dryrun": Key(FLAG, False, "print the configuration and stop"),
}


def mix(arguments: Sequence[str], file: str | Mapping[str, Any] | None, exact: bool) -> None:
    """Filter and merge documents, as Dolma does."""
    from feedmill.cli.output import show_documents
    from feedmill.curation.mix.config import read_config
    from feedmill.curation.mix.job import mix as run

    values = configured(arguments, file, SCHEMA)
    config = read_config(
        {name: values[name] for name in ("streams", "shuffle", "allow_stale", "allow_missing")}, dolma=True, exact=exact
    )
    if not values["dryrun"]:
        show_documents(run(config, workers=values["processes"], overwrite=True))
