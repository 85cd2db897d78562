"""Implement ``feedmill compat megatron ...``: Megatron-LM's data tools with the same arguments and the same bytes.

docs/migration/megatron.md lists the differences.

Implement ``merge_datasets``: the pairs of files of a folder, in the order of their names, as one pair.

Write a recipe from the command line of a run of Megatron-LM.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from feedmill.cli.app import new_app
from feedmill.cli.command import Json
from feedmill.cli.output import counted, emit, facts
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.megatron import BIN, IDX, Merged, merge_megatron
from feedmill.planning.dialects.megatron import DATA, attribute, translate
from feedmill.storage import open_store, split_url

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


def merge_datasets(folder: str, prefix: str, *, multimodal: bool = False, overwrite: bool = False) -> Merged:
    """Merge the files of a folder.

    Args:
        folder: path or URL; files in its subfolders are not read.
        prefix: path or URL of the output without suffix.
        multimodal: the files have the mode of each sequence.
        overwrite: replace existing files.

    Raises:
        NotFound: there are no files, or one of a pair is missing.
        ConfigError: the output exists or is one of the inputs, or the files differ in type.
    """
    source, (below, name) = open_store(folder), split_url(prefix)
    target = open_store(below)
    names = [entry.path for entry in source.files() if "/" not in entry.path and entry.path.endswith((BIN, IDX))]
    prefixes = sorted({os.path.splitext(path)[0] for path in names})
    for each in prefixes:
        for suffix in (BIN, IDX):
            if each + suffix not in names:
                raise NotFound(
                    f"the {suffix} file of this prefix is missing",
                    file=source.locate(each),
                    kind="not-prepared",
                    fix="Copy both files of the pair into the folder.",
                )
    if not prefixes:
        raise NotFound(
            "the folder has no .bin and .idx files", file=folder, kind="no-documents", fix="Check the path of --input."
        )
    if target.locate(name) in [source.locate(each) for each in prefixes]:
        raise ConfigError(
            "the output is one of the files to merge", file=prefix, kind="exists", fix="Choose another --output-prefix."
        )
    existing = next((name + suffix for suffix in (IDX, BIN) if target.exists(name + suffix)), None)
    if existing == name + BIN:  # without its index: published by a run that was killed, if it is what is merged now
        tokens = sum(source.stat(each + BIN).size for each in prefixes)
        existing = None if target.stat(existing).size == tokens else existing
    if existing and not overwrite:
        raise ConfigError(
            "the output already exists",
            file=target.locate(existing),
            kind="exists",
            fix="Add --overwrite to replace it, or choose another output.",
        )
    return merge_megatron(source, prefixes, target, name, multimodal=multimodal)


def recipe_of(words: Sequence[str], part: str) -> tuple[str, list[str]]:
    """Return the YAML of a recipe, and notes on the arguments that it does not follow.

    Args:
        words: the arguments of the run.
        part: train, valid or test.

    Raises:
        ConfigError: an argument about data is missing, invalid or unsupported.
    """
    given = arguments_of(words)
    if not any(given.get(name) for name in DATA):
        raise ConfigError(
            "the arguments name no data",
            kind="missing-option",
            fix=f"Add one of --{', --'.join(name.replace('_', '-') for name in DATA)}.",
        )
    found = translate(given, None, "arguments", mode="train", split=part, base=".")
    return yaml.safe_dump(found.data, sort_keys=False, allow_unicode=True), found.notes


def arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a command line by name: one word, a list of words, or True.

    >>> arguments_of(["--seed", "7", "--data-path", "30", "a", "--split=1,1,1", "--bf16"])
    {'seed': '7', 'data_path': ['30', 'a'], 'split': '1,1,1', 'bf16': True}
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = found[attribute(name)] = [value] if equals else []
        else:
            current.append(word)
    return {name: values if len(values) > 1 else values[0] if values else True for name, values in found.items()}
