"""Create the index of a dataset: the verb `prepare`, which dispatches by the kind of data."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction

from feedmill.errors import ConfigError
from feedmill.indexing.prepare_jsonl import prepare_jsonl
from feedmill.indexing.prepare_tars import prepare_tars
from feedmill.indexing.report import PrepareReport
from feedmill.jobs.dry_run import can_run_dry
from feedmill.jobs.policy import RAISE, OnError, on_error_policy, skips
from feedmill.samples.media import MediaFilter
from feedmill.storage import is_local_file, is_local_folder


@can_run_dry
def prepare(
    url: str | os.PathLike[str],
    *,
    split_ratio: Sequence[float | Fraction] | str | None = None,
    split_parts: Sequence[str] = (),
    exclude: str | None = None,
    shuffle_tars: bool = False,
    tar_index_only: bool = False,
    sample_type: str | None = None,
    field_map: Mapping[str, str] | None = None,
    dataset_yaml_name: str = "dataset.yaml",
    media: MediaFilter | None = None,
    shards: Sequence[str] | None = None,
    on_error: OnError = RAISE,
    rescan: bool = False,
    digest: bool = True,
    energon_exact: bool = False,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    workers: int | None = None,
    progress: bool | None = None,
) -> PrepareReport:
    """Index a folder of tar shards (or one JSONL file) so that it opens fast and supports random access.

    For a metadataset or recipe (``.yaml``), prepare its joins. Its datasets must be prepared first.

    Args:
        url: folder, ``.jsonl`` file, or metadataset, local or remote.
        split_ratio: numbers for train, val, test. Without it and `split_parts`, the present splits are kept and new
            shards go to the first of them; a new dataset becomes one split, train.
        split_parts: ``NAME:REGEX`` on shard paths, instead of a ratio.
        exclude: regular expression; shards whose path contains a match are not indexed.
        shuffle_tars: shuffle the shard list (``random.Random(42)``) before dividing it by a ratio; for a JSONL file,
            shuffle blocks of lines.
        tar_index_only: rebuild the index of the shards that it lists; keep splits and description.
        sample_type, field_map: content of ``dataset.yaml``; nothing is written without a sample type.
        media: parts whose media metadata is added to the index.
        shards: index only these (paths in the folder), instead of all.
        on_error: ``"raise"`` for a shard that cannot be read, or ``"skip"``: report it and index the others.
        rescan: read all shards again, including unchanged ones.
        digest: hash each shard, so that `check` can tell whether it changed.
        energon_exact: order and cut shards as Energon does, instead of keeping the numbers of known shards.
        dry_run: write nothing; the report has what would be written. Archives are read, but not hashed.
        workers: threads for scanning.

    Raises:
        DataError: a shard cannot be indexed, a key occurs twice, or the job that wrote the dataset was interrupted.
        ConfigError: splits or description are invalid for this data.
        NotFound, StorageError: the folder is missing, empty, or cannot be written.
    """
    url = os.fspath(url)
    began = time.perf_counter()
    folder = is_local_folder(url)
    if url.endswith(".jsonl") and not folder:
        report = prepare_jsonl(
            url,
            split_ratio=split_ratio,
            shuffle=shuffle_tars,
            energon_exact=energon_exact,
            split_parts=split_parts,
            exclude=exclude,
            tar_index_only=tar_index_only,
            sample_type=sample_type,
            field_map=field_map,
            media=media,
        )
    elif url.endswith((".yaml", ".yml")) and not folder:
        from feedmill.indexing.prepare_joins import prepare_joins  # imported here because it loads the planning room

        report = PrepareReport(url)
        report.joins, report.samples, report.warnings = prepare_joins(url)
    elif is_local_file(url):
        raise ConfigError(
            "unsupported kind of file: expected a folder of tar shards, a .jsonl file or a metadataset (.yaml)",
            file=url,
            kind="unknown-format",
            fix="For a tar, give its folder. Token files and datasets of other tools need no preparation.",
        )
    else:
        report = prepare_tars(
            url,
            split_ratio=split_ratio,
            split_parts=split_parts,
            exclude=exclude,
            shuffle_tars=shuffle_tars,
            tar_index_only=tar_index_only,
            sample_type=sample_type,
            field_map=field_map,
            dataset_yaml_name=dataset_yaml_name,
            media=media,
            shards=shards,
            skip_bad_shards=skips(on_error_policy(on_error)),
            rescan=rescan,
            digest=digest,
            energon_exact=energon_exact,
            workers=workers,
            progress=progress,
        )
    report.seconds = time.perf_counter() - began
    return report
