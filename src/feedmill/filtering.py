"""The verb ``filter``: filter documents by attributes, or token files by length and number."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Annotated, Any

from feedmill.errors import ConfigError
from feedmill.jobs.options import AllowStale, Arg, Flag, Ids, Opt, Path, Paths, PythonOnly, call, verb
from feedmill.tokens.options import Passing

if TYPE_CHECKING:
    from feedmill.curation.mix.config import FilterConfig

_DATA = (".pbin", ".ds", ".idx", ".bin", ".npy", ".jsonl")


class Filter(Passing, AllowStale, Ids):
    """Write the documents that pass: by attributes (CONFIG), or from token files and JSONL files by length and index.

    A CONFIG can also replace spans of text, and sample and merge streams; see docs/filter.md.
    """

    inputs: Annotated[
        Paths | Path | Mapping[str, Any] | FilterConfig,
        Arg(
            "CONFIG | INPUT... OUTPUT",
            "A configuration for documents with attributes; or token or JSONL files, then the output.",
            more="In Python a configuration is its path or URL, its content, or a `feedmill.documents.FilterConfig`.",
        ),
    ]
    output: Annotated[Path | None, PythonOnly("The file to write; None with a configuration.")] = None
    _: KW_ONLY
    overwrite: Annotated[
        bool,
        Flag("Replace existing files.", more="Of documents, those that no filter wrote; others are always replaced."),
    ] = False
    workers: Annotated[int | None, Opt("N", "CONFIG: processes; default: one per core.", min=1)] = None


_OF_TOKENS = (
    *("min_length", "max_length", "keep", "drop", "predicate"),
    *("token_size", "mixed_tokenizers", "drop_loss"),
)
_OF_DOCUMENTS = ("allow_stale", "id", "workers")


@verb(Filter)
def filter(options: Filter) -> Any:
    """Documents keep their order. Inputs are token files or JSONL files with an `output`, and else a configuration.

    Returns a `feedmill.reports.TokensReport` with an `output`, and else a `feedmill.reports.MixReport`.
    (Not typed: every caller would have to tell the two apart.)

    Raises:
        ConfigError: an option does not apply to this kind of input; other errors are those of
            `feedmill.tokens.verbs.filter.filter` and `feedmill.curation.mix.job.mix`.
        EmptyResult: nothing passes.
    """
    opened = getattr(options.inputs, "url", None)
    if opened is not None:
        raise TypeError(
            f"filter takes paths or a configuration, not a {type(options.inputs).__name__}: filter its samples with"
            f" dataset.filter(function), or pass {opened!r}"
        )
    inputs = os.fspath(options.inputs) if isinstance(options.inputs, os.PathLike) else options.inputs
    if options.output is not None:
        _refuse(options, _OF_DOCUMENTS, "a configuration that filters documents")
        from feedmill.tokens.verbs.filter import filter as filter_tokens

        if not isinstance(inputs, Sequence):
            raise ConfigError("a configuration sets its own outputs", fix="Omit the output.")
        return call(filter_tokens, options, inputs=inputs, output=options.output)
    if isinstance(inputs, str) and inputs.endswith(_DATA):
        fix = "Pass the file to write: feedmill filter INPUT... OUTPUT. Documents are filtered by a configuration."
        raise ConfigError("no output was given", file=inputs, kind="bad-option", fix=f"{fix} See docs/filter.md.")
    _refuse(options, _OF_TOKENS, "token files and JSONL files")
    from feedmill.curation.mix.job import mix

    config = _configured(inputs)
    config = replace(
        config,
        allow_stale=config.allow_stale or options.allow_stale,
        allow_empty=config.allow_empty or options.allow_empty,
        id=options.id or config.id,
    )
    return mix(config, workers=options.workers, progress=options.progress, overwrite=options.overwrite)


def _refuse(options: Filter, names: Sequence[str], what: str) -> None:
    """Raise `ConfigError` for the first given option that applies to another kind of input."""
    for name in names:
        value = getattr(options, name)
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
