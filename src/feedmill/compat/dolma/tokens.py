"""Implement ``feedmill compat dolma tokens``. docs/migration/dolma.md lists the differences from Dolma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.output import counted, facts, human_size
from feedmill.compat.dolma.config import FLAG, TEXT, TEXTS, WHOLE, Key, accepted, configured
from feedmill.compat.dolma.stat import with_files
from feedmill.errors import ConfigError

if TYPE_CHECKING:
    from feedmill.documents.file import DocumentFile
    from feedmill.tokens.dolma_output import GroupedReport

SCHEMA = {
    "documents": Key(TEXTS, [], "patterns of document files"),
    "destination": Key(TEXT, None, "folder for the token files"),
    "tokenizer.name_or_path": Key(TEXT, None, "a local tokenizer.json, or its folder"),
    "tokenizer.bos_token_id": Key(WHOLE, None, "id added to documents that do not begin with it"),
    "tokenizer.eos_token_id": Key(WHOLE, None, "id added to documents that do not end with it"),
    "tokenizer.pad_token_id": accepted(WHOLE, None, "padding is never written"),
    "tokenizer.segment_before_tokenization": Key(FLAG, False, "encode each paragraph separately"),
    "tokenizer.refresh": accepted(WHOLE, 0, "unnecessary, as memory does not leak"),
    "tokenizer.fast": Key(FLAG, True, "must be true"),
    "tokenizer.encode_special_tokens": Key(FLAG, False, "encode special tokens in texts as plain text"),
    "tokenizer_name_or_path": Key(TEXT, None, "deprecated: the tokenizer, with its last id as EOS"),
    "processes": Key(WHOLE, 1, "number of processes, and of groups of files"),
    "files_per_process": Key(WHOLE, None, "maximum number of files per group"),
    "batch_size": Key(WHOLE, 10_000, "number of documents that are shuffled together"),
    "ring_size": Key(WHOLE, 8, "number of files read concurrently"),
    "fields.text_field_name": Key(TEXT, "text", "dotted name of the text field"),
    "fields.text_field_type": Key(TEXT, "str", "str"),
    "fields.id_field_name": Key(TEXT, "id", "dotted name of the id field; null in the file: use path and line"),
    "fields.id_field_type": Key(TEXT, "str", "str, int, float, bool, null, list or dict"),
    "sample_ring_prop": Key(FLAG, False, "sample files in proportion to their sizes"),
    "max_size": Key(WHOLE, 1 << 30, "upper limit of tokens per file (exclusive)"),
    "dtype": Key(TEXT, None, "type of a token; by default the smallest that fits (with --exact: uint16)"),
    "seed": Key(WHOLE, 3920, "seed of the document order"),
    "on_error": Key(TEXT, "raise", "raise at an invalid document, or skip and list it (new)"),
    "allow_empty": Key(FLAG, False, "accept a result without documents (new)"),
    "overwrite": Key(FLAG, False, "replace existing token files (new)"),
    "debug": accepted(FLAG, False, "a failed unit is named without it"),
    "work_dir.input": accepted(TEXT, None, "unused"),
    "work_dir.output": accepted(TEXT, None, "not needed to resume a killed run"),
    "dryrun": Key(FLAG, False, "print the configuration and stop"),
}


def tokens(arguments: Sequence[str], file: str | Mapping[str, Any] | None, exact: bool) -> None:
    """Write token files, as Dolma does."""
    from feedmill.documents.typed import Typed
    from feedmill.tokens.dolma_output import GroupedOptions, Ring, tokenize_grouped

    values = configured(arguments, file, SCHEMA)
    files = _files(values["documents"])
    if values["dryrun"]:
        return
    if values["destination"] is None:
        raise ConfigError("destination is missing", kind="missing-option", fix="Set a folder with --destination.")
    if values["fields.text_field_type"] not in ("str", "string"):
        raise ConfigError("only text can be tokenized", fix="Set fields.text_field_type to str.")
    name, eos = _tokenizer(values)
    options = GroupedOptions(
        bos=values["tokenizer.bos_token_id"],
        eos=eos,
        segment=values["tokenizer.segment_before_tokenization"],
        specials_as_text=values["tokenizer.encode_special_tokens"],
        typed=Typed(values["fields.text_field_name"], values["fields.id_field_name"], values["fields.id_field_type"]),
        dtype=values["dtype"],
        workers=values["processes"],
        files_per_group=values["files_per_process"],
        ring=Ring(values["ring_size"], values["batch_size"], values["sample_ring_prop"]),
        limit=values["max_size"],
        seed=values["seed"],
        on_error=values["on_error"],
        exact=exact,
        allow_empty=values["allow_empty"],
        overwrite=values["overwrite"],
    )
    _show(tokenize_grouped(files, values["destination"], name, options))


def _files(patterns: Sequence[str]) -> list[DocumentFile]:
    """Return the files of all patterns. As in Dolma, all are read as JSON lines, whatever their names."""
    from feedmill.documents.file import once

    if not patterns:
        raise ConfigError("documents is missing", kind="missing-option", fix="Add patterns with --documents.")
    return once(file for files in with_files(patterns).values() for file in files)


def _tokenizer(values: dict[str, Any]) -> tuple[str, int | None]:
    """Return the path of the tokenizer and the EOS id."""
    if not values["tokenizer.fast"]:
        raise ConfigError("slow tokenizers are unsupported", fix="Use a tokenizer.json, and leave tokenizer.fast true.")
    name, eos = values["tokenizer.name_or_path"], values["tokenizer.eos_token_id"]
    if name is not None:
        return name, eos
    old = values["tokenizer_name_or_path"]
    if old is None:
        raise ConfigError(
            "tokenizer.name_or_path is missing", kind="missing-option", fix="Set it with --tokenizer.name_or_path."
        )
    from feedmill.tokens.tokenizer import load_tokenizer

    typer.echo("warning: tokenizer_name_or_path is deprecated; its last id is the EOS", err=True)
    return old, load_tokenizer(old, check=False, template_source="file").vocab_size - 1


def _show(report: GroupedReport) -> None:
    rate = report.bytes / max(report.seconds, 1e-9)
    reused = f" ({report.reused} of {report.units} units finished by an earlier run)" if report.reused else ""
    facts(
        [
            ("wrote", f"{report.folder}: {counted(len(report.parts), 'file')} of {report.dtype}"),
            ("documents", report.documents),
            ("tokens", report.tokens),
            ("read", f"{human_size(report.bytes)} in {counted(report.files, 'file')}{reused}"),
            ("tokenizer", f"{report.tokenizer} ({report.backend})"),
            ("empty documents", report.empty or None),
            ("blank lines", report.blank or None),
            ("skipped", counted(report.skipped, "document") if report.skipped else None),
            ("time", f"{report.seconds:.2f} s" + ("" if report.complete else f", {human_size(rate)}/s")),
        ]
    )
    if report.complete:
        typer.echo("The output is already complete: nothing was done. Add --overwrite to tokenize again.")
    if report.fallback:
        typer.echo(f"warning: the slow tokenizer backend was used: {report.fallback}", err=True)
    if report.empty_groups:
        typer.echo(f"warning: {counted(report.empty_groups, 'group')} of files had no tokens", err=True)
    for item in report.skipped_examples:
        typer.echo(f"skipped: {item.file} line {item.line}: {item.reason}", err=True)
    if report.skipped > len(report.skipped_examples):
        typer.echo(f"skipped: and {report.skipped - len(report.skipped_examples):,} more", err=True)
