"""``feedmill filter``: keep or drop documents by attributes, or by length and index."""

from __future__ import annotations

from typing import Any

from feedmill.cli.command import command
from feedmill.cli.output import emit, emit_report, show_documents, show_written
from feedmill.filtering import Filter
from feedmill.jobs.options import call


@command(Filter, engines=True)
def filter(options: Filter, json: bool) -> None:
    from feedmill.filtering import filter as run

    paths: Any = options.inputs
    *inputs, output = paths
    if not inputs:
        documents: Any = call(run, options, inputs=output)
        emit(documents.as_dict(), json, lambda: show_documents(documents))
        return
    report: Any = call(run, options, inputs=inputs, output=output)
    emit_report(report, json, lambda: show_written(report))
