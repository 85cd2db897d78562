"""`feedmill.convert`: convert a dataset from one format to another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedmill.converting.engine import Conversion, ConvertReport, begin, finished, perform
from feedmill.converting.job import ConvertWork
from feedmill.converting.losses import unread
from feedmill.converting.options import Convert
from feedmill.converting.preview import Preview, check_places
from feedmill.converting.table import ROWS, SAMPLES, check_target, family, is_one_file
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.registry import ends as file_ends
from feedmill.formats.registry import targets
from feedmill.jobs.dry_run import DryRun, active
from feedmill.jobs.options import verb
from feedmill.jobs.policy import check_budget, on_error_policy, skips
from feedmill.storage import is_local_folder, open_store, split_url
from feedmill.storage.limits import parse_size


@verb(Convert)
def convert(options: Convert) -> ConvertReport:
    """The output does not depend on `workers`. Outputs are read back by the reader of their format, and each sample's
    hash is compared with the source's.

    Raises:
        ConfigError: the conversion is not supported, content would be lost, or the destination holds other data.
        DataError: a sample cannot be converted, or the output differs from the source.
    """
    on_preview = options.on_preview
    options = replace(
        options,
        fields=(options.fields,) if isinstance(options.fields, str) else tuple(options.fields),
        max_shard_size=parse_size(options.max_shard_size),
        on_error=on_error_policy(options.on_error),
        on_preview=None,  # other processes need not have it
    )
    check_target(options.to)
    _check_options(options.to, options)
    return _convert(os.fspath(options.source), os.fspath(options.destination), options, on_preview)


def _convert(
    source: str, destination: str, options: Convert, on_preview: Callable[[Preview], None] | None
) -> ConvertReport:
    to = options.to
    check_places(source, destination)
    kind = kind_of(source)
    family(kind, to, source)
    _check_destination(destination, to)
    is_file, dry = is_one_file(destination, to), active()
    with ConvertWork(destination, is_file=is_file) as work:
        overwrite = options.overwrite and not work.finish_interrupted()
        work.refuse_present(overwrite=options.overwrite)
        staged = dry is None and work.is_staged(overwrite=options.overwrite)
        place = work.staging.locate(work.name) if staged else destination
        conversion = _planned(source, place, to, kind, options, work)
        conversion.plan.destination, conversion.staged = destination, staged
        if on_preview is not None:
            on_preview(conversion.plan)
        conversion.plan.allow(allow_loss=options.allow_loss)
        done = finished(work, conversion, replace(options, overwrite=overwrite))
        if done is not None:
            return done
        if dry is not None:
            return _described(dry, conversion.plan, is_file=is_file)
        begin(work, conversion, options)
        return perform(work, conversion, options)


def _described(dry: DryRun, plan: Preview, *, is_file: bool) -> ConvertReport:
    """Add the destination and the losses to a dry run."""
    folder, name = split_url(plan.destination) if is_file else (plan.destination, "/")
    dry.writes(open_store(folder), name)
    dry.counts |= {name: count for name, count in ((plan.family, plan.count), ("files", plan.outputs)) if count}
    return ConvertReport(plan)


def _planned(source: str, destination: str, to: str, kind: str, options: Convert, work: ConvertWork) -> Conversion:
    """Return the conversion. Its plan lists losses and files that are not read."""
    try:
        conversion = _family(source, destination, to, kind, options, work)
    except ConfigError as error:
        error.file = error.file or source
        raise
    if options.split is None:  # with a split, most files are skipped on purpose
        conversion.plan.losses += unread(source, kind, conversion.dataset)
    return conversion


def _family(source: str, destination: str, to: str, kind: str, options: Convert, work: ConvertWork) -> Conversion:
    which = family(kind, to, source)
    if options.regroup and which != SAMPLES:
        raise ConfigError(
            f"--regroup brings together the samples of tars, and this is {kind}",
            file=source,
            kind="bad-option",
            fix="Leave it out.",
        )
    if targets()[to].form == "table":
        load_pyarrow()
    if targets()[to].form == "episodes":
        from feedmill.converting.episodes import plan_episodes

        return plan_episodes(source, destination, kind, options, work)
    if which == SAMPLES:
        from feedmill.converting.samples import plan_samples

        return plan_samples(source, destination, to, kind, options, work)
    if which == ROWS:
        from feedmill.converting.rows import plan_rows

        return plan_rows(source, destination, to, kind, options, work)
    from feedmill.converting.tokens import plan_tokens

    return plan_tokens(source, destination, to, kind, options, work)


def _check_options(to: str, options: Convert) -> None:
    """Raise `ConfigError` for options that are invalid or have no effect on this conversion."""
    samples, size = options.max_shard_samples, options.shard_bytes
    if any(most is not None and most < 1 for most in (samples, size)):
        raise ConfigError(
            f"shards of {samples} samples or {size} bytes, where at least 1 was expected",
            kind="bad-option",
            fix="Set both limits to at least 1.",
        )
    check_budget(options.error_budget, "--error-budget")
    for option, given, does, belongs in (
        *(_of_target(to, name, getattr(options, name)) for name in ("seq_len", "token_size", "fps", "videos", "wids")),
        ("--error-budget", options.error_budget is not None, skips(options.on_error), "--on-error skip"),
    ):
        if given and not does:
            raise ConfigError(
                f"{option} requires {belongs}", kind="bad-option", fix="Remove the first, or add the second."
            )


def _of_target(to: str, name: str, value: Any) -> tuple[str, bool, bool, str]:
    """Return the option, whether it is given, whether it applies to target `to`, and the targets it applies to."""
    belongs = ", ".join(target.name for target in targets().values() if name in target.options)
    given = value is not None and value is not False
    return f"--{name.replace('_', '-')}", given, name in targets()[to].options, f"--to {belongs}"


def _check_destination(destination: str, to: str) -> None:
    ends = {*file_ends("files"), *(f".{target.name}" for target in targets().values() if target.is_file)}
    ending = max((end for end in ends if destination.endswith(end)), key=len, default="")
    if not ending or is_one_file(destination, to) or (ending == f".{to}" and targets()[to].form == "shards"):
        return
    file = targets()[to].is_file
    raise ConfigError(
        f"the destination ends in {ending!r}, "
        + (f"which is not {to}" if file else f"and {to} is written to a folder"),
        file=destination,
        kind="bad-option",
        fix=f"Name a folder, or a file that ends in '.{to}'." if file else "Name a folder.",
    )


def kind_of(source: str) -> str:
    """Return the kind of a source, as named in the table of conversions.

    Raises:
        NotFound: no known format was found at `source`.
    """
    from feedmill.converting.lines import is_tree
    from feedmill.formats.sniff import sniff

    plain = (".jsonl", ".json")  # these may be datasets with an index
    if source.endswith(LINE_SUFFIXES) and not source.endswith(plain) and not is_local_folder(source):
        return "documents"
    try:
        return sniff(source).kind
    except NotFound as error:
        if error.kind == "unknown-format" and is_tree(source):
            return "documents"
        raise
