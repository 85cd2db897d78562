"""``feedmill convert``: convert a dataset to another format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import DatasetPath, DryRun, Json, OverwriteFiles, Split, TokenSize, on_engine
from feedmill.cli.output import counted, emit_report, facts, human_size
from feedmill.jobs.policy import METAVAR

if TYPE_CHECKING:
    from feedmill.converting.engine import ConvertReport
    from feedmill.converting.preview import Preview


@on_engine
def convert(
    source: DatasetPath,
    destination: Annotated[str, typer.Argument(metavar="DST", help="Destination: a folder or a file.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="The format to write (docs/convert.md).")],
    split: Split = None,
    fields: Annotated[
        str | None,
        typer.Option("--fields", metavar="A,B", help="Convert only these parts; '*' matches all."),
    ] = None,
    max_shard_samples: Annotated[
        int | None,
        typer.Option(
            "--max-shard-samples",
            metavar="N",
            min=1,
            help="Maximum samples per output; default: 10,000, or 100,000 rows.",
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option("--max-shard-size", metavar="SIZE", help="Maximum source bytes per output; default: 1G."),
    ] = None,
    token_size: TokenSize = None,
    seq_len: Annotated[
        int | None,
        typer.Option("--seq-len", metavar="N", min=1, help="vla-text: sequence length of the training program."),
    ] = None,
    wids: Annotated[bool, typer.Option("--wids", help="wds: also write the index wids.json.")] = False,
    regroup: Annotated[
        bool, typer.Option("--regroup", help="Bring together the parts of samples of tars that are not adjacent.")
    ] = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Convert even if the format cannot store some of the content.")
    ] = False,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar=METAVAR, help="Stop at an invalid sample, or skip and list it.")
    ] = "raise",
    error_budget: Annotated[
        float | None,
        typer.Option(
            "--error-budget", metavar="N", min=0, help="Maximum skipped samples: a number, or a share below 1."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read the destination back and compare every sample.")
    ] = True,
    dry_run: DryRun = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Processes; default: one per core."),
    ] = None,
    overwrite: OverwriteFiles = False,
    json: Json = False,
) -> None:
    """Convert a dataset to another format: samples, tokens, or rows of text. After a kill, the same command resumes.

    What the format cannot store is reported first; losing content requires --allow-loss. Every sample is read back and
    compared with the source, and the proof is stored beside the destination.
    """
    from feedmill.converting.convert import convert as convert_data
    from feedmill.jobs.policy import on_error_policy

    report = convert_data(
        source,
        destination,
        to,
        split=split,
        fields=[] if fields is None else parse_fields(fields),
        max_shard_samples=max_shard_samples,
        max_shard_size=max_shard_size,
        token_size=token_size,
        seq_len=seq_len,
        wids=wids,
        regroup=regroup,
        allow_loss=allow_loss,
        on_error=on_error_policy(on_error),
        error_budget=error_budget,
        overwrite=overwrite,
        verify=verify,
        workers=workers,
        progress=not json,
        dry_run=dry_run,
        on_preview=None if json else show_plan,
    )
    emit_report(report, json, lambda: show(report))


def parse_fields(text: str) -> list[str]:
    """Return the names in ``A,B``.

    Raises:
        ConfigError: there is no name. An empty list would select all parts.
    """
    from feedmill.errors import ConfigError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--fields is empty", kind="bad-option", fix="Name at least one field, or omit the option.")
    return names


def show_plan(plan: Preview) -> None:
    """Print the plan: outputs, names and losses."""
    count = "" if plan.count is None else f", {plan.count:,} {'documents' if plan.family == 'tokens' else plan.family}"
    outputs = "" if plan.outputs is None else f" in {counted(plan.outputs, 'file')}"
    typer.echo(f"{plan.source} ({plan.kind}{count}) -> {plan.destination} ({plan.to}{outputs})")
    for name, becomes in plan.names.items():
        typer.echo(f"  {name}: {becomes}")
    for loss in plan.losses:
        typer.echo(f"  lost{' (content)' if loss.content else ''}: {loss.what}")


def show(report: ConvertReport) -> None:
    """Print what was written."""
    noun = {"tokens": "documents"}.get(report.plan.family, report.plan.family)
    but = " except for the losses" if report.plan.losses else ""
    found = f"same as the source{but}, {report.digest}" if report.digest else "not verified"
    facts(
        [
            ("written", f"{report.samples:,} {noun}, {human_size(report.bytes)} in {counted(report.outputs, 'file')}"),
            ("finished earlier", f"{counted(report.resumed, 'output')}" if report.resumed else None),
            ("skipped", f"{report.skipped:,} (listed in the proof)" if report.skipped else None),
            ("proof", f"{report.proof} ({found})"),
        ]
    )
    for note in report.notes:
        typer.echo(f"note: {note}")
    for bad in report.examples[:5]:
        typer.echo(f"skipped: {bad.key}: {bad.reason}", err=True)
