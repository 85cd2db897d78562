"""`feedmill.convert`: a dataset in one format becomes the same dataset in another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from feedmill.converting.engine import Conversion, ConvertReport, begin, finished, perform
from feedmill.converting.job import ConvertWork, place_of
from feedmill.converting.losses import unread
from feedmill.converting.preview import Options, Preview, check_places
from feedmill.converting.staging import is_staged, refuse_present, settled, stage
from feedmill.converting.table import ROWS, SAMPLES, check_target, family, is_one_file
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.documents import LINE_SUFFIXES
from feedmill.formats.registry import ends as file_ends
from feedmill.formats.registry import targets
from feedmill.jobs.policy import RAISE, OnError, check_budget, on_error_policy, renamed_parameters, skips
from feedmill.storage import is_local_folder
from feedmill.storage.limits import parse_size


@renamed_parameters(max_bad="error_budget", said="on_preview")
def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    to: str,
    *,
    split: str | None = None,
    fields: Sequence[str] = (),
    samples_per_shard: int | None = None,
    shard_size: int | str | None = None,
    token_size: int | None = None,
    seq_len: int | None = None,
    wids: bool = False,
    allow_loss: bool = False,
    on_error: OnError = RAISE,
    error_budget: float | None = None,
    overwrite: bool = False,
    verify: bool = True,
    workers: int | None = None,
    progress: bool = True,
    plan_only: bool = False,
    on_preview: Callable[[Preview], None] | None = None,
) -> ConvertReport:
    """Convert a dataset: samples, tokens, or rows of text.

    The bytes do not depend on `workers`. Killed at any moment, the same call finishes the job: whole outputs stay. What
    was written is read back by its own reader, and each sample's hash compared with the source's.

    Args:
        source: a dataset in any readable format; path or URL.
        destination: where to; a folder or a file, as the format wants it.
        to: the format, see `feedmill.converting.table`.
        split: take this split only.
        fields: take only these parts or columns; names or patterns (``*.json``).
        samples_per_shard, shard_size: an output ends before it has more samples (10,000 by default, 100,000 rows of a
            table), or more bytes of the source (a number, or text such as ``"1G"``).
        token_size: bytes per token, where it should not be that of the source.
        seq_len: for ``vla-text``, the sequence length of the training program.
        wids: write an index ``wids.json`` beside plain tars.
        allow_loss: convert although the format has no place for some of the content.
        on_error: ``raise`` at a sample that cannot be converted, or ``skip`` it and list it.
        error_budget: stop when more samples than these were skipped: a number or, below 1, a share of those read.
        overwrite: replace what an earlier conversion has written there; on a local disk that stays until the new
            result is whole and proved.
        verify: read the destination back and compare.
        workers: processes; one per core by default.
        progress: show a bar on a terminal.
        plan_only: only say what would be done.
        on_preview: called with the preview before anything is written.

    Raises:
        ConfigError: there is no such conversion, content would be lost, or something else is at the destination.
        DataError: a sample cannot be converted, or what was written is not what was read.
    """
    options = Options(
        split=split,
        fields=tuple(fields),
        samples_per_shard=samples_per_shard,
        shard_size=parse_size(shard_size),
        token_size=token_size,
        seq_len=seq_len,
        wids=wids,
        allow_loss=allow_loss,
        on_error=on_error_policy(on_error),
        error_budget=error_budget,
        overwrite=overwrite,
        verify=verify,
        workers=workers,
        progress=progress,
    )
    check_target(to)
    _check_options(to, options)
    return _convert(os.fspath(source), os.fspath(destination), to, options, plan_only, on_preview)


def _convert(
    source: str,
    destination: str,
    to: str,
    options: Options,
    plan_only: bool,
    on_preview: Callable[[Preview], None] | None,
) -> ConvertReport:
    check_places(source, destination)
    kind = kind_of(source)
    family(kind, to, source)
    _check_destination(destination, to)
    is_file = is_one_file(destination, to)
    with ConvertWork(destination, is_file=is_file) as work:
        overwrite = options.overwrite and not settled(work)
        if not plan_only:
            refuse_present(work, destination, overwrite=options.overwrite, is_file=is_file)
        staged = not plan_only and is_staged(work, destination, overwrite=options.overwrite, is_file=is_file)
        place = stage(work).locate(place_of(destination, is_file=is_file)[1]) if staged else destination
        conversion = _planned(source, place, to, kind, options, work)
        conversion.plan.destination, conversion.staged = destination, staged
        if on_preview is not None:
            on_preview(conversion.plan)
        if plan_only:
            return ConvertReport(conversion.plan)
        conversion.plan.allow(allow_loss=options.allow_loss)
        done = finished(work, conversion, replace(options, overwrite=overwrite))
        if done is not None:
            return done
        begin(work, conversion, options)
        return perform(work, conversion, options)


def _planned(source: str, destination: str, to: str, kind: str, options: Options, work: ConvertWork) -> Conversion:
    """Return the conversion, its plan with what is lost and what is not read."""
    conversion = _family(source, destination, to, kind, options, work)
    if options.split is None:  # else most of it is left out because that is asked for
        conversion.plan.losses += unread(source, kind, conversion.dataset)
    return conversion


def _family(source: str, destination: str, to: str, kind: str, options: Options, work: ConvertWork) -> Conversion:
    which = family(kind, to, source)
    if targets()[to].form == "table":
        load_pyarrow()
    if which == SAMPLES:
        from feedmill.converting.samples import plan_samples

        return plan_samples(source, destination, to, kind, options, work)
    if which == ROWS:
        from feedmill.converting.rows import plan_rows

        return plan_rows(source, destination, to, kind, options, work)
    from feedmill.converting.tokens import plan_tokens

    return plan_tokens(source, destination, to, kind, options, work)


def _check_options(to: str, options: Options) -> None:
    """Refuse options that are invalid, or would do nothing: whoever asked for them would believe that it was done."""
    samples, size = options.samples_per_shard, options.shard_size
    if any(most is not None and most < 1 for most in (samples, size)):
        raise ConfigError(
            f"shards of {samples} samples or {size} bytes, where at least 1 was expected",
            kind="bad-option",
            fix="Give larger limits.",
        )
    check_budget(options.error_budget, "--error-budget")
    for option, given, does, belongs in (
        *(_of_target(to, name, getattr(options, name)) for name in ("seq_len", "token_size", "wids")),
        ("--error-budget", options.error_budget is not None, skips(options.on_error), "--on-error skip"),
    ):
        if given and not does:
            raise ConfigError(f"{option} goes with {belongs}", kind="bad-option", fix="Leave it out, or add that.")


def _of_target(to: str, name: str, value: Any) -> tuple[str, bool, bool, str]:
    """Option, whether it is given, whether it does something for this target, and for which it does."""
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
        kind="bad-destination",
        fix=f"Name a folder, or a file that ends in '.{to}'." if file else "Name a folder.",
    )


def kind_of(source: str) -> str:
    """Return the kind of a source, as the table of conversions has it.

    Raises:
        NotFound: nothing that is known is there.
    """
    from feedmill.converting.lines import is_tree
    from feedmill.converting.tokens import is_megatron_folder
    from feedmill.formats.sniff import sniff

    plain = (".jsonl", ".json")  # which may be datasets with an index
    if source.endswith(LINE_SUFFIXES) and not source.endswith(plain) and not is_local_folder(source):
        return "documents"
    try:
        return sniff(source).kind
    except NotFound as error:
        if error.kind == "unknown-format" and is_megatron_folder(source):
            return "megatron"
        if error.kind == "unknown-format" and is_tree(source):
            return "documents"
        raise
