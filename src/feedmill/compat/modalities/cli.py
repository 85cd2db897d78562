"""Implement ``feedmill compat modalities data ...``: the data commands and options of Modalities 0.5.

The files equal Modalities' own byte for byte, except where the original loses or corrupts data: an empty document
that ends a file, a merge with a wrong index, or lines joined without a newline. docs/migration/modalities.md lists the
differences.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from feedmill.cli.app import new_app
from feedmill.cli.output import show_written
from feedmill.jobs.options import options_of
from feedmill.jobs.policy import METAVAR
from feedmill.tokens.options import Tokenize

app = new_app(no_args_is_help=True, help="Modalities' command line: the same options and output files.")
data = new_app(no_args_is_help=True)
app.add_typer(data, name="data", help="Index, pack, merge and shuffle.")


class Policy(StrEnum):
    """What to do if the target exists."""

    skip = "skip"
    error = "error"
    override = "override"


ExistencePolicy = Annotated[Policy, typer.Option("--file_existence_policy", help="What to do if the target exists.")]
FileList = Annotated[
    str, typer.Option("--input_file_list_path", metavar="FILE", help="List of files below the root, one per line.")
]
Root = Annotated[
    str, typer.Option("--input_data_root_path", metavar="DIR", help="Root folder of the files in the list.")
]
Output = Annotated[str, typer.Option("--output_chunk_file_path", metavar="FILE", help="The file to write.")]
Chunk = Annotated[int, typer.Option("--chunk_id", help="Number of the chunk, from 0.")]
Chunks = Annotated[int, typer.Option("--num_chunks", help="Number of chunks.")]
GlobalSeed = Annotated[int | None, typer.Option("--global_seed", help="Default: a random seed, which is shown.")]
InputData = Annotated[str, typer.Option("--input_data_path", metavar="FILE", help="The file to read.")]
OutputData = Annotated[str, typer.Option("--output_data_path", metavar="FILE", help="The file to write.")]
_TEMPLATE = options_of(Tokenize)["template_source"].opt
TemplateFrom = Annotated[str, typer.Option("--template-source", metavar=_TEMPLATE.metavar, help=_TEMPLATE.help)]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Accept a result without documents or samples.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Default: a random seed, which is shown.")]


@data.command("create_raw_index")
def create_raw_index(
    src_path: Annotated[str, typer.Argument(metavar="SRC_PATH", help="A JSONL file.")],
    index_path: Annotated[
        str | None, typer.Option("--index_path", metavar="FILE", help="Default: beside the file, with the suffix .idx.")
    ] = None,
    file_existence_policy: ExistencePolicy = Policy.error,
) -> None:
    """Index the lines of a JSONL file; each must be valid JSON."""
    from feedmill.compat.modalities.packing import beside
    from feedmill.tokens.verbs.index import index

    target = index_path or beside(src_path, ".idx")
    if _left_alone(target, file_existence_policy):
        return
    report = index(src_path, target, overwrite=file_existence_policy == Policy.override)
    typer.echo(f"{report.index}: {report.entries:,} lines")


@data.command("pack_encoded_data")
def pack_encoded_data(
    config_path: Annotated[str, typer.Argument(metavar="CONFIG", help="A packing configuration (YAML).")],
    file_existence_policy: ExistencePolicy = Policy.error,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar=METAVAR, help="Stop at a document without tokens, or skip it.")
    ] = "raise",
    template_source: TemplateFrom = "auto",
    allow_empty: AllowEmpty = False,
) -> None:
    """Tokenize and pack a JSONL file with a configuration. The exit status is 1 if documents were skipped."""
    from feedmill.compat.modalities.config import load_config
    from feedmill.compat.modalities.packing import pack
    from feedmill.errors import ConfigError
    from feedmill.jobs.policy import on_error_policy

    if config_path.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):  # as Modalities' documentation shows
        raise ConfigError(
            "this is a file of documents: expected a YAML configuration that names it as 'settings.src_path'",
            file=config_path,
            fix="See the example in docs/migration/modalities.md, or run"
            " 'feedmill tokenize FILE -t TOKENIZER -o NAME', which needs no configuration and writes NAME.pbin.",
        )
    config, policy = load_config(config_path), file_existence_policy.value
    report = pack(
        config,
        config_path,
        policy=policy,
        template_source=template_source,
        on_error=on_error_policy(on_error),
        allow_empty=allow_empty,
    )
    if report is None:
        typer.echo("the target exists: nothing was done")
        return
    for path in report.outputs.values():
        typer.echo(f"{path}: {report.documents:,} documents, {report.tokens:,} tokens")
    for skipped in report.skipped_examples:
        typer.echo(f"skipped: {skipped.file} line {skipped.line}: {skipped.reason}")
    if report.skipped:
        raise typer.Exit(1)


@data.command("create_shuffled_dataset_chunk", help="Shuffle one chunk of every .pbin of a list into one .pbin.")
@data.command("create_shuffled_jsonl_chunk", help="Shuffle one chunk of every JSONL file of a list into one.")
def create_shuffled_chunk(
    context: typer.Context,
    input_file_list_path: FileList,
    input_data_root_path: Root,
    output_chunk_file_path: Output,
    chunk_id: Chunk,
    num_chunks: Chunks,
    file_existence_policy: ExistencePolicy = Policy.error,
    global_seed: GlobalSeed = None,
) -> None:
    """Shuffle one chunk of every file of a list into one file; the command decides the kind of the files."""
    from feedmill.tokens.verbs.shuffle import shuffle_chunk

    suffix = ".jsonl" if context.info_name == "create_shuffled_jsonl_chunk" else ".pbin"
    inputs = _listed(input_file_list_path, input_data_root_path, suffix)
    target, overwrite = output_chunk_file_path, file_existence_policy == Policy.override
    if not _left_alone(target, file_existence_policy):
        show_written(
            shuffle_chunk(
                inputs, target, chunk=chunk_id, chunks=num_chunks, global_seed=global_seed, overwrite=overwrite
            )
        )


@data.command("merge_packed_data")
def merge_packed_data(
    src_paths: Annotated[list[str], typer.Argument(metavar="SRC_PATHS...", help=".pbin files, or folders of them.")],
    target_path: Annotated[str, typer.Argument(metavar="TARGET_PATH", help="The .pbin file to write.")],
    allow_empty: AllowEmpty = False,
) -> None:
    """Concatenate .pbin files to one file."""
    from feedmill.tokens.verbs.merge import merge

    inputs = [path for source in src_paths for path in _packed(source)]
    show_written(merge(inputs, target_path, allow_empty=allow_empty))


@data.command("shuffle_tokenized_data")
def shuffle_tokenized_data(
    input_data_path: InputData,
    output_data_path: OutputData,
    batch_size: Annotated[  # noqa: ARG001 - batches are limited by bytes
        int, typer.Option("--batch_size", min=1, help="Accepted without effect.")
    ] = 100,
    file_existence_policy: ExistencePolicy = Policy.error,
    seed: Seed = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Shuffle the documents of a .pbin."""
    _shuffle(input_data_path, output_data_path, file_existence_policy, seed, allow_empty)


