"""The verb ``filter``: filter documents by attributes, or token files by length and number."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import is_alone
from feedmill.jobs.options import AllowStale, Arg, Flag, Ids, Opt, Path, Paths, PythonOnly, call, verb
from feedmill.tokens.options import Passing

if TYPE_CHECKING:
    from feedmill.curation.mix.config import FilterConfig
    from feedmill.documents.file import DocumentFile

_DATA = (".pbin", ".ds", ".idx", ".bin", ".npy", ".jsonl")


class Filter(Passing, AllowStale, Ids):
    """Write the documents that pass: by attributes (CONFIG or --preset), or from token files and JSONL files by length.

    A CONFIG can also replace spans of text, and sample and merge streams; see docs/filter.md. Attributes that presets
    need are computed first.
    """

    inputs: Annotated[
        Paths | Path | Mapping[str, Any] | FilterConfig,
        Arg(
            "CONFIG | INPUT... OUTPUT",
            "A configuration for documents with attributes; with --preset documents, otherwise token or JSONL files,"
            " and then the output.",
            more="In Python a configuration is its path or URL, its content, or a `feedmill.documents.FilterConfig`.",
        ),
    ]
    output: Annotated[
        Path | None, PythonOnly("The file to write, with `preset` the folder; None with a configuration.")
    ] = None
    _: KW_ONLY
    preset: Annotated[
        Sequence[str] | None,
        Opt("NAME", "Filter documents by published rules (gopher, c4, fineweb) or by duplicates; repeatable."),
    ] = None
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
    computed: tuple[str, ...] = ()
    if options.preset:
        inputs, computed = _by_presets(inputs, options)
    elif options.output is not None:
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

    config = configured(inputs)
    config = replace(
        config,
        allow_stale=config.allow_stale or options.allow_stale,
        allow_empty=config.allow_empty or options.allow_empty,
        id=options.id or config.id,
    )
    report = mix(config, workers=options.workers, progress=options.progress, overwrite=options.overwrite)
    report.computed = list(computed)
    return report


def _refuse(options: Filter, names: Sequence[str], what: str) -> None:
    """Raise `ConfigError` for the first given option that applies to another kind of input."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is for {what}", kind="bad-option", fix="Omit it. See docs/filter.md.")


def _by_presets(inputs: Any, options: Filter) -> tuple[FilterConfig, tuple[str, ...]]:
    """Return the configuration of documents, an output folder and presets: one stream, named like its dataset.

    It has the attribute sets beside the documents that the rules need. Those that do not exist are computed, and
    returned too; except in a part of a job array, in which each verb is a job of its own.
    """
    from feedmill.curation.mix.config import FilterConfig, Stream
    from feedmill.curation.mix.names import sets_beside, sets_with
    from feedmill.storage import canonical_location

    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    if options.output is None or not isinstance(inputs, Sequence):
        raise ConfigError(
            "--preset is for documents and an output folder",
            kind="bad-option",
            fix="Pass them: feedmill filter DOCUMENTS... OUTPUT --preset NAME. In a configuration, write 'presets'.",
        )
    documents = [os.fspath(path) for path in inputs]
    found = of_presets(documents, options.preset or (), options.id)
    if found.missing and is_alone():
        _compute(found.missing, documents, options)
        if (dry := active()) is None:
            sets, _ = sets_with(found.rules, found.files, sets_beside(found.files))
            found = found._replace(sets=sets)
        else:
            found = found._replace(rules=tuple(rule for rule in found.rules if not rule.startswith(found.missing)))
            shown = ", ".join(found.missing)
            dry.warnings.append(f"the rules of {shown} are not tried: the attributes do not exist yet")
    stream = Stream(
        name=canonical_location(found.files[0].folder or ".").rstrip("/").rpartition("/")[2] or "documents",
        documents=tuple(documents),
        output=os.fspath(options.output),
        attributes=found.sets,
        keep=found.rules,
        discard=("attributes",),
    )
    return FilterConfig(streams=(stream,)), found.missing


class OfPresets(NamedTuple):
    """Documents, the rules of presets, the attribute sets that these need, and those that must be computed first."""

    files: list[DocumentFile]
    rules: tuple[str, ...]
    sets: tuple[str, ...]
    missing: tuple[str, ...]


def of_presets(documents: Sequence[str], presets: str | Sequence[str], id: str | None) -> OfPresets:
    """Return what presets mean for documents. Raises `ConfigError` and `NotFound`."""
    from feedmill.curation.mix.limits import MARKS, preset
    from feedmill.curation.mix.names import sets_beside, sets_with
    from feedmill.documents.find import find_in_datasets

    names = (presets,) if isinstance(presets, str) else presets
    files = find_in_datasets(documents, [], id=id)
    known = sets_beside(files)
    marks = [mark for mark in MARKS if mark in known] or MARKS[:1]
    rules = tuple(dict.fromkeys(rule for name in names for rule in preset(name, "--preset", marks=marks)))
    return OfPresets(files, rules, *sets_with(rules, files, known))


def _compute(missing: Sequence[str], documents: Sequence[str], options: Filter) -> None:
    """Mark the copies, or run the taggers, of which rules need the attributes."""
    from feedmill.curation.dedupe.job import dedupe
    from feedmill.curation.mix.limits import MARKS
    from feedmill.curation.tag import tag

    given: dict[str, Any] = {"id": options.id, "allow_empty": options.allow_empty, "progress": options.progress}
    if MARKS[0] in missing:
        dedupe(documents, workers=options.workers, **given)
    if taggers := [name for name in missing if name not in MARKS]:
        tag(documents, taggers, workers=options.workers, **given)


def configured(inputs: Any) -> FilterConfig:
    """Return a configuration from itself, its content, or its path or URL. Raises `ConfigError`."""
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
