"""Create the index of a dataset: the verb `prepare`, which dispatches by the kind of data."""

from __future__ import annotations

import os
import time

from feedmill.errors import ConfigError
from feedmill.indexing.options import Prepare
from feedmill.indexing.prepare_jsonl import prepare_jsonl
from feedmill.indexing.prepare_tars import prepare_tars
from feedmill.indexing.report import PrepareReport
from feedmill.jobs.options import verb
from feedmill.samples.media import MediaFilter  # noqa: F401 - type of an option, which `verb` looks up here
from feedmill.storage import is_local_file, is_local_folder


@verb(Prepare)
def prepare(options: Prepare) -> PrepareReport:
    """An indexed dataset opens fast and supports random access. For a metadataset or recipe (``.yaml``), prepare its
    joins; its datasets must be prepared first. A dry run reads the archives, but does not hash them.

    Raises:
        DataError: a shard cannot be indexed, a key occurs twice, or the job that wrote the dataset was interrupted.
        ConfigError: splits or description are invalid for this data.
        NotFound, StorageError: the folder is missing, empty, or cannot be written.
    """
    url = os.fspath(options.url)
    began = time.perf_counter()
    folder = is_local_folder(url)
    if url.endswith(".jsonl") and not folder:
        report = prepare_jsonl(url, options)
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
        report = prepare_tars(url, options)
    report.seconds = time.perf_counter() - began
    return report