@data.command("shuffle_jsonl_data")
def shuffle_jsonl_data(
    input_data_path: InputData,
    output_data_path: OutputData,
    file_existence_policy: ExistencePolicy = Policy.error,
    seed: Seed = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Shuffle the lines of a JSONL file."""
    _shuffle(input_data_path, output_data_path, file_existence_policy, seed, allow_empty)


@data.command("prepare_instruction_tuning_data")
def prepare_instruction_tuning_data(
    config_file_path: Annotated[
        str, typer.Option("--config_file_path", metavar="FILE", help="A configuration of instruction-tuning data.")
    ],
) -> None:
    """Apply a chat template to conversations, split them, and index and pack each split."""
    from feedmill.compat.modalities.instruction import prepare

    for part in prepare(config_file_path):
        typer.echo(f"{part.path}: {part.lines:,} lines" + (f", packed as {part.packed}" if part.packed else ""))


def _shuffle(source: str, output: str, policy: Policy, seed: int | None, allow_empty: bool) -> None:
    from feedmill.tokens.verbs.shuffle import shuffle

    if not _left_alone(output, policy):
        overwrite = policy == Policy.override
        show_written(
            shuffle([source], output, seed=seed, order="modalities", overwrite=overwrite, allow_empty=allow_empty)
        )


def _left_alone(target: str, policy: Policy) -> bool:
    from feedmill.compat.modalities.packing import existing

    if existing(target, policy.value):
        typer.echo(f"{target} exists: nothing was done")
        return True
    return False


def _listed(path: str, root: str, suffix: str) -> list[str]:
    """Return the files of a list, below a root, with another suffix. Raises `ConfigError` if the list is empty."""
    from feedmill.compat.modalities.packing import beside
    from feedmill.errors import ConfigError
    from feedmill.storage import join_url, open_store, split_url

    folder, name = split_url(path)
    lines = [line.strip() for line in open_store(folder).read(name).decode("utf-8", "surrogateescape").splitlines()]
    files = [beside(join_url(root, line), suffix) for line in lines if line]
    if not files:
        raise ConfigError("the file list is empty", file=path, fix="Write one relative path per line.")
    return files


def _packed(source: str) -> list[str]:
    """Return a .pbin file, or all .pbin files below a folder, sorted."""
    from feedmill.storage import open_store

    if source.endswith(".pbin"):
        return [source]
    store = open_store(source)
    return [store.locate(entry.path) for entry in store.files(suffixes=(".pbin",))]
