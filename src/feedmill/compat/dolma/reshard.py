"""Implement ``feedmill compat dolma reshard`` and ``python -m dolma.tokenizer.reshard``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from feedmill.compat.dolma.config import FLAG, REQUIRED, TEXT, TREE, WHOLE, Key, accepted, configured
from feedmill.errors import ConfigError

if TYPE_CHECKING:
    from feedmill.tokens.verbs.resample import ResampleReport, Source

SCHEMA = {
    "source_prefixes": Key(TREE, [], "folders of token files with their sample rates; in the configuration file only"),
    "destination_prefix": Key(TEXT, REQUIRED, "folder for the token files"),
    "max_num_files": Key(WHOLE, None, "distribute the files over at most N outputs"),
    "max_size_bytes": Key(WHOLE, None, "fill files up to this size"),
    "max_workers": Key(WHOLE, None, "number of processes; by default one per core if there is enough to do"),
    "random_seed": Key(WHOLE, 42, "seed of the draws"),
    "local_tempdir": accepted(TEXT, None, "URLs are read and written directly"),
    "tokenizer_name_or_path": accepted(TEXT, None, "the files say how large a token is"),
    "overwrite": Key(FLAG, False, "replace existing token files (new)"),
    "dryrun": Key(FLAG, False, "print the configuration and stop (new)"),
}


def reshard(arguments: Sequence[str], file: str | Mapping[str, Any] | None, exact: bool) -> None:  # noqa: ARG001
    """Sample and distribute token files, as Dolma does."""
    values = configured(arguments, file, SCHEMA)
    if not values["dryrun"]:
        show(run(values))


def run(values: Mapping[str, Any]) -> ResampleReport:
    """Run the resharding of a configuration, see `SCHEMA`. Raises the errors of `resample`."""
    from feedmill.tokens.verbs.resample import resample

    return resample(
        [_source(entry) for entry in values["source_prefixes"]],
        values["destination_prefix"],
        max_num_files=values["max_num_files"],
        max_size_bytes=values["max_size_bytes"],
        seed=values["random_seed"],
        overwrite=values["overwrite"],
        workers=values["max_workers"],
    )


def _source(entry: Any) -> Source:
    from feedmill.tokens.verbs.resample import Source

    if not isinstance(entry, Mapping) or entry.keys() != {"prefix", "sample_rate"}:
        raise ConfigError(
            f"expected a source with prefix and sample_rate, found {entry!s:.200}",
            kind="bad-option",
            fix="Write both, for example {prefix: tokens/wiki, sample_rate: 1.5}.",
        )
    try:
        return Source(str(entry["prefix"]), float(entry["sample_rate"]))
    except (TypeError, ValueError):
        raise ConfigError(
            f"the sample rate {entry['sample_rate']!r} is not a number", file=str(entry["prefix"]), fix="Correct it."
        ) from None


def show(report: ResampleReport) -> None:
    """Print a report."""
    from feedmill.cli.output import counted, facts, table

    table(
        ("source", "rate", "files", "taken"),
        [(source.prefix, f"{source.rate:g}", f"{source.files:,}", f"{source.taken:,}") for source in report.sources],
    )
    resumed = f" ({report.resumed} finished by an earlier run)" if report.resumed else ""
    facts(
        [
            ("wrote", f"{counted(len(report.outputs), 'file')}{resumed}"),
            ("documents", report.documents),
            ("tokens", report.tokens),
        ]
    )
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
