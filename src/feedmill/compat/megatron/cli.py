"""Implement ``feedmill compat megatron ...``: Megatron-LM's data tools with the same arguments and the same bytes.

docs/migration/megatron.md lists the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.app import new_app
from feedmill.cli.command import Json
from feedmill.cli.output import counted, emit, facts

if TYPE_CHECKING:
    from feedmill.compat.megatron.preprocess import Preprocessed

app = new_app(no_args_is_help=True, help="Megatron-LM's data tools: preprocess_data, merge_datasets, plan of a run.")
_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@app.command("preprocess_data", context_settings=_RAW, add_help_option=False)
def preprocess(context: typer.Context) -> None:
    """Tokenize JSON lines into PREFIX_KEY_document.bin and .idx; see preprocess_data --help."""
    from feedmill.compat.megatron.preprocess import preprocess_data

    report, given = preprocess_data(context.args, context.fail)
    emit(report.as_dict(), given.json, lambda: _show(report))


app.command("preprocess-data", context_settings=_RAW, add_help_option=False, hidden=True)(preprocess)


def _show(report: Preprocessed) -> None:
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    for found in report.keys.values():
        facts(
            [
                ("tokenized", found.outputs["megatron"]),
                ("documents", found.documents),
                ("tokens", found.tokens),
                ("end of document", found.eos or "none: documents run together"),
                ("token size", f"{found.token_bytes['megatron']} bytes"),
                ("tokenizer", f"{found.tokenizer} ({found.backend})"),
                ("blank lines", found.blank or None),
                ("skipped", counted(found.skipped, "document") if found.skipped else None),
            ]
        )
        for example in found.skipped_examples[:5]:
            typer.echo(f"  {example.file}, line {example.line}: {example.reason}", err=True)
        if found.complete:
            typer.echo("The output is already complete: nothing was done. Add --overwrite to tokenize again.")


@app.command("recipe", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def recipe(
    context: typer.Context,
    part: Annotated[
        str, typer.Option("--part", metavar="train|valid|test", help="The split whose order is written.")
    ] = "train",
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="The recipe to write; default: standard output.")
    ] = None,
) -> None:
    """Write a recipe in the order of a run, from the run's own arguments (--data-path, --seq-length, ...)."""
    from feedmill.compat.megatron.recipe import recipe_of

    text, notes = recipe_of(context.args, part)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if output is None:
        typer.echo(text, nl=False)
        return
    from feedmill.storage import open_store, split_url

    folder, name = split_url(output)
    open_store(folder).write_bytes(name, text.encode())
    typer.echo(f"wrote {output}: see it with 'feedmill plan {output}'")


@app.command("merge_datasets")
def merge(
    source: Annotated[str, typer.Option("--input", metavar="FOLDER", help="Folder of .bin and .idx files.")],
    prefix: Annotated[
        str, typer.Option("--output-prefix", metavar="PREFIX", help="The files are PREFIX.bin and PREFIX.idx.")
    ],
    multimodal: Annotated[bool, typer.Option("--multimodal", help="The sequences have modes.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files (new).")] = False,
    as_json: Json = False,
) -> None:
    """Merge all pairs of files of a folder, sorted by name, sequence by sequence."""
    from dataclasses import asdict

    from feedmill.compat.megatron.merge import merge_datasets

    report = merge_datasets(source, prefix, multimodal=multimodal, overwrite=overwrite)
    emit(
        asdict(report),
        as_json,
        lambda: facts(
            [
                ("merged", f"{prefix}.bin"),
                ("files", counted(report.files, "pair")),
                ("documents", report.documents),
                ("sequences", report.sequences),
            ]
        ),
    )


app.command("merge-datasets", hidden=True)(merge)
