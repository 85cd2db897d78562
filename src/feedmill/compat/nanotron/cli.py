"""Implement ``feedmill compat nanotron preprocess_data ...``: the arguments of Nanotron's ``tools/preprocess_data.py``.

The files equal the original's byte for byte. Documents that the original skips silently are counted and reported.
docs/migration/nanotron.md lists the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.app import new_app
from feedmill.cli.command import Json
from feedmill.cli.output import counted, emit, facts, to_json
from feedmill.jobs.policy import METAVAR

if TYPE_CHECKING:
    from feedmill.documents.file import DocumentFile
    from feedmill.tokens.datatrove_tasks import DealtReport

app = new_app(no_args_is_help=True, help="Nanotron's data tool: the same options and output files.")
preprocess = new_app(no_args_is_help=True, help="Tokenize documents into .ds files, one per task.")
app.add_typer(preprocess, name="preprocess_data")
app.add_typer(preprocess, name="preprocess-data", hidden=True)

TOKENIZER, OUTPUT = "--tokenizer-name-or-path", "--output-folder"
Column = Annotated[str, typer.Option("--column", metavar="NAME", help="Field of the text.")]


@preprocess.callback()
def preprocess_data(
    ctx: typer.Context,
    tokenizer: Annotated[
        str | None,
        typer.Option(TOKENIZER, metavar="PATH", help="A tokenizer.json, or its folder.  [required]"),
    ] = None,
    output_folder: Annotated[
        str | None, typer.Option(OUTPUT, metavar="FOLDER", help="Output folder.  [required]")
    ] = None,
    eos_token: Annotated[
        str | None,
        typer.Option("--eos-token", metavar="TOKEN", help="Token after every document, without the template."),
    ] = None,
    logging_dir: Annotated[
        str | None, typer.Option("--logging-dir", metavar="FOLDER", help="Folder for the JSON report.")
    ] = None,
    n_tasks: Annotated[
        int, typer.Option("--n-tasks", metavar="N", min=1, help="Number of outputs; input files are distributed.")
    ] = 8,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes (new).")] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar=METAVAR, help="Stop at an invalid document, or skip it (new).")
    ] = "skip",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output (new).")] = False,
) -> None:
    """Tokenize documents into .ds files: 'hf' for a Hugging Face dataset on disk, 'jsonl' for JSON lines."""
    # The subcommands check the two required options: 'hf --help' comes through here without them.
    ctx.obj = {
        "missing": [name for name, value in ((TOKENIZER, tokenizer), (OUTPUT, output_folder)) if value is None],
        "folder": output_folder,
        "logging_dir": logging_dir,
        "tasks": n_tasks,
        "options": {
            "tokenizer": tokenizer,
            "eos": eos_token,
            "on_error": on_error,
            "workers": workers,
            "overwrite": overwrite,
        },
    }


@preprocess.command()
def hf(
    ctx: typer.Context,
    dataset: Annotated[
        str, typer.Option("--dataset", metavar="FOLDER", help="A dataset saved with save_to_disk, or Parquet files.")
    ],
    column: Column = "text",
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="Split, if there are several.")] = ("train"),
    as_json: Json = False,
) -> None:
    """Tokenize a Hugging Face dataset on disk; each task gets every n-th row."""
    from feedmill.tokens.datatrove_tasks import deal_rows

    _complete(ctx)
    _run(ctx, deal_rows(dataset, split, ctx.obj["tasks"]), column, [], as_json)


@preprocess.command()
def jsonl(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Option("--dataset", metavar="PATH", help="A .jsonl file, or a folder of them.")],
    column: Column = "text",
    glob_pattern: Annotated[
        str | None, typer.Option("--glob-pattern", metavar="GLOB", help="Pattern of the files in the folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tokenize files of JSON lines; each task gets every n-th file."""
    from feedmill.tokens.datatrove_tasks import deal_files

    _complete(ctx)
    tasks, ignored = deal_files(dataset, ctx.obj["tasks"], glob_pattern)
    _run(ctx, tasks, column, ignored, as_json)


def _complete(ctx: typer.Context) -> None:
    if ctx.obj["missing"] and ctx.parent is not None:
        ctx.parent.fail(f"Missing option '{ctx.obj['missing'][0]}'.")


def _run(ctx: typer.Context, tasks: list[list[DocumentFile]], column: str, ignored: list[str], as_json: bool) -> None:
    from feedmill.storage import open_store
    from feedmill.tokens.datatrove_tasks import tokenize_dealt

    folder = ctx.obj["folder"]
    report = tokenize_dealt(tasks, folder, column=column, ignored=ignored, **ctx.obj["options"])
    if ctx.obj["logging_dir"] is not None:
        open_store(ctx.obj["logging_dir"]).write_bytes("preprocess_data.json", to_json(report.as_dict()).encode())
    emit(report.as_dict(), as_json, lambda: _show(report, folder))
    if report.skipped and not report.documents:
        raise typer.Exit(1)  # no documents at all: probably a wrong --column


def _show(report: DealtReport, folder: str) -> None:
    first = report.tasks[0]
    facts(
        [
            ("tokenized", folder),
            ("documents", report.documents),
            ("tokens", report.tokens),
            ("files", counted(len(report.tasks), ".ds file")),
            ("end of text", first.eos or "none: documents run together"),
            ("token size", f"{first.token_bytes['ds']} bytes"),
            ("skipped", f"{counted(report.skipped, 'document')} without usable text" if report.skipped else None),
            ("ignored", f"{', '.join(report.ignored[:5])}: no JSON lines" if report.ignored else None),
        ]
    )
    examples = [example for task in report.tasks for example in task.skipped_examples][:5]
    for example in examples:
        typer.echo(f"  {example.file}, line {example.line}: {example.reason}")
