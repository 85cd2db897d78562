"""The verb ``filter``: filter documents by attributes, or token files by length and number."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from feedmill.errors import ConfigError
from feedmill.storage import paths_of

if TYPE_CHECKING:
    from feedmill.curation.mix.config import FilterConfig
    from feedmill.curation.mix.report import MixReport
    from feedmill.formats.tokens.base import Tokens
    from feedmill.tokens.rewrite import Report

_DATA = (".pbin", ".ds", ".idx", ".bin", ".npy", ".jsonl")


@overload
def filter(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    min_length: int | None = None,
    max_length: int | None = None,
    keep: Sequence[int] | None = None,
    drop: Sequence[int] | None = None,
    predicate: Callable[[int, Tokens], bool] | None = None,
    token_size: int | None = None,
    mixed_tokenizers: bool = False,
    drop_loss: bool = False,
    dry_run: bool = False,
    allow_empty: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Report: ...
@overload
def filter(
    inputs: str | os.PathLike[str] | Mapping[str, Any] | FilterConfig,
    output: None = None,
    *,
    dry_run: bool = False,
    allow_stale: bool = False,
    id: str | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> MixReport: ...
def filter(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | Mapping[str, Any] | FilterConfig,
    output: str | os.PathLike[str] | None = None,
    *,
    min_length: int | None = None,
    max_length: int | None = None,
    keep: Sequence[int] | None = None,
    drop: Sequence[int] | None = None,
    predicate: Callable[[int, Tokens], bool] | None = None,
    token_size: int | None = None,
    mixed_tokenizers: bool = False,
    drop_loss: bool = False,
    dry_run: bool = False,
    allow_stale: bool = False,
    id: str | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> Report | MixReport:
    """Write the documents that pass, in their stored order.

    Args:
        inputs: with an `output`, token files or JSONL files. Without one, a configuration that filters documents by
            their attributes (docs/filter.md): its path or URL, its content, or a `feedmill.FilterConfig`.
        output: the file to write.
        min_length, max_length, keep, drop, predicate, token_size, mixed_tokenizers, drop_loss: for token files and
            JSONL files, see `feedmill.tokens.filter.filter`.
        dry_run: write nothing; the report has what would be written, and for documents the result of trying the rules.
        allow_stale, id, workers: for documents, see `feedmill.curation.mix.job.mix`.
        allow_empty: accept a result without documents.
        overwrite: replace existing files; of documents, those that no filter has written (others are always replaced).

    Raises:
        ConfigError: an option does not apply to this kind of input; other errors are those of the two functions.
        EmptyResult: nothing passes.
    """
    inputs = os.fspath(inputs) if isinstance(inputs, os.PathLike) else inputs
    of_tokens = {
        "min_length": min_length,
        "max_length": max_length,
        "keep": keep,
        "drop": drop,
        "predicate": predicate,
        "token_size": token_size,
        "mixed_tokenizers": mixed_tokenizers,
        "drop_loss": drop_loss,
    }
    of_documents = {"allow_stale": allow_stale, "id": id, "workers": workers}
    if output is not None:
        _refuse(of_documents, "a configuration that filters documents")
        from feedmill.tokens.filter import filter as filter_tokens

        if not isinstance(inputs, Sequence):
            raise ConfigError("a configuration sets its own outputs", fix="Omit the output.")
        names, target = paths_of(inputs), os.fspath(output)
        of_all = {"allow_empty": allow_empty, "overwrite": overwrite, "dry_run": dry_run, "progress": progress}
        return filter_tokens(names, target, **of_tokens, **of_all)  # type: ignore[arg-type]
    if isinstance(inputs, str) and inputs.endswith(_DATA):
        fix = "Pass the file to write: feedmill filter INPUT... OUTPUT. Documents are filtered by a configuration."
        raise ConfigError("no output was given", file=inputs, kind="bad-option", fix=f"{fix} See docs/filter.md.")
    _refuse(of_tokens, "token files and JSONL files")
    from feedmill.curation.mix.job import mix

    config = _configured(inputs)
    config = replace(
        config,
        allow_stale=config.allow_stale or allow_stale,
        allow_empty=config.allow_empty or allow_empty,
        id=id or config.id,
    )
    return mix(config, workers=workers, progress=progress, dry_run=dry_run, overwrite=overwrite)


def _refuse(options: dict[str, Any], what: str) -> None:
    """Raise `ConfigError` for the first given option that applies to another kind of input."""
    for name, value in options.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is for {what}", kind="bad-option", fix="Omit it. See docs/filter.md.")


def _configured(inputs: Any) -> FilterConfig:
    from feedmill.curation.mix.config import FilterConfig, read_config
    from feedmill.formats.yamls import read_config as read_tree
    from feedmill.storage import open_store, split_url

    if isinstance(inputs, FilterConfig):
        return inputs
    file = None
    if isinstance(inputs, str):
        file = inputs
        folder, name = split_url(inputs)
        inputs = read_tree(open_store(folder).read(name), file).value
    if not isinstance(inputs, Mapping):
        raise ConfigError("a filter is a mapping with 'streams'", file=file, fix="See docs/filter.md.")
    return read_config(inputs)
